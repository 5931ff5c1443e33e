"""Text of peers on one line, without harm to a terminal."""

from lifesign.domain.net.target_address import without_passwords
from lifesign.domain.text.safe_text import harmless

MAX_LINE_CHARS = 500
"""Of a peer's text on one line."""

MAX_READ_CHARS = 4096
"""Of a text, to make a line of."""


def printable(text: str) -> str:
    """Return text that moves no cursor, rings no bell and reverses no line.

    What is shown is for `harmless_text` to say, line breaks are not; a password in a URL becomes `...`, and a
    long text is cut.
    """
    text = without_passwords(text[:MAX_READ_CHARS])
    shown = harmless(text[:MAX_LINE_CHARS])
    return shown + "…" if len(text) > MAX_LINE_CHARS else shown
