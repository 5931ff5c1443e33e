"""Directories and their imports (`/api/v1/directories`).

These are the request bodies and the records in answers, also for the client.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field, StrictBool, StringConstraints

from lifesign.domain.health.document import INTEGRAL_FLOAT, Time
from lifesign.domain.models.base import NAME_PATTERN, Body
from lifesign.domain.observation.results import MAX_ETAG_CHARS, MAX_URL_CHARS
from lifesign.domain.targets.target import StatedKind

MAX_PAGE_URLS = 4_000
"""Maximum of entries per page. A page of the longest URLs has less than MAX_PAGE_BYTES."""
MAX_PAGES = 510
"""Maximum number of pages per import: two million targets, and an incomplete page for each of their kinds."""
MAX_ENTRY_CHARS = 4096
"""Maximum length of an entry in a request. An entry that is too long for a URL is refused by itself."""
MAX_PAGE_BYTES = 8_388_608
DIRECTORY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
IMPORT_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"

Source = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL_CHARS, pattern=NAME_PATTERN)]
Etag = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ETAG_CHARS, pattern=NAME_PATTERN)]
Entry = Annotated[str, StringConstraints(max_length=MAX_ENTRY_CHARS)]


class ImportState(StrEnum):
    """Progress of an import."""

    UPLOADING = "uploading"
    """Pages are arriving; nothing counts yet."""
    ADDING = "adding"
    """All pages have arrived; their entries are being added."""
    SUSPENDED = "suspended"
    """Too many entries are missing: an operator must confirm the removal. New entries are already stored."""
    REMOVING = "removing"
    """Unlisted targets are being removed."""
    APPLIED = "applied"
    DROPPED = "dropped"
    """Replaced by a later import, or never finished."""


class ImportPageRequest(Body):
    """The body of `PUT /api/v1/directories/{directory}/imports/{import_id}/pages/{page}`."""

    urls: Annotated[list[Entry], Field(max_length=MAX_PAGE_URLS)]
    """Entries of the directory: URLs or hosts."""
    kind: Annotated[StatedKind, Field(strict=False)] | None = None
    """Kind of all entries of this page; absent if the list does not state it.

    Only a target of kind `mcp` is probed as an MCP server. If entries of one directory or of several ones
    state different kinds for a target, it is `disputed`: the prober requests both.
    """
    source: Source | None = None
    """Origin of the list, for people; taken from the first page that arrives."""
    etag: Etag | None = None
    """ETag of the list, for its next reading; taken from the first page that arrives."""
    allow_shrink: StrictBool = False
    """True if the list may lose more than half of its entries without confirmation; taken from the first
    page.
    """
    keep_missing: StrictBool = False
    """True if the list is incomplete: entries of the directory that it lacks are kept; taken from the first
    page.
    """


class ImportEndRequest(Body):
    """The body of `POST /api/v1/directories/{directory}/imports/{import_id}/apply`."""

    pages: Annotated[int, Field(ge=1, le=MAX_PAGES, strict=True), INTEGRAL_FLOAT]
    """Number of pages. If one is missing, nothing is applied."""


class ImportRecord(BaseModel):
    """One import of a list into a directory."""

    import_id: str
    state: ImportState
    state_since: Time
    began_at: Time
    source: str | None = None
    etag: str | None = None
    pages: int
    """Number of pages that have arrived; at the end, of all pages."""
    received: int
    """Entries."""
    refused: dict[str, int]
    """Number of entries that are not targets, by reason."""
    duplicates: int
    """Number of entries for targets that the list names more than once."""
    size_before: int
    added: int
    removed: int
    """Number of former entries that were removed; for a suspended import, that would be removed."""
    explanation: str | None = None
    """Reason of the suspension."""

    @property
    def is_under_way(self) -> bool:
        """Whether the import is not completely applied yet."""
        return self.state in {ImportState.ADDING, ImportState.REMOVING}


class DirectoryRecord(BaseModel):
    """A directory (a named list of targets), with its latest imports."""

    name: str
    size: int
    """Number of targets that the directory lists."""
    applied: ImportRecord | None = None
    """Latest import that was fully applied; absent before the first."""
    suspended: ImportRecord | None = None
    """Import that waits for confirmation."""


class DirectoryList(BaseModel):
    """The answer to `GET /api/v1/directories`."""

    directories: list[DirectoryRecord]
