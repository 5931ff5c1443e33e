"""Disguised secrets: finding a text in bytes in which any of its characters may be escaped.

The bytes are decoded as a whole, by functions that take linear time in C, and searched. Characters that
escapes, wrapping and UTF-16 put between those of a secret are dropped, in the bytes and in the secret alike.
Semicolons, and backslashes from escapes, may be part of a nested escape: only the searched copy lacks them.
One pass searches for the first bytes of all forms: nearly all answers have none of them. Where a secret
begins and ends is found by halving, since it is rarely there. The work for both is bounded: a target chooses
the bytes, and a search in Python for each escape would block the prober for seconds.
"""

import re
from binascii import a2b_qp
from collections.abc import Callable, Collection, Iterable
from typing import Final

MAX_LEVELS: Final = 3
"""Maximum number of nested escapes, such as JSON in a JSON string in a URL."""
MIN_FOUND_BYTES: Final = 6
"""A shorter text, which is left of a secret that looks like escapes itself, would be found everywhere."""
DROPPED: Final = b" \t\r\n\0\\;"
"""Characters that are left out of the secret and of the searched bytes."""
MAX_ENTITIES: Final = 20_000
"""Maximum of decimal and named HTML entities of ASCII characters; a text with more is not searched."""
MIN_WORK_BYTES: Final = 1_048_576
WORK_FACTOR: Final = 4
"""Bytes that are decoded to remove secrets from a text: so many times its size, or MIN_WORK_BYTES."""
REACH_FACTOR: Final = 12
"""Maximum size of an escaped secret whose place is found, as a multiple of its longest form."""
STEM_BYTES: Final = 8
"""First bytes of a form that are searched for in all answers; by chance they are in none."""
_BRANCHES: Final = 2
"""Bytes of a stem at which the search branches. With 100 secrets, it takes a tenth of the time without."""

MARKS: Final = (b"%", b"\\", b"&")
"""Each escape begins with one of these."""
_BETWEEN: Final = b" \t\r\n"
# All escapes become those of quoted-printable: an equals sign and two hexadecimal digits.
_EQUALS: Final = b"\x01"
_PERCENT: Final = b"\x02"
"""A percent sign that begins no escape."""
_HEXADECIMAL_ENTITY: Final = b"\x03"
_TO_QUOTED: Final = bytes.maketrans(b"%=" + _HEXADECIMAL_ENTITY, b"=" + _EQUALS + b"=")
_QUOTED: Final = ((b"=3D", _EQUALS), (b"=3d", _EQUALS), (b"==", _PERCENT + b"="))
_FROM_QUOTED: Final = bytes.maketrans(b"=" + _EQUALS + _PERCENT, b"%=%")
_TO_LOWER: Final = bytes(range(256)).lower()
_BACKSLASHED: Final = ((b"\\u00", b"%"), (b"\\x", b"%"), (b"\\n", b""), (b"\\r", b""), (b"\\t", b""))
_ENTITIES: Final = (
    (b"&amp;", b"&"),
    (b"&quot;", b'"'),
    (b"&apos;", b"'"),
    (b"&lt;", b"<"),
    (b"&gt;", b">"),
)
# HTML 5 has names for most punctuation, and PHP's `htmlentities` uses them. Some have two.
_NAMES: Final = {
    "!": "excl", "#": "num", "$": "dollar", "%": "percnt", "(": "lpar", ")": "rpar", "*": "ast", "+": "plus",
    ",": "comma", "-": "hyphen dash", ".": "period", "/": "sol", ":": "colon", "=": "equals", "?": "quest",
    "@": "commat", "[": "lsqb lbrack", "\\": "bsol", "]": "rsqb rbrack", "^": "Hat", "_": "lowbar UnderBar",
    "`": "grave DiacriticalGrave", "{": "lcub lbrace", "|": "verbar vert VerticalLine", "}": "rcub rbrace",
    ";": "semi", "": "Tab NewLine",
}  # fmt: skip
_CHARACTERS: Final = (
    {b"%d" % code: bytes([code]) for code in range(30, 127)}
    | {name.encode(): character.encode() for character, names in _NAMES.items() for name in names.split()}
    | {b"37": _PERCENT, b"percnt": _PERCENT}
)
_HEXADECIMAL: Final = re.compile(rb"&#[xX]0*")
_HEXADECIMAL_END: Final = re.compile(rb"(?<=\x03[0-9A-Fa-f]{2});")
# Tab, line ends and the zero bytes of UTF-16.
_HEXADECIMAL_BLANK: Final = [(b"\x03%s;" % digit, b"") for digit in (b"", b"9", b"a", b"A", b"d", b"D")]
_BLANK: Final = re.compile(rb"&#0*(?:[09]|1[03]);")
_NUMERIC: Final = re.compile(rb"&#0*([3-9][0-9]|1[01][0-9]|12[0-6]);")
_NAMED: Final = re.compile(
    # Nearly all other ampersands are refused by the character behind them.
    rb"&(?=[A-Za-z])(%s);" % b"|".join(name for name in _CHARACTERS if not name.isdigit())
)

# In JSON, a pair of backslashes begins no escape.
_PAIR: Final = b"\x04"
_FROM_JSON: Final = (
    (b"\\\\", _PAIR), (b"\\u005c", _PAIR), (b"\\u005C", _PAIR), (b"\\u0022", b'\\"'), (b"=", _EQUALS),
    *((b"\\u00%d" % digit, b"=%d" % digit) for digit in range(2, 8)),
)  # fmt: skip
_TO_JSON: Final = ((_EQUALS, b"="), (_PAIR, b"\\\\"))

Span = tuple[int, int]


class Disguises:
    """Finds secrets in bytes, even if they are escaped or encoded there, in upper and in lower case."""

    def __init__(self, forms: Iterable[bytes], beginnings: Iterable[bytes] = ()) -> None:
        """Take the forms to find, and plain texts that only `may_be_in` finds (`beginnings`)."""
        # Base64 too: some texts, such as the names of schemes and media types, are read in lower case.
        self._needles = frozenset(needle.lower() for needle in needles_of(forms))
        self._reach = REACH_FACTOR * max(map(len, self._needles), default=0)
        searched = (*self._needles, *beginnings)
        stems = {text.translate(_TO_LOWER, DROPPED)[:STEM_BYTES] for text in searched}
        # Without repetitions, it takes linear time. RE2 needs tables that leave the processor's cache between
        # two probes, and took twice as long in them.
        self._stems = re.compile(_any_of(stems, _BRANCHES))

    def may_be_in(self, data: bytes) -> bool:
        """Return whether the bytes may contain a secret or its beginning. Only False is certain."""
        if self._stems.search(data.translate(_TO_LOWER, DROPPED)) is not None:
            return True
        if not any(map(data.__contains__, MARKS)):
            # Most answers have no escapes, and a level of decoding takes longer than the search.
            return False
        for _ in range(MAX_LEVELS):
            decoded, entities = _decoded(data)
            if entities > MAX_ENTITIES:
                return True
            if decoded == data:
                return False
            if self._stems.search(decoded.translate(_TO_LOWER, DROPPED)) is not None:
                return True
            data = decoded
        return False

    def are_in(self, data: bytes) -> bool | None:
        """Return whether the bytes contain a secret; None if they have too many entities to find out."""
        # Decoding may leave too little of a secret that itself looks escaped.
        if self._is_in(data):
            return True
        if not any(map(data.__contains__, MARKS)):
            return False
        for _ in range(MAX_LEVELS):
            decoded, entities = _decoded(data)
            if entities > MAX_ENTITIES:
                return None
            if self._is_in(decoded):
                return True
            if decoded == data:
                return False
            data = decoded
        return False

    def are_at_any_level(self, data: bytes) -> bool | None:
        """Return the same as `are_in`, in a time that does not show how much of a secret was found."""
        found = self._is_in(data)
        for _ in range(MAX_LEVELS):
            decoded, entities = _decoded(data)
            if entities > MAX_ENTITIES:
                return None
            if decoded == data:
                break
            data = decoded
            found |= self._is_in(data)
        return found

    def _is_in(self, decoded: bytes) -> bool:
        return any(map(decoded.translate(_TO_LOWER, DROPPED).__contains__, self._needles))

    def removed_from(self, data: bytes, replacement: Callable[[int], bytes]) -> bytes | None:
        """Return the bytes with each secret replaced; None if that would take too long.

        The same object if there is none. `replacement` gets the number of bytes that it replaces.
        """
        work = _Work(self, max(MIN_WORK_BYTES, WORK_FACTOR * len(data)))
        begin = 0
        while (found := work.are_in(rest := data[begin:] if begin else data)) is not False:
            span = work.first(rest, self._reach) if found else None
            if span is None:
                return None
            first, last = span
            data = b"".join((data[: begin + first], replacement(last - first), data[begin + last :]))
            # The parts on both sides may form a secret again.
            begin = max(0, begin + first - self._reach)
        return data


class _Work:
    """A search of which the cost is bounded."""

    def __init__(self, disguises: Disguises, most_bytes: int) -> None:
        self._disguises = disguises
        self._left = most_bytes

    def are_in(self, data: bytes) -> bool | None:
        self._left -= len(data)
        return self._disguises.are_in(data)

    def first(self, data: bytes, reach: int) -> Span | None:
        """Return begin and end of the first secret in bytes that contain one; None if that takes too long."""
        begin, end = 0, len(data)
        while end - begin > 4 * reach and self._left > 0:
            middle = (begin + end) // 2
            if self.are_in(data[begin : middle + reach]):
                end = middle + reach
            else:
                begin = middle
        end = self._bisect(begin, end, lambda at: self.are_in(data[begin:at]))
        begin = -self._bisect(-end, -begin, lambda at: self.are_in(data[-at:end]))
        if self._left <= 0 or not self.are_in(data[begin:end]):
            # In the latter case, more escapes than REACH_FACTOR allows for.
            return None
        # A backslash escapes the first character: alone, it would escape what replaces the secret.
        return len(data[:begin].rstrip(b"\\")), end

    def _bisect(self, low: int, high: int, is_enough: Callable[[int], bool | None]) -> int:
        """Return the lowest number above `low` that is enough, if `high` is."""
        while high - low > 1 and self._left > 0:
            middle = (low + high) // 2
            if is_enough(middle):
                high = middle
            else:
                low = middle
        return high


def needles_of(forms: Iterable[bytes]) -> frozenset[bytes]:
    """Return the texts to search for in decoded bytes to find these forms of a secret.

    A secret may itself look escaped: it is then decoded together with its context.
    """
    found: set[bytes] = set()
    for form in forms:
        decoded = form
        for _ in range(MAX_LEVELS + 1):
            found.add(decoded.translate(None, DROPPED))
            decoded, _ = _decoded(decoded)
    return frozenset(needle for needle in found if len(needle) >= MIN_FOUND_BYTES)


def without_json_escapes(data: bytes) -> bytes:
    """Return JSON in which ASCII characters are escaped by a backslash at most; the same value.

    The escapes become those of quoted-printable, as in `_decoded`.
    """
    return _replaced(a2b_qp(_replaced(data, _FROM_JSON)), _TO_JSON)


def _any_of(texts: Collection[bytes], branches: int) -> bytes:
    """Return a pattern for any of these texts that branches at their first bytes, so as to try few."""
    if len(texts) <= 1 or not branches or b"" in texts:
        return b"|".join(map(re.escape, sorted(texts)))
    by_first: dict[bytes, set[bytes]] = {}
    for text in texts:
        by_first.setdefault(text[:1], set()).add(text[1:])
    return b"|".join(
        b"%s(?:%s)" % (re.escape(first), _any_of(rest, branches - 1))
        for first, rest in sorted(by_first.items())
    )


def _decoded(data: bytes) -> tuple[bytes, int]:
    """Return bytes of which one level of escapes is decoded, and the number of their numeric entities."""
    entities = 0
    # In UTF-16, they stand within the escapes too.
    data = _without_runs(data.replace(b"\0", b""), b"%")
    if b"\\" in data:
        # Of two backslashes, the first would be left after a line end, and escape the next character.
        data = _replaced(_without_runs(data, b"\\"), _BACKSLASHED).translate(None, b"\\")
    if b"&" in data:
        data = _replaced(_without_runs(data, b"&"), _ENTITIES)
        if b"&#" in data:
            if b"&#x" in data or b"&#X" in data:
                data = _replaced(_HEXADECIMAL.sub(_HEXADECIMAL_ENTITY, data), _HEXADECIMAL_BLANK)
                data = _HEXADECIMAL_END.sub(b"", data)
            data = _BLANK.sub(b"", data)
            data, entities = _NUMERIC.subn(_character, data, count=MAX_ENTITIES + 1)
        if b";" in data:
            data, named = _NAMED.subn(_character, data, count=MAX_ENTITIES + 1)
            entities += named
    data = _replaced(data.translate(_TO_QUOTED, _BETWEEN), _QUOTED)
    return a2b_qp(data).translate(_FROM_QUOTED), entities


def _character(entity: re.Match[bytes]) -> bytes:
    return _CHARACTERS[entity[1]]


def _replaced(data: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    for escape, value in pairs:
        data = data.replace(escape, value)
    return data


def _without_runs(data: bytes, mark: bytes) -> bytes:
    """Return the bytes with one of each run of marks: only the last one begins an escape."""
    while mark * 2 in data:
        data = data.replace(mark * 2, mark)
    return data
