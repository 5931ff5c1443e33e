"""How does all that the registry knows get into a file, and back? Asked on the command line."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent_health.cli.server_database import ACTOR, DEFAULT_DATABASE, DatabaseUrl, run_deed, sqlite_file
from agent_health.cli.table import write_json
from agent_health.cli.terminal import printable

if TYPE_CHECKING:
    from agent_health.registry.back_up import Restored
    from agent_health.storage.database import Transaction

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


def backup(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Where to; an older backup is replaced, anything else is not."),
    ],
    *,
    database: DatabaseUrl = DEFAULT_DATABASE,
    as_json: AsJson = False,
) -> int:
    """Write all that the registry knows into one file, as it is at one moment.

    Servers may go on meanwhile. The file appears once it is whole and on disk, and was read back; only
    its owner may read it, since it holds digests of keys and the secrets of webhooks. Events that were
    archived are in the archive's own files.

    \b
    Examples:
      agent-health backup /var/backups/registry.gz

    \b
    Exit codes:
      0 it is written   1 it is not   3 wrong usage
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    from functools import partial  # noqa: PLC0415

    from agent_health.registry.back_up import back_up  # noqa: PLC0415 - SQLAlchemy takes 150 ms
    from agent_health.storage import backup_file  # noqa: PLC0415

    backup_file.check_place(file, sqlite_file(database))
    counts = run_deed(database, partial(back_up, file=file), is_write=False)
    if as_json:
        write_json(sys.stdout, {"file": str(file), "rows": dict(counts)})
        return 0
    told = f"{file}: {counts['agents']} agents, {counts['events']} events, {sum(counts.values())} rows in all"
    sys.stdout.write(printable(told) + "\n")
    return 0


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As `agent-health backup` wrote it.")],
    *,
    database: DatabaseUrl = DEFAULT_DATABASE,
    is_forced: Annotated[bool, typer.Option("--force", help="Replace all that the database holds.")] = False,
    as_json: AsJson = False,
) -> int:
    """Put back what a backup holds, into SQLite or PostgreSQL, wherever it came from.

    All or nothing: the file is read whole before anything is changed. Every lease is over then, and all
    new fencing tokens are above all old ones. Nobody dies of the time since the backup. Agents that were
    erased since are back: `agent-health agents erase` them again. Move archives that were written since
    to another place.

    Stop all servers of this database first, and start them again afterwards: what they remember is of
    another past. A database that a server uses is not restored to, nor an SQLite file that anybody has
    open. A server that is not seen, since it logs in to PostgreSQL as another user, ends its event streams.

    \b
    Examples:
      agent-health restore /var/backups/registry.gz
      agent-health restore registry.gz --database postgresql://ah@db/ah --force

    \b
    Exit codes:
      0 it is restored   1 nothing was changed   3 wrong usage
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    from agent_health.registry.back_up import restore as put_back  # noqa: PLC0415 - see backup
    from agent_health.storage import backup_file, event_news, file_use  # noqa: PLC0415

    # Before the database is opened, which would create an SQLite file.
    backup_file.check(file)
    place = sqlite_file(database)
    if place is not None and place.exists():
        file_use.check_unused(place)

    def deed(transaction: "Transaction") -> "Restored":
        event_news.check_unserved(transaction)
        return put_back(transaction, file, is_forced=is_forced, actor=ACTOR)

    restored = run_deed(database, deed, must_exist=False)
    if as_json:
        write_json(sys.stdout, {"agents": restored.agents, "epoch": restored.epoch})
        return 0
    told = f"{restored.agents} agents; fencing tokens go on in epoch {restored.epoch}"
    sys.stdout.write(printable(told) + "\n")
    return 0
