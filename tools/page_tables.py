"""Tables and diagrams in hand-written pages of docs/, written from the code.

`make schemas` runs it.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from lifesign.domain.lifecycle import status_table
from lifesign.domain.lifecycle.status_table import Status, begins_incarnation, reason_of
from lifesign.domain.tasks import task_states
from lifesign.domain.tasks.task_states import HELD, TaskStatus
from lifesign.prober.directories.format_choice import BUILT_IN

DOCS = Path(__file__).parents[1] / "docs"
BEGIN = re.compile(r"<!-- drawn from \w+: begin -->\n")
END = re.compile(r"<!-- drawn from \w+: end -->\n")


def pages() -> dict[str, str]:
    """Return each page with its table as it should be, by the name of its file."""
    tables = {
        "lifecycle.md": _agent_table(),
        "task-lifecycle.md": _task_table(),
        "prober.md": _format_table(),
    }
    return {name: _replaced((DOCS / name).read_text(), table) for name, table in tables.items()}


def _replaced(page: str, table: str) -> str:
    (begin,), (end,) = BEGIN.finditer(page), END.finditer(page)
    return page[: begin.end()] + table + page[end.start() :]


def _agent_table() -> str:
    rows = ["| from | signal | to | reason in the event | new life |", "|---|---|---|---|---|"]
    for (status, signal), following in status_table.TRANSITIONS.items():
        new_life = "yes" if begins_incarnation(signal) else ""
        rows.append(f"| {status} | `{signal}` | {following} | `{reason_of(signal)}` | {new_life} |")
    return _with_diagram(rows, Status.REGISTERING, status_table.TRANSITIONS)


def _task_table() -> str:
    rows = ["| from | signal | to | the lease ends |", "|---|---|---|---|"]
    for (status, signal), following in task_states.TRANSITIONS.items():
        is_end = "yes" if status in HELD and following not in HELD else ""
        rows.append(f"| {status} | `{signal}` | {following} | {is_end} |")
    return _with_diagram(rows, TaskStatus.QUEUED, task_states.TRANSITIONS)


def _format_table() -> str:
    rows = ["| `format` | content | path on its host |", "|---|---|---|"]
    for name, one in BUILT_IN.items():
        content = (type(one).__doc__ or "").split("\n\n")[0].rstrip(".")
        path = one.place.partition("?")[0]
        rows.append(f"| `{name}` | {content} | {f'`{path}`' if path else ''} |")
    return "\n".join(["", *rows, "", ""])


def _with_diagram(rows: Iterable[str], first: StrEnum, transitions: Mapping[tuple[Any, Any], StrEnum]) -> str:
    """Add a mermaid diagram with one arrow per pair of states."""
    arrows: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for (status, signal), following in transitions.items():
        arrows.setdefault((status, following), []).append(signal)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {one} --> {other}: {'<br/>'.join(signals)}" for (one, other), signals in arrows.items()]
    return "\n".join(["", *rows, "", *lines, "```", "", ""])


if __name__ == "__main__":
    for name, page in pages().items():
        (DOCS / name).write_text(page)
