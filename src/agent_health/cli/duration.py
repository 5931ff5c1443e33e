"""How is a duration written on the command line?"""

import re

import typer

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")


def read_duration(text: str) -> float:
    """Return the seconds in `90s`, `15m`, `1h`, `30d` or `2w`; typer.BadParameter for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"expected a duration such as 90s, 15m, 1h, 30d or 2w; got {text!r}")
    return float(int(found[1]) * _SECONDS[found[2]])
