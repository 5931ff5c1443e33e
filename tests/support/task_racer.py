"""A process that competes for tasks, or sleeps past its own deadline."""

import asyncio
import sys
from threading import Barrier
from typing import TYPE_CHECKING, Any

from lifesign.domain.access.permissions import Principal, Role, digest_of
from lifesign.domain.models.tasks import CompletionWrite, RunWrite, TaskClaim, TaskGrant
from lifesign.errors import LifesignError
from lifesign.registry.request_handling.operation import Call, OperationReply, TransactionFunction
from lifesign.registry.status_changes.lease_expiry import reap
from lifesign.registry.tasks.claim_task import TaskClaimant, claim_task
from lifesign.registry.tasks.run_task import mark_complete
from lifesign.storage.engine.database import open_database

if TYPE_CHECKING:
    from lifesign.storage.engine.transaction import Database

PATIENCE_SECONDS = 120
LOOKS = 3
"""After so many looks in a row that found nothing, there is nothing left."""


class TaskRacer:
    """One agent in a process of its own, at the database itself."""

    def __init__(self, url: str, agent_id: str, key: str) -> None:
        self.database: Database = open_database(url)
        self._caller = Principal(f"key_{agent_id}", Role.AGENT, agent_id)
        self._digest = digest_of(key)

    async def claim(self, ttl_s: float = 60.0) -> TaskGrant | None:
        """Ask for a task."""
        seeker = TaskClaimant(
            caller=self._caller, digest=self._digest, incarnation=None, wanted=TaskClaim(ttl_seconds=ttl_s)
        )
        return await self.database.write(lambda transaction: claim_task(transaction, seeker))

    async def complete(self, grant: TaskGrant) -> OperationReply | LifesignError:
        """Hand a result in."""
        body = CompletionWrite(
            run_id=grant.run_id, fencing_token=grant.lease.fencing_token, idempotency_key="complete"
        )
        return await self._write(mark_complete, grant, body)

    async def _write(
        self, function: TransactionFunction, grant: TaskGrant, body: RunWrite
    ) -> OperationReply | LifesignError:
        call = Call(
            caller=self._caller,
            path={"task_id": grant.task.task_id},
            body=body,
            query=None,
            headers={},
            digest=self._digest,
        )
        return await self.database.write(lambda transaction: function(transaction, call))


def race(url: str, agent_id: str, key: str, start: Barrier) -> list[str]:
    """Work at tasks until there are none; return which were handed in."""
    with asyncio.Runner() as runner:
        return runner.run(_race(TaskRacer(url, agent_id, key), start))


async def _race(racer: TaskRacer, start: Barrier) -> list[str]:
    done: list[str] = []
    try:
        await asyncio.to_thread(start.wait, PATIENCE_SECONDS)
        in_vain = 0
        while in_vain < LOOKS:
            grant = await racer.claim()
            # A reaper of each process goes round beside the work.
            await reap(racer.database)
            in_vain = in_vain + 1 if grant is None else 0
            if grant is not None and isinstance(await racer.complete(grant), OperationReply):
                done.append(grant.task.task_id)
    finally:
        await racer.database.close()
    return done


async def _sleep_through(url: str, agent_id: str, key: str) -> None:
    """Claim a task for a second, print that, and submit it on a signal."""
    racer = TaskRacer(url, agent_id, key)
    grant = await racer.claim(ttl_s=1.0)
    assert grant is not None
    _say(f"claimed {grant.task.task_id} {grant.lease.fencing_token}")
    # Here the process is stopped; it goes on as if no time had passed.
    await asyncio.to_thread(sys.stdin.readline)
    answer: Any = await racer.complete(grant)
    _say(type(answer).__name__)
    await racer.database.close()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_sleep_through(*sys.argv[1:4]))
