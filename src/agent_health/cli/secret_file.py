"""How is a key or a token read from a file?

Never taken as an argument, where every user of the machine could see it.
"""

import os
import stat
import sys
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Final

from agent_health.cli.terminal import printable
from agent_health.errors import InvalidSetting

MAX_BYTES: Final = 8192

_NOT_THE_OWNERS: Final = 0o077
"""The bits of a file's mode that let its group and all others in."""


def read_secret(file: Path, option: str, what: str) -> str:
    """Return what a file holds, without the space around it; InvalidSetting if it cannot be read.

    A file that others may read is used nevertheless, and complained of once on standard error.
    `what` is "key" or "token", for that line.
    """
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidSetting(option, str(file), f"a readable file ({error.strerror})") from None
    if len(content) > MAX_BYTES:
        raise InvalidSetting(option, str(file), f"a file of at most {MAX_BYTES} bytes")
    if stat.S_ISREG(found.st_mode) and found.st_mode & _NOT_THE_OWNERS:
        _warn_of(file, what, stat.S_IMODE(found.st_mode))
    return content.decode("ascii", "replace").strip()


@cache
def _warn_of(file: Path, what: str, mode: int) -> None:
    """Say once, however often it is read, that a file is not its owner's alone."""
    told = f"warning: the {what} in {file} is open to others (mode {mode:04o}): chmod 600 {quote(str(file))}"
    sys.stderr.write(f"agent-health: {printable(told)}\n")
