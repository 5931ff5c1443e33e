"""Text of peers on one line, without harm to a terminal."""

from lifesign.domain.net.allowed_addresses import without_passwords
from lifesign.domain.text.safe_text import harmless

MAX_LINE_CHARS = 500
"""Maximum length of a peer's text on one line."""

MAX_READ_CHARS = 4096
"""Maximum length of a text from which a line is made."""


def printable(text: str) -> str:
    """Return a text without characters that could control a terminal or reverse a line.

    `harmless_text` decides which characters are shown, line breaks are not; a password in a URL becomes
    `...`, and a long text is cut.
    """
    text = without_passwords(text[:MAX_READ_CHARS])
    shown = harmless(text[:MAX_LINE_CHARS])
    return shown + "…" if len(text) > MAX_LINE_CHARS else shown
