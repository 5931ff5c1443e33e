"""End of a command whose output has no reader any more (`lifesign check URL | head -1`).

The findings do not change by that: an exit code that is a verdict stays. Any other command ends as tools do
that the pipe's signal ends.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """Let who reads leave: nothing more is written then, and the command ends as it would have."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_remaining_output()


def discard_remaining_output() -> None:
    """Leave the interpreter nothing to complain about when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
