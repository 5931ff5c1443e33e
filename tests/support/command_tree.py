"""The commands of the command line and their parameters, as typer knows them."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from lifesign.cli import application


def commands(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command that is no group: its name without `lifesign`, such as `keys list`."""
    command = command or _application()
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for part, inner in below.items():
        yield from commands(inner, f"{name} {part}".strip())


@cache
def _application() -> Any:
    return typer.main.get_command(application._application)


def valued_parameters() -> Iterator[tuple[str, Any]]:
    """Yield every option that takes a value, and every argument, by command and name."""
    for name, command in commands():
        for parameter in command.params:
            if not getattr(parameter, "is_flag", False):
                yield f"{name} {parameter.opts[0]}", parameter


def options_of(command: Any) -> dict[str, Any]:
    """Return a command's options by each of their names."""
    return {
        name: parameter
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }
