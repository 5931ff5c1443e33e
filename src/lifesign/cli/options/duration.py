"""How is a duration written on the command line?"""

import re
from collections.abc import Callable

import typer

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"([0-9]+)([smhdw])")
_MAX_DIGITS = 9
_MAX_SHOWN_CHARS = 40


def read_duration(text: str) -> float:
    """Return the seconds in `90s`, `15m`, `1h`, `30d` or `2w`; typer.BadParameter for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        shown = text[:_MAX_SHOWN_CHARS]
        raise typer.BadParameter(f"expected a duration such as 90s, 15m, 1h, 30d or 2w; got {shown!r}")
    if len(found[1]) > _MAX_DIGITS:
        shown = text[:_MAX_SHOWN_CHARS]
        raise typer.BadParameter(f"expected a duration of at most {'9' * _MAX_DIGITS}w; got {shown!r}")
    return float(int(found[1]) * _SECONDS[found[2]])


def duration_between(least_s: float, most_s: float) -> Callable[[str], float]:
    """Return what reads a duration within these bounds, in seconds, both among them."""
    bounds = f"{duration_text(least_s)} to {duration_text(most_s)}"

    def read(text: str) -> float:
        seconds = read_duration(text)
        if not least_s <= seconds <= most_s:
            raise typer.BadParameter(f"expected a duration of {bounds}; got {text!r}")
        return seconds

    return read


def duration_text(seconds: float) -> str:
    """Return how a duration of whole seconds is written, in the largest unit that fits."""
    fitting = [unit for unit, long in _SECONDS.items() if seconds >= long and seconds % long == 0]
    unit = fitting[-1] if fitting else "s"
    return f"{round(seconds / _SECONDS[unit])}{unit}"
