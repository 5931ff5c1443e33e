"""Age of a list file: a program that still writes the file has not listed all targets yet."""

import os
import time
from pathlib import Path
from typing import Final

QUIET_S: Final = 10.0
"""Age from which a file counts as completely written."""
UNENDED_QUIET_S: Final = 600.0
"""The same for a file whose last line has no line end: the line may be cut."""
_TAIL_BYTES: Final = 4
_ENDS: Final = (b"\n", b"\r", b"]", b"}")
"""Ends of a complete text, and of complete JSON."""


def unsettled_for_s(file: Path) -> float:
    """Return in how many seconds a file counts as completely written; 0 if it does, or cannot be read.

    A time of change in the future is that of another clock, and says nothing.
    """
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            opened.seek(max(0, status.st_size - _TAIL_BYTES))
            tail = opened.read(_TAIL_BYTES).replace(b"\0", b"")
    except OSError:
        return 0.0
    age_s = time.time() - status.st_mtime
    quiet_s = QUIET_S if tail.endswith(_ENDS) else UNENDED_QUIET_S
    return max(0.0, quiet_s - age_s) if age_s >= 0 else 0.0
