"""Escapes of half a surrogate pair in JSON. Programs write them that cut a text in the middle of a character.

Parsers disagree about them (RFC 8259 8.2). That of the MCP SDK refuses the whole message, and the SDK then
answers nothing over stdio.
"""

import re
from typing import Final

# Whole pairs, halves and all other escapes, so that an escaped backslash begins no escape.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_SIGNS: Final = (b"\\ud", b"\\uD")
_REPLACEMENT: Final = rb"\ufffd"


def replace_half_pairs(message: bytes) -> bytes:
    """Return a JSON text of the same length in which U+FFFD replaces escaped halves of surrogate pairs."""
    if not any(sign in message for sign in _SIGNS):
        return message
    return _ESCAPE.sub(lambda found: _REPLACEMENT if found[1] else found[0], message)
