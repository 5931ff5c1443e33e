"""Reports of results to a registry that really listens, with the tokens of the targets' shards."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.registry_server import KEYS

from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.observation_batch import ObservationAnswer
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation

_numbers = itertools.count(1)


async def report(
    client: RegistryClient,
    *observations: Observation,
    memories: Sequence[ProbeMemory | None] | None = None,
    interfaces: Sequence[dict[str, Any] | None] | None = None,
    tokens: Mapping[int, int] | None = None,
    ages_s: Sequence[float] | None = None,
) -> ObservationAnswer:
    """Report observations made just now; without `tokens` a worker claims all shards for this, and leaves."""
    claimed = None if tokens is not None else await client.shards.claim("reporter", held={})
    if claimed is not None:
        tokens = {shard.shard: shard.fencing_token for shard in claimed.grant.shards}
    answer = await client.shards.report(
        observations,
        memories=memories,
        interfaces=interfaces,
        tokens=tokens or {},
        ages_s=ages_s or [0.0] * len(observations),
        numbers=[next(_numbers) for _ in observations],
        interval_s=300,
    )
    if claimed is not None:
        await client.shards.leave("reporter")
    return answer


def reported(
    url: str,
    *observations: Observation,
    memories: Sequence[ProbeMemory | None] | None = None,
    interfaces: Sequence[dict[str, Any] | None] | None = None,
    key: str = KEYS[Role.PROBER],
) -> ObservationAnswer:
    """Do the same, with a prober's key, where nothing runs in an event loop."""

    async def ask() -> ObservationAnswer:
        async with RegistryClient(url, key=key) as client:
            return await report(client, *observations, memories=memories, interfaces=interfaces)

    return asyncio.run(ask())
