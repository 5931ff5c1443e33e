"""Characters of foreign text that may be shown.

Visible characters are shown. U+FFFD replaces control characters, which move cursors, overrides and isolates
of direction, which reverse a line, and half surrogate pairs, which break decoders. Marks of direction
(U+200E, U+200F, U+061C) are removed: they are invisible, and one of them shows `100 200` as `200 100`;
right-to-left names are readable without them. Joiners (U+200C, U+200D) reverse nothing, and stay between
letters and signs that need them, not in ASCII, where they would only make two texts look alike.

A model also reads invisible characters. `visible` removes all of them for models.
"""

import re
from typing import Final

REPLACEMENT: Final = "\ufffd"
_MARKS: Final[dict[int, str | None]] = dict.fromkeys(map(ord, "\u200e\u200f\u061c"))
SPACES: Final = frozenset(map(chr, (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)))
"""The spaces of Unicode (Zs) except the usual one, such as the ideographic one: people see a space."""
_SHOWN: Final = _MARKS | dict.fromkeys(map(ord, SPACES), " ")
_JOINED: Final = "[^\\x00-\\x7f\u200c\u200d]"
_JOINERS: Final = re.compile(f"(?<={_JOINED})[\u200c\u200d](?={_JOINED})")


def harmless(text: str, *, keep: str = "") -> str:
    """Return a text without characters that could control a display, except those in `keep`."""
    if text.isprintable():
        return text
    text = text.translate(_SHOWN)
    joiners = {found.start() for found in _JOINERS.finditer(text)}
    return "".join(
        char if char.isprintable() or char in keep or at in joiners else REPLACEMENT
        for at, char in enumerate(text)
    )


# Code points that Unicode calls default-ignorable, line and paragraph separators, three blank signs (of
# Braille, Khitan and music) and two joiners (Tifinagh, Brahmi). Some count as letters or marks, so that
# `isprintable` does not exclude them.
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u2d7f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001107f\U00016fe4\U0001bca0-\U0001bca3\U0001d159"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
OF_WRITING: Final = frozenset("\u061c\u200c\u200d\u200e\u200f\ufe0e\ufe0f")
"""Joiners, direction marks and the two emoji styles: they are parts of words and emoji."""
_BREAKS: Final = "\n\t"


def visible(text: str) -> str:
    """Return a text without invisible characters, for a model to read.

    Those that are parts of words and emoji are removed; each other run becomes one U+FFFD.
    """
    if text.isascii() and text.isprintable():
        return text
    shown = _INVISIBLE.sub(lambda run: "" if OF_WRITING.issuperset(run[0]) else REPLACEMENT, text)
    return harmless(shown, keep=_BREAKS)
