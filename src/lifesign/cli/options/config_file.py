"""Settings from files, with the source of each value.

Each variable has a member in the file: `LIFESIGN_SERVER_TLS_KEY` is `tls_key` in `[server]`. An option
overrides its variable, a variable the file, and the file the default.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import typer
from typer.exceptions import TyperException

from lifesign.cli.errors import InvalidConfig
from lifesign.cli.options.duration import DURATION_HINT, FORM, METAVAR, format_duration, in_durations
from lifesign.cli.options.secret_file import complain
from lifesign.client.secret_file import complain_if_open
from lifesign.domain.errors import FileFault
from lifesign.domain.net.allowed_addresses import without_passwords
from lifesign.domain.net.database_url import shown_database_url
from lifesign.domain.net.peer_text import printable
from lifesign.errors import InvalidValue
from lifesign.filesystem.changeable_path import path_weakness

MAX_BYTES: Final = 65_536
MAX_UNKNOWN_NAMED: Final = 20
"""Maximum number of unknown variables that a message names."""
MAX_NAME_CHARACTERS: Final = 100
DATABASE: Final = "database"
"""Setting with the URL of a database."""
_DESTINATIONS: Final = frozenset({DATABASE, "registry"})
"""Settings that say where a key or a password is sent."""
PREFIXES: Final = {"server": "LIFESIGN_SERVER_", "prober": "LIFESIGN_PROBER_"}
"""Prefixes of the variables, by table."""
SOURCES: Final = {
    "COMMANDLINE": "option",
    "ENVIRONMENT": "environment",
    "DEFAULT_MAP": "file",
    "DEFAULT": "default",
}

_KINDS: Final[Mapping[object, tuple[str, frozenset[type]]]] = MappingProxyType(
    {
        bool: ("true or false", frozenset({bool})),
        int: ("a whole number", frozenset({int})),
        float: ("a number", frozenset({int, float})),
        str: ("a text in quotes", frozenset({str, list})),
        Path: ("a text in quotes", frozenset({str})),
        METAVAR: (FORM, frozenset({int, float, str})),
    }
)
"""Allowed types of a parameter's value in a file; in the environment all values are text."""
_PLACES: Final = "lifesign.config_places"
"""Key in a command's context for the locations of settings in its file."""
_TABLE = re.compile(r"\s*\[([^\[\]]+)\]")
_NAME = re.compile(r"\s*[\"']?([A-Za-z0-9_-]+)[\"']?\s*=")
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)$")


@dataclass(frozen=True, slots=True)
class _SourceLocation:
    """Position of a setting."""

    file: Path
    table: str
    name: str
    line: int


def read_server_config(context: typer.Context, file: Path | None) -> Path | None:
    """Use the table `[server]` of a settings file as defaults for a command's options."""
    return _take(context, file, "server")


def read_prober_config(context: typer.Context, file: Path | None) -> Path | None:
    """Use the table `[prober]` of a settings file as defaults for a command's options."""
    return _take(context, file, "prober")


def _take(context: typer.Context, file: Path | None, table: str) -> Path | None:
    if not context.resilient_parsing:
        _warn_of_unknown_variables(context, table)
    if file is not None:
        context.default_map = _defaults(context, read_config(file, table), file, table)
    return file


def _warn_of_unknown_variables(context: typer.Context, table: str) -> None:
    """Warn of variables that have the prefix of a table and name no setting.

    They are not refused as in a file: other programs set such variables too, as Kubernetes does for each of
    its services.
    """
    prefix = PREFIXES[table]
    known = {f"{prefix}{name.upper()}" for name in _settings_elsewhere(context, table)} | {f"{prefix}CONFIG"}
    unknown = sorted(name for name in os.environ if name.startswith(prefix) and name not in known)
    for name in unknown[:MAX_UNKNOWN_NAMED]:
        shown = name[:MAX_NAME_CHARACTERS]
        text = f"lifesign: {shown} is not a setting and is ignored{_suggestion(name, known)}"
        sys.stderr.write(f"{printable(text)}\n")


def _unknown(name: str, known: Iterable[str]) -> str:
    return f"no such setting{_suggestion(name, known)}: see docs/configuration.md"


def _suggestion(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like an unknown one, as a question; empty if none is."""
    near = get_close_matches(name[:MAX_NAME_CHARACTERS], sorted(known), 1)
    return f" (is {near[0]} meant?)" if near else ""


def read_config(file: Path, table: str) -> dict[str, tuple[object, int]]:
    """Read a table of a settings file, with the line of each setting; InvalidConfig names the fault.

    The other tables of PREFIXES are left for their commands. They, and this table, may be absent.
    """
    import tomllib  # noqa: PLC0415 - `--help` need not pay for it

    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            raw = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidValue("--config", str(file), f"a readable file ({error.strerror})") from None
    if len(raw) > MAX_BYTES:
        raise InvalidValue("--config", str(file), f"a file of at most {MAX_BYTES} bytes")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InvalidConfig([FileFault(line, "", "expected text in UTF-8")], str(file)) from None
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _AT_LINE.search(str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        raise InvalidConfig([FileFault(line, "", _AT_LINE.sub("", str(error)).strip())], str(file)) from None
    lines = _lines(text)
    known = " or ".join(f"[{name}]" for name in PREFIXES)
    faults = [
        FileFault(lines.get((name, ""), lines.get(("", name), 1)), f"/{name}", f"no such table: {known}")
        for name, value in read.items()
        if name not in PREFIXES or not isinstance(value, dict)
    ]
    if faults:
        raise InvalidConfig(faults, str(file))
    databases = [str(value[DATABASE]) for value in read.values() if DATABASE in value]
    if without_passwords(text) != text or any(shown_database_url(url) != url for url in databases):
        complain_if_open(file, status, "password", complain)
    elif (weakness := path_weakness(file, status)) is not None and any(
        _DESTINATIONS & value.keys() for value in read.values()
    ):
        reason = f"says where secrets are sent ({weakness.reason})"
        complain(f"other users can change {file}, which {reason}: {weakness.remedy}")
    return {name: (value, lines.get((table, name), 1)) for name, value in read.get(table, {}).items()}


def _defaults(
    context: typer.Context, given: Mapping[str, tuple[object, int]], file: Path, table: str
) -> dict[str, Any]:
    """Return a file's values by the parameters of a command; unknown names are refused."""
    known = dict(settings_of(context.command, table))
    everywhere = known.keys() | _settings_elsewhere(context, table)
    faults: list[FileFault] = []
    defaults: dict[str, Any] = {}
    for name, (value, line) in given.items():
        place = f"/{table}/{name}"
        parameter = known.get(name)
        if name not in everywhere:
            faults.append(FileFault(line, place, _unknown(name, everywhere)))
        elif (read := _as_given(value)) is None:
            faults.append(FileFault(line, place, "expected a text, a number, true, false or a list of texts"))
        elif parameter is not None:
            if (misfit := _misfit(context, parameter, value, read)) is not None:
                faults.append(FileFault(line, place, misfit))
            defaults[parameter.name] = read
    if faults:
        invalid = InvalidConfig(faults, str(file))
        wrong = {fault.path.rpartition("/")[2] for fault in faults}
        if any(_is_duration(parameter) for name, parameter in known.items() if name in wrong):
            invalid.hint = DURATION_HINT
        raise invalid
    context.meta[_PLACES] = {
        known[name].name: _SourceLocation(file, table, name, line)
        for name, (_, line) in given.items()
        if name in known
    }
    return defaults


def _as_given(value: object) -> str | bool | None:
    """Return a value of a file in the form of the command line; None if it has none."""
    if isinstance(value, list) and all(isinstance(each, str) and "," not in each for each in value):
        return ",".join(value)
    if isinstance(value, str | int | float):
        return value if isinstance(value, bool) else str(value)
    return None


def _misfit(context: typer.Context, parameter: Any, value: object, read: object) -> str | None:
    """Return the fault of a file's value for this parameter; None if it fits."""
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if _is_duration(parameter):
        kind = METAVAR
    if kind in _KINDS:
        expected, kinds = _KINDS[kind]
        if type(value) not in kinds:
            is_quoted = isinstance(value, str) and kind is not Path
            return f"expected {expected}{', without quotes' * is_quoted}; got {_as_written(value)}"
    try:
        parameter.process_value(context, read)
    except TyperException as error:
        message = _in_words(error)
        return message if "; got " in message else f"{message}; got {value!r}"
    return None


def _is_duration(parameter: Any) -> bool:
    return getattr(parameter, "metavar", None) == METAVAR


def _as_written(value: object) -> str:
    """Return a value as a file has it; of a list, that it is one."""
    return "a list" if isinstance(value, list) else _written(value)


def _in_words(error: TyperException) -> str:
    """Return the fault of a value, without the option's name."""
    if expected := _expected(error):
        return expected
    message = str(getattr(error, "message", error.format_message())).rstrip(".")
    return message.removeprefix("Value error, ")


def _expected(error: TyperException) -> str | None:
    """Return the expectation for a value of the wrong type or out of bounds; None for other faults."""
    pydantic_errors = getattr(error.__cause__, "errors", None)
    if pydantic_errors is None:
        return None
    from lifesign.domain.files.validation_messages import (  # noqa: PLC0415 - pydantic is there by now
        MAX_SHOWN_CHARACTERS,
        NUMBER_FAULTS,
        known_expectation,
    )

    fault = pydantic_errors(include_url=False)[0]
    expected = known_expectation(fault)
    if expected is None:
        return None
    # Another value may be a secret.
    got = f"; got {str(fault['input'])[:MAX_SHOWN_CHARACTERS]}" if fault["type"] in NUMBER_FAULTS else ""
    return f"expected {expected}{got}"


@contextmanager
def blaming_the_source(context: typer.Context, table: str) -> Iterator[None]:
    """In the block, let an InvalidValue name where the setting was given: its option, variable or line."""
    try:
        yield
    except InvalidValue as error:
        parameters = [each for _, each in settings_of(context.command, table) if each.name == error.name]
        if not parameters:
            raise
        (parameter,) = parameters
        source = context.get_parameter_source(parameter.name)
        message = SOURCES.get(source.name if source is not None else "", "")
        if _is_duration(parameter):
            error = in_durations(error.name, error)
        expected = _named_by(context, table, message, error.expected)
        place = context.meta.get(_PLACES, {}).get(parameter.name)
        if message == "file" and place is not None:
            got = "" if error.given is None else f"; got {error.given!r}"
            fault = FileFault(place.line, f"/{place.table}/{place.name}", f"expected {expected}{got}")
            raise InvalidConfig([fault], str(place.file)) from None
        name = parameter.envvar if message == "environment" else parameter.opts[0]
        raise InvalidValue(name, error.given, expected, hint=error.hint) from None


def _named_by(context: typer.Context, table: str, text: str, expected: str) -> str:
    """Return the expectation with the names that other settings have in the same source."""
    for name, parameter in settings_of(context.command, table):
        named = {"file": name, "environment": parameter.envvar}.get(text, parameter.opts[0])
        expected = re.sub(rf"\b{parameter.name}\b", named, expected)
    return expected


def usage_error_text(error: TyperException) -> str:
    """Return what is wrong with a command's arguments, by the name of the option or variable."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    variable, text = getattr(parameter, "envvar", None), error.format_message()
    expected = _expected(error)
    if context is not None and parameter is not None and isinstance(variable, str):
        source = context.get_parameter_source(parameter.name)
        if source is not None and SOURCES.get(source.name) == "environment":
            return f"{variable}: {_in_words(error)}"
        text = text.replace(f" (env var: '{variable}')", "")
    message = getattr(error, "message", "")
    if expected is None and message.startswith("expected "):
        expected = message
    if parameter is not None and expected is not None and parameter.opts[0].startswith("-"):
        return f"{parameter.opts[0]}: {expected}"
    # Choices are on separate lines there.
    return " ".join(text.split()).replace(": Value error, ", ": ")


def usage_hint(error: TyperException) -> str:
    """Return a hint for a usage error: units of a wrong value, or help of a missing option; else empty."""
    parameter = getattr(error, "param", None)
    text = getattr(parameter, "help", None)
    if parameter is not None and text and error.format_message().startswith("Missing option"):
        return f"{parameter.opts[0]}: {text}"
    return str(getattr(error, "hint", ""))


def _settings_elsewhere(context: typer.Context, table: str) -> set[str]:
    """Return the names of settings that another command has of the same table."""
    root = context.find_root().command
    commands = getattr(root, "commands", {}).values()
    return {name for command in commands for name, _ in settings_of(command, table)}


def settings_of(command: Any, table: str) -> Iterator[tuple[str, Any]]:
    """Yield a command's options that this table of a settings file may set, with their names there."""
    prefix = PREFIXES[table]
    for parameter in command.params:
        variable = getattr(parameter, "envvar", None)
        if isinstance(variable, str) and variable.startswith(prefix) and parameter.name != "_config":
            yield variable.removeprefix(prefix).lower(), parameter


def show_config(context: typer.Context, table: str, defaults: Mapping[str, object]) -> int:
    """Print all settings in the form of a settings file, each with its origin; passwords are hidden.

    `defaults` are those that only a command's own settings know.
    """
    lines = [f"[{table}]"]
    for name, parameter in settings_of(context.command, table):
        source = context.get_parameter_source(parameter.name)
        value = context.params[parameter.name]
        if value is None:
            value = defaults.get(parameter.name)
        if _is_duration(parameter) and isinstance(value, int | float):
            value = format_duration(value)
        text = SOURCES.get(source.name if source is not None else "", "default")
        if text == "environment":
            text = f"environment: {parameter.envvar}"
        if value is None:
            lines.append(f"# {name} =  # {text}: none")
        else:
            shown = shown_database_url(str(value)) or "..." if name == DATABASE else value
            lines.append(f"{name} = {_written(shown)}  # {text}")
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
    return 0


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    text = without_passwords(str(value.value if isinstance(value, Enum) else value))
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _lines(text: str) -> dict[tuple[str, str], int]:
    """Return the line of each name in each table, and of each table."""
    places: dict[tuple[str, str], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _TABLE.match(line):
            table = found[1]
            places.setdefault((table, ""), number)
        elif found := _NAME.match(line):
            places.setdefault((table, found[1]), number)
    return places
