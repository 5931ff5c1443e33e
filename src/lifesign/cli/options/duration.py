"""Durations in options, in variables of the environment and in configuration files: `30s`, `5m`, `1h`."""

import re
from collections.abc import Callable
from math import inf
from typing import Any, Final

import typer

from lifesign.errors import InvalidValue

METAVAR: Final = "DURATION"
FORM: Final = "a duration such as 30s, 5m, 1h or 2d, or a number of seconds"
DURATION_HINT: Final = "units are s, m, h, d and w; write 0.5s for 500 ms, and 90m for an hour and a half"

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)")
_NUMBER = re.compile(r"\b[0-9]+(?:\.[0-9]+)?(?:e\+?[0-9]+)?\b")
_MAX_WEEKS = 999_999_999
_MAX_DIGITS = 15
_MAX_SHOWN_CHARS = 40


class InvalidDuration(typer.BadParameter):
    """A text is not a duration such as `90s` or `1.5h`."""

    hint: Final = DURATION_HINT


class DefaultDuration(float):
    """Default value of a duration option: a number of seconds that `--help` shows as `10s` or `5m`."""

    def __str__(self) -> str:
        return format_duration(self)


def duration_option(
    *names: str,
    help: str,  # noqa: A002 - as typer calls it
    least_s: float = 0.0,
    most_s: float | None = None,
    more_than_s: float | None = None,
    envvar: str | None = None,
) -> Any:
    """Return an option whose value is a duration, in seconds, within these bounds.

    Every option that takes a duration is made here, so that form, metavar and error are the same.
    """
    read = duration_between(least_s, most_s, more_than_s=more_than_s)
    return typer.Option(*names, parser=read, metavar=METAVAR, envvar=envvar, help=help)


def read_duration(text: str) -> float:
    """Return the seconds in `90s`, `1.5h`, `30d`, `2w` or `90`; typer.BadParameter for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidDuration(f"expected {FORM}; got {text[:_MAX_SHOWN_CHARS]!r}")
    # Rounded to microseconds: 0.1 m is 6 s, and not a little more.
    is_short = len(found[1].partition(".")[0]) <= _MAX_DIGITS
    seconds = round(float(found[1]) * _SECONDS[found[2] or "s"], 6) if is_short else inf
    if seconds > _MAX_WEEKS * _SECONDS["w"]:
        shown = text[:_MAX_SHOWN_CHARS]
        raise typer.BadParameter(f"expected a duration of at most {_MAX_WEEKS}w; got {shown!r}")
    return seconds


def duration_between(
    least_s: float, most_s: float | None, *, more_than_s: float | None = None
) -> Callable[[str | float], float]:
    """Return a parser that accepts durations from `least_s` to `most_s` seconds, and above `more_than_s`."""
    if more_than_s is not None:
        bounds = f"more than {format_duration(more_than_s)}"
        bounds += "" if most_s is None else f", up to {format_duration(most_s)}"
    elif most_s is not None:
        bounds = f"{format_duration(least_s)} to {format_duration(most_s)}"
    else:
        bounds = f"{format_duration(least_s)} or more"

    def read(given: str | float) -> float:
        text = str(given)
        seconds = read_duration(text)
        is_below = seconds < least_s if more_than_s is None else seconds <= more_than_s
        if is_below or (most_s is not None and seconds > most_s):
            raise typer.BadParameter(f"expected a duration of {bounds}; got {text!r}")
        return seconds

    return read


def format_duration(seconds: float) -> str:
    """Return a duration as an option takes it, such as `90s` or `2h`: a whole number of the largest unit."""
    fitting = [unit for unit, long in _SECONDS.items() if seconds >= long and seconds % long == 0]
    # Two weeks are shown as 14 days: no default or bound is in weeks.
    unit = next((unit for unit in reversed(fitting) if unit != "w"), "s")
    return f"{_plain(seconds / _SECONDS[unit])}{unit}"


def in_durations(name: str, error: InvalidValue) -> InvalidValue:
    """Return an error about a number of seconds as one about a duration, under the option's name."""
    given = format_duration(error.given) if isinstance(error.given, int | float) else error.given
    expected = _NUMBER.sub(lambda found: format_duration(float(found[0])), error.expected)
    return InvalidValue(name, given, expected)


def _plain(number: float) -> str:
    """Return a number without an exponent and without zeros at its end."""
    text = f"{number:.6f}".rstrip("0").rstrip(".")
    return text or "0"
