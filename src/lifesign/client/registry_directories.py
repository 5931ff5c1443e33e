"""Requests about directories and their lists."""

import itertools
from collections.abc import Iterable, Iterator
from uuid import uuid4

from lifesign.client.registry_connection import Question, RegistryConnection, build_body, path_of
from lifesign.domain.models.directories import (
    MAX_PAGE_URLS,
    DirectoryList,
    DirectoryRecord,
    ImportEndRequest,
    ImportPageRequest,
    ImportRecord,
)
from lifesign.domain.targets.target import TargetKind


class RegistryDirectories:
    """Requests about directories (`client.directories`): named lists of targets."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def all(self) -> list[DirectoryRecord]:
        """Return all directories by their names."""
        question = Question(method="GET", path=path_of("directories"), may_repeat=True)
        return (await self._connection.ask_for(DirectoryList, question)).directories

    async def get(self, directory: str) -> DirectoryRecord:
        """Return one directory; NotFound if there is none with this name."""
        question = Question(method="GET", path=path_of("directories", directory), may_repeat=True)
        return await self._connection.ask_for(DirectoryRecord, question)

    async def put(
        self,
        directory: str,
        urls: Iterable[str],
        *,
        kind: TargetKind | None = None,
        source: str | None = None,
        etag: str | None = None,
        allow_shrink: bool = False,
    ) -> ImportRecord:
        """Replace a directory's list of targets. The removals are suspended if the list shrank too much.

        `kind` is that of all entries; None if it is not known.

        Raise Conflict if a later list replaces it meanwhile. An unfinished import has no effect.
        """
        import_id, number = uuid4().hex, 0
        for number, page in enumerate(_pages(urls), 1):
            body = build_body(
                ImportPageRequest, urls=page, kind=kind, source=source, etag=etag, allow_shrink=allow_shrink
            )
            await self.put_page(directory, import_id, number, body)
        record = await self.apply(directory, import_id, pages=number)
        while record.is_under_way:
            record = await self.apply(directory, import_id, pages=number)
        return record

    async def put_page(
        self, directory: str, import_id: str, page: int, body: ImportPageRequest
    ) -> ImportRecord:
        """Upload one page of an import's entries; pages count from 1. A repeated page counts once."""
        return await self._import(
            Question(
                method="PUT",
                path=path_of("directories", directory, "imports", import_id, "pages", str(page)),
                body=body.model_dump_json(exclude_none=True).encode(),
                may_repeat=True,
            )
        )

    async def apply(self, directory: str, import_id: str, *, pages: int) -> ImportRecord:
        """Apply the uploaded pages of an import, a part of them per call.

        Repeat it while the import is running.
        """
        return await self._import(
            Question(
                method="POST",
                path=path_of("directories", directory, "imports", import_id, "apply"),
                body=build_body(ImportEndRequest, pages=pages).model_dump_json().encode(),
                may_repeat=True,
            )
        )

    async def confirm(self, directory: str) -> ImportRecord:
        """Retire the missing targets of a list that shrank too much; Conflict if no removal is suspended."""
        return await self._import(Question(method="POST", path=path_of("directories", directory, "confirm")))

    async def _import(self, question: Question) -> ImportRecord:
        return await self._connection.ask_for(ImportRecord, question)


def _pages(urls: Iterable[str]) -> Iterator[list[str]]:
    """Cut a list into pages; an empty list has one, which is empty."""
    rest = iter(urls)
    yield list(itertools.islice(rest, MAX_PAGE_URLS))
    while page := list(itertools.islice(rest, MAX_PAGE_URLS)):
        yield page
