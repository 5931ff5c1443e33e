"""Which characters of what others say may people be shown?

Whatever is visible. Control characters move cursors, overrides and isolates of direction turn a line around,
half surrogate pairs break whoever reads them: U+FFFD stands for each. Marks of direction (U+200E, U+200F,
U+061C) are left out: nobody sees them, and one of them makes `100 200` stand there as `200 100`; people who
write from right to left put them into names, which stand there as they are without. Joiners (U+200C, U+200D)
turn nothing around, and stay between the letters and signs that need them, not in ASCII, where they would
but make two texts look like one.
"""

import re
from typing import Final

REPLACEMENT: Final = "\ufffd"
_MARKS: Final = dict.fromkeys(map(ord, "\u200e\u200f\u061c"))
_JOINED: Final = "[^\\x00-\\x7f\u200c\u200d]"
_JOINERS: Final = re.compile(f"(?<={_JOINED})[\u200c\u200d](?={_JOINED})")


def harmless(text: str, *, keep: str = "") -> str:
    """Return a text as it may be shown; of what may not be, the characters in `keep` stay."""
    if text.isprintable():
        return text
    text = text.translate(_MARKS)
    joiners = {found.start() for found in _JOINERS.finditer(text)}
    return "".join(
        char if char.isprintable() or char in keep or at in joiners else REPLACEMENT
        for at, char in enumerate(text)
    )
