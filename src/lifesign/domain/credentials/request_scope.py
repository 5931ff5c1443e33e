"""Scope of a credential: which requests of a probe carry it.

A credential belongs to one origin and, if it names a path, to that path and all below it. It is sent over
TLS, or to a private network that the operator allowed.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final
from unicodedata import normalize
from urllib.parse import unquote

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.targets.target import is_on_origin_of, origin_of

MAX_CREDENTIALS: Final = 100
"""Credentials of one prober."""
MAX_CARD_ORIGINS: Final = 100
"""Origins of targets that may name the URLs of one credential, besides its own."""
ORIGIN_PATTERN: Final = r"^https?://[A-Za-z0-9._:\[\]-]{1,270}$"
_ODD_CHARACTERS: Final = frozenset("\\;%?#\ufffd\uff0e\uff0f")
"""Servers interpret a path with these characters differently; U+FFFD stands for bytes that are not UTF-8.

`?` and `#` were percent-encoded: a proxy that decodes them ends the path there.
"""
REJECTED: Final = frozenset({401, 403})
"""Statuses with which a server refuses a credential, or asks for one."""


class Purpose(StrEnum):
    """What a request of a probe is for, such as a card or a message."""

    INTERFACE = "interface"
    """The interface of an agent or an MCP server."""
    ENDPOINT = "endpoint"
    """The URL for requests that the event stream of an MCP server names.

    The answers arrive in the stream, whose sender must have received the secrets of the requests.
    """
    MESSAGE = "message"
    PATH = "path"
    """A path that the definition names."""
    CARD = "card"
    HEALTH = "health"
    """The health document."""
    OTHER = "other"
    """robots.txt, canaries, ownership proofs, directories and metadata."""


class Sending(StrEnum):
    """Whether a credential is sent with each request, only after a refusal, or never."""

    ALWAYS = "always"
    AFTER_REFUSAL = "after_refusal"
    """Only after the answer to the same request without it may have asked for a login."""
    NEVER = "never"


# A public document is measured as the public sees it.
SENDING: Final[Mapping[Purpose, Sending]] = MappingProxyType({
    Purpose.INTERFACE: Sending.ALWAYS,
    Purpose.ENDPOINT:  Sending.ALWAYS,
    Purpose.MESSAGE:   Sending.ALWAYS,
    Purpose.PATH:      Sending.ALWAYS,
    Purpose.CARD:      Sending.AFTER_REFUSAL,
    Purpose.HEALTH:    Sending.AFTER_REFUSAL,
    Purpose.OTHER:     Sending.NEVER,
})  # fmt: skip


@fast_dataclass(kw_only=True)
class CredentialScope:
    """The URLs to which a credential may be sent: an origin and a path, and probes of which targets."""

    name: str
    origin: str
    """Scheme, host and port, such as `https://agents.example`."""
    path: str = "/"
    """Sent to this path and below; without a query."""
    card_origins: tuple[str, ...] = ()
    """Other origins whose targets may name URLs of this one."""

    @property
    def place(self) -> tuple[str, str]:
        """Origin and path of the scope, normalised."""
        return self.origin, self.path.rstrip("/")

    @property
    def target_origins(self) -> tuple[str, ...]:
        """Origins of the targets whose probes may send the credential."""
        return self.origin, *self.card_origins

    def covers(self, url: str) -> bool:
        """Return whether the credential may be sent to a URL.

        A path with dot segments, an encoded slash or a parameter of a segment is covered by the whole origin
        only: servers resolve such paths differently. For the same reason, the URL must have the path of the
        scope as it is written: gateways may look for `/a+b`, but not for `/a%2Bb`.
        """
        if not is_on_origin_of(url, self.origin):
            return False
        scope = self.path.rstrip("/")
        if not scope:
            return True
        return _plain_path(url) is not None and _is_below(_raw_path(url), scope)

    def is_for_target(self, target: str) -> bool:
        """Return whether probes of this target may send the credential to URLs that the target names.

        A target decides which URLs are requested, and where an API key is put. So it must be at one of
        `card_origins`, or at the origin of the credential and not below another path. With a query, it may be
        one of several agents of its path, and speaks for none of the paths below. Its own credential, the one
        that is sent to the URL of the target itself, is for it too.
        """
        if not is_on_origin_of(target, self.origin):
            return any(is_on_origin_of(target, origin) for origin in self.card_origins)
        if "?" in target:
            return False
        return _plain_path(target) is not None and _is_below(self.place[1], _raw_path(target).rstrip("/"))


def scope_for(scopes: Iterable[CredentialScope], url: str) -> CredentialScope | None:
    """Return the scope with the longest path that covers a URL.

    None if none does, or if a server may find the URL at a longer path: one that ignores case, decodes the
    path, resolves dot segments or double slashes, or looks only at the beginning of a path, so that `/bx` is
    the agent of `/b`. The agent behind that path would get the credential of another path.
    """
    of_origin = [scope for scope in scopes if is_on_origin_of(url, scope.origin)]
    if not any(scope.place[1] for scope in of_origin):
        return of_origin[0] if of_origin else None
    path = _plain_path(url)
    if path is None:
        return None
    covering = [scope for scope in of_origin if _is_below(_raw_path(url), scope.place[1])]
    if not covering:
        return None
    longest = max(covering, key=_path_length)
    others = (scope for scope in of_origin if _folded(path).startswith(_folded(scope.place[1])))
    return longest if _path_length(longest) == max(map(_path_length, others)) else None


def _path_length(scope: CredentialScope) -> int:
    return len(scope.place[1])


def _folded(path: str) -> str:
    """Return a path as servers read it that ignore case, and dots and spaces at the end of a segment."""
    return "/".join(segment.rstrip(". ") for segment in path.casefold().split("/"))


class ScopeIndex:
    """Credential scopes by origin, to find quickly the one that covers a URL."""

    def __init__(self, scopes: Iterable[CredentialScope]) -> None:
        self._by_origin: dict[str, list[CredentialScope]] = {}
        self._whole: dict[str, CredentialScope] = {}
        """Origins with one scope, as they are usually spelled: found in a tenth of the time."""
        for scope in scopes:
            self._by_origin.setdefault(origin_of(scope.origin), []).append(scope)
        for of_origin in self._by_origin.values():
            if len(of_origin) == 1 and not of_origin[0].place[1]:
                self._whole[_spelled_origin(of_origin[0].origin)] = of_origin[0]

    def find(self, url: str) -> CredentialScope | None:
        """Return the scope with the longest path that covers a URL; None if none does."""
        if (only := self._whole.get(_spelled_origin(url))) is not None:
            return only
        scopes = self._by_origin.get(origin_of(url))
        return None if scopes is None else scope_for(scopes, url)

    def find_ambiguous(self, url: str) -> CredentialScope | None:
        """Return a scope that covers a URL for some servers only, if `find` returns none; else None."""
        scopes = self._by_origin.get(origin_of(url))
        if scopes is None or self.find(url) is not None:
            return None
        path = _plain_path(url)
        folded = "" if path is None else _folded(path)
        # Below no scope, a path that only begins with that of one needs no credential.
        is_below_one = any(_is_below(_raw_path(url), each.place[1]) for each in scopes)
        is_found = str.startswith if is_below_one else _is_below
        found = (each for each in scopes if path is None or is_found(folded, _folded(each.place[1])))
        return max(found, key=_path_length, default=None)


def _spelled_origin(url: str) -> str:
    """Return the part of a URL before its path."""
    return "/".join(url.split("/", 3)[:3])


def _is_below(path: str, other: str) -> bool:
    """Return whether a path is another one, or below it. The whole origin is an empty path."""
    return path == other or path.startswith(f"{other}/")


def _raw_path(url: str) -> str:
    """Return the path of a URL as it is written."""
    return f"/{url.partition('#')[0].partition('?')[0].partition('://')[2].partition('/')[2]}"


@lru_cache(maxsize=1_024)  # of the targets that are probed at once
def _plain_path(url: str) -> str | None:
    """Return the path of a URL, decoded; None if two servers may read two paths there."""
    path = _raw_path(url)
    slashes = path.count("/")
    path = unquote(path)
    if unquote(path) != path:
        # Some servers decode it again.
        return None
    # Some servers replace characters such as U+2025, which stands for two dots.
    is_odd = not path.isascii() and normalize("NFKC", path) != path
    is_odd = (
        is_odd or not _ODD_CHARACTERS.isdisjoint(path) or not path.isprintable() or path.count("/") != slashes
    )
    # `//` too: many servers merge slashes.
    segments = path.removesuffix("/").split("/")[1:]
    return None if is_odd or any(not segment.strip(". ") for segment in segments) else path
