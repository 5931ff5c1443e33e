"""Tables and diagrams in hand-written pages of docs/, written from the code.

`make schemas` runs it.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import typer

from lifesign.cli import application
from lifesign.cli.options.config_file import settings_of
from lifesign.cli.options.duration import METAVAR, format_duration
from lifesign.domain.lifecycle import status_table
from lifesign.domain.lifecycle.status_table import Status, begins_incarnation, reason_of
from lifesign.domain.tasks import task_states
from lifesign.domain.tasks.task_states import HELD, TaskStatus
from lifesign.prober.directories.format_choice import BUILT_IN
from lifesign.registry.settings import RegistrySettings

DOCS = Path(__file__).parents[1] / "docs"
COMPUTED_DEFAULTS = {
    "LIFESIGN_SERVER_STATE_DIR": "`lifesign/databases` in `$XDG_STATE_HOME` or `~/.local/state`",
    "LIFESIGN_PROBER_DATABASE": "`sqlite:///NAME.db`",
}
"""Defaults of settings that depend on the user or on the definition, by variable."""


def pages() -> dict[str, str]:
    """Return each page with its table as it should be, by the name of its file."""
    tables: dict[str, dict[str, Callable[[str], str]]] = {
        "lifecycle.md": {"TRANSITIONS": _agent_table},
        "task-lifecycle.md": {"TRANSITIONS": _task_table},
        "prober.md": {"BUILT_IN": _format_table},
        "configuration.md": {
            "serve": partial(settings_table, "serve", "server"),
            "crawl": partial(settings_table, "crawl", "prober"),
        },
    }
    return {name: _with_tables((DOCS / name).read_text(), of_page) for name, of_page in tables.items()}


def _with_tables(page: str, tables: Mapping[str, Callable[[str], str]]) -> str:
    """Replace each table of a page; a table is made from the one that the page has now."""
    for source, made in tables.items():
        begin, end = (f"<!-- drawn from {source}: {edge} -->\n" for edge in ("begin", "end"))
        before, rest = page.split(begin)
        present, after = rest.split(end)
        page = f"{before}{begin}{made(present)}{end}{after}"
    return page


def _agent_table(_present: str) -> str:
    rows = ["| from | signal | to | reason in the event | new life |", "|---|---|---|---|---|"]
    for (status, signal), following in status_table.TRANSITIONS.items():
        new_life = "yes" if begins_incarnation(signal) else ""
        rows.append(f"| {status} | `{signal}` | {following} | `{reason_of(signal)}` | {new_life} |")
    return _with_diagram(rows, Status.REGISTERING, status_table.TRANSITIONS)


def _task_table(_present: str) -> str:
    rows = ["| from | signal | to | the lease ends |", "|---|---|---|---|"]
    for (status, signal), following in task_states.TRANSITIONS.items():
        is_end = "yes" if status in HELD and following not in HELD else ""
        rows.append(f"| {status} | `{signal}` | {following} | {is_end} |")
    return _with_diagram(rows, TaskStatus.QUEUED, task_states.TRANSITIONS)


def _format_table(_present: str) -> str:
    rows = ["| `format` | content | path on its host |", "|---|---|---|"]
    for name, one in BUILT_IN.items():
        content = (type(one).__doc__ or "").split("\n\n")[0].rstrip(".")
        path = one.place.partition("?")[0]
        rows.append(f"| `{name}` | {content} | {f'`{path}`' if path else ''} |")
    return "\n".join(["", *rows, "", ""])


def settings_table(command: str, table: str, present: str) -> str:
    """Return the settings of a command. A row keeps its meaning; that of a new row is the option's help."""
    rows = [line.strip("| ").split(" | ", 4) for line in present.splitlines() if line.count(" | ") >= 4]
    meanings = {variable.strip("`"): meaning for _, variable, _, _, meaning in rows}
    lines = ["| in the file | variable | option | default | meaning |", "|---|---|---|---|---|"]
    commands: Any = typer.main.get_command(application._application)
    for name, parameter in settings_of(commands.commands[command], table):
        variable, option = parameter.envvar, parameter.opts[0]
        meaning = meanings.get(variable, _meaning(parameter.help))
        lines.append(f"| `{name}` | `{variable}` | `{option}` | {_default(parameter)} | {meaning} |")
    return "\n".join(["", *lines, "", ""])


def _meaning(text: str) -> str:
    """Return a help text as a cell: without the period, and with a small first letter unless it is a name."""
    cell = text.rstrip(".").replace("|", "\\|")
    is_word = cell[1:2].islower() or cell[1:2] == " "
    return cell[:1].lower() + cell[1:] if is_word else cell


def _default(parameter: Any) -> str:
    """Return the default of an option, or else of the setting with its name; empty if there is none."""
    if parameter.envvar in COMPUTED_DEFAULTS:
        return COMPUTED_DEFAULTS[parameter.envvar]
    value = parameter.default
    if value is None and parameter.envvar.startswith("LIFESIGN_SERVER_"):
        value = getattr(RegistrySettings(), parameter.name, None)
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if parameter.metavar == METAVAR:
        return f"`{format_duration(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


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
