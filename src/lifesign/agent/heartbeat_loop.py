"""Loop that keeps an agent registered (RFC-0016 3, 4).

It registers, sends heartbeats, follows the commands in replies, and registers again when its incarnation has
ended. No answer or failure of the registry ends it. Two processes with the same agent id do not compete: the
one that registered last is the agent, and the other one waits and checks now and then whether it is gone.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from lifesign.agent.loop_watch import watching_loop
from lifesign.agent.registration import Load, RegistrySession
from lifesign.client.registry_errors import (
    Conflict,
    Gone,
    NotFound,
    RegistryError,
    RegistryFailure,
    is_final,
    may_have_been_executed,
)
from lifesign.domain.lifecycle.heartbeat_interval import (
    clock_differs_by_s,
    first_heartbeat_at_s,
    is_adrift,
    next_beat_try_at_s,
    next_claim_at_s,
    next_heartbeat_at_s,
    next_try_at_s,
)
from lifesign.domain.lifecycle.status_table import ALIVE, Reason, Status
from lifesign.domain.models.agents import RENEW_LEASES, HeartbeatReply, PendingCommand
from lifesign.errors import InvalidValue

MAX_COMMANDS_KNOWN: Final = 64
"""A registry keeps at most 16 commands for one agent."""
POLL_SECONDS: Final = 0.25
"""Interval at which an agent that may not register yet checks whether it may."""

_log = logging.getLogger("lifesign.agent")


class OnRegistryReply(Protocol):
    """Callbacks for the registry's answers. They must return at once and never raise."""

    def on_drain_requested(self, why: str, timeout_s: float | None) -> None:
        """Called once for each drain that the registry requests. `timeout_s` is the time for all of it."""

    def on_registered(self, incarnation: int) -> None:
        """Called when the agent is registered."""

    def on_incarnation_lost(self, why: str) -> None:
        """Called when the registry has ended this incarnation: its current work may have another holder."""

    def on_standby(self) -> None:
        """Called when another process is registered as this agent: begin no work until `on_registered`."""


class HeartbeatLoop:
    """Registers one agent, sends its heartbeats, and registers it again if the incarnation ends."""

    def __init__(
        self,
        place: RegistrySession,
        on_reply: OnRegistryReply,
        load: Callable[[], Load],
        *,
        renew_leases: Callable[[], None] | None = None,
        is_sender: Callable[[], bool] | None = None,
        may_register: Callable[[], bool] = lambda: True,
        is_automatic: bool = True,
        wall_s: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Send heartbeats for a registration.

        With `is_automatic=False`, only when `send_heartbeat` is called.

        `renew_leases`, which must return at once, is called when some of the reported tasks are no longer the
        agent's.

        `is_sender` is called before each registration and heartbeat. False ends the loop: another process
        sends them now.

        `may_register` is called before each registration. If it returns False, the loop calls it again after
        POLL_SECONDS.
        """
        self._place = place
        self._on_reply = on_reply
        self._load = load
        self._renew_leases = renew_leases
        self._is_sender = is_sender
        self._may_register = may_register
        self._is_automatic = is_automatic
        self._wall_s = wall_s
        self._chance = chance
        self._rhythm = place.profile.rhythm
        self.is_draining = False
        self.is_displaced = False
        """Whether another process is registered as this agent."""
        self.has_left = asyncio.Event()
        """Set once the loop has ended: a drain is over, there was no incarnation to drain, or another process
        sends the heartbeats.
        """
        self.is_registered = asyncio.Event()
        # The first registration ends an incarnation of ours that crashed. A later one ends only an
        # incarnation that an earlier attempt may have begun, or two processes would displace each other.
        self._supersedes = True
        self._nudge = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._commands: deque[str] = deque(maxlen=MAX_COMMANDS_KNOWN)
        self._failures = 0
        self._last_reported = ""
        self._is_adrift = False

    async def run(self) -> None:
        """Register and send heartbeats until cancelled, or until a drain is over."""
        waiting: list[asyncio.Future[None]] = []
        try:
            with watching_loop(self._place.agent_id):
                while not self.has_left.is_set():
                    # A caller during a turn waits for the next one.
                    waiting, self._waiting = self._waiting, []
                    due_s = await self._try()
                    _settle(waiting)
                    await self._wait_until(due_s)
        finally:
            self.has_left.set()
            _settle([*waiting, *self._waiting])

    async def send_heartbeat(self) -> None:
        """Send a heartbeat now, or register if the agent is not registered; return after the attempt."""
        await self._next_turn()

    def begin_drain(self) -> "asyncio.Future[None]":
        """Report the agent as draining from now on; the future completes after the first attempt."""
        self.is_draining = True
        return self._next_turn()

    def resume(self, incarnation: int) -> None:
        """Continue an incarnation that is registered already, for example by another worker process."""
        self._place.incarnation = incarnation
        self._supersedes = False
        self.is_registered.set()

    def stand_by(self) -> None:
        """Register without superseding: another process may be registered as this agent."""
        self._supersedes = False
        self.is_displaced = True

    def _next_turn(self) -> "asyncio.Future[None]":
        tried = asyncio.get_running_loop().create_future()
        if self.has_left.is_set():
            tried.set_result(None)
        else:
            self._waiting.append(tried)
            self._nudge.set()
        return tried

    async def _try(self) -> float:
        try:
            return await self._turn()
        except (RegistryError, InvalidValue) as error:
            return self._after(error)
        except Exception:  # noqa: BLE001 - an agent must survive what its registry does
            _log.exception(
                "agent %s: a registration or heartbeat ended with an unexpected error; the agent tries again",
                self._place.agent_id,
            )
            return self._try_again_s(None)

    async def _turn(self) -> float:
        """Register or send a heartbeat; return the time of the next turn."""
        if self._is_sender is not None and not self._is_sender():
            self.has_left.set()
            return _now_s()
        if self._place.incarnation is not None:
            due_s = await self._send_one()
        elif self.is_draining:
            # There is nothing to end, and no incarnation is begun to end it.
            self.has_left.set()
            return _now_s()
        elif not self._may_register():
            return _now_s() + POLL_SECONDS
        else:
            due_s = await self._register()
        self._note_answer()
        return due_s

    async def _register(self) -> float:
        await self._place.check_key()
        try:
            record = await self._place.register(supersede=self._supersedes)
        except Exception as error:
            if isinstance(error, Conflict) and not self._supersedes:
                return self._enter_standby()
            # If the request was executed, the existing incarnation is this process's own. A process that
            # knows of another running process does not assume that again.
            is_unsure = not isinstance(error, RegistryError) or may_have_been_executed(error)
            self._supersedes |= is_unsure and not self.is_displaced
            raise
        self._supersedes = self.is_displaced = False
        self.is_registered.set()
        _log.info("agent %s: registered, incarnation %s", self._place.agent_id, record.incarnation)
        self._on_reply.on_registered(record.incarnation)
        return first_heartbeat_at_s(_now_s(), self._rhythm.interval_seconds, self._chance())

    def _enter_standby(self) -> float:
        if not self.is_displaced:
            self.is_displaced = True
            _log.error(
                (
                    "agent %s: another process is registered as this agent; this one pauses until the other "
                    "is gone. Give each process its own agent_id, and all of them one role_id"
                ),
                self._place.agent_id,
            )
            self._on_reply.on_standby()
        return next_claim_at_s(_now_s(), self._rhythm.dead_after_seconds, self._chance())

    async def _send_one(self) -> float:
        sent_at_s, sent_s, was_draining = _now_s(), self._wall_s(), self.is_draining
        try:
            reply = await self._place.send_heartbeat(self._load(), is_draining=was_draining, client_s=sent_s)
        except (Gone, NotFound) as error:
            return await self._lose_incarnation(error)
        self._compare_clocks(sent_s, reply)
        if not self.is_registered.is_set() and self._place.incarnation is not None:
            # The registry had refused a heartbeat of this incarnation, which it accepts again.
            self.is_registered.set()
            self._on_reply.on_registered(self._place.incarnation)
        await self._obey(reply)
        if self.is_draining and not was_draining:
            return _now_s()
        return next_heartbeat_at_s(sent_at_s, _now_s(), self._rhythm.interval_seconds, self._chance())

    async def _lose_incarnation(self, error: RegistryError) -> float:
        """Drop the work in progress (RFC-0016 4.6), and register again unless the agent leaves.

        After a completed drain, the work continues until the drain timeout: it has no lease, and so no other
        agent can have it.
        """
        drain_end = None if self.is_draining else await self._drain_end(error)
        is_restored = self._is_behind(error)
        self._place.incarnation = None
        if not self.is_draining and drain_end is not Reason.DRAIN_COMPLETED:
            self._drop_work(error)
        self.is_registered.clear()
        if drain_end is not None:
            self.is_draining = True
            self._on_reply.on_drain_requested(
                "the registry drained this agent before it could report that", None
            )
        if self.is_draining:
            self.has_left.set()
            return _now_s()
        # If another process has registered since the backup was restored, it is superseded once.
        self._supersedes |= is_restored
        if error.details.get("status") in ALIVE and not is_restored:
            _log.warning(
                (
                    "agent %s: another process has registered as this agent; hint: give each process its own "
                    "agent_id, and all of them one role_id"
                ),
                self._place.agent_id,
            )
        else:
            _log.warning("agent %s: registers again: %s", self._place.agent_id, error)
        # Spread the return of many agents that died together.
        return next_try_at_s(_now_s(), self._rhythm.interval_seconds, 1, self._chance())

    async def _drain_end(self, gone: RegistryError) -> Reason | None:
        """Return how a drain ended this incarnation; None if there was no drain.

        An agent that was drained while idle is deregistered at once. Without an answer, drop the work and
        raise: the next heartbeat leads here again. To register meanwhile could undo the drain.
        """
        try:
            return await self._place.drain_end()
        except RegistryError as error:
            if is_final(error):
                return None
            self._drop_work(gone)
            raise

    def _drop_work(self, gone: RegistryError) -> None:
        """Report once that the incarnation has ended."""
        if self.is_registered.is_set():
            self.is_registered.clear()
            self._on_reply.on_incarnation_lost(str(gone))

    def _is_behind(self, gone: RegistryError) -> bool:
        """Return whether the registry knows only an earlier incarnation: an older backup was restored."""
        known, own = gone.details.get("incarnation"), self._place.incarnation
        return type(known) is int and own is not None and known < own

    async def _obey(self, reply: HeartbeatReply) -> None:
        for command in reply.pending_commands:
            if command.id not in self._commands:
                self._commands.append(command.id)
                self._carry_out(command)
        if reply.agent_status is Status.DRAINING and not self.is_draining:
            # The time to drain runs since the request, which came up to one interval earlier.
            left_s = await self._place.drain_left_s(reply.server_timestamp)
            self._on_reply.on_drain_requested("the agent is draining in the registry", left_s)

    def _carry_out(self, command: PendingCommand) -> None:
        if command.command == RENEW_LEASES:
            if self._renew_leases is not None:
                self._renew_leases()
            return
        if command.command != "drain":
            _log.warning(
                "agent %s: unknown command %a is ignored", self._place.agent_id, command.command[:80]
            )
            return
        why = f"requested by the registry: {command.reason}" if command.reason else "asked by the registry"
        self._on_reply.on_drain_requested(why, command.drain_timeout_seconds)

    def _compare_clocks(self, sent_s: float, reply: HeartbeatReply) -> None:
        differs_s = clock_differs_by_s(sent_s, self._wall_s(), reply.server_timestamp.timestamp())
        was_adrift, self._is_adrift = self._is_adrift, is_adrift(differs_s, self._rhythm.interval_seconds)
        if self._is_adrift and not was_adrift:
            _log.warning(
                (
                    "agent %s: the registry's clock is %.0f s %s this machine's; verdicts use the "
                    "registry's clock"
                ),
                self._place.agent_id,
                abs(differs_s),
                "ahead of" if differs_s > 0 else "behind",
            )

    def _after(self, error: RegistryError | InvalidValue) -> float:
        """Log a fault once, and return when to try again."""
        is_unreachable = isinstance(error, RegistryFailure)
        # Refusals differ in their reasons; all failures to answer are the same.
        text = "away" if is_unreachable else str(error)
        if text != self._last_reported:
            if is_unreachable:
                _log.warning(
                    "agent %s: the registry is unreachable: %s; trying again", self._place.agent_id, error
                )
            else:
                hint = self._place.hint(error) if isinstance(error, RegistryError) else ""
                _log.error(
                    "agent %s: a registration or heartbeat was refused, and is tried again: %s%s",
                    self._place.agent_id,
                    error,
                    f"; hint: {hint}" if hint else "",
                )
        self._last_reported = text
        return self._try_again_s(error.retry_after_s if isinstance(error, RegistryError) else None)

    def _try_again_s(self, retry_after_s: float | None) -> float:
        self._failures += 1
        return next_beat_try_at_s(
            _now_s(), self._rhythm.interval_seconds, self._failures, self._chance(), retry_after_s
        )

    def _note_answer(self) -> None:
        if self._last_reported:
            _log.warning("agent %s: the registry answers again", self._place.agent_id)
        self._failures, self._last_reported = 0, ""

    async def _wait_until(self, due_s: float) -> None:
        is_on_demand = not self._is_automatic and self._place.incarnation is not None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if is_on_demand else due_s):
                await self._nudge.wait()
        self._nudge.clear()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _settle(waiting: "list[asyncio.Future[None]]") -> None:
    for tried in waiting:
        if not tried.done():
            tried.set_result(None)
