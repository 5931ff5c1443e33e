"""A process that competes with others for leases."""

import asyncio
from threading import Barrier

from lifesign.domain.access.permissions import digest_of, key_of
from lifesign.domain.tasks.lease import Claim
from lifesign.registry.leases.hold_lease import (
    Acquire,
    Answer,
    LeaseOperation,
    LeaseReleaseRequest,
    hold_leases,
)
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database

RESOURCES = 10
"""How many are raced for, again and again."""
PATIENCE_SECONDS = 120


def key_of_racer(number: int) -> str:
    """Return the key of a racer's agent."""
    return key_of(bytes([100 + number]) * 32)


def race(url: str, number: int, races: int, start: Barrier) -> list[tuple[str, int]]:
    """Ask for a resource in each race, together with all others; return which was won, with which token."""
    with asyncio.Runner() as runner:
        return runner.run(_race(url, digest_of(key_of_racer(number)), races, start))


async def _race(url: str, digest: bytes, races: int, start: Barrier) -> list[tuple[str, int]]:
    database = open_database(url)
    won = []
    try:
        for turn in range(races):
            resource = f"task:{turn % RESOURCES}"
            await asyncio.to_thread(start.wait, PATIENCE_SECONDS)
            answer = await _hold(database, Acquire(digest=digest, resource=resource, ttl_s=600))
            await asyncio.to_thread(start.wait, PATIENCE_SECONDS)
            if isinstance(answer, Claim):
                won.append((f"race {turn} for {resource}", answer.token))
                await _hold(database, LeaseReleaseRequest(digest=digest, lease_id=str(answer.lease_id)))
    finally:
        await database.close()
    return won


async def _hold(database: Database, asked: LeaseOperation) -> Answer:
    (answer,) = await database.write(lambda transaction: hold_leases(transaction, [asked]))
    return answer
