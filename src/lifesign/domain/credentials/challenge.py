"""Challenges of an answer: the schemes of `WWW-Authenticate` and their parameters (RFC 9110 11.6.1).

The reader is lenient: it never raises, and skips what it cannot read. All counts and lengths are bounded.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass

MAX_FIELDS: Final = 4
"""Header fields that are read."""
MAX_FIELD_CHARS: Final = 2048
"""Length of a field that is read."""
MAX_CHALLENGES: Final = 8
MAX_PARAMETERS: Final = 16
MAX_SCHEME_CHARS: Final = 32
WITH_METADATA: Final = frozenset({"bearer", "dpop"})
"""Schemes of OAuth 2, whose challenges may name metadata (RFC 9728 5.1)."""

_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# A part ends at a comma outside quotes. The alternatives begin with different characters: linear time.
_PART: Final = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL)
_PARAMETER: Final = re.compile(rf"({_WORD})\s*=\s*(.*)", re.DOTALL)
_CHALLENGE: Final = re.compile(rf"({_WORD})(?:\s+(.*))?", re.DOTALL)
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class BearerError(StrEnum):
    """Known reasons why a server rejects a token (RFC 6750 3.1). Other texts may contain secrets."""

    INVALID_REQUEST = "invalid_request"
    INVALID_TOKEN = "invalid_token"  # noqa: S105 - a code
    INSUFFICIENT_SCOPE = "insufficient_scope"


@fast_dataclass()
class Challenge:
    """One authentication scheme that a server offers in `WWW-Authenticate`."""

    scheme: str
    """In lower case, such as `bearer`."""
    parameters: Mapping[str, str]
    """By their names in lower case; the first of each name."""


def read_challenges(fields: Iterable[str]) -> tuple[Challenge, ...]:
    """Return the authentication schemes in these `WWW-Authenticate` fields, in their order."""
    found: list[tuple[str, dict[str, str]]] = []
    for field in list(fields)[:MAX_FIELDS]:
        current: dict[str, str] | None = None
        for part in _PART.findall(field[:MAX_FIELD_CHARS]):
            text = part.strip()
            if (parameter := _PARAMETER.fullmatch(text)) is not None:
                _add(current, parameter)
            elif (challenge := _CHALLENGE.fullmatch(text)) is not None:
                if len(found) == MAX_CHALLENGES:
                    break
                current = {}
                found.append((challenge[1].lower()[:MAX_SCHEME_CHARS], current))
                _add(current, _PARAMETER.fullmatch((challenge[2] or "").strip()))
    return tuple(Challenge(scheme, parameters) for scheme, parameters in found)


def bearer_error(fields: Iterable[str]) -> BearerError | None:
    """Return the server's reason for the rejection of a token; None if it gives none that is known."""
    errors = [each.parameters.get("error") for each in read_challenges(fields) if each.scheme == "bearer"]
    return next((BearerError(error) for error in errors if error in set(BearerError)), None)


def _add(parameters: dict[str, str] | None, found: re.Match[str] | None) -> None:
    """Add a parameter to the challenge before it; without a challenge it is skipped."""
    if parameters is None or found is None or len(parameters) == MAX_PARAMETERS:
        return
    quoted = _QUOTED.fullmatch(found[2])
    value = found[2] if quoted is None else _ESCAPED.sub(r"\1", quoted[1])
    parameters.setdefault(found[1].lower(), value)
