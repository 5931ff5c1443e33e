"""Rules of a host's robots.txt (RFC 9309).

A group of rules for `lifesign-prober` counts, else the group for all robots (`*`). Of two matching patterns
the longer one wins. The standard library's parser takes the first match, knows no wildcards and accepts a
part of the name: it would misread files that follow the RFC.

One rule differs from the RFC. If robots.txt cannot be fetched, or fails with 5xx, the RFC requires "complete
disallow" (2.3.1.4), which keeps a crawler from copying pages whose rules it cannot read. The prober requests
two small documents that are meant for strangers, to find out whether the host works: a failing server would
be shown as one that opted out, and a dead host as one that was never probed. Therefore the rules known before
stay in force, and if there are none, the prober goes on.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from lifesign.domain.observation.results import ResultClass
from lifesign.prober.definition.models import PRODUCT
from lifesign.prober.network.fetched import Fetched

ROBOTS_PATH: Final = "/robots.txt"
ROBOTS_ACCEPT: Final = "text/plain, */*;q=0.1"
MAX_ROBOTS_BYTES: Final = 512_000
"""Bytes of the file that are read (RFC 9309 2.5)."""
MAX_RULES: Final = 10_000
"""Rules per group that are read. The longest files in use have about half as many."""
MAX_SEARCHED_CHARS: Final = 65_536
"""Maximum number of characters after the first wildcards of one group's patterns; further patterns are
ignored. Such characters are searched for in the whole path, which a stranger may have chosen to make that
slow.
"""
MAX_PATH_CHARS: Final = 8192
"""A longer path, as percent-encoded, is matched only by its beginning."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
# Everything else in the file, such as sitemaps, neither matters nor ends a group (2.2.4).
_LINE: Final = re.compile(
    rb"^[ \t]*+(?P<key>user-agent|allow|disallow)[ \t]*+:(?P<value>[^#\n]*+)", re.IGNORECASE | re.MULTILINE
)
_TOKEN: Final = re.compile(r"[A-Za-z_-]+")
_ENCODED: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# All printable ASCII characters, except those with a meaning in patterns.
_PLAIN: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in "*$")
_PLAIN_IN_PATTERN: Final = f"{_PLAIN}*"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a robots.txt that allows or disallows paths."""

    is_allowed: bool
    pieces: tuple[str, ...]
    """Pieces that follow one another in a path, the first at its beginning, with anything between them."""
    is_complete: bool
    """Whether the path must end with the last piece."""
    length: int
    """Length of the pattern: the longest match wins."""


@dataclass(frozen=True, slots=True)
class RobotsRules:
    """The rules of a robots.txt that apply to the prober. `RobotsRules()` permits everything."""

    rules: tuple[Rule, ...] = ()
    """The most specific rules first; of two equally specific ones, the allowing one first."""


def read_robots(status: int | None, body: bytes, *, is_part: bool = False) -> RobotsRules | None:
    """Return the rules in an answer for robots.txt; None if the last known rules stay in force.

    `status` is that of the last hop, None if there was no answer or its body was not read. A 2xx body is read
    as far as possible, whatever it is. A redirect without a destination and 4xx mean that there are no rules,
    except 429, which means too many requests. `is_part`: the file is longer than `body`, whose last line may
    be incomplete.
    """
    if status is None or status == 429:
        return None
    if 200 <= status < 300:
        if is_part or len(body) > MAX_ROBOTS_BYTES:
            body = _complete_lines(body[:MAX_ROBOTS_BYTES])
        return RobotsRules(_rules_for_us(body))
    return RobotsRules() if 300 <= status < 500 else None


def rules_in(fetched: Fetched) -> RobotsRules | None:
    """Return the robots.txt rules in this answer; None if it contains none."""
    # A 2xx result that is an error nevertheless could not be decompressed.
    is_unread = fetched.result is ResultClass.HTTP_ERROR and (fetched.status or 0) // 100 == 2
    return read_robots(None if is_unread else fetched.status, fetched.body, is_part=fetched.is_part)


def needs_second_reading(robots: RobotsRules, in_row: int) -> bool:
    """Return whether a file without rules replaces known rules only if the next reading finds none either.

    `in_row`: number of readings in a row with the known rules; 0 if the last reading found none.
    """
    return in_row > 0 and not robots.rules


def may_fetch(robots: RobotsRules, path: str) -> bool:
    """Return whether robots.txt permits to request a path, given with its query."""
    path = _normal(path or "/", plain=_PLAIN)[:MAX_PATH_CHARS]
    # We may always ask for the rules themselves (2.2.2).
    if path == ROBOTS_PATH:
        return True
    return next((rule.is_allowed for rule in robots.rules if _matches(rule, path)), True)


def keeps_out(robots: RobotsRules, paths: Iterable[str]) -> bool:
    """Return whether robots.txt forbids a target's probe, which needs these paths.

    It does if one of the paths is disallowed: a target is probed completely or not at all. With only some of
    the answers it would look worse than it is.
    """
    return not all(may_fetch(robots, path) for path in paths)


def _complete_lines(body: bytes) -> bytes:
    return body[: max(body.rfind(b"\n"), body.rfind(b"\r")) + 1]


def _rules_for_us(body: bytes) -> tuple[Rule, ...]:
    # Lines end as they do on any system.
    text = body.removeprefix(_BYTE_ORDER_MARK).replace(b"\r", b"\n")
    patterns: dict[str, dict[tuple[bool, str], None]] = {PRODUCT: {}, "*": {}}
    named: set[str] = set()
    of_group: set[str] = set()
    is_in_rules = True
    for line in _LINE.finditer(text):
        key, value = line["key"].lower(), line["value"].strip()
        if key == b"user-agent":
            if is_in_rules:
                of_group, is_in_rules = set(), False
            # Names of other robots are not kept: a group may have thousands.
            if (name := _name(value.decode("ascii", "replace"))) in patterns:
                of_group.add(name)
                named.add(name)
            continue
        is_in_rules = True
        # An empty pattern matches nothing: `Disallow:` allows everything.
        if value:
            for name in of_group:
                if len(patterns[name]) < MAX_RULES:
                    patterns[name][key == b"allow", value.decode("utf-8", "surrogateescape")] = None
    # Groups of one name form one group; the group for all robots applies to those without their own.
    counting = patterns[PRODUCT if PRODUCT in named else "*"]
    rules, searched = [], 0
    for is_allowed, pattern in counting:
        rule = _rule(pattern, is_allowed=is_allowed)
        behind = sum(map(len, rule.pieces[1:]))
        # No path that is matched is longer.
        if len(rule.pieces[0]) + behind > MAX_PATH_CHARS or searched + behind > MAX_SEARCHED_CHARS:
            continue
        searched += behind
        rules.append(rule)
    return tuple(sorted(rules, key=lambda rule: (-rule.length, not rule.is_allowed)))


def _name(value: str) -> str:
    """Return the user agent of a group: the product token without a version, in lower case, or `*`."""
    if value.startswith("*"):
        return "*"
    token = _TOKEN.match(value)
    return "" if token is None else token[0].lower()


def _rule(pattern: str, *, is_allowed: bool) -> Rule:
    is_complete = pattern.endswith("$")
    # Within a pattern it is a character as any other.
    path = _normal(pattern[:-1] if is_complete else pattern, plain=_PLAIN_IN_PATTERN)
    first, *others = path.split("*")
    # A wildcard at the end only means that the path may continue; several are one.
    pieces = (first, *(piece for piece in others if piece))
    return Rule(is_allowed, pieces, is_complete and not path.endswith("*"), len(path) + is_complete)


def _normal(text: str, *, plain: str) -> str:
    """Return a path in the normal form for comparisons (2.2.2).

    Characters that need no percent-encoding are decoded, all others are encoded, and encoded reserved
    characters (`%2F`) stay encoded.
    """
    if "%" in text:
        text = _ENCODED.sub(_decode_unreserved, text)
    return quote(text, safe=plain, errors="surrogateescape")


def _decode_unreserved(encoded: re.Match[str]) -> str:
    char = chr(int(encoded[1], 16))
    return char if char in _UNRESERVED else encoded[0].upper()


def _matches(rule: Rule, path: str) -> bool:
    """Return whether a pattern matches; each piece is searched once, which bounds the time."""
    first, *others = rule.pieces
    if not path.startswith(first):
        return False
    at = len(first)
    if not others:
        return not rule.is_complete or at == len(path)
    for piece in others[:-1] if rule.is_complete else others:
        if (found := path.find(piece, at)) < 0:
            return False
        at = found + len(piece)
    return not rule.is_complete or (path.endswith(others[-1]) and len(path) - len(others[-1]) >= at)
