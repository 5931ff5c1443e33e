"""Keys and tokens in files: reading them, and writing new keys."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from lifesign.client import secret_file
from lifesign.domain.net.peer_text import printable
from lifesign.errors import InvalidValue
from lifesign.filesystem.core_dumps import forbid_core_dumps
from lifesign.filesystem.private_file import create_private

WriteKey = Annotated[
    Path | None,
    typer.Option(
        "--write-key",
        metavar="FILE",
        help="Write the new key to this file instead of the terminal. The file must not exist yet.",
    ),
]


def read_secret(file: Path, option: str, what: str) -> str:
    """Return the secret in a file; warnings about the file's mode go to standard error."""
    forbid_core_dumps()
    return secret_file.read_secret(file, option, what, complain)


@contextmanager
def new_key_file(file: Path | None) -> Iterator[Callable[[str], None] | None]:
    """Create the file for a new key before the key exists, since a key is shown only once.

    Yield a function that stores a key in it, or None without a file. Raise InvalidValue if the file exists,
    or cannot be created; a file without a key is removed.
    """
    if file is None:
        yield None
        return
    try:
        opened = create_private(file)
    except OSError as error:
        hint = "pass the name of a new file, or remove this one" if isinstance(error, FileExistsError) else ""
        raise InvalidValue(
            "--write-key", str(file), f"a file that can be created ({error.strerror})", hint=hint
        ) from None
    is_kept = False

    def keep(key: str) -> None:
        nonlocal is_kept
        os.write(opened, f"{key}\n".encode())
        is_kept = True

    try:
        yield keep
    finally:
        os.close(opened)
        if not is_kept:
            file.unlink(missing_ok=True)


@cache
def complain(complaint: str) -> None:
    """Print a warning about a file once, even if the file is read several times."""
    sys.stderr.write(f"lifesign: {printable(f'warning: {complaint}')}\n")
