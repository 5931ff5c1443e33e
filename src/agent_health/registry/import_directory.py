"""What does a directory list from now on? (`/api/v1/directories`)

A list comes in pages under an id that its sender chooses; sent again, a page changes nothing. Once the
sender says how many there are, each request to apply does a bounded part of the work and tells how far it
is: others get their turn in between, and whoever comes later goes on where somebody was killed. A list
from which too much is missing is held until somebody confirms it; what it adds counts at once.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from agent_health.access import Action, require
from agent_health.actor import OwnActor
from agent_health.directory_change import judge_change
from agent_health.directory_record import (
    DIRECTORY_PATTERN,
    IMPORT_PATTERN,
    MAX_PAGE_BYTES,
    MAX_PAGES,
    DirectoryList,
    DirectoryRecord,
    ImportEnd,
    ImportPage,
    ImportRecord,
    ImportState,
)
from agent_health.errors import (
    DirectoryNotFound,
    ImportNotFound,
    ImportOver,
    InvalidRequest,
    NothingHeld,
    TooMany,
)
from agent_health.event import DirectoryChanged, EventDraft, EventType
from agent_health.finding import Finding
from agent_health.registry.directory_records import directory_record, import_record
from agent_health.registry.let_targets_go import end_records, let_go, lock_agents
from agent_health.registry.operations import Call, Operation, Reply
from agent_health.registry.opt_out_origins import leave_out
from agent_health.storage import directories, event_log, targets
from agent_health.storage.database import Transaction
from agent_health.storage.directories import Counts, StoredDirectory, StoredImport
from agent_health.storage.targets import GoneReason
from agent_health.target import read_target, target_id
from agent_health.target_address import Refused

PATH = "/api/v1/directories"
MAX_DIRECTORIES = 1_000
MAX_OPEN_IMPORTS = 20
"""Of one directory, neither applied nor dropped."""
MAX_PAGE_DIGITS = 9
MAX_REASONS = 50
"""By which refused entries are counted; others are counted together."""
OTHER_REASONS = "other"
REMOVED_AT_ONCE = 5_000
"""Targets that one step looks at, to see whether they are still listed."""

_WORKING = frozenset({ImportState.ADDING, ImportState.REMOVING})


def put_page(transaction: Transaction, call: Call) -> Reply:
    """Keep one page of a list until all have come; sent again, it changes nothing.

    ImportOver if the import takes no more pages. TooMany directories, or imports of one that are open.
    """
    body, page = call.body_as(ImportPage), _page_in(call)
    _check_names(call)
    directory = _directory(transaction, _name_in(call))
    found = _import(transaction, directory, call, body)
    if found.state != ImportState.UPLOADING:
        raise ImportOver(found.import_id, found.state)
    read = Counter(map(read_target, body.urls))
    urls = [url for url in read if isinstance(url, str)]
    if directories.store_page(transaction, found.id, page, urls):
        refused = Counter(found.counts.refused)
        for given, number in read.items():
            if isinstance(given, Refused):
                refused[_reason(given, refused)] += number
        counts = Counts(
            received=found.counts.received + len(body.urls),
            duplicates=found.counts.duplicates + sum(read[url] - 1 for url in urls),
            refused=dict(refused),
        )
        found = replace(found, pages=found.pages + 1, counts=counts, state_since_s=transaction.now_s)
        directories.store_import(transaction, found)
    return Reply(content=import_record(found))


def apply_import(transaction: Transaction, call: Call) -> Reply:
    """Do the next part of an import; to be asked again while its state is `adding` or `removing`.

    A later import of the same directory takes the place of all before it.
    """
    asked = call.body_as(ImportEnd)
    directory = _known(transaction, call)
    found = directories.find_import(transaction, directory.id, call.path["import_id"], to_change=True)
    if found is None:
        raise ImportNotFound(directory.name, call.path["import_id"])
    if found.state == ImportState.UPLOADING:
        found = _begin(transaction, directory, found, asked.pages)
    return Reply(content=import_record(advance(transaction, directory, found, call.actor)))


def confirm_directory(transaction: Transaction, call: Call) -> Reply:
    """Let go what left a directory that has shrunk; the server goes on with it by itself."""
    directory = _known(transaction, call)
    held = directories.latest_imports(transaction, directory.id, [ImportState.HELD])
    if not held:
        raise NothingHeld(directory.name)
    found = directories.find_import(transaction, directory.id, held[0].import_id, to_change=True)
    if found is None or found.state != ImportState.HELD:
        raise NothingHeld(directory.name)
    confirmed = _in_state(transaction, found, ImportState.REMOVING, place=0, removed=0)
    directories.store_import(transaction, confirmed)
    after = advance(transaction, directory, confirmed, call.actor, confirmed=found)
    return Reply(content=import_record(after))


def list_directories(transaction: Transaction, call: Call) -> Reply:
    """Return all directories by their names, with what was applied last and what is held."""
    require(call.caller, Action.READ_TARGETS)
    found = directories.listing(transaction, MAX_DIRECTORIES)
    return Reply(content=DirectoryList(directories=[_record(transaction, one) for one in found]))


def show_directory(transaction: Transaction, call: Call) -> Reply:
    """Return one directory."""
    require(call.caller, Action.READ_TARGETS)
    directory = directories.find(transaction, _name_in(call))
    if directory is None:
        raise DirectoryNotFound(call.path["directory"])
    return Reply(content=_record(transaction, directory))


def advance(
    transaction: Transaction,
    directory: StoredDirectory,
    found: StoredImport,
    actor: str,
    *,
    confirmed: StoredImport | None = None,
) -> StoredImport:
    """Do one part of what is left to do for an import; it must be locked.

    `confirmed` is the import as it was held, if somebody has just confirmed it.
    """
    drafts = [] if confirmed is None else [_event(EventType.DIRECTORY_CONFIRMED, directory, confirmed, actor)]
    if found.state == ImportState.ADDING:
        found, more = _add_page(transaction, directory, found, actor)
        drafts += more
    elif found.state == ImportState.REMOVING:
        found, more = _remove_some(transaction, directory, found, actor)
        drafts += more
    event_log.append(transaction, drafts)
    return found


def finish_one(transaction: Transaction, name: str, import_id: str) -> bool:
    """Go on with an import that nobody drives; whether there is more to do."""
    directory = directories.find(transaction, name, to_change=True)
    found = None
    if directory is not None:
        found = directories.find_import(transaction, directory.id, import_id, to_change=True)
    if directory is None or found is None or found.state not in _WORKING:
        return False
    return advance(transaction, directory, found, OwnActor.SERVER.value).state in _WORKING


def _begin(
    transaction: Transaction, directory: StoredDirectory, found: StoredImport, pages: int
) -> StoredImport:
    last = directories.last_page(transaction, found.id)
    if found.pages != pages or last != pages:
        expected = f"expected the number of pages that have come: {found.pages}, the last one is {last}"
        raise InvalidRequest([Finding("pages_missing", "/pages", expected)])
    directories.drop_before(transaction, directory.id, found.id)
    begun = _in_state(
        transaction, found, ImportState.ADDING, size_before=directory.size, removed=directory.size
    )
    directories.store_import(transaction, begun)
    return begun


def _add_page(
    transaction: Transaction, directory: StoredDirectory, found: StoredImport, actor: str
) -> tuple[StoredImport, list[EventDraft]]:
    page = found.place + 1
    urls = {target_id(url): url for url in directories.page_urls(transaction, found.id, page)}
    version = targets.next_version(transaction)
    targets.add(transaction, urls, version)
    kept, added = directories.list_targets(transaction, directory.id, found.id, [*urls], version)
    leave_out(transaction, urls, version)
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
    change = judge_change(size_before=found.size_before, removed=found.removed)
    if change.is_held and not found.allow_shrink:
        found = _in_state(transaction, found, ImportState.HELD, explanation=change.reason)
        directories.store_import(transaction, found)
        return found, [_event(EventType.DIRECTORY_HELD, directory, found, actor)]
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
    # Agents are locked before the count of versions; what is listed elsewhere is certain only behind it.
    may_leave = directories.next_to_leave(transaction, directory.id, found.id, **looked_at)
    lock_agents(transaction, may_leave.orphans)
    version = targets.next_version(transaction)
    leaving = directories.next_to_leave(transaction, directory.id, found.id, **looked_at)
    directories.take_off(transaction, directory.id, leaving.targets)
    directories.set_size(transaction, directory.id, -len(leaving.targets))
    ending = let_go(transaction, leaving.orphans, GoneReason.LEFT, version)
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
    end_records(transaction, ending, f"{directory.name} lists it no more", actor)
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
    is_held = kind is not EventType.DIRECTORY_APPLIED
    payload = DirectoryChanged(
        directory=directory.name,
        listed=found.size_before + found.added - (0 if is_held else found.removed),
        added=found.added,
        removed=found.removed,
        reason=found.explanation if is_held else None,
    )
    return EventDraft(type=kind, actor=actor, payload=payload)


def _in_state(
    transaction: Transaction, found: StoredImport, state: ImportState, **members: object
) -> StoredImport:
    return replace(found, state=state.value, state_since_s=transaction.now_s, **members)  # type: ignore[arg-type]


def _name_in(call: Call) -> str:
    return call.path["directory"]


def _page_in(call: Call) -> int:
    text = call.path["page"]
    is_number = text.isascii() and text.isdecimal() and len(text) <= MAX_PAGE_DIGITS
    if not is_number or not 1 <= int(text) <= MAX_PAGES:
        expected = f"expected a page from 1 to {MAX_PAGES}"
        raise InvalidRequest([Finding("invalid_page", "", expected)])
    return int(text)


def _check_names(call: Call) -> None:
    """Refuse names that nobody could ask for again."""
    wanted = (("directory", DIRECTORY_PATTERN), ("import_id", IMPORT_PATTERN))
    faults = [
        Finding(f"invalid_{name}", "", f"expected a {name} like {pattern}")
        for name, pattern in wanted
        if not re.fullmatch(pattern, call.path[name])
    ]
    if faults:
        raise InvalidRequest(faults)


def _known(transaction: Transaction, call: Call) -> StoredDirectory:
    """Return the directory of the path, locked; DirectoryNotFound if there is none."""
    directory = directories.find(transaction, _name_in(call), to_change=True)
    if directory is None:
        raise DirectoryNotFound(_name_in(call))
    return directory


def _directory(transaction: Transaction, name: str) -> StoredDirectory:
    """Return the directory of this name, locked, and made if there is none."""
    found = directories.find(transaction, name, to_change=True)
    if found is not None:
        return found
    if directories.count(transaction) >= MAX_DIRECTORIES:
        raise TooMany("directories", MAX_DIRECTORIES)
    return directories.add(transaction, name)


def _import(
    transaction: Transaction, directory: StoredDirectory, call: Call, body: ImportPage
) -> StoredImport:
    import_id = call.path["import_id"]
    found = directories.find_import(transaction, directory.id, import_id, to_change=True)
    if found is not None:
        return found
    if directories.count_open(transaction, directory.id) >= MAX_OPEN_IMPORTS:
        raise TooMany(f"unfinished imports of {directory.name}", MAX_OPEN_IMPORTS)
    columns = {
        "directory": directory.id,
        "import_id": import_id,
        "source": body.source,
        "etag": body.etag,
        "allow_shrink": body.allow_shrink,
    }
    return directories.begin_import(transaction, columns)


def _reason(refused: Refused, known: Iterable[str]) -> str:
    return refused.reason if len({*known, refused.reason}) <= MAX_REASONS else OTHER_REASONS


def _record(transaction: Transaction, directory: StoredDirectory) -> DirectoryRecord:
    applied = None
    if directory.applied_import is not None:
        applied = directories.applied_import(transaction, directory.applied_import)
    held = directories.latest_imports(transaction, directory.id, [ImportState.HELD])
    return directory_record(directory, applied, held[0] if held else None)


OPERATIONS = (
    Operation(
        method="GET",
        path=PATH,
        summary="List directories, with what they list and what is held",
        action=Action.READ_TARGETS,
        deed=list_directories,
        is_write=False,
        answer=DirectoryList,
    ),
    Operation(
        method="GET",
        path=f"{PATH}/{{directory}}",
        summary="Show a directory",
        action=Action.READ_TARGETS,
        deed=show_directory,
        is_write=False,
        answer=DirectoryRecord,
        errors=(404,),
    ),
    Operation(
        method="PUT",
        path=f"{PATH}/{{directory}}/imports/{{import_id}}/pages/{{page}}",
        summary="Send one page of what a directory lists",
        action=Action.IMPORT_TARGETS,
        deed=put_page,
        body=ImportPage,
        answer=ImportRecord,
        errors=(409,),
        max_body_bytes=MAX_PAGE_BYTES,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/{{directory}}/imports/{{import_id}}/apply",
        summary="Let a list whose pages have all come take the place of the former one, a part at a time",
        action=Action.IMPORT_TARGETS,
        deed=apply_import,
        body=ImportEnd,
        answer=ImportRecord,
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path=f"{PATH}/{{directory}}/confirm",
        summary="Let go what left a directory that has shrunk",
        action=Action.CONFIRM_DIRECTORY,
        deed=confirm_directory,
        answer=ImportRecord,
        errors=(404, 409),
    ),
)
