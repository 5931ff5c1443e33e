"""How is what an adapter tells shown: as lines for people, or as JSON?"""

import json
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from agent_health.adapter.telling import SPOKEN_WITH, Tell, Told, What
from agent_health.cli.terminal import printable
from agent_health.utc_time import utc_text

_OF_TOOLS: Final = ("agent_health.adapter.tools", "agent_health.mcp", "mcp", "uvicorn", "httpx2")
"""The loggers of what offers tools to an agent."""
REPEAT_SECONDS: Final = 10.0
"""In which the same line of a library is told once."""
_KEPT: Final = frozenset({What.ASKED, What.FAILED, What.UNTOLD})
"""What is told of runs whose workspace stays."""


def teller(*, as_json: bool) -> Tell:
    """Return what writes each thing that is told: JSON to standard output, else lines to standard error."""
    stream = sys.stdout if as_json else sys.stderr
    line_of: Callable[[str, Told], str] = _json_line if as_json else _line

    def tell(told: Told) -> None:
        at = utc_text(datetime.now(UTC), "milliseconds")
        # Whoever reads may have left; runs go on.
        with suppress(OSError, ValueError):
            stream.write(line_of(at, told))
            stream.flush()

    return tell


class LogTeller(logging.Handler):
    """Tells what is logged."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._said: tuple[str, str] | None = None
        self._said_at_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Tell one line."""
        is_of_tools = any(record.name == name or record.name.startswith(f"{name}.") for name in _OF_TOOLS)
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            # Where it was raised is no line for people, nor is what a library adds on further ones.
            text = f"{text}: {_in_a_line(record.exc_info[1])}"
        if (server := SPOKEN_WITH.get()) and not _is_ours(record):
            text = f"{server}: {text}"
        if not self._is_repeated(record, text):
            self._tell(Told(what=What.TOOLS if is_of_tools else What.REGISTRY, text=text))

    def _is_repeated(self, record: logging.LogRecord, text: str) -> bool:
        """Whether a library said the same just before: it may ask a server several times at once."""
        said, former, at_s = (record.name, text), self._said, self._said_at_s
        if not _is_ours(record) and said == former and record.created - at_s < REPEAT_SECONDS:
            return True
        self._said, self._said_at_s = said, record.created
        return False


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "agent_health"


def _in_a_line(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}".removesuffix(": ")


def _json_line(at: str, told: Told) -> str:
    members = {
        "at": at,
        "what": told.what,
        "text": told.text,
        "task_id": told.task_id,
        "run_id": told.run_id,
        "fencing_token": told.fencing_token,
        "exit_reason": told.exit_reason,
        "exit_code": told.exit_code,
        "workspace": told.workspace,
    }
    return json.dumps({name: value for name, value in members.items() if value is not None}) + "\n"


def _line(at: str, told: Told) -> str:
    whose = "" if told.task_id is None else f"{printable(told.task_id)}: "
    why = "" if told.exit_reason is None else f" ({told.exit_reason})"
    kept = f"; kept: {printable(told.workspace)}" if told.what in _KEPT and told.workspace else ""
    return f"{at}  {told.what:<10}  {whose}{printable(told.text)}{why}{kept}\n"
