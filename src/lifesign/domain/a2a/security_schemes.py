"""Security schemes of an agent card: the kinds of login that an agent says it accepts (A2A 1.0, 4.5.1).

A scheme has a text of one line, such as `http bearer` or `apiKey header X-API-Key`. What a card says beside
that, such as the URLs of an OAuth provider, is not read here.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field

MAX_SCHEMES: Final = 8
"""Schemes of a card that are kept."""
MAX_READ_SCHEMES: Final = 64
"""Schemes of a card that are read."""

# The member of a 1.0 scheme that says its type, and that type in 0.x.
SCHEME_TYPES: Final[Mapping[str, str]] = MappingProxyType({
    "apiKeySecurityScheme":        "apiKey",
    "httpAuthSecurityScheme":      "http",
    "oauth2SecurityScheme":        "oauth2",
    "openIdConnectSecurityScheme": "openIdConnect",
    "mtlsSecurityScheme":          "mutualTLS",
})  # fmt: skip

_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]"
SCHEME_PATTERN: Final = (
    rf"^(?:oauth2|openIdConnect|mutualTLS|http {_NAME}{{1,32}}"
    rf"|apiKey (?:header|query|cookie) {_NAME}{{1,64}})$"
)
SchemeText = Annotated[str, Field(pattern=SCHEME_PATTERN)]
_SCHEME: Final = re.compile(SCHEME_PATTERN)


def security_schemes(members: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the security schemes of a card, each once, without unknown types and invalid names."""
    # In lower case, other letters than ASCII may become ASCII.
    texts = (_in_lower_case(text) for text in _texts(members) if _SCHEME.fullmatch(text))
    return tuple(islice(dict.fromkeys(texts), MAX_SCHEMES))


def scheme_members(scheme: Mapping[str, Any]) -> tuple[object, Mapping[str, Any]]:
    """Return a security scheme's type, by its name in A2A 0.x, and the members that describe it."""
    for key, kind in SCHEME_TYPES.items():
        inner = scheme.get(key)
        if isinstance(inner, dict):
            return kind, inner
    return scheme.get("type"), scheme


def _in_lower_case(text: str) -> str:
    """Return the text of a scheme with the name of an HTTP scheme in lower case."""
    return text.lower() if text.startswith("http ") else text


def _texts(members: Mapping[str, Any]) -> Iterator[str]:
    newer, older = members.get("securitySchemes"), members.get("authentication")
    if isinstance(newer, dict):
        for scheme in islice(newer.values(), MAX_READ_SCHEMES):
            if isinstance(scheme, dict):
                yield _text(*scheme_members(scheme))
    names = older.get("schemes") if isinstance(older, dict) else None
    if isinstance(names, list):
        # 0.1: names of HTTP schemes.
        yield from (f"http {name}" for name in names[:MAX_READ_SCHEMES] if isinstance(name, str))


def _text(kind: object, members: Mapping[str, Any]) -> str:
    if kind == "http":
        return f"http {members.get('scheme')}"
    if kind == "apiKey":
        return f"apiKey {members.get('in') or members.get('location')} {members.get('name')}"
    return str(kind)
