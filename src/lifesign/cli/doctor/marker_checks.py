"""Check of `doctor`: the database must be the one that this host's marker names."""

from pathlib import Path
from typing import Final

from lifesign.cli.doctor.check_result import CheckResult
from lifesign.errors import InvalidValue
from lifesign.registry.database_identity.marker_check import (
    KnownIdentity,
    check_known,
    check_present,
    is_uncomparable,
)
from lifesign.registry.database_identity.marker_file import MarkerFile, state_directory
from lifesign.registry.errors import DatabaseMismatch, NewerMarker
from lifesign.storage.engine.database import read_url
from lifesign.storage.engine.transaction import Transaction

ADVICE: Final = "restore the right database, or a backup, or run lifesign database adopt"


def known_identity(url: str, state_dir: Path | None) -> KnownIdentity | CheckResult | None:
    """Read this host's marker file of a database; return the marker, or a fault.

    None for one in memory, and for a URL that names no database.
    """
    try:
        database = read_url(url)
        file = MarkerFile.of(database, state_directory(state_dir))
        if file is None:
            return None
    except InvalidValue as error:
        # The checks of the database report a faulty URL.
        return None if error.name == "database" else _fault(error)
    try:
        known = KnownIdentity.read(file)
        check_present(known, database)
    except InvalidValue as error:
        return _fault(error)
    except NewerMarker as error:
        return CheckResult("marker", "fault", str(error), error.hint)
    except DatabaseMismatch as error:
        return CheckResult("marker", "fault", str(error), ADVICE)
    return known


def _fault(error: InvalidValue) -> CheckResult:
    return CheckResult("marker", "fault", str(error), "--state-dir names another directory")


def of_the_marker(transaction: Transaction, known: KnownIdentity) -> CheckResult:
    """Check whether a database is the one that this host's marker file describes, unless it is empty."""
    if known.is_new:
        return CheckResult(
            "marker", "skipped", f"{known.file} does not exist yet", "lifesign serve creates it"
        )
    if known.marker is None:
        summary = f"{known.file} cannot be used: {known.damage}"
        return CheckResult("marker", "warning", summary, "lifesign serve writes it again")
    try:
        check_known(transaction, known)
    except DatabaseMismatch as error:
        return CheckResult("marker", "fault", str(error), ADVICE)
    if is_uncomparable(transaction, known):
        summary = f"event {known.marker.head.sequence}, which {known.file} names, was archived"
        advice = "if the database is a copy that was served elsewhere, run lifesign database adopt --force"
        return CheckResult("marker", "warning", summary, advice)
    named = f"{known.marker.installation_id}, event {known.marker.head.sequence}"
    return CheckResult("marker", "ok", f"{known.file} names this database: {named}")
