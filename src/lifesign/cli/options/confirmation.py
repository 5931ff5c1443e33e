"""Confirmation of a command by the person at the terminal."""

import sys
from typing import Final

from lifesign.errors import InvalidValue

MAX_ANSWER_CHARS: Final = 100


class CannotConfirm(InvalidValue):
    """The option --yes is missing, and there is no terminal at which the command could ask."""

    def __init__(self, reason: str) -> None:
        super().__init__("--yes", None, "the option, without a terminal", hint=f"pass --yes. {reason}")

    def __str__(self) -> str:
        return "cannot ask for confirmation: standard input is not a terminal"


def is_confirmed(question: str, *, reason: str) -> bool:
    """Ask a question on the terminal, and return whether the answer is yes.

    CannotConfirm without a terminal; `reason`: the sentence that says why the command asks.
    """
    if not sys.stdin.isatty():
        raise CannotConfirm(reason)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline(MAX_ANSWER_CHARS).strip().lower() in {"y", "yes"}
