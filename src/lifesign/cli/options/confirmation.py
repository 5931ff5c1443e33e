"""Confirmation of a command by the person at the terminal."""

import sys
from typing import Final

from lifesign.errors import InvalidValue

MAX_ANSWER_CHARS: Final = 100


def is_confirmed(question: str, *, reason: str) -> bool:
    """Ask a question on the terminal, and return whether the answer is yes.

    InvalidValue without a terminal; `reason`: why the command asks.
    """
    if not sys.stdin.isatty():
        raise InvalidValue("--yes", None, f"given, since standard input is not a terminal and {reason}")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline(MAX_ANSWER_CHARS).strip().lower() in {"y", "yes"}
