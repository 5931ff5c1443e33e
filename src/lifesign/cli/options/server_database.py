"""Access to the registry's database without a server."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lifesign.cli.options.config_file import SOURCES, read_server_config
from lifesign.domain.access.event_actor import OwnActor
from lifesign.domain.net.allowed_addresses import without_passwords
from lifesign.domain.net.database_url import shown_database_url
from lifesign.filesystem.core_dumps import forbid_core_dumps
from lifesign.storage.engine.sqlite_path import check_exists, sqlite_file
from lifesign.storage.errors import StoreUnavailable

if TYPE_CHECKING:
    from lifesign.storage.engine.transaction import Transaction

DATABASE_VARIABLE = "LIFESIGN_SERVER_DATABASE"
DEFAULT_DATABASE = "sqlite:///lifesign.db"
"""Default of the server's setting, not imported from there because pydantic takes 60 ms."""
ACTOR = OwnActor.COMMAND_LINE.value
"""Actor of the events."""

DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--database",
        metavar="URL",
        envvar=DATABASE_VARIABLE,
        help=(
            "Database URL: sqlite:///FILE or postgresql://USER@HOST/NAME. Put a URL with a "
            "password into $LIFESIGN_SERVER_DATABASE: all users of the machine can see arguments."
        ),
    ),
]

ServerConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="LIFESIGN_SERVER_CONFIG",
        metavar="FILE",
        is_eager=True,
        callback=read_server_config,
        help="Settings file; options and environment variables override it.",
    ),
]
"""Options of `serve`, and of commands that open the same database."""

StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="LIFESIGN_SERVER_STATE_DIR",
        metavar="DIRECTORY",
        help=(
            "Directory for the marker by which the server recognises its database. Without it: "
            "lifesign/databases in $XDG_STATE_HOME or ~/.local/state."
        ),
    ),
]
"""Options of `serve`, and of commands that adopt, save or restore its database."""

T = TypeVar("T")


def run_in_transaction(
    url: str,
    function: Callable[["Transaction"], T],
    *,
    is_write: bool = True,
    is_excluded: bool = False,
    must_exist: bool = True,
) -> T:
    """Open a database, run a function in a transaction, and close the database.

    `is_excluded`: no file of an SQLite database is changed or created. InvalidValue for an invalid URL, or a
    missing database that must exist. Raises StoreUnavailable.
    """
    # SQLAlchemy takes 150 ms, which `--help` does not need.
    import asyncio  # noqa: PLC0415

    from lifesign.storage.engine.database import open_database  # noqa: PLC0415

    async def ran() -> T:
        database = open_database(url, is_only_read=not is_write, is_excluded=is_excluded)
        try:
            return await (database.write(function) if is_write else database.read(function))
        finally:
            await database.close()

    forbid_core_dumps()
    if must_exist:
        check_exists(url)
    return asyncio.run(ran())


def check_unused_file(url: str) -> None:
    """Raise DatabaseInUse if another process has the SQLite file open. Raises ForeignDatabase."""
    from lifesign.storage.engine import file_use, schema_version  # noqa: PLC0415 - SQLAlchemy takes 150 ms

    place = sqlite_file(url)
    if place is not None and place.exists():
        # The check for a foreign database comes first: opening the database changes how SQLite stores it. For
        # a file that is no database, opening it gives the better error.
        with suppress(StoreUnavailable):
            run_in_transaction(url, schema_version.revision, is_write=False)
        file_use.check_unused(place)


def same_database(context: typer.Context) -> str:
    """Return the option, for a hint, with which another command uses the same database as this one.

    Empty if they need none: they read the same variables.
    """
    return next(_given(context, {"database": "--database", "_config": "--config"}), "")


def _given(context: typer.Context, options: Mapping[str, str]) -> Iterator[str]:
    """Yield those options of some parameters that were given on the command line, each after a space."""
    for name, option in options.items():
        source = context.get_parameter_source(name)
        if source is not None and SOURCES.get(source.name) == "option":
            text = str(context.params[name])
            shown = shown_database_url(text) if name == "database" else without_passwords(text)
            yield f" {option} {quote(shown or 'URL')}"


def adopt_command(context: typer.Context) -> str:
    """Return the command line that accepts this server's database, for a hint."""
    options = {"database": "--database", "_config": "--config", "state_dir": "--state-dir"}
    return f"lifesign database adopt{''.join(_given(context, options))}"
