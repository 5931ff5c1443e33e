"""What if whoever reads the output has left (`lifesign check URL | head -1`)?

What a command found out does not change by that: where its exit code is a verdict, it stays the verdict's.
Any other command ends as tools do that the pipe's signal ends.
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
