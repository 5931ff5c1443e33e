"""A registry's functions in this process, without a server."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar, Unpack

from lifesign.client.registry_targets import TargetQuery
from lifesign.domain.access.permissions import Principal, Role
from lifesign.domain.models.directories import (
    DirectoryRecord,
    ImportEndRequest,
    ImportPageRequest,
    ImportRecord,
)
from lifesign.domain.models.shards import ShardsShown
from lifesign.domain.models.targets import RecheckRecord, TargetList, TargetRecord
from lifesign.errors import LifesignError
from lifesign.registry.probing.claim_shards import ShardChanges, show_shards
from lifesign.registry.request_handling.operation import NO_HEADERS, Call, TransactionFunction
from lifesign.registry.targets.import_directory import (
    apply_import,
    confirm_directory,
    list_directories,
    put_page,
)
from lifesign.registry.targets.list_targets import TargetListing, list_targets, show_target
from lifesign.registry.targets.recheck_target import recheck_target
from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.sqlite_path import check_exists
from lifesign.storage.engine.transaction import Database, Transaction

KEY_ID: Final = "local"
"""Id in leases and events of this machine in place of a key's id; no key has it."""

NO_PATH: Final[Mapping[str, str]] = MappingProxyType({})

T = TypeVar("T")


class LocalRegistry:
    """Executes operations of the registry in a database of this machine, with a role's permissions."""

    def __init__(self, database: Database, role: Role) -> None:
        self.database = database
        self._caller = Principal(KEY_ID, role, None)

    async def do(
        self,
        function: TransactionFunction,
        *,
        path: Mapping[str, str] = NO_PATH,
        body: Any = None,
        query: Any = None,
        is_write: bool = True,
    ) -> Any:
        """Execute a request as a server would, and return the answer. Raises LifesignError."""
        call = Call(caller=self._caller, path=path, body=body, query=query, headers=NO_HEADERS, digest=b"")
        run = self.database.write if is_write else self.database.read
        reply = await run(lambda transaction: function(transaction, call))
        if isinstance(reply, LifesignError):
            raise reply
        return reply.content

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Run a function that only reads, and return its result. Raises LifesignError."""
        return await self.database.read(function)


def run_locally(url: str, role: Role, function: Callable[[LocalRegistry], Awaitable[T]]) -> T:
    """Call a coroutine function with a LocalRegistry of this database, and return its result.

    Raises InvalidValue if the database is missing, LifesignError if it has another version or an operation is
    refused.
    """

    async def ran() -> T:
        database = open_database(url, is_only_read=role is Role.READER)
        try:
            await database.read(schema_version.check)
            return await function(LocalRegistry(database, role))
        finally:
            await database.close()

    check_exists(url)
    return asyncio.run(ran())


class LocalDirectories:
    """Directories in a local database."""

    def __init__(self, registry: LocalRegistry) -> None:
        self._registry = registry

    async def all(self) -> list[DirectoryRecord]:
        """Return all directories. Raises LifesignError."""
        found = await self._registry.do(list_directories, is_write=False)
        return list(found.directories)

    async def put_page(
        self, directory: str, import_id: str, page: int, body: ImportPageRequest
    ) -> ImportRecord:
        """Store one page of a directory's entries; the first page is number 1. Raises LifesignError."""
        path = {"directory": directory, "import_id": import_id, "page": str(page)}
        return _record(await self._registry.do(put_page, path=path, body=body))

    async def apply(self, directory: str, import_id: str, *, pages: int) -> ImportRecord:
        """Apply the next part of an import. Raises LifesignError."""
        path = {"directory": directory, "import_id": import_id}
        return _record(await self._registry.do(apply_import, path=path, body=ImportEndRequest(pages=pages)))

    async def confirm(self, directory: str) -> ImportRecord:
        """Confirm that a directory has shrunk, and retire some of the targets that its list lacks.

        Raises LifesignError.
        """
        return _record(await self._registry.do(confirm_directory, path={"directory": directory}))


class LocalTargets:
    """Targets in a local database."""

    def __init__(self, registry: LocalRegistry) -> None:
        self._registry = registry

    async def list(
        self, *, limit: int = 100, cursor: str | None = None, **wanted: Unpack[TargetQuery]
    ) -> TargetList:
        """Return one page, at most 1000, as a registry does. Raises LifesignError."""
        query = TargetListing.model_validate({"limit": limit, "cursor": cursor, **wanted})
        found = await self._registry.do(list_targets, query=query, is_write=False)
        assert isinstance(found, TargetList)  # noqa: S101 - it is what the function answers
        return found

    async def get(self, target_id: str) -> TargetRecord:
        """Return one target. Raises LifesignError."""
        found = await self._registry.do(show_target, path={"target_id": target_id}, is_write=False)
        assert isinstance(found, TargetRecord)  # noqa: S101 - see above
        return found

    async def recheck(self, target_id: str) -> RecheckRecord:
        """Request a probe of a target now. Raises LifesignError."""
        reply = await self._registry.do(recheck_target, path={"target_id": target_id})
        assert isinstance(reply, RecheckRecord)  # noqa: S101 - see above
        return reply

    async def has_prober(self) -> bool:
        """Return whether a prober uses this database. Raises LifesignError."""
        shown = await self._registry.do(show_shards, query=ShardChanges(), is_write=False)
        assert isinstance(shown, ShardsShown)  # noqa: S101 - see above
        return bool(shown.probers)


def _record(content: object) -> ImportRecord:
    assert isinstance(content, ImportRecord)  # noqa: S101 - it is what the function answers
    return content
