"""Commands about the server's database: migrate, and adopt one that this host's marker does not name."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.server_database import (
    ACTOR,
    DEFAULT_DATABASE,
    DatabaseUrl,
    ServerConfig,
    StateDir,
    check_unused_file,
    run_in_transaction,
)
from lifesign.cli.output.table import write_json
from lifesign.domain.net.peer_text import printable
from lifesign.storage.engine.sqlite_path import sqlite_file

if TYPE_CHECKING:
    from lifesign.domain.events.database_marker import DatabaseMarker
    from lifesign.storage.engine.schema_version import Upgrade
    from lifesign.storage.engine.transaction import Transaction

_CONTEXT = {"help_option_names": ["-h", "--help"]}

database = typer.Typer(
    name="database",
    help="Accept a database that the server refuses.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


@database.command(context_settings=_CONTEXT)
def adopt(
    *,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    state_dir: StateDir = None,
    is_forced: Annotated[
        bool, typer.Option("--force", help="Adopt the database even if the marker names it.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Accept a database that the server refuses, and write the marker by which this host knows it.

    `lifesign serve` refuses a database that is empty, older than this host remembers, or of another
    installation. If such a database is the one to serve, adopt it. An empty one is set up. On a host without
    a marker serve accepts any database: if yours may be an old copy, adopt it first. If serve warns that it
    cannot compare the database with the marker, and yours may be a copy, adopt it with --force.

    All leases end, and all new fencing tokens are above all old ones. Changes that the database lacks stay
    lost: revoked keys are valid again, and deleted webhooks, erased agents and origins that opted out are
    back. Withdraw them again, or restore a backup: `lifesign restore` suspends keys that may be revoked.
    Archive files stay unchanged: leave them where they are.

    Stop all servers of this database first. If several hosts refuse a PostgreSQL database, run this command
    on each host before you start the first server.

    \b
    Examples:
      lifesign database adopt
      lifesign database adopt --database sqlite:////var/lib/lifesign/lifesign.db

    \b
    Keys of --json:
      adopted   whether the marker named another database
      epoch     epoch of the fencing tokens
      marker    file of the marker
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    # SQLAlchemy takes 150 ms.
    from lifesign.registry.database_identity.marker_check import KnownIdentity, current_marker  # noqa: PLC0415
    from lifesign.registry.database_identity.marker_check import adopt as adopt_database  # noqa: PLC0415
    from lifesign.registry.database_identity.marker_file import marker_file, put_marker  # noqa: PLC0415
    from lifesign.storage.events import event_news  # noqa: PLC0415

    file = marker_file(database, state_dir)
    file.check_writable()
    known = KnownIdentity.read(file)
    check_unused_file(database)

    def function(transaction: "Transaction") -> "tuple[int | None, DatabaseMarker | None]":
        event_news.check_unserved(transaction)
        epoch = adopt_database(transaction, known, ACTOR, is_forced=is_forced)
        return epoch, None if known.is_new and epoch is None else current_marker(transaction)

    epoch, marker = run_in_transaction(database, function, must_exist=known.is_new)
    if marker is not None:
        put_marker(file, marker)
    if as_json:
        shown = None if marker is None else marker.epoch
        write_json(sys.stdout, {"adopted": epoch is not None, "epoch": shown, "marker": str(file.path)})
        return 0
    if epoch is not None:
        text = f"adopted; fencing tokens continue in epoch {epoch}"
    elif known.is_new:
        text = "nothing to adopt: the database is empty, and this host has no marker of it"
    else:
        text = "nothing to adopt: this is the database that the marker names"
    sys.stdout.write(printable(text) + "\n")
    if epoch is not None:
        lost = (
            "lost, if made after this database's last event: revocations of keys, deletions of webhooks, "
            "erasures of agents, opt-outs (repeat them)"
        )
        sys.stderr.write(lost + "\n")
    return 0


def migrate(
    *,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    as_json: AsJson = False,
) -> int:
    """Bring the registry's database up to date, or set up an empty one.

    The migration is one transaction: if it fails, the database is unchanged. Make a backup first. Restoring
    it is the only way back.

    Stop all servers first. The command changes no database that a server uses, and a server of an older
    version refuses the migrated database.

    \b
    Examples:
      lifesign migrate
      LIFESIGN_SERVER_DATABASE=postgresql://ah@db/ah lifesign migrate
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    upgrade = _upgrade(database)
    if as_json:
        write_json(sys.stdout, {"before": upgrade.before, "after": upgrade.after})
        return 0
    if upgrade.before == upgrade.after:
        text = f"already at revision {upgrade.after}"
    elif upgrade.before is None:
        text = f"created at revision {upgrade.after}"
    else:
        text = f"migrated from revision {upgrade.before} to {upgrade.after}"
    sys.stdout.write(printable(text) + "\n")
    return 0


def _upgrade(database: str) -> "Upgrade":
    from lifesign.storage.engine import file_use, schema_version  # noqa: PLC0415 - alembic takes 200 ms
    from lifesign.storage.events import event_news  # noqa: PLC0415 - alembic takes 200 ms

    file = sqlite_file(database)
    if (
        file is not None
        and file.exists()
        and run_in_transaction(database, schema_version.is_behind, is_write=False)
    ):
        file_use.check_unused(file)

    def function(transaction: "Transaction") -> "Upgrade":
        # Servers that start meanwhile wait for it.
        schema_version.lock(transaction)
        if schema_version.is_behind(transaction):
            event_news.check_unserved(transaction)
        return schema_version.upgrade(transaction)

    return run_in_transaction(database, function, must_exist=False)
