"""Safe output of foreign text."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from lifesign.domain.net.peer_text import printable

MAX_LISTED = 20
"""Maximum number of findings of one kind that are shown; `--json` has all."""
LABEL_CHARS = 12
"""Width of the column of labels, including the space after it; a longer label shifts its text."""


class Colour(StrEnum):
    """A text colour of terminals, as its escape code."""

    GREEN = "32"
    YELLOW = "33"
    RED = "31"
    CYAN = "36"
    FAINT = "2"


@dataclass(frozen=True, slots=True)
class PageLine:
    """One line of a page for people: its label and its text."""

    label: str
    text: str
    colour: Colour | None = None


def has_colours(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to write in colour: on a terminal that has colours, unless NO_COLOR is set."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def write_page(stream: TextIO, lines: Iterable[PageLine], *, colours: bool) -> None:
    """Write lines with their labels in a column. Characters that could control the terminal are replaced."""
    previous = None
    for line in lines:
        label = "" if line.label == previous else line.label
        previous = line.label
        text = printable(line.text)
        if colours and line.colour is not None:
            text = f"\x1b[{line.colour}m{text}\x1b[0m"
        stream.write(f"{label:<{LABEL_CHARS - 1}} {text}\n" if line.label else f"{text}\n")


def listed(label: str, texts: Iterable[str], colour: Colour | None = None) -> list[PageLine]:
    """Return a page line with this label for each text. Beyond MAX_LISTED, one line says how many more."""
    lines = [PageLine(label, text, colour) for text in texts]
    more = len(lines) - MAX_LISTED
    return [*lines[:MAX_LISTED], PageLine(label, f"... and {more} more (see --json)")] if more > 0 else lines
