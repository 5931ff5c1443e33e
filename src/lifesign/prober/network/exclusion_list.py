"""Opt-out lists of operators.

A list names hosts, domains and URLs, one per line. A lookup takes as many steps as the host has labels and
the path has slashes, however long the list is. The prober never contacts what is on the list: not as a
target, not as the address of an interface, and not by a redirect. `opt_out_proof` lets an owner opt out
without an operator's list; `robots_rules` reads what a host itself allows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from lifesign.domain.net.allowed_addresses import AddressRefused
from lifesign.domain.targets.target import host_of, read_target
from lifesign.errors import InvalidValue

MAX_OPT_OUTS: Final = 1_000_000
"""Lines of one list, comments included."""
MAX_SHOWN_CHARS: Final = 80
"""Maximum length of a faulty line in a message."""

_NO_PATHS: Final[Mapping[str, frozenset[str]]] = MappingProxyType({})
_EXPECTED: Final = "a host, a domain with a dot before it, or a URL: agent.example, .example.org, https://…"


@dataclass(frozen=True, slots=True)
class OptOuts:
    """A list of hosts, domains and paths that must not be probed."""

    hosts: frozenset[str] = frozenset()
    """Hosts in lower case, each with all of its ports."""
    domains: frozenset[str] = frozenset()
    """Domains that include all hosts below them, without the leading dot."""
    paths: Mapping[str, frozenset[str]] = field(default_factory=lambda: _NO_PATHS)
    """Excluded paths by host and port, for any scheme; each includes the paths below it."""

    def __len__(self) -> int:
        return len(self.hosts) + len(self.domains) + sum(map(len, self.paths.values()))

    def __or__(self, other: "OptOuts") -> "OptOuts":
        """Return the union of two lists."""
        paths = dict(self.paths)
        for place, more in other.paths.items():
            paths[place] = paths.get(place, frozenset()) | more
        return OptOuts(self.hosts | other.hosts, self.domains | other.domains, MappingProxyType(paths))

    def entry_for(self, url: str) -> str | None:
        """Return the entry because of which a URL must not be probed; None if there is none.

        The URL is spelled as by `read_target`, or by yarl. Its entry is a URL without a scheme if it
        opts out one path.
        """
        host = host_of(url).removesuffix(".")
        if host in self.hosts:
            return host
        if self.domains and (domain := self._domain_of(host)) is not None:
            return f".{domain}"
        return self._path_of(url) if self.paths else None

    def _domain_of(self, host: str) -> str | None:
        while host:
            if host in self.domains:
                return host
            host = host.partition(".")[2]
        return None

    def _path_of(self, url: str) -> str | None:
        place, path = _place_and_path(url)
        closed = self.paths.get(place)
        if closed is None:
            return None
        path, _, query = path.partition("?")
        if query and (whole := f"{path}?{query}") in closed:
            return f"{place}{whole}"
        # The path itself, then each of its parents: with the slash at its end, and without.
        while path:
            if path in closed:
                return f"{place}{path}"
            path = path[:-1] if path.endswith("/") else path[: path.rindex("/") + 1]
        return None


def read_opt_outs(lines: Iterable[str], name: str) -> OptOuts:
    """Read a list of hosts, domains (`.example.org`) and URLs that must not be probed; `#` begins a comment.

    A URL opts out its path and all paths below it, on that host and port, by http and https; without a path,
    the whole host and port. Raise InvalidValue with list and line for anything else: a target whose line was
    ignored would be probed against its owner's will.
    """
    hosts: set[str] = set()
    domains: set[str] = set()
    paths: dict[str, set[str]] = {}
    for number, line in enumerate(lines, 1):
        if number > MAX_OPT_OUTS:
            raise InvalidValue(name, None, f"{MAX_OPT_OUTS} lines or fewer")
        entry = line.partition("#")[0].removeprefix("\ufeff").strip()
        if not entry:
            continue
        is_domain = entry.startswith((".", "*."))
        url = read_target(entry.removeprefix("*").removeprefix(".") if is_domain else entry)
        if isinstance(url, AddressRefused):
            raise _wrong(name, number, entry)
        # Only a name without scheme, port and path excludes the whole host.
        is_host = not {"/", "?"} & {*entry} and (":" not in entry or entry.endswith("]"))
        if is_domain and not is_host:
            raise _wrong(name, number, entry)
        if is_host:
            (domains if is_domain else hosts).add(host_of(url))
        else:
            place, path = _place_and_path(url)
            paths.setdefault(place, set()).add(path)
    return OptOuts(
        frozenset(hosts),
        frozenset(domains),
        MappingProxyType({place: frozenset(found) for place, found in paths.items()}),
    )


def _place_and_path(url: str) -> tuple[str, str]:
    """Return host with port, and path with query, of a URL in its normal form."""
    place, slash, path = url.partition("://")[2].partition("/")
    return place, slash + path or "/"


def _wrong(name: str, number: int, entry: str) -> InvalidValue:
    return InvalidValue(f"{name}, line {number}", entry[:MAX_SHOWN_CHARS], _EXPECTED)
