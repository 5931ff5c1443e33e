"""Commands for backup and restore."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.secret_file import WriteKey, new_key_file
from lifesign.cli.options.server_database import (
    ACTOR,
    DEFAULT_DATABASE,
    DatabaseUrl,
    ServerConfig,
    StateDir,
    adopt_command,
    check_unused_file,
    run_in_transaction,
)
from lifesign.cli.output.table import write_json
from lifesign.cli.output.terminal import MAX_LISTED
from lifesign.domain.net.peer_text import printable
from lifesign.domain.text.counts import pluralize
from lifesign.errors import LifesignError
from lifesign.storage.engine.sqlite_path import sqlite_file

if TYPE_CHECKING:
    from lifesign.registry.backup.carry_over_revocations import RevokedCredentials
    from lifesign.registry.backup.create_backup import Restored
    from lifesign.registry.database_identity.marker_check import KnownIdentity
    from lifesign.storage.engine.transaction import Transaction


def backup(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="File to write. An existing backup is replaced, any other file is not."
        ),
    ],
    *,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Write a consistent backup of the registry into one file.

    Servers may keep running. The file appears once it is complete, on disk and verified; only its owner may
    read it, since it contains digests of keys and the secrets of webhooks. It contains no sessions. Archived
    events are in the archive's own files.

    If the database is not the one that this host knows by its marker, an existing backup is not replaced: the
    database may have been lost.

    \b
    Examples:
      lifesign backup /var/backups/registry.gz
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    from lifesign.registry.backup.create_backup import back_up  # noqa: PLC0415 - SQLAlchemy takes 150 ms
    from lifesign.registry.database_identity.marker_check import check_known  # noqa: PLC0415
    from lifesign.registry.errors import DatabaseMismatch  # noqa: PLC0415
    from lifesign.storage.engine import schema_version  # noqa: PLC0415
    from lifesign.storage.whole_database import backup_file  # noqa: PLC0415

    backup_file.check_destination(file, sqlite_file(database))
    known = _known(database, state_dir) if file.exists() else None

    def function(transaction: "Transaction") -> dict[str, int]:
        if known is not None:
            schema_version.check(transaction)
            check_known(transaction, known)
        return back_up(transaction, file)

    try:
        counts = run_in_transaction(database, function, is_write=False)
    except DatabaseMismatch as error:
        error.hint = (
            f"{file} is not replaced: write the backup to another file. To accept this database, run: "
            f"{adopt_command(context)}"
        )
        raise
    if as_json:
        write_json(sys.stdout, {"file": str(file), "rows": dict(counts)})
        return 0
    text = ", ".join(pluralize(counts[f"{noun}s"], noun) for noun in ("agent", "event"))
    text = f"{file}: {text}, {pluralize(sum(counts.values()), 'row')} in all"
    sys.stdout.write(printable(text) + "\n")
    return 0


def _known(database: str, state_dir: Path | None) -> "KnownIdentity | None":
    """Return what this host knows about the database; None if that cannot be read."""
    from lifesign.registry.database_identity.marker_check import KnownIdentity  # noqa: PLC0415
    from lifesign.registry.database_identity.marker_file import marker_file  # noqa: PLC0415

    try:
        return KnownIdentity.read(marker_file(database, state_dir))
    except LifesignError:
        # A cron job may have no home directory.
        return None


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `lifesign backup` wrote.")],
    *,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    state_dir: StateDir = None,
    is_forced: Annotated[
        bool, typer.Option("--force", help="Replace a database that is not empty. Its content is lost.")
    ] = False,
    trusts_all_keys: Annotated[
        bool,
        typer.Option(
            "--trust-all-keys",
            help=(
                "Keep all keys of the backup valid. Use this option to move the registry to another database."
            ),
        ),
    ] = False,
    write_key: WriteKey = None,
    as_json: AsJson = False,
) -> int:
    """Restore a backup into SQLite or PostgreSQL; each accepts the backups of both.

    The restore is atomic: the file is read whole before anything is changed. A backup of an older version is
    upgraded during the restore; the directory for temporary files (TMPDIR) needs room for it. All leases and
    sessions end, and all new fencing tokens are higher than all old ones. No agent dies because of the time
    since the backup. Archive files stay unchanged: leave them where they are.

    What changed after the backup stays in force, as far as the replaced database has it: revoked, expired and
    rotated keys, deleted webhooks, opt-outs, and erased agents. Keys of the backup that the replaced database
    does not have are suspended: `lifesign keys confirm` makes them valid again. The output lists webhooks of
    the backup that the replaced database does not have. If no admin key is left, a new one is printed.

    If the replaced database is older than the backup, or not the one that this host knows by its marker,
    changes may be unknown. Then all keys are suspended, and all webhooks are listed. The marker names the
    restored database afterwards.

    Stop all servers of this database first, and start them again afterwards. The command restores no database
    that a server uses, and no SQLite file that any process has open. It does not detect a server that logs in
    to PostgreSQL as another user; the event streams of that server end.

    \b
    Examples:
      lifesign restore /var/backups/registry.gz
      lifesign restore registry.gz --database postgresql://ah@db/ah --force --trust-all-keys
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    import asyncio  # noqa: PLC0415 - see backup
    from functools import partial  # noqa: PLC0415
    from tempfile import TemporaryDirectory  # noqa: PLC0415

    from lifesign.registry.backup import update_backup  # noqa: PLC0415
    from lifesign.registry.backup.create_backup import restore as put_back  # noqa: PLC0415
    from lifesign.storage.engine import schema_version  # noqa: PLC0415
    from lifesign.storage.events import event_news  # noqa: PLC0415

    # Before the database is opened, which would create an SQLite file.
    header = update_backup.check(file)
    check_unused_file(database)
    known = _known(database, state_dir)

    def function(transaction: "Transaction", current: Path) -> "Restored":
        event_news.check_unserved(transaction)
        return put_back(
            transaction,
            current,
            is_forced=is_forced,
            actor=ACTOR,
            marker=None if known is None else known.marker,
            trusts_all_keys=trusts_all_keys,
        )

    # Other users must not read them.
    with new_key_file(write_key) as keep, TemporaryDirectory(prefix="lifesign-restore-") as directory:
        is_older = header.revision != schema_version.newest_revision()
        current = asyncio.run(update_backup.updated(file, Path(directory))) if is_older else file
        restored = run_in_transaction(database, partial(function, current=current), must_exist=False)
        if keep is not None and restored.admin_key is not None:
            keep(restored.admin_key)
    _update_marker(database, state_dir)
    printed_key = None if write_key else restored.admin_key
    if as_json:
        shown = {
            **_as_json(restored),
            "are_keys_suspended": not trusts_all_keys,
            "admin_key": printed_key,
            "revision": header.revision,
        }
        write_json(sys.stdout, shown)
        return 0
    text = f"{pluralize(restored.agents, 'agent')}; fencing tokens continue in epoch {restored.epoch}"
    if is_older:
        text += f"; migrated from revision {header.revision} to {schema_version.newest_revision()}"
    sys.stdout.write(printable(text) + "\n")
    unknown = _unknown_lines(restored, are_keys_suspended=not trusts_all_keys)
    for line in (*_withdrawn_lines(restored.withdrawn), *unknown):
        sys.stderr.write(printable(line) + "\n")
    if restored.admin_key is not None:
        where = f"is in {write_key}" if write_key else "is shown once, here"
        sys.stderr.write(printable(f"no admin key was valid: a new one {where}") + "\n")
    if printed_key is not None:
        sys.stdout.write(printed_key + "\n")
    return 0


def _update_marker(database: str, state_dir: Path | None) -> None:
    """Update this host's marker, if it has one, to the restored database. A failure is only reported."""
    from lifesign.registry.database_identity.marker_check import KnownIdentity, current_marker  # noqa: PLC0415
    from lifesign.registry.database_identity.marker_file import marker_file, put_marker  # noqa: PLC0415

    try:
        file = marker_file(database, state_dir)
        if not KnownIdentity.read(file).is_new:
            put_marker(file, run_in_transaction(database, current_marker))
    except LifesignError as error:
        text = f"warning: the marker of the database was not updated: {error}"
        sys.stderr.write(f"lifesign: {printable(text)}\n")


def _withdrawn_lines(withdrawn: "RevokedCredentials") -> Iterator[str]:
    """Return lines about items that were not restored, and those that were."""
    ended = [
        (len(withdrawn.keys), "key", ""),
        (len(withdrawn.webhooks), "webhook", ""),
        (len(withdrawn.opt_outs), "origin", " that opted out"),
    ]
    if text := ", ".join(pluralize(count, noun) + which for count, noun, which in ended if count):
        yield f"withdrawn since the backup, and withdrawn again: {text}"
    if withdrawn.limited_keys:
        count = pluralize(len(withdrawn.limited_keys), "key")
        yield f"limited since the backup, and limited again: {count}"
    if withdrawn.successors:
        count = pluralize(len(withdrawn.successors), "key")
        yield f"kept, because they replaced keys that were rotated: {count}"
    if withdrawn.erased_agents:
        yield "erased since the backup, and erased again:"
        yield from _listed(withdrawn.erased_agents)


def _unknown_lines(restored: "Restored", *, are_keys_suspended: bool) -> Iterator[str]:
    """Return keys and webhooks that may have been revoked, and what else may have been withdrawn."""
    from lifesign.domain.models.base import moment  # noqa: PLC0415
    from lifesign.domain.text.times import utc_text  # noqa: PLC0415

    withdrawn = restored.withdrawn
    since = utc_text(moment(restored.header.created_at_s), "seconds")
    if withdrawn.unknown_keys or withdrawn.unknown_agent_keys:
        if are_keys_suspended:
            yield (
                f"suspended, because they may have been revoked since {since} (lifesign keys confirm KEY_ID):"
            )
        else:
            yield f"valid again, even if they were revoked since {since} (lifesign keys revoke KEY_ID):"
        yield from _listed([f"{key.key_id} {key.role} {key.name}" for key in withdrawn.unknown_keys])
        if withdrawn.unknown_agent_keys:
            of_agents = pluralize(withdrawn.unknown_agent_keys, "key")
            yield f"  {of_agents} of agents (lifesign keys list --role agent)"
    if withdrawn.unknown_webhooks:
        yield f"receive events again, even if they were deleted since {since}:"
        yield from _listed([f"{webhook.id} {webhook.host}" for webhook in withdrawn.unknown_webhooks])
    if restored.may_lack_changes:
        yield f"unknown: erasures, opt-outs and lowered limits of keys since {since} (repeat them)"


def _listed(texts: Sequence[str]) -> Iterator[str]:
    yield from (f"  {text}" for text in texts[:MAX_LISTED])
    if len(texts) > MAX_LISTED:
        yield f"  ... and {len(texts) - MAX_LISTED} more (see --json)"


def _as_json(restored: "Restored") -> dict[str, Any]:
    withdrawn = restored.withdrawn
    return {
        "agents": restored.agents,
        "epoch": restored.epoch,
        "may_lack_changes": restored.may_lack_changes,
        "withdrawn": {
            "keys": [key.key_id for key in withdrawn.keys],
            "webhooks": list(withdrawn.webhooks),
            "opt_outs": list(withdrawn.opt_outs),
        },
        "limited_keys": [key.key_id for key in withdrawn.limited_keys],
        "kept_keys": [key.key_id for key in withdrawn.successors],
        "erased_agents": list(withdrawn.erased_agents),
        "unknown_keys": [key.key_id for key in withdrawn.unknown_keys],
        "unknown_agent_keys": withdrawn.unknown_agent_keys,
        "unknown_webhooks": [webhook.id for webhook in withdrawn.unknown_webhooks],
    }
