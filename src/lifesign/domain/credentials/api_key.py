"""API keys: where a request carries one, by the security scheme of the agent card or by the definition.

The card decides only in which part of a request to its own agent the key is sent, never to whom.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from lifesign.domain.common.fast_dataclass import fast_dataclass

DEFAULT_NAME: Final = "X-API-Key"
TRANSPORT_HEADERS: Final = frozenset({
    "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect",
    "host", "if-modified-since", "if-none-match", "keep-alive", "te", "trailer", "transfer-encoding",
    "upgrade", "user-agent",
})  # fmt: skip
"""Headers that the prober sets, or that change how a request is read."""
_OTHER_HEADERS: Final = frozenset({"cookie", "a2a-version", "a2a-extensions"})
"""Headers that hold more than a key, or that the prober sets in a message."""
_KIND: Final = "apiKey"
_NO_COOKIE: Final = frozenset(' ",;\\')


class KeyPlace(StrEnum):
    """Part of a request in which an API key is sent: header, query or cookie."""

    HEADER = "header"
    QUERY = "query"
    COOKIE = "cookie"


@fast_dataclass()
class ApiKeyPlace:
    """Part of a request, and name there, under which an API key is sent."""

    place: KeyPlace
    name: str

    @property
    def text(self) -> str:
        """The place in words."""
        part = "query parameter" if self.place is KeyPlace.QUERY else self.place.value
        return f"the {part} {self.name}"

    def target(self, path_qs: str, key: str) -> str:
        """Return a request's path and query, with the key added if it is sent in the query."""
        if self.place is not KeyPlace.QUERY:
            return path_qs
        mark = "&" if "?" in path_qs else "?"
        return f"{path_qs}{mark}{quote(self.name, safe='')}={quote(key, safe='')}"

    def header(self, key: str) -> tuple[str, str] | None:
        """Return the HTTP header with the key; None if the key is sent in the query."""
        if self.place is KeyPlace.HEADER:
            return self.name, key
        return ("Cookie", f"{self.name}={key}") if self.place is KeyPlace.COOKIE else None


def key_place(card_schemes: Iterable[str], configured: ApiKeyPlace) -> ApiKeyPlace:
    """Return where to send an API key: as the card says, else as configured.

    `card_schemes`: texts such as `apiKey query key` (`a2a/security_schemes.py`).
    """
    for scheme in card_schemes:
        kind, _, rest = scheme.partition(" ")
        place, _, name = rest.partition(" ")
        if kind == _KIND and place in set(KeyPlace) and name and not is_taken(KeyPlace(place), name):
            return ApiKeyPlace(KeyPlace(place), name)
    return configured


def is_taken(place: KeyPlace, name: str) -> bool:
    """Return whether requests need the header of this name for something else than an API key."""
    return place is KeyPlace.HEADER and name.lower() in TRANSPORT_HEADERS | _OTHER_HEADERS


def fits_everywhere(key: str) -> bool:
    """Return whether a key can be sent in a header, a query or a cookie (RFC 6265 4.1.1)."""
    return _NO_COOKIE.isdisjoint(key)
