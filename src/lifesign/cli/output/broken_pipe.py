"""End of a command whose output has no reader any more (`lifesign check URL | head -1`).

The findings do not change: an exit code that is a verdict stays. Any other command ends like a program that
the pipe's signal ends.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """In the block, drop output that the reader no longer accepts, so that the command ends as usual."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_remaining_output()


def discard_remaining_output() -> None:
    """Discard the rest of standard output, so that Python reports no broken pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
