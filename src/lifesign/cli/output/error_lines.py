"""Errors on standard error: a line for the problem, and a line `hint:` for what to do."""

import sys

from lifesign.domain.errors import InvalidFile
from lifesign.domain.net.peer_text import printable
from lifesign.errors import LifesignError


def complain(message: str, *, hint: str = "") -> None:
    """Write an error message to standard error, with a hint if there is one."""
    sys.stderr.write(f"lifesign: {printable(message)}\n")
    if hint:
        sys.stderr.write(f"hint: {printable(hint)}\n")


def complain_of(error: LifesignError) -> None:
    """Write an error to standard error, with its hint, the faults of a file, or a registry's error code."""
    code = getattr(error, "code", "")
    messages = [f"{error} ({code})" if code else str(error)]
    if isinstance(error, InvalidFile):
        messages = [f"{error.file}: {fault}" if error.file else str(fault) for fault in error.faults]
    for message in messages[:-1]:
        complain(message)
    complain(messages[-1], hint=error.hint)
