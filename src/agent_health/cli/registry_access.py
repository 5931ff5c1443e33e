"""How does a command ask the registry, and how does it end if the registry says no?"""

import os
import stat
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from agent_health.cli.terminal import printable
from agent_health.errors import InvalidSetting

if TYPE_CHECKING:
    from agent_health.client import RegistryClient

URL_VARIABLE = "AGENT_HEALTH_REGISTRY"
KEY_VARIABLE = "AGENT_HEALTH_KEY"
DEFAULT_URL = "http://127.0.0.1:8440"
MAX_KEY_FILE_BYTES = 8192

_NOT_THE_OWNERS = 0o077
"""The bits of a file's mode that let its group and all others in."""

EXIT_REFUSED = 1
"""The registry answered that it will not."""
EXIT_UNREACHABLE = 2
"""There is no usable answer."""

RegistryUrl = Annotated[
    str, typer.Option("--registry", metavar="URL", envvar=URL_VARIABLE, help="Where the registry is.")
]
KeyFile = Annotated[
    Path | None,
    typer.Option("--key-file", metavar="FILE", help=f"Holds the key; else ${KEY_VARIABLE} is used."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
PlainHttp = Annotated[
    bool, typer.Option("--allow-plain-http", help="Send the key in the clear to another host than this one.")
]

T = TypeVar("T")


def ask(
    deed: Callable[["RegistryClient"], Awaitable[T]],
    *,
    registry: str,
    key_file: Path | None,
    allow_plain_http: bool,
) -> T:
    """Return what the registry answers; else say why not, and end with the exit code for it."""
    # aiohttp takes 200 ms, which `--help` need not pay.
    import asyncio  # noqa: PLC0415

    from agent_health.client import RegistryClient  # noqa: PLC0415
    from agent_health.client.registry_errors import RegistryError, RegistryRefusal  # noqa: PLC0415

    async def asked() -> T:
        async with RegistryClient(
            registry, key=read_key(key_file), allow_plain_http=allow_plain_http
        ) as client:
            return await deed(client)

    try:
        return asyncio.run(asked())
    except RegistryError as error:
        is_refusal = isinstance(error, RegistryRefusal)
        code = f" ({error.code})" if error.code else ""
        sys.stderr.write(f"agent-health: {printable(str(error))}{printable(code)}\n")
        raise typer.Exit(EXIT_REFUSED if is_refusal else EXIT_UNREACHABLE) from None


def read_key(file: Path | None) -> str:
    """Read the key; never taken as an argument, where every user of the machine could see it.

    A file that others may read is used nevertheless, and complained of once on standard error.
    """
    if file is None:
        key = os.environ.get(KEY_VARIABLE, "")
    else:
        try:
            with file.open("rb") as opened:
                found = os.fstat(opened.fileno())
                if stat.S_ISREG(found.st_mode) and found.st_mode & _NOT_THE_OWNERS:
                    _warn_of(file, stat.S_IMODE(found.st_mode))
                key = opened.read(MAX_KEY_FILE_BYTES).decode("ascii", "replace").strip()
        except OSError as error:
            raise InvalidSetting("--key-file", str(file), f"a readable file ({error.strerror})") from None
    if not key:
        raise InvalidSetting("key", "none", f"one in ${KEY_VARIABLE} or --key-file")
    return key


@cache
def _warn_of(file: Path, mode: int) -> None:
    """Say once, however often it is read, that a file with a key is not its owner's alone."""
    told = f"warning: the key in {file} is open to others (mode {mode:04o}): chmod 600 {quote(str(file))}"
    sys.stderr.write(f"agent-health: {printable(told)}\n")
