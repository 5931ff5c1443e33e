"""Requests of a prober to a registry: claims of shards, their targets, and results (protocol 8)."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lifesign.client.registry_connection import (
    Question,
    RegistryConnection,
    build_body,
    path_of,
    query_of,
    read_answer,
)
from lifesign.client.registry_errors import InvalidAnswer, RegistryError
from lifesign.domain.common.batch_size import BatchSize
from lifesign.domain.credentials.acceptance import CredentialStatus
from lifesign.domain.models.credentials import places_of
from lifesign.domain.models.observation_batch import ObservationAnswer, ObservationBatch
from lifesign.domain.models.shards import (
    TTL_SECONDS,
    ProbeTarget,
    ShardClaimRequest,
    ShardGrant,
    ShardsShown,
    ShardTargets,
)
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation

PAGE = 2_000
"""Targets in one answer: a few megabytes at most, if all remember as much as they may."""
MIN_PAGE = 50
"""Targets in one answer after others were too large for the link to the registry."""
MAX_PAGES = 10_000
"""Maximum of pages for one shard: a faulty registry could list pages without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShards:
    """Answer to a claim of shards, with the caller's own deadline."""

    grant: ShardGrant
    deadline_s: float
    """Deadline of the holder's work, by `boot_clock.now_s`. It counts from the time of the request, so that
    the lease never expires in the registry before it does for its holder.
    """
    registry_now_s: float | None
    """The registry's time of its answer, in seconds since the epoch; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContents:
    """All targets of a shard, or all changes in it."""

    targets: Sequence[ProbeTarget] = field(default_factory=list)
    gone: Sequence[str] = field(default_factory=list)
    """Ids that are no longer targets of the shard."""
    version: int = 0
    """Pass this version the next time to get later changes only."""


class RegistryShards:
    """Requests about shards (`client.shards`): parts of the list of targets, for workers of probers."""

    def __init__(self, connection: RegistryConnection, wall_s: Callable[[], float] = time.time) -> None:
        self._connection = connection
        self._wall_s = wall_s
        self._page = BatchSize(PAGE, smallest=MIN_PAGE)

    async def claim(
        self,
        worker: str,
        *,
        held: Mapping[int, int],
        ttl_seconds: float = TTL_SECONDS,
        companions: int = 0,
        reached_classes: Sequence[str] | None = None,
        wanted_witnesses: Mapping[str, int] | None = None,
        interval_s: float | None = None,
        credentials: Sequence[CredentialStatus] = (),
    ) -> HeldShards:
        """Report that a worker is alive, renew the leases of its shards (`held`), and claim more shards.

        `companions` is the number of workers that start at the same time, and keep their share.
        `reached_classes` are network classes in which a witness answered within the last interval,
        `wanted_witnesses` those in which more are wanted. `credentials` are names and places of
        the worker's credentials. The claim is repeated if there is no answer. Shards
        that were granted in between are granted again, with a new token.
        """
        sent_at_s = 0.0
        body = build_body(
            ShardClaimRequest,
            worker=worker,
            ttl_seconds=float(ttl_seconds),
            held=dict(held),
            companions=companions,
            reached_classes=None if reached_classes is None else list(reached_classes),
            wanted_witnesses=dict(wanted_witnesses or {}),
            interval_s=interval_s,
            credentials=places_of(credentials),
        )

        def written() -> bytes:
            nonlocal sent_at_s
            sent_at_s = self._wall_s()
            sent = body.model_copy(update={"sent_at": datetime.fromtimestamp(sent_at_s, UTC)})
            return sent.model_dump_json(exclude_none=True, exclude_defaults=True).encode()

        question = Question(method="POST", path=path_of("shards", "claim"), body=written, may_repeat=True)
        reply = await self._connection.ask(question)
        grant = read_answer(ShardGrant, reply)
        offset_s = grant.clock_offset_s
        return HeldShards(
            grant=grant,
            deadline_s=reply.sent_at_s + body.ttl_seconds,
            registry_now_s=None if offset_s is None else sent_at_s - offset_s,
        )

    async def leave(self, worker: str) -> None:
        """Release all shards of a worker; repeating it changes nothing."""
        question = Question(
            method="DELETE", path=path_of("shards"), query={"worker": worker}, may_repeat=True
        )
        await self._connection.ask(question)

    async def show(
        self, *, changed_after: int | None = None, unprobed_since: datetime | None = None
    ) -> ShardsShown:
        """Return the probers, the shards that changed after a version, and the number of unprobed targets."""
        since = None if unprobed_since is None else unprobed_since.isoformat()
        query = query_of(changed_after=changed_after, unprobed_since=since)
        question = Question(method="GET", path=path_of("shards"), query=query, may_repeat=True)
        return await self._connection.ask_for(ShardsShown, question)

    async def targets(self, shard: int, *, after_version: int | None = None) -> ShardContents:
        """Return all targets of a shard, or all changes after a version.

        If a page does not arrive, the next call requests smaller ones.
        """
        pages: list[ShardTargets] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            limit = self._page.most
            query = query_of(after_version=after_version, limit=limit, cursor=cursor)
            path = path_of("shards", str(shard), "targets")
            question = Question(method="GET", path=path, query=query, may_repeat=True)
            began_s = asyncio.get_running_loop().time()
            try:
                page = await self._connection.ask_for(ShardTargets, question)
            except RegistryError:
                self._page.failed(limit)
                raise
            took_s = asyncio.get_running_loop().time() - began_s
            self._page.succeeded(len(page.targets) + len(page.gone), took_s)
            pages.append(page)
            cursor = page.cursor
            if cursor is None:
                return ShardContents(
                    targets=[target for page in pages for target in page.targets],
                    gone=[subject_id for page in pages for subject_id in page.gone],
                    version=pages[0].version,
                )
        raise InvalidAnswer(f"shard {shard} has more than {MAX_PAGES} pages")

    async def report(
        self,
        observations: Sequence[Observation],
        *,
        tokens: Mapping[int, int],
        ages_s: Sequence[float] | Callable[[], Sequence[float]],
        numbers: Sequence[int],
        interval_s: float,
        memories: Sequence[ProbeMemory | None] | None = None,
        interfaces: Sequence[dict[str, Any] | None] | None = None,
    ) -> ObservationAnswer:
        """Report results of probes, each with what the next probe of the target needs, in the same order.

        `tokens` has the fencing token of each shard that the results are of. `ages_s` and `numbers` belong to
        the observations, `interval_s` is that of the crawl: see `ObservationBatch`. A function that returns
        the ages is called for each try. An observation that is sent again counts once.
        """
        batch = build_body(
            ObservationBatch,
            observations=list(observations),
            memories=None if memories is None else list(memories),
            interfaces=None if interfaces is None else list(interfaces),
            tokens=dict(tokens),
            ages_s=_listed(ages_s),
            numbers=list(numbers),
            interval_s=interval_s,
        )

        def written() -> bytes:
            sent = batch
            if callable(ages_s):
                sent_at = datetime.fromtimestamp(self._wall_s(), UTC)
                sent = batch.model_copy(update={"ages_s": _listed(ages_s), "sent_at": sent_at})
            return sent.model_dump_json(exclude_none=True, exclude_defaults=True).encode()

        question = Question(method="POST", path=path_of("observations"), body=written, may_repeat=True)
        return await self._connection.ask_for(ObservationAnswer, question)


def _listed(ages_s: Sequence[float] | Callable[[], Sequence[float]] | None) -> list[float] | None:
    if ages_s is None:
        return None
    return list(ages_s() if callable(ages_s) else ages_s)
