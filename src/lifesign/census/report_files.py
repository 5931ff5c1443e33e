"""Files of a census and its targets, in their formats."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import Final, TextIO

from lifesign.census.document import Census
from lifesign.census.page import as_html
from lifesign.census.targets_csv import write_targets
from lifesign.census.text_formats import as_csv, as_json, as_markdown
from lifesign.client.registry_targets import PagedTargets, all_pages
from lifesign.domain.models.census import Deadlines
from lifesign.errors import InvalidValue
from lifesign.filesystem.private_file import replacing

FORMS: Final[Mapping[str, Callable[[Census], str]]] = MappingProxyType(
    {"md": as_markdown, "json": as_json, "csv": as_csv, "html": as_html}
)
"""Formats by the suffix of their files."""
FILE_NAME: Final = "census"
TARGETS_NAME: Final = "targets.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Directory of a crawl's census reports, and the facts about the crawl that they contain."""

    directory: Path
    name: str
    """Name of the probe definition."""
    deadlines: Deadlines
    """Deadlines of its requests."""


def check_directory(directory: Path, option: str) -> None:
    """Create the directory of a report before the first probe; InvalidValue if that fails."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidValue(option, str(directory), f"a directory ({error.strerror})") from None
    if not os.access(directory, os.W_OK):
        raise InvalidValue(option, str(directory), "a directory that may be written")


def titled(taken: Census, title: str) -> Census:
    """Return a census with `title` as its name, unless it already has a name."""
    return taken if taken.name else taken.model_copy(update={"name": title})


async def write_report(taken: Census, targets: PagedTargets, directory: Path) -> list[Path]:
    """Write a census in all formats, with all targets; return the files. Raises OSError.

    A file appears whole, in place of the previous one, so that it may be served at any time. Raise
    RegistryError or LifesignError if `targets` cannot be read.
    """
    files = []
    for suffix, write in FORMS.items():
        files.append(directory / f"{FILE_NAME}.{suffix}")
        with _replacing(files[-1]) as opened:
            opened.write(await asyncio.to_thread(write, taken))
    files.append(directory / TARGETS_NAME)
    with _replacing(files[-1]) as opened:
        await write_targets(opened, all_pages(targets, sort="host"), is_continuous=False)
    return files


@contextmanager
def _replacing(file: Path) -> Iterator[TextIO]:
    """Open a file that replaces `file` at the end of the block, unless the block raises."""
    with replacing(file) as opened:
        # newline: CSV has line ends of its own.
        text = TextIOWrapper(opened, encoding="utf-8", newline="")
        yield text
        text.detach()
