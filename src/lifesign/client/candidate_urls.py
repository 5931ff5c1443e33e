"""Places of an agent's card and its health document.

Several agents may share one origin, each under its own path prefix. The origin's root comes last; its card
and document belong to the root's agent, and to agents that the card names.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from yarl import URL

from lifesign.domain.a2a.agent_card import AgentCard
from lifesign.domain.a2a.announcement import CARD_PATHS, DEFAULT_HEALTH_PATH
from lifesign.domain.a2a.interfaces import MAX_URL_CHARS
from lifesign.domain.net.allowed_addresses import AddressRefused, vet_url
from lifesign.domain.net.public_url import is_address
from lifesign.errors import InvalidValue
from lifesign.http_client.redirects import is_same_origin, parsed, resolve_url

_EXPECTED: Final = (
    f"an absolute http(s) URL of at most {MAX_URL_CHARS} characters, without credentials, "
    "such as https://agent.example"
)
# Most are like this, and need not be taken apart twice.
_PLAIN: Final = re.compile(r"https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:[/?#]|$)")
_NEVER_IN_A_URL: Final = re.compile(r"[\s\\\x00-\x20\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ParsedAgentUrl:
    """URL that was given for an agent, with what it shows about the URLs of card and health document."""

    url: URL
    prefix: str
    """Path prefix of the agent's well-known paths: empty, or `/a/b`. Percent-encoded."""
    is_card: bool
    is_health: bool

    @property
    def base(self) -> str:
        """Origin, path and query of the agent, as far as the given URL shows that it owns them.

        A server may choose the agent by the query.
        """
        query = self.url.raw_query_string
        return f"{self.url.origin()}{self.base_path}{f'?{query}' if query else ''}"

    @property
    def base_path(self) -> str:
        """Path of the agent, as far as the given URL shows that it owns it: empty, or `/a/b`.

        The owner of `/a.json` need not own its folder: many gateways forward all that begins with `/a`. The
        owner of `/a/.json` owns this URL only.
        """
        path = self.url.raw_path
        is_elsewhere = self.is_card and not path.endswith(CARD_PATHS)
        base = path.removesuffix(".json") if is_elsewhere else self.prefix
        return path if base.endswith("/") else base

    def is_at_root(self, card_url: URL) -> bool:
        """Return whether a card is at the root of the origin and the agent is below: it may be another's."""
        return bool(self.prefix) and card_url.raw_path in CARD_PATHS

    @property
    def guessed_card_url(self) -> URL | None:
        """The given URL, if it may be that of a card: anything but a card is ignored there. None if not."""
        is_known = self.is_card or self.is_health
        return None if is_known or not (self.prefix or self.url.raw_query_string) else self.url

    @property
    def card_urls(self) -> tuple[URL, ...]:
        """Possible URLs of the agent's card, in the order in which they are requested."""
        return tuple(self.each_card_url())

    def each_card_url(self) -> Iterator[URL]:
        """Yield the possible URLs of the agent's card one by one, as usually only the first is requested."""
        if self.is_card:
            yield self.url
        for prefix in dict.fromkeys((self.prefix, "")):
            for path in CARD_PATHS:
                url = place_under(self.url, prefix, path)
                if not (self.is_card and url == self.url):
                    yield url
            # The card at the root may be that of another agent.
            if prefix == self.prefix and self.guessed_card_url is not None:
                yield self.guessed_card_url


@dataclass(frozen=True, slots=True)
class CandidateUrl:
    """One URL where the health document may be."""

    url: URL
    is_guess: bool = False
    """The place is only guessed: anything but a health document is ignored."""
    is_root: bool = False
    """True if it is at the origin's root although the agent has a path prefix: it may belong to another
    agent.
    """


@dataclass(frozen=True, slots=True)
class Announced:
    """URL of the health document that a card announces, if it does."""

    url: URL | None
    """Only ever on the card's own origin."""
    elsewhere: str | None
    """Announced place on another origin, which is not used."""
    passed_over: str | None = None
    """Another place that the card names, on its own origin too."""
    is_private: bool = False
    """True if it comes from an unspecified key, which seldom leads to a health document."""


NO_ANNOUNCEMENT: Final = Announced(None, None)

ANOTHERS_CARD: Final = "nothing at this address; the card at the origin's root does not name it"
ANOTHERS_DOCUMENT: Final = (
    "nothing at this address; there is a document at the origin's root, but nothing there names this path"
)


def parse_agent_url(url: str) -> ParsedAgentUrl:
    """Parse the URL of an agent, of its card or of its health document; InvalidValue for any other text."""
    given = _parse(url)
    path = given.raw_path
    for card_path in CARD_PATHS:
        if path.endswith(card_path):
            return ParsedAgentUrl(given, path.removesuffix(card_path), is_card=True, is_health=False)
    if path.endswith(DEFAULT_HEALTH_PATH):
        return ParsedAgentUrl(given, path.removesuffix(DEFAULT_HEALTH_PATH), is_card=False, is_health=True)
    if path.endswith(".json"):
        return ParsedAgentUrl(given, path.rpartition("/")[0], is_card=True, is_health=False)
    return ParsedAgentUrl(given, path.rstrip("/"), is_card=False, is_health=False)


def parse_entered_url(url: str) -> ParsedAgentUrl:
    """Parse a URL that a person entered. Its host must be valid, and may be private.

    Systems also read `127.1`, `0x7f000001` and `2130706433` as an IPv4 address,
    each differently: only one notation is accepted.
    """
    given = parse_agent_url(url)
    vetted, host = vet_url(str(given.url.origin())), given.url.raw_host or ""
    is_no_host = isinstance(vetted, AddressRefused) and vetted.name == "invalid_url"
    # A name may end with a dot; no connection to such an address succeeds.
    if is_no_host or (host.endswith(".") and is_address(host[:-1])):
        raise _refused(url, _without_password(url))
    return given


def _parse(url: object) -> URL:
    if not isinstance(url, str):
        raise InvalidValue("url", url, _EXPECTED)
    # Whatever may be a password must not reach a log.
    shown = _without_password(url)
    if not url.isascii():
        url = _in_ascii(url, shown)
    try:
        given = parsed(url)
        is_meant = given.explicit_port != 0 if _PLAIN.match(url) else _is_absolute(url)
    except ValueError:
        raise _refused(url, shown) from None
    if not is_meant or _NEVER_IN_A_URL.search(url) or len(url) > MAX_URL_CHARS:
        raise _refused(url, shown)
    return given.with_fragment(None) if "#" in url else given


def _without_password(url: str) -> str:
    return url if "@" not in url else "..." + url[url.rindex("@") :]


def _refused(url: str, shown: str) -> InvalidValue:
    """Return the error for an invalid agent URL, by the name of its fault if there is one."""
    vetted = vet_url(url)
    expected = _EXPECTED
    if isinstance(vetted, AddressRefused) and vetted.name == "invalid_url":
        expected = f"the URL of an agent, such as https://agent.example ({vetted.reason})"
    return InvalidValue("url", shown[:MAX_URL_CHARS], expected)


def _in_ascii(url: str, shown: str) -> str:
    """Return a URL with its host in ASCII; InvalidValue if the host is invalid."""
    # Most hosts are, and a check need not pay for it.
    from lifesign.domain.net.international_host import with_ascii_host  # noqa: PLC0415

    spelled = with_ascii_host(url)
    if isinstance(spelled, AddressRefused):
        raise InvalidValue("url", shown[:MAX_URL_CHARS], f"{_EXPECTED} ({spelled.reason})")
    return spelled


def _is_absolute(url: str) -> bool:
    """Return whether a URL has a valid host and port, and no credentials; ValueError if that is unclear."""
    parts = urlsplit(url)
    has_place = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    return has_place and "@" not in parts.netloc


def place_under(origin: URL, prefix: str, path: str) -> URL:
    """Return the URL of `path` below `prefix` on the origin of a URL; both are percent-encoded."""
    return URL(f"{origin.scheme}://{origin.raw_authority}{prefix}{path}", encoded=True)


def server_health_url(endpoint: URL) -> URL:
    """Return the URL of an MCP server's health document: below the parent of the endpoint's path."""
    parent = endpoint.raw_path.rstrip("/").rpartition("/")[0]
    return place_under(endpoint, parent, DEFAULT_HEALTH_PATH)


def root_health_url(endpoint: URL) -> URL:
    """Return the health URL at the root of an endpoint's origin. Another agent's document may be there."""
    return place_under(endpoint, "", DEFAULT_HEALTH_PATH)


def is_named_by(card: AgentCard, given: ParsedAgentUrl) -> bool:
    """Return whether the card names the given URL, or one below it, as its agent's.

    Scheme and port do not matter: behind a proxy cards often have those of the internal address.
    """
    return any(_is_at_or_below(interface.url, given) for interface in card.interfaces)


def is_anothers(card: AgentCard, card_url: URL, given: ParsedAgentUrl) -> bool:
    """Return whether the card at `card_url` may be that of another agent of the same origin."""
    return given.is_at_root(card_url) and not is_named_by(card, given)


def _is_at_or_below(text: str, given: ParsedAgentUrl) -> bool:
    try:
        url = parsed(text)
    except ValueError:
        return False
    return url.raw_host == given.url.raw_host and f"{url.raw_path}/".startswith(f"{given.prefix}/")


def announced_health(card: AgentCard, card_url: URL, status_links: tuple[str, ...]) -> Announced:
    """Return the health URL that a card announces: in its extension, else in the Link header, else elsewhere.

    A Link header that differs from the extension takes precedence: it comes from the server of the document,
    which knows the prefix of the agent.
    """
    health = card.health
    path = None if health is None else health.path
    if path is not None and health is not None and health.source == "extension":
        extension = place_under(card_url, "", path)
        links = [url for link in status_links if (url := resolve_url(card_url, link)) is not None]
        link = next((url for url in links if _is_followed(card_url, url)), extension)
        return Announced(link, None, passed_over=None if link == extension else path)
    linked = [(place, False) for place in status_links]
    private = [] if health is None else [(health.path or health.url or "", True)]
    elsewhere = None
    for place, is_private in (*linked, *private):
        url = resolve_url(card_url, place) if place else None
        if url is None or url.raw_user is not None or url.raw_password is not None:
            continue
        if _is_followed(card_url, url):
            return Announced(url, elsewhere, is_private=is_private)
        elsewhere = elsewhere or place
    return Announced(None, elsewhere)


def _is_followed(card_url: URL, url: URL) -> bool:
    has_credentials = url.raw_user is not None or url.raw_password is not None
    return is_same_origin(card_url, url) and not has_credentials


def health_places(
    given: ParsedAgentUrl, card_url: URL | None, announced: Announced = NO_ANNOUNCEMENT
) -> tuple[CandidateUrl, ...]:
    """Return up to five URLs at which the health document may be, in the order in which to request them.

    `card_url` is the URL at which a card was read, None if none was; `announced` is the URL in it.
    """
    places = [CandidateUrl(given.url)] if given.is_health else []
    origin, prefix = given.url, given.prefix
    is_card_of_root = False
    if card_url is not None:
        origin = card_url
        found = (path for path in CARD_PATHS if card_url.raw_path.endswith(path))
        if path := next(found, None):
            is_card_of_root = bool(prefix) and card_url.raw_path == path
            prefix = prefix if is_card_of_root else card_url.raw_path.removesuffix(path)
    parts = []
    if announced.url is not None:
        parts.append(CandidateUrl(announced.url, is_guess=announced.is_private, is_root=is_card_of_root))
    own = [CandidateUrl(place_under(origin, prefix, DEFAULT_HEALTH_PATH))]
    if not given.is_health and given.url.raw_path.rstrip("/") and not given.url.raw_path.endswith(CARD_PATHS):
        own.append(CandidateUrl(given.url, is_guess=True))
    places += [*own, *parts] if is_card_of_root else [*parts, *own]
    if given.prefix:
        root = place_under(given.url, "", DEFAULT_HEALTH_PATH)
        places.append(CandidateUrl(root, is_guess=True, is_root=True))
    unique: dict[URL, CandidateUrl] = {}
    for place in places:
        unique.setdefault(place.url, place)
    return tuple(unique.values())
