"""How does a census get into files, and in which forms?"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from agent_health.errors import InvalidSetting
from agent_health.prober.census import Census
from agent_health.prober.census_page import as_html
from agent_health.prober.census_text import as_csv, as_json, as_markdown

FORMS: Final[Mapping[str, Callable[[Census], str]]] = MappingProxyType(
    {"md": as_markdown, "json": as_json, "csv": as_csv, "html": as_html}
)
"""By the suffix of their files."""
FILE_NAME: Final = "census"


def check_directory(directory: Path, option: str) -> None:
    """Make the directory of a report before anybody is probed for it; InvalidSetting if it cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(option, str(directory), f"a directory ({error.strerror})") from None
    if not os.access(directory, os.W_OK):
        raise InvalidSetting(option, str(directory), "a directory that may be written")


def write_report(taken: Census, directory: Path) -> Iterator[Path]:
    """Write a census in all its forms, and tell each file; OSError.

    A file appears whole, in place of the one before: whoever serves them may do so all the time.
    """
    for suffix, write in FORMS.items():
        file = directory / f"{FILE_NAME}.{suffix}"
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            # newline: the CSV has line ends of its own.
            with unfinished.open("w", encoding="utf-8", newline="") as opened:
                opened.write(write(taken))
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
        yield file
