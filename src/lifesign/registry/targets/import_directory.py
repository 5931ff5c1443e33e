"""Import of a directory's list (`/api/v1/directories`).

A list comes in pages under an id that its client chooses; a repeated page changes nothing. After the client
has stated the total, each request to apply does a bounded part of the work and returns the progress. Other
work runs in between, and any client may continue where another was killed. A list with too many missing
entries waits for an operator's confirmation; its new entries count at once. A prober's key removes entries
only from directories that it imported first.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lifesign.domain.access.permissions import Permission, may, require
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.models.base import moment
from lifesign.domain.models.directories import (
    DIRECTORY_PATTERN,
    IMPORT_PATTERN,
    MAX_PAGE_BYTES,
    MAX_PAGES,
    DirectoryList,
    DirectoryRecord,
    ImportEndRequest,
    ImportPageRequest,
    ImportRecord,
    ImportState,
)
from lifesign.domain.net.allowed_addresses import AddressRefused
from lifesign.domain.targets.target import read_target
from lifesign.registry.errors import DirectoryNotFound, ImportNotFound, ImportOver, NothingSuspended, TooMany
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.targets.replace_listing import advance, begin, confirm
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys import key_rows
from lifesign.storage.targets import directories
from lifesign.storage.targets.directories import Counts, StoredDirectory, StoredImport

PATH = "/api/v1/directories"
MAX_DIRECTORIES = 1_000
MAX_OPEN_IMPORTS = 20
"""Maximum of imports of one directory that are neither applied nor dropped."""
MAX_WAITING_PAGES = 600
"""Maximum of pages of one prober's key that wait in imports of all directories: more than MAX_PAGES."""
MAX_PAGE_DIGITS = 9
MAX_REASONS = 50
"""Maximum number of reasons by which refused entries are counted; further reasons are counted together."""
OTHER_REASONS = "other"


def put_page(transaction: Transaction, call: Call) -> OperationReply:
    """Store one page of a list until all pages have arrived. A page may be sent again.

    The first page of an import replaces unfinished imports that the same key began for this directory.
    ImportOver if the import accepts no more pages. TooMany if there are too many directories, open imports of
    this directory, or stored pages of the prober's key that began the import.
    """
    body, page = call.body_as(ImportPageRequest), _page_in(call)
    _check_names(call)
    importer = _importer(call)
    if importer is not None:
        # Requests with one key wait for each other: the number of its waiting pages is then exact.
        key_rows.find_by_id(transaction, importer, to_change=True)
    directory = _directory(transaction, _name_in(call), importer)
    found = _import(transaction, directory, call, body)
    if found.state != ImportState.UPLOADING:
        raise ImportOver(found.import_id, found.state)
    _check_waiting(transaction, found, page)
    read = Counter(map(read_target, body.urls))
    urls = [url for url in read if isinstance(url, str)]
    if directories.store_page(transaction, found.id, page, urls, body.kind):
        refused = Counter(found.counts.refused)
        for given, number in read.items():
            if isinstance(given, AddressRefused):
                refused[_reason(given, refused)] += number
        counts = Counts(
            received=found.counts.received + len(body.urls),
            duplicates=found.counts.duplicates + sum(read[url] - 1 for url in urls),
            refused=dict(refused),
        )
        found = replace(found, pages=found.pages + 1, counts=counts, state_since_s=transaction.now_s)
        directories.store_import(transaction, found)
    return OperationReply(content=_import_record(found))


def apply_import(transaction: Transaction, call: Call) -> OperationReply:
    """Apply the next part of an import. Repeat the request while the state is `adding` or `removing`.

    A later import of the same directory replaces all earlier ones.
    """
    body = call.body_as(ImportEndRequest)
    directory = _known(transaction, call)
    found = directories.find_import(transaction, directory.id, call.path["import_id"], to_change=True)
    if found is None:
        raise ImportNotFound(directory.name, call.path["import_id"])
    if found.state == ImportState.UPLOADING:
        found = begin(transaction, directory, found, body.pages)
    return OperationReply(content=_import_record(advance(transaction, directory, found, call.actor)))


def confirm_directory(transaction: Transaction, call: Call) -> OperationReply:
    """Confirm that a directory has shrunk. The server then retires the targets that the list lacks."""
    directory = _known(transaction, call)
    suspended = directories.suspended_imports(transaction, [directory.id]).get(directory.id)
    if suspended is None:
        raise NothingSuspended(directory.name)
    found = directories.find_import(transaction, directory.id, suspended.import_id, to_change=True)
    if found is None or found.state != ImportState.SUSPENDED:
        raise NothingSuspended(directory.name)
    return OperationReply(content=_import_record(confirm(transaction, directory, found, call.actor)))


def list_directories(transaction: Transaction, call: Call) -> OperationReply:
    """Return all directories by name, each with its last applied import and its suspended import."""
    require(call.caller, Permission.READ_TARGETS)
    found = directories.listing(transaction, MAX_DIRECTORIES)
    return OperationReply(content=DirectoryList(directories=_records(transaction, found)))


def show_directory(transaction: Transaction, call: Call) -> OperationReply:
    """Return one directory."""
    require(call.caller, Permission.READ_TARGETS)
    directory = directories.find(transaction, _name_in(call))
    if directory is None:
        raise DirectoryNotFound(call.path["directory"])
    return OperationReply(content=_records(transaction, [directory])[0])


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
    """Refuse names that could not be used in a URL again."""
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


def _importer(call: Call) -> str | None:
    """Return the id of a prober's key; None for a caller that may confirm what an import removes."""
    return None if may(call.caller, Permission.CONFIRM_DIRECTORY) else call.caller.key_id


def _directory(transaction: Transaction, name: str, owner: str | None) -> StoredDirectory:
    """Return the directory of this name, locked, and made for its owner if there is none."""
    found = directories.find(transaction, name, to_change=True)
    if found is not None:
        return found
    if directories.count(transaction) >= MAX_DIRECTORIES:
        raise TooMany("directories", MAX_DIRECTORIES)
    return directories.add(transaction, name, owner)


def _import(
    transaction: Transaction, directory: StoredDirectory, call: Call, body: ImportPageRequest
) -> StoredImport:
    import_id = call.path["import_id"]
    found = directories.find_import(transaction, directory.id, import_id, to_change=True)
    if found is not None:
        return found
    importer = _importer(call)
    directories.drop_replaced(transaction, directory.id, importer)
    if directories.count_open(transaction, directory.id) >= MAX_OPEN_IMPORTS:
        raise TooMany(f"unfinished imports of {directory.name}", MAX_OPEN_IMPORTS)
    columns = {
        "directory": directory.id,
        "import_id": import_id,
        "source": body.source,
        "etag": body.etag,
        "allow_shrink": body.allow_shrink,
        "keep_missing": body.keep_missing,
        "importer": importer,
    }
    return directories.begin_import(transaction, columns)


def _check_waiting(transaction: Transaction, found: StoredImport, page: int) -> None:
    """Refuse a new page of a prober's key with too many waiting pages; a repeated page needs no room."""
    if found.importer is None or directories.has_page(transaction, found.id, page):
        return
    if directories.count_waiting_pages(transaction, found.importer) >= MAX_WAITING_PAGES:
        raise TooMany("waiting pages of imports of this key", MAX_WAITING_PAGES)


def _reason(refused: AddressRefused, known: Iterable[str]) -> str:
    return refused.reason if len({*known, refused.reason}) <= MAX_REASONS else OTHER_REASONS


def _records(transaction: Transaction, shown: Sequence[StoredDirectory]) -> list[DirectoryRecord]:
    """Return directories with their imports, in two statements for all of them."""
    suspended = directories.suspended_imports(transaction, [directory.id for directory in shown])
    applied = directories.applied_imports(
        transaction, [directory.applied_import for directory in shown if directory.applied_import is not None]
    )
    return [
        DirectoryRecord(
            name=directory.name,
            size=directory.size,
            applied=_import_record(applied[directory.applied_import])
            if directory.applied_import in applied
            else None,
            suspended=_import_record(suspended[directory.id]) if directory.id in suspended else None,
        )
        for directory in shown
    ]


def _import_record(stored: StoredImport) -> ImportRecord:
    """Return an import as it is shown."""
    return ImportRecord(
        import_id=stored.import_id,
        state=ImportState(stored.state),
        state_since=moment(stored.state_since_s),
        began_at=moment(stored.began_at_s),
        source=stored.source,
        etag=stored.etag,
        pages=stored.pages,
        received=stored.counts.received,
        refused=dict(stored.counts.refused),
        duplicates=stored.counts.duplicates,
        size_before=stored.size_before,
        added=stored.added,
        removed=stored.removed,
        explanation=stored.explanation,
    )


OPERATIONS = (
    Operation(
        method="GET",
        path=PATH,
        summary="List directories, with their size and suspended imports",
        action=Permission.READ_TARGETS,
        needs_any_record=True,
        function=list_directories,
        is_write=False,
        answer=DirectoryList,
    ),
    Operation(
        method="GET",
        path=f"{PATH}/{{directory}}",
        summary="Show a directory",
        action=Permission.READ_TARGETS,
        needs_any_record=True,
        function=show_directory,
        is_write=False,
        answer=DirectoryRecord,
        errors=(404,),
    ),
    Operation(
        method="PUT",
        path=f"{PATH}/{{directory}}/imports/{{import_id}}/pages/{{page}}",
        summary="Send one page of a directory's entries",
        action=Permission.IMPORT_TARGETS,
        function=put_page,
        body=ImportPageRequest,
        example={
            "urls": ["https://agent.example/.well-known/agent-card.json", "other.example"],
            "source": "https://a2aregistry.org/api/agents",
        },
        answer=ImportRecord,
        errors=(409,),
        max_body_bytes=MAX_PAGE_BYTES,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/{{directory}}/imports/{{import_id}}/apply",
        summary="Apply an import whose pages have all arrived, a part at a time",
        action=Permission.IMPORT_TARGETS,
        function=apply_import,
        body=ImportEndRequest,
        example={"pages": 1},
        answer=ImportRecord,
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path=f"{PATH}/{{directory}}/confirm",
        summary="Confirm the removal of entries from a directory that has shrunk",
        action=Permission.CONFIRM_DIRECTORY,
        function=confirm_directory,
        answer=ImportRecord,
        errors=(404, 409),
    ),
)
