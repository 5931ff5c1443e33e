"""Checks of the database: reachable, current, and swept."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from lifesign.cli.doctor import marker_checks
from lifesign.cli.doctor.check_result import CheckResult, ahead_s, of_the_clock, of_the_directory, of_the_mode
from lifesign.cli.options.server_database import run_in_transaction
from lifesign.domain.access.permissions import Role
from lifesign.domain.common.project import install_hint
from lifesign.domain.net.database_url import shown_database_url
from lifesign.domain.text.durations import duration_text
from lifesign.errors import InvalidValue, LifesignError
from lifesign.registry.database_identity.marker_check import KnownIdentity, check_filled
from lifesign.registry.errors import DatabaseMismatch
from lifesign.storage.engine import registry_row, schema_version
from lifesign.storage.engine.database_faults import DAMAGED, NO_DATABASE
from lifesign.storage.engine.file_use import check_unlocked
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.engine.sqlite_file import check_writable
from lifesign.storage.engine.sqlite_path import sqlite_file
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import ForeignDatabase, SchemaOutdated, SchemaUnknown
from lifesign.storage.keys import key_rows

SQLITE_MAGIC: Final = b"SQLite format 3\0"
"""First bytes of every SQLite file. Other files contain no secrets of lifesign."""
SWEEP_WARNING_SECONDS: Final = 10.0
"""Age of the last sweep that causes a warning while a server runs. Default: two sweeps per second."""


def of_the_database(url: str, place: str = "", state_dir: Path | None = None) -> Iterator[CheckResult]:
    """Check whether the database is reachable, up to date and writable, and whether its clock is right.

    Also check that it is the one in this host's marker in `state_dir`. `place` is the address of a running
    server, which should sweep; empty without one.
    """
    try:
        known = marker_checks.known_identity(url, state_dir)
        if isinstance(known, CheckResult):
            yield known
            if _is_absent(sqlite_file(url)):
                return
            known = None
        yield from _of_the_database(url, place, known)
    except PermissionError as error:
        yield CheckResult(
            "database",
            "fault",
            f"this user has no access to {error.filename}",
            "check owner and mode of the directories above it, or run as their owner",
        )


def _of_the_database(url: str, place: str, known: KnownIdentity | None) -> Iterator[CheckResult]:
    file = sqlite_file(url)
    if "://" not in url:
        yield CheckResult(
            "database", "fault", "this is no URL", "sqlite:///FILE or postgresql://USER@HOST/NAME"
        )
        return
    shown = shown_database_url(url) or ""
    if file is not None:
        yield from of_the_directory(file.parent, "database")
    if _is_absent(file):
        summary = f"{shown} does not exist yet"
        yield CheckResult(
            "database", "skipped", summary, "lifesign serve creates it; --database names another one"
        )
        return
    try:
        yield from run_in_transaction(
            url,
            lambda transaction: [*_inspect(transaction, shown, place, known)],
            is_write=False,
            is_excluded=True,
        )
        if file is None:
            run_in_transaction(url, _try_a_change)
        else:
            _check_changes(file)
    except ModuleNotFoundError as error:
        # Its driver.
        yield CheckResult("database", "fault", f"{shown} needs {error.name}", install_hint("postgres"))
        return
    except LifesignError as error:
        is_foreign = isinstance(error, ForeignDatabase)
        summary = NO_DATABASE if str(error) == DAMAGED else str(error)
        yield CheckResult("database", "fault", summary, _advice_for(error, file))
    else:
        is_foreign = False
        summary = "it takes changes" if file is None else "this user can write to it, and no process locks it"
        yield CheckResult("database", "ok", summary)
    if file is not None and not is_foreign and _is_sqlite(file):
        yield from of_the_mode(file, "database")


def _is_absent(file: Path | None) -> bool:
    return file is not None and not (file.exists() or file.is_symlink())


def _is_sqlite(file: Path) -> bool:
    try:
        if not file.is_file():
            # Opening a pipe would block until it has a writer.
            return False
        with file.open("rb") as opened:
            return opened.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError:
        return False


def _inspect(
    transaction: Transaction, shown: str, place: str, known: KnownIdentity | None
) -> Iterator[CheckResult]:
    if known is not None:
        check_filled(transaction, known)
    asked_s = time.time()
    apart_s = ahead_s(transaction.now_s, asked_s, time.time())
    schema_version.check(transaction)
    yield CheckResult("database", "ok", f"{shown} answers, at revision {schema_version.newest_revision()}")
    yield of_the_clock("clock", "the database's", apart_s)
    admins = key_rows.count(transaction, Role.ADMIN)
    if admins:
        yield CheckResult("keys", "ok", f"{admins} of role admin")
    else:
        advice = "lifesign keys create --role admin --name NAME"
        yield CheckResult(
            "keys", "warning", "there is no admin key: keys cannot be managed over the API", advice
        )
    if known is not None:
        yield marker_checks.of_the_marker(transaction, known)
    yield _of_the_sweeps(registry_row.find(transaction), transaction.now_s, place)


def _of_the_sweeps(row: RegistryRow | None, now_s: float, place: str) -> CheckResult:
    """Report the last sweep, and whether one is overdue."""
    if row is None or row.swept_at_s is None:
        return CheckResult("server", "skipped", "no server has ever run a sweep on this database")
    ago_s = now_s - row.swept_at_s
    summary = f"the last sweep was {duration_text(ago_s)} ago"
    if ago_s < SWEEP_WARNING_SECONDS:
        return CheckResult("server", "ok", summary)
    is_claimed = row.sweeper_until_s is not None and now_s < row.sweeper_until_s
    if not (place or is_claimed):
        return CheckResult("server", "ok", f"{summary}, and no server is running")
    who = f"a server listens at {place}" if place else "a server has claimed the next sweep"
    advice = (
        "a server that has started sweeps at once. If it does not, see its log: it hangs, or uses "
        "another database"
    )
    return CheckResult(
        "server", "warning", f"{summary}, although {who}: missed heartbeats are not noticed", advice
    )


def _try_a_change(transaction: Transaction) -> None:
    """Change something, and undo it."""
    savepoint = transaction.connection.begin_nested()
    registry_row.store(transaction, registry_row.lock(transaction))
    savepoint.rollback()


def _check_changes(file: Path) -> None:
    """Return if a server of this user could change an SQLite file. Raises InvalidValue, StoreUnavailable.

    The check does not open it for writing, which would replay the log that a crash has left.
    """
    check_writable(file)
    check_unlocked(file)


_ADVICE: Final[Mapping[type[LifesignError], str]] = {
    SchemaOutdated: "make a backup, then run lifesign migrate",
    SchemaUnknown: "this database was written by a newer version of lifesign: install that version",
    ForeignDatabase: "--database names another one; in PostgreSQL a schema of our own will do",
    DatabaseMismatch: marker_checks.ADVICE,
}


def _advice_for(error: LifesignError, file: Path | None) -> str:
    if isinstance(error, SchemaOutdated) and error.found is None:
        return "run lifesign serve or lifesign migrate, which create it"
    if advice := _ADVICE.get(type(error)):
        return advice
    if str(error) == DAMAGED:
        return (
            "if this was a database of lifesign, restore a backup into a new file; otherwise name another "
            "file"
        )
    if file is not None:
        return (
            f"check its owner and mode, the free space of its disk, and whether another process locks {file}"
        )
    if isinstance(error, InvalidValue):
        return "correct the URL: sqlite:///FILE or postgresql://USER@HOST/NAME"
    return (
        "check that PostgreSQL is running, that this user may connect, and that no firewall blocks the "
        "connection"
    )
