"""Graceful end of an agent (RFC-0016 5).

The agent takes no new work and finishes its current work, while heartbeats report that it drains. Then it is
deregistered, which ends its leases. After the timeout, or at a second signal, current work is dropped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lifesign.agent.handler import Handler, call, is_own_failure
from lifesign.agent.heartbeat_loop import HeartbeatLoop
from lifesign.agent.registration import RegistrySession
from lifesign.client.registry_errors import RegistryError

DROP_SECONDS: Final = 5.0
"""Time for cancelled handlers to clean up."""
ANNOUNCE_SECONDS: Final = 3.0
"""Time to announce the drain to the registry."""
LEAVE_SECONDS: Final = 10.0
"""Time to deregister. If the registry does not answer, the agent's heartbeats time out."""
HURRIED_SECONDS: Final = 1.0
"""Timeout of each step after a second request to stop."""

_log = logging.getLogger("lifesign.agent")


class AgentEnd(StrEnum):
    """How an agent ended."""

    FINISHED = "finished"
    """All running work was finished."""
    DROPPED = "dropped"
    """Some work was still running at the timeout or at a second signal."""


@dataclass(frozen=True, slots=True)
class DrainContext:
    """What `leave` needs of an agent to drain it."""

    loop: HeartbeatLoop
    place: RegistrySession
    idle: Callable[[], Awaitable[None]]
    """Waits until nothing is in progress."""
    drop: Callable[[str], None]
    """Stops running work."""
    on_drain: Handler | None
    hurry: asyncio.Event
    """Set to end the wait."""


async def leave(leaving: DrainContext, timeout_s: float) -> AgentEnd:
    """Drain an agent: wait up to `timeout_s` for its running work, then deregister it."""
    announced = leaving.loop.begin_drain()
    has_finished = await _unless_hurried(leaving.hurry, _finish(leaving), timeout_s)
    if not has_finished:
        leaving.drop("the agent ends, and the time to drain is over")
        await _within(leaving.hurry, leaving.idle(), DROP_SECONDS)
    # The event log shows a drain before the end. A registration that was sent is not given up: its
    # incarnation would stay registered.
    announce_s = LEAVE_SECONDS if leaving.place.incarnation is None else ANNOUNCE_SECONDS
    await _within(leaving.hurry, announced, announce_s)
    if not await _within(leaving.hurry, _deregister(leaving.place), LEAVE_SECONDS):
        _log.warning("agent %s could not deregister in time; it ends anyway", leaving.place.agent_id)
    return AgentEnd.FINISHED if has_finished else AgentEnd.DROPPED


async def _finish(leaving: DrainContext) -> None:
    """Wait for the agent's own `on_drain` and for its work at the same time."""
    await asyncio.gather(_say_farewell(leaving), leaving.idle())


async def _say_farewell(leaving: DrainContext) -> None:
    if leaving.on_drain is None:
        return
    try:
        await call(leaving.on_drain)
    except BaseException as error:
        if not is_own_failure(error):
            raise
        _log.exception("agent %s: on_drain failed; the agent ends anyway", leaving.place.agent_id)


async def _deregister(place: RegistrySession) -> None:
    try:
        await place.leave()
    except RegistryError as error:
        _log.warning("agent %s could not deregister: %s", place.agent_id, error)


async def _within(hurry: asyncio.Event, function: Awaitable[None], seconds: float) -> bool:
    """Wait for a function that gets a moment even at a second signal; False if it was given up."""
    if hurry.is_set():
        return await _unless_hurried(asyncio.Event(), function, HURRIED_SECONDS)
    return await _unless_hurried(hurry, function, seconds)


async def _unless_hurried(hurry: asyncio.Event, function: Awaitable[None], seconds: float) -> bool:
    """Wait for a function; False if the time was up or a hurry was requested."""
    doing = asyncio.ensure_future(function)
    hurrying = asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait({doing, hurrying}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        hurrying.cancel()
        is_done = doing.done()
        if not is_done:
            doing.cancel()
            # Work that cannot be cancelled is left behind.
            await asyncio.wait({doing}, timeout=HURRIED_SECONDS)
    if doing.done() and not doing.cancelled() and (error := doing.exception()) is not None:
        _log.error("a step of the agent's shutdown failed; the shutdown continues", exc_info=error)
    return is_done
