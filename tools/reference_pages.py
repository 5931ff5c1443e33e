"""The reference pages, written from the code. `make schemas` runs it."""

import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

import lifesign
from lifesign import AgentHealthMiddleware
from lifesign.cli import application
from lifesign.cli.options.metavars import METAVARS
from lifesign.cli.output.exit_codes import MEANINGS
from lifesign.domain.events.event import PAYLOADS
from lifesign.domain.events.event_type import EventType
from lifesign.errors import LifesignError
from lifesign.middleware.settings import MiddlewareSettings, RecorderSettings
from lifesign.registry.api.error_responses import STATUS_AND_CODE

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
CLI_INTRODUCTION = "Every command explains itself with `--help`."
CLI_EXIT_CODES = """\
They are the same for all commands. `check` alone has those of monitoring plugins instead: 0 OK, 1 WARNING,
2 CRITICAL, 3 UNKNOWN. What a code means for one command is below that command."""
CLI_VALUES = """\
One word names each kind of value, the same in all commands. `A|B` is one of two, `[A]` may be left out,
`A...` may be repeated, `A,...` is a list with commas. Words in lower case are typed as they are."""
SETTINGS_INTRODUCTION = """\
Those of the server and of a crawl, and which of file, variable and option counts, stand in
[configuration](../configuration.md); those of a probe in
[`probes/reference.yml`](../../probes/reference.yml)."""
API_INTRODUCTION = """\
[`openapi.json`](../../schemas/openapi.json) has every body, bound and example; a running server serves it at
`/openapi.json`. To read or try the API, load that document into any OpenAPI viewer."""
LOG = """\
Each stands in the log as `{sequence, id, type, actor, intent_id?, payload, created_at, previous_hash, hash}`
([schema](../../schemas/event.schema.json)). Members that do not exist are left out."""
API = """\
`{"error": {"code", "message", "details"}, "message"}`; what is not listed is `internal`, 500."""
MADE = "<!-- Drawn from the code by `make schemas`; a test holds it equal. -->"

ERROR_PACKAGES = sorted(path.parent.name for path in Path(lifesign.__file__).parent.glob("*/errors.py"))
"""Those that have errors of their own."""


def pages() -> dict[str, str]:
    """Every page by its name."""
    return {
        "api.md": api_page(),
        "cli.md": cli_page(),
        "errors.md": errors_page(),
        "events.md": events_page(),
        "settings.md": settings_page(),
    }


def commands(command: Any = None, name: str = "lifesign") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name, groups before what is in them."""
    command = command or typer.main.get_command(application._application)
    yield name, command
    for part, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {part}")


def options(command: Any) -> list[tuple[str, str]]:
    """What may be given to a command: how it is spelled, and what it does."""
    context = typer.Context(command)
    shown = [parameter.get_help_record(context) for parameter in command.params]
    return [record for record in shown if record is not None]


def cli_page() -> str:
    """The command line: what it is for, what may be given, and how it ends."""
    lines = ["# Which commands are there, what may be given, and how do they end?", "", MADE, ""]
    lines += [CLI_INTRODUCTION, ""]
    lines += ["## Exit codes", "", CLI_EXIT_CODES, ""]
    lines += _table(("code", "means"), [(str(int(code)), meaning) for code, meaning in MEANINGS.items()])
    lines += ["## Values", "", CLI_VALUES, ""]
    lines += _table(("word", "stands for"), [(f"`{word}`", meaning) for word, meaning in METAVARS.items()])
    for name, command in commands():
        lines += [
            f"## {name}",
            "",
            *_paragraphs(command.help or ""),
            *(_paragraphs(command.epilog) if command.epilog else ()),
            *_table(("given", "what it does"), options(command)),
        ]
    return "\n".join(lines).rstrip() + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield from ["```text", paragraph.removeprefix("\b\n").rstrip(), "```", ""]
        else:
            yield from [_plain(paragraph), ""]


def settings_page() -> str:
    """Every setting of the middleware, and every variable of the environment."""
    lines = ["# Which settings has the middleware, and which variables are read?", "", MADE, ""]
    lines += [SETTINGS_INTRODUCTION, ""]
    lines += [
        "## The middleware",
        "",
        "Keywords of `AgentHealthMiddleware` and, but for those of HTTP, of `AgentHealth`:",
        "",
    ]
    signature = inspect.signature(AgentHealthMiddleware).parameters
    fields = RecorderSettings.model_fields | MiddlewareSettings.model_fields
    rows = []
    for name, field in fields.items():
        default = signature[name].default
        shown = "required" if default is inspect.Parameter.empty else f"`{default!r}`"
        rows.append((f"`{name}`", field.description or "", shown))
    lines += _table(("setting", "takes", "default"), rows)
    lines += ["## Variables of the environment", ""]
    found: dict[str, list[str]] = {}
    for name, command in commands():
        for parameter in command.params:
            if variable := getattr(parameter, "envvar", None):
                found.setdefault(variable, []).append(f"`{name} {parameter.opts[0]}`")
    variables = [(f"`{variable}`", _few(where)) for variable, where in sorted(found.items())]
    lines += _table(("variable", "stands for"), variables)
    lines += ["Read besides:", "", *_table(("variable", "what it is"), OTHER_VARIABLES)]
    return "\n".join(lines).rstrip() + "\n"


def _few(where: list[str]) -> str:
    return (
        ", ".join(where)
        if len(where) <= 4
        else f"{where[0]}, and the same of {len(where) - 1} other commands"
    )


OTHER_VARIABLES = [
    ("`LIFESIGN_KEY`", "the key of whoever asks a registry: commands, `AgentLink`, `@Agent`"),
    (
        "`LIFESIGN_DETAIL_TOKEN`",
        "opens full detail of an agent that publishes coarse: `lifesign check`",
    ),
    ("`LIFESIGN_MCP_TOKEN`", "what clients of `lifesign mcp --transport http` have to show"),
    ("`OPENCODE_SERVER_PASSWORD`, `OPENCODE_SERVER_USERNAME`", "for `lifesign watch-activity opencode`"),
    ("`NO_COLOR`", "no colours, if it is not empty"),
]


def events_page() -> str:
    """Every type of event with the members of its payload."""
    lines = ["# Which events are there, and what do they tell?", "", MADE, ""]
    lines += [LOG, ""]
    for kind in EventType:
        payload = PAYLOADS[kind]
        lines += [f"## {kind.value}", "", _plain(payload.__doc__ or ""), ""]
        schema = payload.model_json_schema()
        rows = [
            (
                f"`{name}`" + ("" if name in schema.get("required", []) else " (if any)"),
                _shape(member, schema.get("$defs", {})),
                member.get("description", ""),
            )
            for name, member in schema.get("properties", {}).items()
        ]
        lines += _table(("member", "is", "what it tells"), rows)
    return "\n".join(lines).rstrip() + "\n"


def errors_page() -> str:
    """Every error: what a caller of the API is told, and what is raised in Python."""
    lines = ["# Which errors are there, and what do they mean?", "", MADE, ""]
    lines += ["## Of the API", "", API, ""]
    rows = [
        (str(status), f"`{code}`", _first_sentence(kind)) for kind, (status, code) in STATUS_AND_CODE.items()
    ]
    lines += _table(("status", "code", "means"), rows)
    lines += ["## In Python", "", "All are below `lifesign.errors.LifesignError`.", ""]
    errors = [
        (f"`{kind.__module__}.{kind.__name__}`", _first_sentence(kind))
        for module in ("lifesign.errors", *(f"lifesign.{package}.errors" for package in ERROR_PACKAGES))
        for kind in vars(import_module(module)).values()
        if inspect.isclass(kind) and issubclass(kind, LifesignError) and kind.__module__ == module
    ]
    lines += _table(("error", "means"), errors[1:])
    return "\n".join(lines).rstrip() + "\n"


def api_page() -> str:
    """Every operation of the registry's API, out of its own description."""
    described = json.loads((REFERENCE.parents[1] / "schemas" / "openapi.json").read_text())

    def found(part: dict[str, Any]) -> dict[str, Any]:
        """Follow a reference within the document."""
        if "$ref" not in part:
            return part
        place: Any = described
        for step in part["$ref"].removeprefix("#/").split("/"):
            place = place[step]
        return dict(place)

    lines = ["# Which operations has the registry's API?", "", MADE, "", API_INTRODUCTION, ""]
    for path, operations in described["paths"].items():
        of_all = operations.get("parameters", [])
        for method, operation in operations.items():
            if method not in {"delete", "get", "patch", "post", "put"}:
                continue
            lines += [f"## {method.upper()} `{path}`", "", _plain(operation["summary"]), ""]
            lines += [_plain(operation["description"]), ""] if "description" in operation else []
            given = [found(parameter) for parameter in [*of_all, *operation.get("parameters", [])]]
            rows = [(f"`{one['name']}`", one["in"], one.get("description", "")) for one in given]
            lines += _table(("given", "in", "what it is"), rows)
            good, bad = (
                [code for code in operation["responses"] if (code < "4") is well] for well in (True, False)
            )
            lines += [f"Answers {', '.join(good)}; refuses with {', '.join(bad)} ([errors](errors.md)).", ""]
    return "\n".join(lines).rstrip() + "\n"


def _first_sentence(kind: type[LifesignError]) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())


def _shape(member: dict[str, Any], parts: dict[str, Any]) -> str:  # noqa: PLR0911 - one for each form of a schema
    """What a member is, in a word or two."""
    if "$ref" in member:
        return _shape(parts[member["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in member:
        return " or ".join(_shape(one, parts) for one in member["anyOf"] if one.get("type") != "null")
    if "const" in member:
        return f"`{member['const']}`"
    if "enum" in member:
        return ", ".join(f"`{value}`" for value in member["enum"])
    if member.get("type") == "array":
        return f"list of {_shape(member.get('items', {}), parts)}"
    if member.get("format") == "date-time":
        return "time"
    kind = str(member.get("type", "any"))
    return {"string": "text", "integer": "whole number", "boolean": "true or false"}.get(kind, kind)


def _table(heads: tuple[str, ...], rows: list[Any]) -> list[str]:
    if not rows:
        return []
    cells = [[_plain(cell).replace("|", "\\|") for cell in row] for row in rows]
    return [_row(heads), "|" + "---|" * len(heads), *map(_row, cells), ""]


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Text on one line, in which nothing but what stands in backticks looks like an element."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace(">", "&gt;") for part in parts
    )


if __name__ == "__main__":
    for page, text in pages().items():
        (REFERENCE / page).write_text(text)
