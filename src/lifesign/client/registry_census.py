"""Requests about all targets together."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime

from lifesign.client.registry_connection import Question, RegistryConnection, build_body, path_of, query_of
from lifesign.client.registry_errors import InvalidAnswer, Unprocessable
from lifesign.domain.models.census import (
    MAX_NOT_READ,
    CensusCounts,
    CensusRun,
    Deadlines,
    HostCountModel,
    HostCounts,
    RunRequest,
)

MAX_PAGES = 10_000
"""Maximum of pages that `hosts` follows: a faulty registry could list pages without end."""


class RegistryCensus:
    """Requests about the census (`client.census`): counts of targets, and passes of probers over them."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def counts(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        run: str | None = None,
        name: str | None = None,
    ) -> CensusCounts:
        """Return how many targets have which last result, and how the probes of a period ended.

        `run`: the id of a run; only this run is counted. `name`: only runs of this probe definition.
        """
        query = query_of(
            since=None if since is None else since.isoformat(),
            until=None if until is None else until.isoformat(),
            run=run,
            name=name,
        )
        question = Question(method="GET", path=path_of("census"), query=query, may_repeat=True)
        return await self._connection.ask_for(CensusCounts, question)

    async def hosts(self, *, run: str | None = None) -> AsyncIterator[HostCountModel]:
        """Yield the numbers of targets on each host. A host may come in several parts, which add up.

        `run`: the id of a run, up to whose end results do not age.
        """
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            query = query_of(run=run, cursor=cursor)
            question = Question(method="GET", path=path_of("census", "hosts"), query=query, may_repeat=True)
            page = await self._connection.ask_for(HostCounts, question)
            for host in page.hosts:
                yield host
            cursor = page.cursor
            if cursor is None:
                return
        raise InvalidAnswer("the list of hosts does not end")

    async def begin_run(self, run_id: str, name: str, deadlines: Deadlines | None = None) -> CensusRun:
        """Report that a pass over all targets begins, or that this prober joins one. May be repeated.

        If a pass of this name is running, it is returned, with its own id. `deadlines` are those of our
        requests; a registry without support for them gets none.
        """
        try:
            return await self._put_run(run_id, build_body(RunRequest, name=name, deadlines=deadlines))
        except Unprocessable:
            if deadlines is None:
                raise
            return await self._put_run(run_id, build_body(RunRequest, name=name))

    async def note_not_read(
        self, run_id: str, name: str, not_read: Sequence[str], deadlines: Deadlines | None = None
    ) -> None:
        """Report the directories that a pass of this prober could not read.

        They are listed with those of other participants. A registry without support for this gets none.
        """
        body = build_body(RunRequest, name=name, deadlines=deadlines, not_read=tuple(not_read[:MAX_NOT_READ]))
        with suppress(Unprocessable):
            await self._put_run(run_id, body)

    async def end_run(self, run_id: str, name: str) -> CensusRun:
        """Report that a pass has probed all targets, so that the registry counts them. May be repeated."""
        return await self._put_run(run_id, build_body(RunRequest, name=name, is_over=True))

    async def _put_run(self, run_id: str, body: RunRequest) -> CensusRun:
        question = Question(
            method="PUT",
            path=path_of("census", "runs", run_id),
            body=body.model_dump_json(exclude_defaults=True).encode(),
            may_repeat=True,
        )
        return await self._connection.ask_for(CensusRun, question)
