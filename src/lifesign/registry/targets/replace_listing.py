"""Replacement of a directory's list, part by part.

First the listed targets are added, page by page, and marked with the number of the import. Then targets with
an older mark are removed, some at a time, unless the list is incomplete. Each part is one short transaction.
"""

from dataclasses import replace

from lifesign.domain.access.event_actor import OwnActor
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.registry_payloads import DirectoryChanged
from lifesign.domain.models.directories import ImportState
from lifesign.domain.targets.retirement import assess_change
from lifesign.domain.targets.target import target_id
from lifesign.registry.targets.opt_out_origins import retire_opted_out
from lifesign.registry.targets.retire_targets import end_records, lock_agents, retire
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.targets import directories, target_rows
from lifesign.storage.targets.directories import StoredDirectory, StoredImport
from lifesign.storage.targets.target_rows import GoneReason

REMOVED_AT_ONCE = 5_000
"""Number of targets that one step checks for whether they are still listed."""

_WORKING = frozenset({ImportState.ADDING, ImportState.REMOVING})


def begin(
    transaction: Transaction, directory: StoredDirectory, found: StoredImport, pages: int
) -> StoredImport:
    """Begin to apply an import of so many pages; older open imports of the directory then have no effect.

    InvalidRequest if a page is missing. The directory and the import must be locked, here and below.
    """
    last = directories.last_page(transaction, found.id)
    if found.pages != pages or last != pages:
        expected = f"expected the number of pages that arrived: {found.pages}, the last one is {last}"
        raise InvalidRequest([Finding("pages_missing", "/pages", expected)])
    directories.drop_before(transaction, directory.id, found.id)
    begun = _in_state(
        transaction, found, ImportState.ADDING, size_before=directory.size, removed=directory.size
    )
    directories.store_import(transaction, begun)
    return begun


def confirm(
    transaction: Transaction, directory: StoredDirectory, held: StoredImport, actor: str
) -> StoredImport:
    """Confirm a suspended import, so that the targets that its list lacks are retired.

    The key that sent the import may remove targets of the directory from now on.
    """
    if held.importer is not None:
        directories.set_owner(transaction, directory.id, held.importer)
    confirmed = _in_state(transaction, held, ImportState.REMOVING, place=0, removed=0)
    directories.store_import(transaction, confirmed)
    logged = _event(EventType.DIRECTORY_CONFIRMED, directory, held, actor)
    return advance(transaction, directory, confirmed, actor, logged)


def advance(
    transaction: Transaction, directory: StoredDirectory, found: StoredImport, actor: str, *event: EventDraft
) -> StoredImport:
    """Do the next part of an import; `event` is logged before its consequences."""
    drafts: list[EventDraft] = []
    if found.state == ImportState.ADDING:
        found, drafts = _add_page(transaction, directory, found, actor)
    elif found.state == ImportState.REMOVING:
        found, drafts = _remove_some(transaction, directory, found, actor)
    event_log.append(transaction, [*event, *drafts])
    return found


def finish_one(transaction: Transaction, name: str, import_id: str) -> bool:
    """Continue an import that no client drives; return whether there is more to do."""
    directory = directories.find(transaction, name, to_change=True)
    found = None
    if directory is not None:
        found = directories.find_import(transaction, directory.id, import_id, to_change=True)
    if directory is None or found is None or found.state not in _WORKING:
        return False
    return advance(transaction, directory, found, OwnActor.SERVER.value).state in _WORKING


def _add_page(
    transaction: Transaction, directory: StoredDirectory, found: StoredImport, actor: str
) -> tuple[StoredImport, list[EventDraft]]:
    page = found.place + 1
    kept_urls, kind = directories.stored_page(transaction, found.id, page)
    urls = {target_id(url): url for url in kept_urls}
    version = target_rows.next_version(transaction)
    target_rows.add(transaction, urls, version)
    is_owned = found.importer is None or found.importer == directory.owner
    kept, added = directories.list_targets(
        transaction, directory.id, found.id, [*urls], version, kind=kind, may_change_kind=is_owned
    )
    retire_opted_out(transaction, urls, version)
    directories.set_size(transaction, directory.id, added)
    counts = replace(found.counts, duplicates=found.counts.duplicates + len(urls) - kept - added)
    found = replace(
        found,
        place=page,
        added=found.added + added,
        removed=found.removed - kept,
        counts=counts,
        state_since_s=transaction.now_s,
    )
    if page < found.pages:
        directories.store_import(transaction, found)
        return found, []
    directories.remove_pages(transaction, found.id)
    if found.keep_missing:
        found = replace(found, removed=0)
    change = assess_change(size_before=found.size_before, removed=found.removed, is_owned=is_owned)
    if change.is_suspended and not (found.allow_shrink and is_owned):
        found = _in_state(transaction, found, ImportState.SUSPENDED, explanation=change.reason)
        directories.store_import(transaction, found)
        return found, [_event(EventType.DIRECTORY_SUSPENDED, directory, found, actor)]
    is_all_there = not found.removed
    found = _in_state(transaction, found, ImportState.REMOVING, place=0, removed=0)
    if is_all_there:
        return _applied(transaction, directory, found, actor)
    directories.store_import(transaction, found)
    return found, []


def _remove_some(
    transaction: Transaction, directory: StoredDirectory, found: StoredImport, actor: str
) -> tuple[StoredImport, list[EventDraft]]:
    looked_at = {"after": found.place, "limit": REMOVED_AT_ONCE}
    # Agents are locked before the version counter; other lists are certain only after it.
    may_leave = directories.next_delisted(transaction, directory.id, found.id, **looked_at)
    lock_agents(transaction, may_leave.orphans)
    version = target_rows.next_version(transaction)
    leaving = directories.next_delisted(transaction, directory.id, found.id, **looked_at)
    directories.remove_entries(transaction, directory.id, leaving.targets, version)
    directories.set_size(transaction, directory.id, -len(leaving.targets))
    ending = retire(transaction, leaving.orphans, GoneReason.LEFT, version)
    found = replace(
        found,
        place=found.place if leaving.last is None else leaving.last,
        removed=found.removed + len(leaving.targets),
        state_since_s=transaction.now_s,
    )
    drafts: list[EventDraft] = []
    if leaving.last is None:
        found, drafts = _applied(transaction, directory, found, actor)
    else:
        directories.store_import(transaction, found)
    end_records(transaction, ending, f"{directory.name} no longer lists it", actor)
    return found, drafts


def _applied(
    transaction: Transaction, directory: StoredDirectory, found: StoredImport, actor: str
) -> tuple[StoredImport, list[EventDraft]]:
    found = _in_state(transaction, found, ImportState.APPLIED)
    directories.store_import(transaction, found)
    directories.set_size(transaction, directory.id, 0, applied=found.id)
    if not found.added and not found.removed:
        return found, []
    return found, [_event(EventType.DIRECTORY_APPLIED, directory, found, actor)]


def _event(kind: EventType, directory: StoredDirectory, found: StoredImport, actor: str) -> EventDraft:
    is_suspended = kind is not EventType.DIRECTORY_APPLIED
    payload = DirectoryChanged(
        directory=directory.name,
        listed=found.size_before + found.added - (0 if is_suspended else found.removed),
        added=found.added,
        removed=found.removed,
        reason=found.explanation if is_suspended else None,
    )
    return EventDraft(type=kind, actor=actor, payload=payload)


def _in_state(
    transaction: Transaction, found: StoredImport, state: ImportState, **members: object
) -> StoredImport:
    return replace(found, state=state.value, state_since_s=transaction.now_s, **members)  # type: ignore[arg-type]
