"""Options of the commands that ask a registry, and the connection to it."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lifesign.cli.options.duration import duration_option
from lifesign.cli.options.secret_file import read_secret
from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE
from lifesign.client.secret_file import check_key
from lifesign.errors import InvalidValue
from lifesign.filesystem.core_dumps import forbid_core_dumps

if TYPE_CHECKING:
    from lifesign.client import RegistryClient

DEFAULT_URL = "http://127.0.0.1:8440"
NO_KEY_HINT = (
    "an administrator can create a key on the registry's machine: lifesign keys create --role reader "
    "--name NAME"
)

RegistryUrl = Annotated[
    str, typer.Option("--registry", metavar="URL", envvar=URL_VARIABLE, help="URL of the registry.")
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help=f"File with the key for the registry. Without it: the key in ${KEY_VARIABLE}.",
    ),
]
MAX_LISTED = 100_000
USUAL_IN_TABLE = 100
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        metavar="COUNT",
        min=1,
        max=MAX_LISTED,
        help=f"Maximum number of rows. Without it: {USUAL_IN_TABLE} in a table, all as JSON.",
    ),
]
MaxEvidenceAge = Annotated[
    float | None,
    duration_option(
        "--max-evidence-age",
        help="Only entries whose last measured probe is not older than this, such as 15m.",
    ),
]
PlainHttp = Annotated[
    bool,
    typer.Option(
        "--allow-plain-http",
        help="Allow plain HTTP to a registry on another host. The key is then sent unencrypted.",
    ),
]

T = TypeVar("T")


def ask(
    function: Callable[["RegistryClient"], Awaitable[T]],
    *,
    registry: str,
    key_file: Path | None,
    allow_plain_http: bool,
) -> T:
    """Call the function with a client of the registry, and return its result. Raises RegistryError."""
    # aiohttp takes 200 ms, which `--help` does not need.
    import asyncio  # noqa: PLC0415

    from lifesign.client import RegistryClient  # noqa: PLC0415

    async def call() -> T:
        async with RegistryClient(
            registry, key=read_key(key_file), allow_plain_http=allow_plain_http
        ) as client:
            return await function(client)

    return asyncio.run(call())


def read_key(file: Path | None) -> str:
    """Read the key from a file, else from the environment; InvalidValue if there is none, or no valid one."""
    forbid_core_dumps()
    key = os.environ.get(KEY_VARIABLE, "") if file is None else read_secret(file, "--key-file", "key")
    if not key:
        raise InvalidValue("key", None, f"a key in ${KEY_VARIABLE} or --key-file", hint=NO_KEY_HINT)
    check_key(key, f"${KEY_VARIABLE}" if file is None else f"--key-file {file}")
    return key
