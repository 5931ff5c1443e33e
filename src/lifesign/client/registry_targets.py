"""Requests about targets and their rechecks."""

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol, TypedDict, Unpack

from lifesign.client.registry_connection import Question, RegistryConnection, path_of, query_of, texts
from lifesign.client.registry_errors import InvalidAnswer
from lifesign.domain.models.interface_versions import InterfaceComparison, InterfaceVersions
from lifesign.domain.models.targets import RecheckRecord, TargetList, TargetRecord, TargetSummary
from lifesign.domain.observation.results import ResultClass

MAX_PAGES = 100_000
"""Maximum of pages that `all_pages` follows: a faulty registry could list pages without end."""


class TargetQuery(TypedDict, total=False):
    """Filter of targets. An absent member matches any target that is still probed."""

    result: Sequence[ResultClass | str]
    layer_result: Sequence[ResultClass | str]
    """Last results of a layer, of which one is enough."""
    failed_assertions: bool
    """Only targets with an assertion that failed in their last probe with a result."""
    never_probed: bool
    old_evidence: bool
    """True: also targets whose last measured result is too old; False: none of those."""
    directory: str
    host: str
    include_gone: bool
    max_evidence_age: float
    """Maximum age of the targets' last measured probe, in seconds."""
    sort: Literal["added", "host"]
    """Order: as they were added (default), or by host and URL."""


class PagedTargets(Protocol):
    """Lists targets page by page: from a registry, or from a local database."""

    async def list(
        self, *, limit: int = 100, cursor: str | None = None, **wanted: Unpack[TargetQuery]
    ) -> TargetList:
        """Return one page of the targets that match. `cursor` comes from the page before."""
        ...


async def all_pages(
    targets: PagedTargets, *, page: int = 1000, **wanted: Unpack[TargetQuery]
) -> AsyncIterator[TargetList]:
    """Yield pages of `page` targets until all that match are listed.

    Each page has the total of the first one.
    """
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        found = await targets.list(limit=page, cursor=cursor, **wanted)
        yield found
        cursor = found.cursor
        if cursor is None:
            return
    raise InvalidAnswer("the list of targets does not end")


class RegistryTargets:
    """Requests about targets (`client.targets`)."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def list(
        self, *, limit: int = 100, cursor: str | None = None, **wanted: Unpack[TargetQuery]
    ) -> TargetList:
        """Return one page of the targets that match, at most 1000. `cursor` comes from the page before."""
        flags = {
            name: "true" for name in ("failed_assertions", "never_probed", "include_gone") if wanted.get(name)
        }
        if (old := wanted.get("old_evidence")) is not None:
            flags["old_evidence"] = "true" if old else "false"
        query = query_of(
            result=texts("result", wanted.get("result", ())),
            layer_result=texts("layer_result", wanted.get("layer_result", ())),
            directory=wanted.get("directory"),
            host=wanted.get("host"),
            max_evidence_age=wanted.get("max_evidence_age"),
            sort=wanted.get("sort"),
            limit=limit,
            cursor=cursor,
            **flags,
        )
        question = Question(method="GET", path=path_of("targets"), query=query, may_repeat=True)
        return await self._connection.ask_for(TargetList, question)

    async def each(self, *, page: int = 1000, **wanted: Unpack[TargetQuery]) -> AsyncIterator[TargetSummary]:
        """Yield all targets that match, in requests of `page` targets."""
        async for found in all_pages(self, page=page, **wanted):
            for target in found.targets:
                yield target

    async def get(self, target_id: str) -> TargetRecord:
        """Return one target; NotFound if there is no target with this id."""
        question = Question(method="GET", path=path_of("targets", target_id), may_repeat=True)
        return await self._connection.ask_for(TargetRecord, question)

    async def interface_versions(self, target_id: str) -> InterfaceVersions:
        """Return the kept versions of a target's published interface, the newest first. Raises NotFound."""
        path = path_of("targets", target_id, "interface-versions")
        return await self._connection.ask_for(
            InterfaceVersions, Question(method="GET", path=path, may_repeat=True)
        )

    async def compare_interfaces(
        self, target_id: str, *, previous_version: int | None = None, version: int | None = None
    ) -> InterfaceComparison:
        """Compare two versions of a target's published interface, by default the newest two.

        Raises NotFound.
        """
        question = Question(
            method="GET",
            path=path_of("targets", target_id, "interface-versions", "comparison"),
            query=query_of(previous_version=previous_version, version=version),
            may_repeat=True,
        )
        return await self._connection.ask_for(InterfaceComparison, question)

    async def recheck(self, target_id: str) -> RecheckRecord:
        """Request a probe of a target now.

        RateLimited within a minute of the last one, Gone if it was removed.

        Not repeated, though a later try could succeed: the caller must learn about the limit.
        """
        question = Question(method="POST", path=path_of("targets", target_id, "probe"))
        return await self._connection.ask_for(RecheckRecord, question)
