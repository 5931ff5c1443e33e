"""What can be asked of a registry about the shards of what is probed? (protocol 8)"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from agent_health.client.older_registry import LeftOut
from agent_health.client.registry_connection import (
    Question,
    RegistryConnection,
    made,
    path_of,
    query_of,
    read_answer,
)
from agent_health.client.registry_errors import InvalidAnswer, Unprocessable
from agent_health.observation import Observation
from agent_health.observation_batch import ObservationAnswer, ObservationBatch
from agent_health.probe_memory import ProbeMemory
from agent_health.shard_record import (
    TTL_SECONDS,
    ProbeTarget,
    ShardClaimRequest,
    ShardGrant,
    ShardsShown,
    ShardTargets,
)

PAGE = 2_000
"""Targets in one answer: a few megabytes at most, if all remember as much as they may."""
MAX_PAGES = 10_000
"""That are turned for one shard: a registry that never ends is not followed for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShards:
    """What a claim was answered."""

    grant: ShardGrant
    deadline_s: float
    """When to have stopped, on the event loop's clock: counted from when it was asked for, so that the
    registry never thinks it over before its holder does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContents:
    """All that a shard holds, or all that changed in it."""

    targets: Sequence[ProbeTarget] = field(default_factory=list)
    gone: Sequence[str] = field(default_factory=list)
    """Ids that are none of its targets any more."""
    version: int = 0
    """Ask for what comes after this one the next time."""


class RegistryShards:
    """`client.shards`."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection
        self.left_out = LeftOut()
        """What is not reported, since this registry does not know it."""
        self._knows_companions = True

    async def claim(
        self,
        worker: str,
        *,
        held: Mapping[int, int],
        ttl_seconds: float = TTL_SECONDS,
        companions: int = 0,
    ) -> HeldShards:
        """Say that a worker lives, renew what it holds (shard: token), and take its share of the others.

        `companions` begin at the same time, and are left theirs; an older registry does not know of them, and
        is not told. Tried again if no answer comes: what was granted in between is granted anew, with a
        new token.
        """
        body = made(
            ShardClaimRequest,
            worker=worker,
            ttl_seconds=float(ttl_seconds),
            held=dict(held),
            companions=companions if self._knows_companions else 0,
        )
        question = Question(
            method="POST",
            path=path_of("shards", "claim"),
            body=body.model_dump_json(exclude=None if body.companions else {"companions"}).encode(),
            may_repeat=True,
        )
        try:
            reply = await self._connection.ask(question)
        except Unprocessable:
            if not body.companions:
                raise
            self._knows_companions = False
            return await self.claim(worker, held=held, ttl_seconds=ttl_seconds)
        return HeldShards(grant=read_answer(ShardGrant, reply), deadline_s=reply.sent_at_s + body.ttl_seconds)

    async def leave(self, worker: str) -> None:
        """Give back all that a worker holds; again, nothing happens."""
        question = Question(
            method="DELETE", path=path_of("shards"), query={"worker": worker}, may_repeat=True
        )
        await self._connection.ask(question)

    async def show(
        self, *, changed_after: int | None = None, unprobed_since: datetime | None = None
    ) -> ShardsShown:
        """Return who probes; which shards changed after a version; how many were not probed since a time."""
        since = None if unprobed_since is None else unprobed_since.isoformat()
        query = query_of(changed_after=changed_after, unprobed_since=since)
        question = Question(method="GET", path=path_of("shards"), query=query, may_repeat=True)
        return await self._connection.ask_for(ShardsShown, question)

    async def targets(self, shard: int, *, after_version: int | None = None) -> ShardContents:
        """Return what a shard holds, or what changed there after a version, all pages together."""
        pages: list[ShardTargets] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            query = query_of(after_version=after_version, limit=PAGE, cursor=cursor)
            path = path_of("shards", str(shard), "targets")
            question = Question(method="GET", path=path, query=query, may_repeat=True)
            pages.append(await self._connection.ask_for(ShardTargets, question))
            cursor = pages[-1].cursor
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
        ages_s: Sequence[float],
        numbers: Sequence[int],
        interval_s: float,
        memories: Sequence[ProbeMemory | None] | None = None,
    ) -> ObservationAnswer:
        """Report what was seen, and what the next probe of each has to remember, in the same order.

        `tokens` has the fencing token of each shard that the results are of. `ages_s` and `numbers` belong to
        the observations, `interval_s` is that of the crawl: see `ObservationBatch`. An observation that is
        sent again counts once. What an older registry does not know is left out: see `left_out`.
        """
        batch = made(
            ObservationBatch,
            observations=list(observations),
            memories=None if memories is None else list(memories),
            tokens=dict(tokens),
            ages_s=list(ages_s),
            numbers=list(numbers),
            interval_s=interval_s,
        )
        body = batch.model_dump_json(exclude_none=True, exclude_defaults=True).encode()
        now_s = asyncio.get_running_loop().time()
        while True:
            question = Question(
                method="POST",
                path=path_of("observations"),
                body=self.left_out.without(body, now_s),
                may_repeat=True,
            )
            try:
                return await self._connection.ask_for(ObservationAnswer, question)
            except Unprocessable as refusal:
                if not self.left_out.note(refusal, now_s):
                    raise
