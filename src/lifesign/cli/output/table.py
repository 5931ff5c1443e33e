"""Aligned columns, and values as JSON."""

import json
from collections.abc import Iterable, Sequence
from typing import TextIO

from lifesign.domain.net.peer_text import MAX_READ_CHARS, printable

MAX_CELL_CHARS = 48
"""Maximum width of all columns except the last, on a terminal; pipes and `--json` get full values."""


def write_table(stream: TextIO, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write rows as a table with headings. Characters that could control the terminal are replaced."""
    cell = _cell if stream.isatty() else _in_line
    shown = [[cell(text) for text in row[:-1]] + [_in_line(row[-1])] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        stream.write(line.rstrip() + "\n")


def write_json(stream: TextIO, value: object, *, indent: int | None = 2) -> None:
    """Write a value as JSON in ASCII, so that no text in it can control the terminal."""
    stream.write(json.dumps(value, indent=indent, ensure_ascii=True) + "\n")


def _in_line(text: str) -> str:
    """Return a text printable, its lines behind one another."""
    return printable(" ".join(text[:MAX_READ_CHARS].splitlines()))


def _cell(text: str) -> str:
    shown = _in_line(text)
    return shown if len(shown) <= MAX_CELL_CHARS else shown[: MAX_CELL_CHARS - 1] + "…"
