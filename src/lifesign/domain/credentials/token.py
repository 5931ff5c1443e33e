"""OAuth 2: the request for a token, and what is accepted as its answer (RFC 6749 4.4 and 5, RFC 8707)."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Final, TypeGuard
from urllib.parse import quote, urlencode

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.secret import secret_fault

DEFAULT_LIFETIME_S: Final = 300.0
"""Lifetime of a token whose answer has no `expires_in`."""
MIN_LIFETIME_S: Final = 10.0
"""Minimum time for which a token is used, so that a token endpoint is not called before each probe."""
MAX_LIFETIME_S: Final = 86_400.0
"""A token is renewed after a day, whatever lifetime its answer states."""
EARLY_RATIO: Final = 0.1
"""Share of its lifetime by which a token is renewed early: the first requests for a new one may fail."""
MAX_EARLY_S: Final = 60.0
MIN_TOKEN_CHARS: Final = 16
"""A shorter one is no secret, and may be a word of the answers from which it is removed."""
MAX_TOKEN_CHARS: Final = 8192
MAX_LIFETIME_DIGITS: Final = 12
JWT_BEARER: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ERROR_CODES: Final = frozenset({
    "access_denied", "invalid_client", "invalid_grant", "invalid_request", "invalid_scope", "invalid_target",
    "server_error", "temporarily_unavailable", "unauthorized_client", "unsupported_grant_type",
})  # fmt: skip
"""Error codes that a fault quotes. Any other text may be a secret that the token endpoint sent back."""

_TOKEN_CHARACTERS: Final = frozenset(map(chr, range(0x21, 0x7F)))
_OK: Final = 200
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500


class TokenFaultKind(StrEnum):
    """Kind of reason why no access token was obtained."""

    NO_ANSWER = "no_answer"
    """The token endpoint gave no whole answer, or redirected."""
    SERVER_ERROR = "server_error"
    """The token endpoint answered with a status of 500 or more, or with 429."""
    REFUSED = "refused"
    """The token endpoint answered with any other status than 200."""
    NOT_JSON = "not_json"
    """The answer is no JSON object: a page for people, for example."""
    TOKEN_TYPE = "token_type"  # noqa: S105 - a kind of fault
    """The token is not a bearer token."""
    TOKEN_FORM = "token_form"  # noqa: S105 - a kind of fault
    """The token is missing, too short or too long, or has characters that no header may have."""
    LIFETIME = "lifetime"
    """`expires_in` is no number of seconds above 0."""
    TOKEN_FILE = "token_file"  # noqa: S105 - a kind of fault
    """The file with the refresh token cannot be read, or another process uses it."""


@fast_dataclass(kw_only=True)
class TokenFault:
    """Details of why no access token was obtained. Never contains a token."""

    kind: TokenFaultKind
    reason: str
    """For people."""
    retry_after_s: float | None = None
    """Wait that the token endpoint requested."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


@fast_dataclass(kw_only=True)
class AccessToken:
    """An OAuth access token, and how long to use it. Its repr does not show the token."""

    value: str = field(repr=False)
    renew_after_s: float
    """Seconds from the answer until a new token is requested."""
    lifetime_s: float
    """Seconds from the answer until it is no longer sent, even if there is no new one."""


def token_form(
    grant: Mapping[str, str], *, scope: str | None = None, resource: str | None = None
) -> dict[str, str]:
    """Return the form fields of a token request. `grant` contains `grant_type` and its own fields."""
    optional = {"scope": scope, "resource": resource}
    return {**grant, **{name: value for name, value in optional.items() if value is not None}}


def form_body(fields: Mapping[str, str]) -> bytes:
    """Return form fields as an `application/x-www-form-urlencoded` body."""
    return urlencode(fields).encode("ascii")


def basic_client(client_id: str, secret: str) -> str:
    """Return the `Authorization` header with a client's id and secret (RFC 6749 2.3.1).

    Each part is form-encoded, with %20 for a space: some servers do not read a plus as one.
    """
    return f"Basic {client_pair(client_id, secret)}"


def client_pair(client_id: str, secret: str) -> str:
    """Return a client's id and secret in the encoding of the HTTP scheme Basic."""
    pair = ":".join(quote(part, safe="") for part in (client_id, secret))
    return b64encode(pair.encode()).decode()


def read_token(status: int, answer: Any, retry_after_s: float | None = None) -> AccessToken | TokenFault:
    """Return the access token in a token endpoint's answer, or why there is none. `answer`: parsed JSON."""
    members = answer if isinstance(answer, dict) else None
    if status != _OK:
        reason = f"HTTP {status}{_error_text(members)}"
        is_of_provider = status >= _SERVER_ERROR or status == _TOO_MANY
        fault_kind = TokenFaultKind.SERVER_ERROR if is_of_provider else TokenFaultKind.REFUSED
        return TokenFault(kind=fault_kind, reason=reason, retry_after_s=retry_after_s)
    if members is None:
        return TokenFault(kind=TokenFaultKind.NOT_JSON, reason="the answer is no JSON object")
    kind, value = members.get("token_type"), members.get("access_token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        return TokenFault(kind=TokenFaultKind.TOKEN_TYPE, reason="token_type is not Bearer")
    if not is_token(value):
        expected = f"{MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} printable ASCII characters without spaces"
        return TokenFault(kind=TokenFaultKind.TOKEN_FORM, reason=f"access_token is not a text of {expected}")
    stated = members.get("expires_in")
    lifetime_s = DEFAULT_LIFETIME_S if stated is None else _seconds(stated)
    if lifetime_s is None:
        reason = "expires_in is not a number of seconds above 0"
        return TokenFault(kind=TokenFaultKind.LIFETIME, reason=reason)
    early_s = min(MAX_EARLY_S, lifetime_s * EARLY_RATIO)
    return AccessToken(
        value=value,
        renew_after_s=min(MAX_LIFETIME_S, max(MIN_LIFETIME_S, lifetime_s - early_s)),
        lifetime_s=max(MIN_LIFETIME_S, lifetime_s),
    )


def rotated_token(answer: Any, former: str) -> str | None:
    """Return the new refresh token in an answer; None if it contains none, or the former one."""
    value = answer.get("refresh_token") if isinstance(answer, dict) else None
    return value if isinstance(value, str) and value not in {"", former} else None


def refresh_token_fault(token: str) -> str | None:
    """Return the rule that a refresh token breaks; None if it can be stored in a file.

    It may contain spaces (RFC 6749 A.17), but a file is read without those at its ends.
    """
    return secret_fault(token) or (None if token == token.strip() else "a secret without spaces at its ends")


def is_token(value: Any) -> TypeGuard[str]:
    """Return whether a value is a text that can be sent as a token."""
    return (
        isinstance(value, str)
        and MIN_TOKEN_CHARS <= len(value) <= MAX_TOKEN_CHARS
        and _TOKEN_CHARACTERS.issuperset(value)
    )


def _seconds(value: Any) -> float | None:
    """Return a lifetime; some servers write it as a text. None for anything else, and for 0 or less."""
    if isinstance(value, str) and len(value) <= MAX_LIFETIME_DIGITS and value.isascii() and value.isdigit():
        value = int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return min(2 * MAX_LIFETIME_S, value) if is_number and value > 0 else None


def _error_text(members: Mapping[str, Any] | None) -> str:
    """Return the error code of an answer (RFC 6749 5.2) if it is a known one."""
    error = None if members is None else members.get("error")
    return f", {error}" if isinstance(error, str) and error in ERROR_CODES else ""
