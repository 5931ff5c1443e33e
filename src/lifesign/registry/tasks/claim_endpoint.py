"""Long polling of agents for tasks.

A claim first checks without a lock whether there is a matching task. While it waits it is one entry in a
list: there is no transaction, and polling only at long intervals in case a notification was missed.
"""

import asyncio
import logging
from dataclasses import dataclass
from math import inf
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from lifesign.domain.access.permissions import Permission, Principal, may_for_any_agent
from lifesign.domain.errors import NotAllowed
from lifesign.domain.models.tasks import TaskClaim, TaskGrant
from lifesign.errors import LifesignError
from lifesign.registry.errors import TooManyClaims
from lifesign.registry.request_handling.error_statuses import INTERNAL_ERROR_TEXT, error_response
from lifesign.registry.request_handling.execution import (
    OperationDispatcher,
    authenticate,
    headers_in,
    incarnation_in,
)
from lifesign.registry.tasks.claim_task import TaskClaimant, claim_task, seconds_until_task
from lifesign.registry.tasks.task_notifier import TaskNotifier
from lifesign.serving.error_body import problem
from lifesign.storage.engine.transaction import Transaction

CLAIM_PATH = "/api/v1/tasks/claim"
MAX_BODY_BYTES = 8_192
MAX_WAITING = 10_000
"""Maximum of waiting claims in one server process."""
PARALLEL_SEARCHES = 4
"""Maximum of concurrent searches after a notification: the database has other work too."""
RETRY_SECONDS = 10.0
"""Interval at which a waiting claim looks for a task even without a notification."""
LEAST_WAIT_SECONDS = 0.05
"""Minimum wait before a search for a task that is due at any moment, or that another agent took."""

_log = logging.getLogger("lifesign.registry")


@dataclass(frozen=True, slots=True)
class _ClaimRequest:
    digest: bytes
    incarnation: int | None
    wanted: TaskClaim


class ClaimEndpoint:
    """Answers `POST /api/v1/tasks/claim`: 200 with a task, or 204 when the wait, or the server, is over."""

    def __init__(self, dispatcher: OperationDispatcher, news: TaskNotifier) -> None:
        self._dispatcher = dispatcher
        self._news = news
        self.stops = asyncio.Event()
        """Set when the server accepts no more connections: no claim waits any longer, and none is granted."""
        self._looks = asyncio.Semaphore(PARALLEL_SEARCHES)
        self._waiting = 0

    async def answer(self, request: Request) -> Response:
        """Grant a task immediately, or as soon as there is one."""
        try:
            claim = await self._parse(request)
            grant = await self._granted(claim, request.receive)
        except LifesignError as error:
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:  # noqa: BLE001 - one request must not end the server
            _log.exception("a claim of a task failed")
            return problem(500, "internal", INTERNAL_ERROR_TEXT)
        if grant is None:
            return Response(status_code=204, headers={"Cache-Control": "no-store"})
        content = grant.model_dump_json(exclude_none=True).encode()
        return Response(content, 200, {"Cache-Control": "no-store"}, "application/json")

    async def _parse(self, request: Request) -> _ClaimRequest:
        headers = headers_in(request.scope)
        digest = self._dispatcher.digest_of_caller(headers)
        self._dispatcher.check_rate(digest)
        try:
            wanted = await self._dispatcher.read(
                TaskClaim, request.receive, headers, MAX_BODY_BYTES, digest=digest, check=_check_may_work
            )
            return _ClaimRequest(digest, incarnation_in(headers), wanted)
        except LifesignError as fault:
            raise await self._dispatcher.refusal(digest, fault, _check_may_work) from None

    async def _granted(self, claim: _ClaimRequest, receive: Receive) -> TaskGrant | None:
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + claim.wanted.wait_seconds
        is_noted = False
        while True:
            # Read before the search: tasks that are queued during it are noticed.
            number = self._news.number
            due_in_s = await self._seconds_until_task(claim)
            if not is_noted:
                # The key was checked and the request counted once, however many searches follow.
                self._dispatcher.heard.note()
                is_noted = True
            if due_in_s is not None and due_in_s <= 0:
                grant = await self._dispatcher.database.write(lambda transaction: _claim(transaction, claim))
                if grant is not None:
                    return grant
                due_in_s = LEAST_WAIT_SECONDS
            left_s = give_up_s - loop.time()
            if left_s <= 0 or self.stops.is_set():
                return None
            due_in_s = max(LEAST_WAIT_SECONDS, inf if due_in_s is None else due_in_s)
            await self._wait(number, min(left_s, due_in_s, RETRY_SECONDS), receive)

    async def _seconds_until_task(self, claim: _ClaimRequest) -> float | None:
        async with self._looks:
            return await self._dispatcher.database.read(
                lambda transaction: seconds_until_task(transaction, _seeker(transaction, claim))
            )

    async def _wait(self, number: int, most_s: float, receive: Receive) -> None:
        """Wait for a notification or the end of the server; ClientDisconnect if the caller leaves.

        No task is granted to a caller that has left.
        """
        if self._waiting >= MAX_WAITING:
            raise TooManyClaims(MAX_WAITING)
        self._waiting += 1
        news = asyncio.ensure_future(self._news.wait_beyond(number))
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
        stops = asyncio.ensure_future(self.stops.wait())
        waited: set[asyncio.Future[Any]] = {news, disconnected, stops}
        try:
            await asyncio.wait(waited, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
            if disconnected.done():
                raise ClientDisconnect
        finally:
            self._waiting -= 1
            for one in waited:
                one.cancel()
            await asyncio.gather(*waited, return_exceptions=True)


def _claim(transaction: Transaction, claim: _ClaimRequest) -> TaskGrant | None:
    return claim_task(transaction, _seeker(transaction, claim))


def _seeker(transaction: Transaction, claim: _ClaimRequest) -> TaskClaimant:
    """Return the caller: its key may have been revoked since the last search."""
    caller = authenticate(transaction, claim.digest)
    return TaskClaimant(
        caller=caller, digest=claim.digest, incarnation=claim.incarnation, wanted=claim.wanted
    )


def _check_may_work(caller: Principal) -> None:
    if not may_for_any_agent(caller, Permission.WORK_TASKS):
        raise NotAllowed(caller.role, Permission.WORK_TASKS, None)


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return once the caller has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
