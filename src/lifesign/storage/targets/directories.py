"""Lists of directories, and their replacement by new lists.

A list comes in pages, which wait until all have come. Then they are added page by page: listed targets are
marked with the number of the import. At last, targets with an older mark are removed, some at a time. Every
transaction is short, and an interrupted import continues at its last position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import ColumnElement, Row, delete, func, insert, select, text, update

from lifesign.domain.models.directories import ImportState
from lifesign.storage.engine.table_definitions import (
    directories,
    import_pages,
    imports,
    listings,
    targets,
)
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.targets import listed_kinds

OPEN_STATES = (ImportState.UPLOADING, ImportState.ADDING, ImportState.SUSPENDED, ImportState.REMOVING)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDirectory:
    """One directory; the members are columns of `directories`."""

    id: int
    name: str
    size: int
    applied_import: int | None
    owner: str | None
    """Id of the prober's key whose imports may remove targets; None: only an operator's may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Number of entries in an import's pages."""

    received: int = 0
    duplicates: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    """Number of refused entries, by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImport:
    """One import of a directory's list, in any state; the members are columns of `imports`."""

    id: int
    directory: int
    import_id: str
    source: str | None
    etag: str | None
    state: str
    state_since_s: float
    began_at_s: float
    allow_shrink: bool
    keep_missing: bool
    importer: str | None
    """Id of the prober's key that began it; None for a caller that may confirm it itself."""
    pages: int
    place: int
    """While pages are added, the number of the last one; while targets are removed, the last target."""
    size_before: int
    added: int
    """Listed now and not before."""
    removed: int
    """Number of targets that are no longer listed; while pages are being added, as far as known."""
    counts: Counts
    explanation: str | None


@dataclass(frozen=True, slots=True)
class DelistedTargets:
    """Some targets that a directory no longer lists."""

    targets: list[int]
    orphans: dict[str, int]
    """Targets without another list that did not register themselves, by their ids."""
    last: int | None
    """Target after which to continue; None if that was all."""


_DIRECTORY = select(*(directories.c[member.name] for member in fields(StoredDirectory)))
_IMPORT = select(*(imports.c[member.name] for member in fields(StoredImport)))
_IS_UPLOADING = imports.c.state == ImportState.UPLOADING.value

# Targets that are listed already, and were not yet found in this import.
_COUNT_KEPT_SQLITE = text("""
    SELECT count(*) FROM json_each(:subjects) AS given
    JOIN targets ON targets.subject_id = given.value
    JOIN listings ON listings.target = targets.id AND listings.directory = :directory
    WHERE listings.in_import < :in_import
""")
_COUNT_KEPT_POSTGRESQL = text("""
    SELECT count(*) FROM unnest(CAST(:subjects AS text[])) AS given (value)
    JOIN targets ON targets.subject_id = given.value
    JOIN listings ON listings.target = targets.id AND listings.directory = :directory
    WHERE listings.in_import < :in_import
""")
_REVIVE_SQLITE = text("""
    UPDATE targets SET gone_at_s = NULL, gone_reason = NULL, version = :version
    FROM json_each(:subjects) AS given
    WHERE targets.subject_id = given.value AND targets.gone_reason = 'left'
""")
_REVIVE_POSTGRESQL = text("""
    UPDATE targets SET gone_at_s = NULL, gone_reason = NULL, version = :version
    FROM unnest(CAST(:subjects AS text[])) AS given (value)
    WHERE targets.subject_id = given.value AND targets.gone_reason = 'left'
""")
_LIST_TAIL = """
    ON CONFLICT (target, directory) DO UPDATE SET in_import = excluded.in_import,
        kind = CASE WHEN :may_change_kind THEN excluded.kind ELSE listings.kind END
    WHERE listings.in_import < excluded.in_import
"""
_LIST_SQLITE = text(f"""
    INSERT INTO listings (target, directory, in_import, kind)
    SELECT targets.id, :directory, :in_import, :kind
    FROM json_each(:subjects) AS given JOIN targets ON targets.subject_id = given.value WHERE true
    {_LIST_TAIL}
""")  # noqa: S608 - constants only
_LIST_POSTGRESQL = text(f"""
    INSERT INTO listings (target, directory, in_import, kind)
    SELECT targets.id, :directory, :in_import, :kind
    FROM unnest(CAST(:subjects AS text[])) AS given (value)
    JOIN targets ON targets.subject_id = given.value ORDER BY targets.id
    {_LIST_TAIL}
""")  # noqa: S608 - constants only
_CHECKED = text("""
    SELECT listings.target, listings.in_import, targets.subject_id, targets.is_registered,
        EXISTS (
            SELECT 1 FROM listings AS others
            WHERE others.target = listings.target AND others.directory <> :directory
        ) AS is_listed_elsewhere
    FROM listings JOIN targets ON targets.id = listings.target
    WHERE listings.directory = :directory AND listings.target > :after
    ORDER BY listings.target LIMIT :limit
""")


def find(transaction: Transaction, name: str, *, to_change: bool = False) -> StoredDirectory | None:
    """Return a directory by its name; `to_change` keeps others from changing it."""
    wanted = _DIRECTORY.where(directories.c.name == name)
    row = transaction.connection.execute(wanted.with_for_update() if to_change else wanted).one_or_none()
    return None if row is None else StoredDirectory(**row._mapping)  # noqa: SLF001 - its public name


def listing(transaction: Transaction, limit: int) -> list[StoredDirectory]:
    """Return directories by their names."""
    rows = transaction.connection.execute(_DIRECTORY.order_by(directories.c.name).limit(limit))
    return [StoredDirectory(**row._mapping) for row in rows]  # noqa: SLF001 - its public name


def names(transaction: Transaction, numbers: Sequence[int]) -> dict[int, str]:
    """Return the names of directories by their row numbers."""
    wanted = select(directories.c.id, directories.c.name).where(directories.c.id.in_(numbers))
    return {int(number): str(name) for number, name in transaction.connection.execute(wanted)}


def add(transaction: Transaction, name: str, owner: str | None) -> StoredDirectory:
    """Store a new directory without targets."""
    added = insert(directories).values(name=name, size=0, owner=owner).returning(directories.c.id)
    number = int(transaction.connection.execute(added).scalar_one())
    return StoredDirectory(id=number, name=name, size=0, applied_import=None, owner=owner)


def set_owner(transaction: Transaction, number: int, owner: str) -> None:
    """Make a prober's key the owner of a directory: its imports may remove targets from now on."""
    transaction.connection.execute(update(directories).where(directories.c.id == number).values(owner=owner))


def hand_over(transaction: Transaction, owner: str, successor: str) -> None:
    """Transfer all directories of a prober's key to the key's successor."""
    transaction.connection.execute(
        update(directories).where(directories.c.owner == owner).values(owner=successor)
    )


def give(transaction: Transaction, name: str, owner: str) -> None:
    """Transfer a directory, if there is one of this name, to a prober's key."""
    transaction.connection.execute(update(directories).where(directories.c.name == name).values(owner=owner))


def count(transaction: Transaction) -> int:
    """Return the number of directories."""
    return transaction.connection.scalar(select(func.count()).select_from(directories)) or 0


def set_size(transaction: Transaction, number: int, by: int, *, applied: int | None = None) -> None:
    """Change a directory's number of targets by `by`, and store which import was applied completely."""
    columns: dict[str, Any] = {"size": directories.c.size + by}
    if applied is not None:
        columns["applied_import"] = applied
    transaction.connection.execute(update(directories).where(directories.c.id == number).values(columns))


def find_import(
    transaction: Transaction, directory: int, import_id: str, *, to_change: bool = False
) -> StoredImport | None:
    """Return an import of a directory by its sender's id; `to_change` keeps others from changing it."""
    wanted = _IMPORT.where(imports.c.directory == directory, imports.c.import_id == import_id)
    row = transaction.connection.execute(wanted.with_for_update() if to_change else wanted).one_or_none()
    return None if row is None else _import(row)


def suspended_imports(transaction: Transaction, numbers: Sequence[int]) -> dict[int, StoredImport]:
    """Return the latest suspended import of each of these directories that has one."""
    is_suspended = imports.c.state == ImportState.SUSPENDED.value
    wanted = _IMPORT.where(imports.c.directory.in_(numbers), is_suspended).order_by(imports.c.id)
    found = map(_import, transaction.connection.execute(wanted))
    return {one.directory: one for one in found}


def applied_imports(transaction: Transaction, numbers: Sequence[int]) -> dict[int, StoredImport]:
    """Return the imports with these row numbers."""
    rows = transaction.connection.execute(_IMPORT.where(imports.c.id.in_(numbers)))
    return {one.id: one for one in map(_import, rows)}


def unfinished(
    transaction: Transaction, states: Sequence[ImportState], before_s: float
) -> list[tuple[str, str]]:
    """Return directory and import id of imports that have been in one of these states since before a time."""
    wanted = (
        select(directories.c.name, imports.c.import_id)
        .select_from(imports.join(directories, directories.c.id == imports.c.directory))
        .where(imports.c.state.in_(states), imports.c.state_since_s < before_s)
        .order_by(imports.c.id)
    )
    return [(str(name), str(import_id)) for name, import_id in transaction.connection.execute(wanted)]


def count_open(transaction: Transaction, directory: int) -> int:
    """Return the number of imports of a directory that are neither applied nor dropped."""
    wanted = select(func.count()).select_from(imports)
    wanted = wanted.where(imports.c.directory == directory, imports.c.state.in_(OPEN_STATES))
    return transaction.connection.scalar(wanted) or 0


def count_waiting_pages(transaction: Transaction, importer: str) -> int:
    """Return the number of stored pages of a prober's key, in the imports of all directories."""
    of_key = imports.c.importer == importer
    wanted = select(func.count()).select_from(
        import_pages.join(imports, imports.c.id == import_pages.c.in_import)
    )
    return transaction.connection.scalar(wanted.where(of_key, imports.c.state.in_(OPEN_STATES))) or 0


def begin_import(transaction: Transaction, added: Mapping[str, Any]) -> StoredImport:
    """Store a new import, given as columns."""
    began = {
        "state": ImportState.UPLOADING.value,
        "state_since_s": transaction.now_s,
        "began_at_s": transaction.now_s,
        "pages": 0,
        "place": 0,
        "size_before": 0,
        "added": 0,
        "removed": 0,
        "counts": "{}",
        **added,
    }
    row = transaction.connection.execute(insert(imports).values(began).returning(*_IMPORT.selected_columns))
    return _import(row.one())


def store_import(transaction: Transaction, changed: StoredImport) -> None:
    """Update an import; the caller has locked it."""
    columns = asdict(changed)
    columns["counts"] = to_json(columns["counts"]).decode()
    del columns["id"]
    transaction.connection.execute(update(imports).where(imports.c.id == changed.id).values(columns))


def drop_before(transaction: Transaction, directory: int, in_import: int) -> None:
    """Drop the open imports of a directory that are older than this one, and delete their pages."""
    is_open = imports.c.state.in_(OPEN_STATES)
    _drop(transaction, imports.c.directory == directory, imports.c.id < in_import, is_open)


def drop_replaced(transaction: Transaction, directory: int, importer: str | None) -> None:
    """Drop the imports of a directory that a key has not finished sending, and delete their pages."""
    is_same = imports.c.importer.is_not_distinct_from(importer)
    _drop(transaction, imports.c.directory == directory, is_same, _IS_UPLOADING)


def has_page(transaction: Transaction, in_import: int, page: int) -> bool:
    """Return whether a page of an import is stored."""
    known = select(import_pages.c.page).where(
        import_pages.c.in_import == in_import, import_pages.c.page == page
    )
    return transaction.connection.execute(known).first() is not None


def store_page(
    transaction: Transaction, in_import: int, page: int, urls: Sequence[str], kind: str | None
) -> bool:
    """Store a page of an import until it is applied; return False if it was already stored."""
    if has_page(transaction, in_import, page):
        return False
    kept = {"in_import": in_import, "page": page, "urls": to_json(urls).decode(), "kind": kind}
    transaction.connection.execute(insert(import_pages).values(kept))
    return True


def stored_page(transaction: Transaction, in_import: int, page: int) -> tuple[list[str], str | None]:
    """Return the URLs of a stored page, and their kind."""
    wanted = select(import_pages.c.urls, import_pages.c.kind).where(
        import_pages.c.in_import == in_import, import_pages.c.page == page
    )
    urls, kind = transaction.connection.execute(wanted).one()
    return list(from_json(urls)), kind


def last_page(transaction: Transaction, in_import: int) -> int:
    """Return the highest page number that was received; 0 if none was."""
    wanted = select(func.max(import_pages.c.page)).where(import_pages.c.in_import == in_import)
    return transaction.connection.scalar(wanted) or 0


def remove_pages(transaction: Transaction, in_import: int) -> None:
    """Delete the pages of an import that was applied or replaced."""
    transaction.connection.execute(delete(import_pages).where(import_pages.c.in_import == in_import))


def list_targets(
    transaction: Transaction,
    directory: int,
    in_import: int,
    subject_ids: Sequence[str],
    version: int,
    *,
    kind: str | None,
    may_change_kind: bool,
) -> tuple[int, int]:
    """Mark targets as listed in an import; former targets become targets again.

    `kind` is that of all of them in this directory; None: it states none. Without `may_change_kind`, those
    that the directory listed before keep theirs. Returns the number of targets that the directory listed
    before and this import had not listed yet, and the number of targets that are new in the directory.
    """
    is_postgresql = transaction.is_postgresql
    values: dict[str, Any] = {
        "subjects": subject_ids if is_postgresql else to_json(subject_ids).decode(),
        "directory": directory,
        "in_import": in_import,
        "kind": kind,
        "may_change_kind": may_change_kind,
    }
    connection = transaction.connection
    found_count = (
        connection.scalar(_COUNT_KEPT_POSTGRESQL if is_postgresql else _COUNT_KEPT_SQLITE, values) or 0
    )
    revive = {"subjects": values["subjects"], "version": version}
    connection.execute(_REVIVE_POSTGRESQL if is_postgresql else _REVIVE_SQLITE, revive)
    changed = connection.execute(_LIST_POSTGRESQL if is_postgresql else _LIST_SQLITE, values).rowcount
    listed_kinds.update_listed(transaction, subject_ids, version)
    return found_count, changed - found_count


def next_delisted(
    transaction: Transaction, directory: int, in_import: int, *, after: int, limit: int
) -> DelistedTargets:
    """Return targets that an import no longer lists, among the next `limit` listed ones after `after`."""
    parameters = {"directory": directory, "after": after, "limit": limit}
    found = transaction.connection.execute(_CHECKED, parameters).all()
    left = [row for row in found if row.in_import < in_import]
    return DelistedTargets(
        targets=[int(row.target) for row in left],
        orphans={
            str(row.subject_id): int(row.target)
            for row in left
            if not row.is_listed_elsewhere and not row.is_registered
        },
        last=int(found[-1].target) if len(found) == limit else None,
    )


def remove_entries(transaction: Transaction, directory: int, numbers: Sequence[int], version: int) -> None:
    """Take targets off a directory's list."""
    transaction.connection.execute(
        delete(listings).where(listings.c.directory == directory, listings.c.target.in_(numbers))
    )
    listed_kinds.update_delisted(transaction, numbers, version)


def unlist(transaction: Transaction, subject_id: str) -> None:
    """Reduce the sizes of the directories that list a target; have unchanged lists imported again.

    The caller deletes its row and its list entries.
    """
    naming = select(listings.c.directory).join(targets, targets.c.id == listings.c.target)
    wanted = select(directories.c.id).where(
        directories.c.id.in_(naming.where(targets.c.subject_id == subject_id))
    )
    locked = wanted.order_by(directories.c.id).with_for_update()
    numbers = transaction.connection.scalars(locked).all()
    for number in numbers:
        set_size(transaction, number, -1)
    unread = update(imports).where(imports.c.directory.in_(numbers)).values(etag=None)
    transaction.connection.execute(unread)


def drop_unfinished(transaction: Transaction, before_s: float) -> None:
    """Drop imports that were not sent completely and got no page since a time; delete their pages."""
    _drop(transaction, _IS_UPLOADING, imports.c.state_since_s < before_s)


def forget_imports(transaction: Transaction, before_s: float) -> None:
    """Delete imports that ended before a time, except the last applied import of each directory."""
    applied = select(directories.c.applied_import).where(directories.c.applied_import.is_not(None))
    transaction.connection.execute(
        delete(imports).where(
            imports.c.state.in_([ImportState.APPLIED.value, ImportState.DROPPED.value]),
            imports.c.state_since_s < before_s,
            imports.c.id.not_in(applied),
        )
    )


def _drop(transaction: Transaction, *conditions: ColumnElement[bool]) -> None:
    dropped = {"state": ImportState.DROPPED.value, "state_since_s": transaction.now_s}
    connection = transaction.connection
    connection.execute(
        delete(import_pages).where(import_pages.c.in_import.in_(select(imports.c.id).where(*conditions)))
    )
    connection.execute(update(imports).where(*conditions).values(dropped))


def _import(row: Row[Any]) -> StoredImport:
    members = dict(row._mapping)  # noqa: SLF001 - its public name
    members["counts"] = Counts(**from_json(members["counts"]))
    return StoredImport(**members)
