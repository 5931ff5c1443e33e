"""Life cycle of an agent, from registration to its end (RFC-0016 3 to 5).

`AgentRunner` is the imperative interface; `@Agent` uses it too (RFC-0016 3.4).
"""

import asyncio
import logging
import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from lifesign.agent.credentials import AgentKeys, registry_url
from lifesign.agent.drain import AgentEnd, DrainContext, leave
from lifesign.agent.errors import InvalidAgent, WorkRefused
from lifesign.agent.handler import Handler
from lifesign.agent.heartbeat_loop import HeartbeatLoop
from lifesign.agent.local_runs import LocalRun
from lifesign.agent.profile import AgentProfile, ProfileSettings, drain_work_s, given_profile
from lifesign.agent.registration import RegistrySession
from lifesign.agent.settings_validation import check_key_file, check_kinds
from lifesign.agent.signal_handling import catching_signals
from lifesign.agent.task_source import TaskSource
from lifesign.agent.work_loop import WorkLoop
from lifesign.agent.work_sources import AssignmentSource, HandedIn
from lifesign.errors import InvalidValue

_DISPLACED = "another process is registered as this agent"
_log = logging.getLogger("lifesign.agent")


class AgentRunner:
    """One running agent: it registers, sends heartbeats, works on its tasks, and drains.

        runner = AgentRunner("billing-01", role_id="billing", capacity=5, on_assignment=work)
        await runner.run()                      # until SIGTERM, Ctrl-C, or a drain that the registry requests

    or `async with runner:` with `await runner.assign(task)` inside; the end of the block is a drain.

    Pass a `profile`, or an `agent_id` and `settings`, which are the other fields of an `AgentProfile`.
    `registry` is a URL, else LIFESIGN_REGISTRY; `key` and `key_file`: see `AgentKeys`.

    on_assignment: called with each task, at most `capacity` at once; a coroutine function, or a function,
        which runs in a thread. None: the agent takes no work here.
    on_drain: called once, without arguments, when the agent begins to drain.
    source: source of work; None: calls of `assign`.
    tasks: whether the registry gives it tasks, at most `capacity` at once, by default one;
        `on_assignment` is called with a `ClaimedTask`, and its return value is submitted.
    auto_heartbeat: False: call `send_heartbeat` yourself, else the registry marks the agent unhealthy.

    Raise InvalidValue for invalid arguments. A registry that is unreachable or refuses stops nothing: it is
    logged once (`lifesign.agent`).
    """

    def __init__(
        self,
        agent_id: str | None = None,
        *,
        profile: AgentProfile | None = None,
        on_assignment: Handler | None = None,
        on_drain: Handler | None = None,
        source: AssignmentSource | None = None,
        tasks: bool = False,
        auto_heartbeat: bool = True,
        registry: str | None = None,
        key: str | None = None,
        key_file: str | Path | None = None,
        allow_plain_http: bool = False,
        **settings: Unpack[ProfileSettings],
    ) -> None:
        check_kinds(
            profile=profile,
            on_assignment=on_assignment,
            on_drain=on_drain,
            tasks=tasks,
            auto_heartbeat=auto_heartbeat,
            registry=registry,
            key=key,
            key_file=key_file,
            allow_plain_http=allow_plain_http,
        )
        if profile is not None and agent_id is not None:
            raise InvalidValue("profile", None, "either a profile or an agent_id")
        self.profile = given_profile(profile, agent_id, settings)
        check_key_file(self.profile, key_file)
        keys = AgentKeys(key=key, key_file=key_file, has_fixed_id=self.profile.has_fixed_id)
        self._place = RegistrySession(
            self.profile,
            keys,
            registry_url(registry),
            allow_plain_http=allow_plain_http,
            works_tasks=tasks,
            has_fixed_id=self.profile.has_fixed_id,
        )
        self._on_drain = on_drain
        self._handler = on_assignment
        self._handed_in = HandedIn(self.agent_id)
        if tasks and (source is not None or on_assignment is None):
            raise InvalidValue("tasks", None, "an on_assignment, without another source")
        given = TaskSource(self.agent_id, self._place, self.registered) if tasks else None
        self._source = given or source or self._handed_in
        # An unlimited capacity suits work that a program submits, but not a queue.
        capacity = 1 if tasks and self.profile.capacity is None else self.profile.capacity
        self._work = WorkLoop(self.agent_id, self._source, on_assignment, capacity)
        if given is not None:
            given.drop = self._work.drop
        self._loop = HeartbeatLoop(
            self._place,
            self,
            self._work.load,
            renew_leases=self._source.renew_leases if isinstance(self._source, TaskSource) else None,
            may_register=self._may_register,
            is_automatic=auto_heartbeat,
        )
        self._drain_s = self.profile.drain_s
        self._leaves = asyncio.Event()
        self._is_asked = False
        """Whether a signal or the program asked the agent to drain, and not only the registry."""
        self._hurry = asyncio.Event()
        self._living: asyncio.Task[AgentEnd] | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        self._run: LocalRun | None = None

    @classmethod
    def of(cls, agent: object, **settings: Any) -> Self:
        """Return the runner of an object whose class is declared with `@Agent`.

        `settings` override the declaration.
        """
        declared = getattr(type(agent), "__lifesign__", None)
        if declared is None:
            raise InvalidAgent(type(agent).__qualname__, "an object of a class that is declared with @Agent")
        return cls(**declared.runner_settings(agent) | settings)

    @property
    def agent_id(self) -> str:
        """Id of the agent in the registry."""
        return self.profile.agent_id

    @property
    def incarnation(self) -> int | None:
        """Current incarnation; None while the agent is not registered."""
        return self._place.incarnation

    @property
    def is_leaving(self) -> bool:
        """Whether the agent drains or has ended, and takes no more work."""
        return self._leaves.is_set()

    def start(self) -> None:
        """Start the agent in the background; returns at once, also if the registry is unreachable.

        If another runner of the agent runs in this process, that one drains. This one registers after it.
        """
        if self._living is not None:
            raise InvalidAgent(self.agent_id, "one start per runner: create a new one to start again")
        if _is_importing_main():
            raise InvalidAgent(
                self.agent_id,
                "a start in the main process, but a child process of multiprocessing imports the program; "
                'hint: start the agent below `if __name__ == "__main__":`',
            )
        self._home = _running_loop()
        if self._home is None:
            raise InvalidAgent(self.agent_id, "a running event loop of asyncio; trio is not supported")
        self._living = asyncio.create_task(self._live(), name=f"agent {self.agent_id}")
        self._run = run = LocalRun(self._place.registry, self.agent_id, self._give_way)
        self._living.add_done_callback(lambda _: run.end())
        if run.begin():
            _log.warning(
                "agent %s runs in this process already; that run drains, and then the new one registers",
                self.agent_id,
            )

    async def registered(self) -> None:
        """Wait until the agent is registered."""
        await self._loop.is_registered.wait()

    async def run(self) -> AgentEnd:
        """Run the agent until SIGTERM, SIGINT, SIGHUP or a drain by the registry.

        A second signal ends it at once, except a second SIGHUP. Starts the agent if it was not started.
        Signals are handled only in the main thread.
        """
        if self._living is None:
            self.start()
        with catching_signals(self.drain):
            return await self.wait()

    async def wait(self) -> AgentEnd:
        """Wait until the agent has ended; return whether all its work was finished."""
        if self._living is None:
            raise InvalidAgent(self.agent_id, "start before wait")
        return await asyncio.shield(self._living)

    async def assign(self, task: Any, *, task_id: str | None = None) -> Any:
        """Call the handler with this task when there is capacity; returns and raises what the handler does.

        `task_id` is the id of the task in the registry, sent with every heartbeat; None if it is none.
        WorkRefused if the work did not begin; WorkDropped if it was given up: when the registry ended this
        incarnation (RFC-0016 4.6), or at the drain timeout. Cancelling the call stops the work.
        """
        if self._handler is None or self._source is not self._handed_in:
            raise WorkRefused(self.agent_id, "it has no on_assignment, or gets its work from another source")
        if self._living is None or self._living.done():
            raise WorkRefused(self.agent_id, "it does not run")
        self._check_loop()
        if self._loop.is_displaced:
            raise WorkRefused(self.agent_id, _DISPLACED)
        assignment = self._handed_in.put(task, task_id)
        assert assignment.outcome is not None  # noqa: S101 - `put` makes it
        try:
            return await assignment.outcome
        except asyncio.CancelledError:
            self._work.drop(assignment, "its caller no longer waits for it")
            raise

    async def send_heartbeat(self) -> None:
        """Send a heartbeat now. Only for agents with `auto_heartbeat=False`."""
        if self._living is not None and not self._living.done():
            self._check_loop()
            await self._loop.send_heartbeat()

    def drain(self, why: str = "asked by its program") -> None:
        """Begin to drain the agent; returns at once (see `wait`).

        A second call ends the agent without waiting. If the registry has requested a drain before, a first
        call only limits it to the agent's own drain timeout. May be called from any thread.
        """
        if self._home is not None and _running_loop() is not self._home:
            self._call_at_home(self.drain, why)
        elif self._is_asked:
            _log.warning("agent %s ends at once, without a drain: %s", self.agent_id, why)
            self._hurry.set()
        else:
            self._is_asked = True
            if not self._leaves.is_set():
                self._begin_drain(why)
            elif self._home is not None:
                _log.info("agent %s drains already: %s", self.agent_id, why)
                self._home.call_later(self.profile.drain_s, self._hurry.set)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._leaves.is_set():
            self.drain("its program ends")
        await self.wait()

    # Callbacks of the heartbeat loop.

    def on_drain_requested(self, why: str, timeout_s: float | None) -> None:
        """Drain the agent at the registry's request, within `timeout_s` if the registry sets it."""
        if not self._leaves.is_set():
            self._drain_s = self._drain_s if timeout_s is None else drain_work_s(timeout_s)
            self._begin_drain(why)

    def on_registered(self, incarnation: int) -> None:  # noqa: ARG002 - who runs an app needs it
        """Accept work again, after another process was registered as this agent."""
        self._work.resume()

    def on_incarnation_lost(self, why: str) -> None:
        """Stop the work in progress: it may have another holder by now (RFC-0016 4.6)."""
        if self._work.load().count:
            _log.warning("agent %s drops the work in progress: %s", self.agent_id, why)
        self._work.drop_all(f"the registry ended this incarnation: {why}")

    def on_standby(self) -> None:
        """Start no work, and refuse waiting work, while another process is registered as this agent."""
        self._work.pause()
        self._handed_in.refuse_waiting(_DISPLACED)

    def _may_register(self) -> bool:
        return self._run is None or self._run.is_first()

    def _give_way(self) -> None:
        """Drain, in whatever thread a later run of the agent is started."""
        self._call_at_home(self.on_drain_requested, "the agent is started again in this process", None)

    def _call_at_home(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function in the event loop of the agent."""
        # A loop that is closed already has nothing to leave.
        with suppress(RuntimeError):
            if self._home is not None:
                self._home.call_soon_threadsafe(function, *arguments)

    def _check_loop(self) -> None:
        """Raise InvalidAgent in another event loop: the agent could not wake the caller."""
        if asyncio.get_running_loop() is not self._home:
            raise InvalidAgent(
                self.agent_id,
                "a call in the event loop of the agent; hint: in another thread, pass the coroutine and that "
                "loop to asyncio.run_coroutine_threadsafe",
            )

    def _begin_drain(self, why: str) -> None:
        _log.info("agent %s begins to drain: %s", self.agent_id, why)
        self._leaves.set()
        self._close_source(f"it leaves: {why}")

    def _close_source(self, why: str) -> None:
        try:
            self._source.close(why)
        except Exception:  # noqa: BLE001 - the agent ends whatever its source does
            _log.exception("agent %s: its source could not be closed; the agent ends anyway", self.agent_id)

    async def _live(self) -> AgentEnd:
        loop = asyncio.create_task(self._loop.run())
        work = asyncio.create_task(self._work.run())
        try:
            await self._leaves.wait()
            await _ended(work)
            leaving = DrainContext(
                loop=self._loop,
                place=self._place,
                idle=self._work.idle,
                drop=self._work.drop_all,
                on_drain=self._on_drain,
                hurry=self._hurry,
            )
            end = await leave(leaving, self._drain_s)
            if (running := self._work.load().count) > 0:
                _log.error(
                    "agent %s: handlers that have not ended after their cancellation: %d; its program cannot "
                    "end before them",
                    self.agent_id,
                    running,
                )
            return end
        finally:
            self._close_source("it has ended")
            self._work.drop_all("its program ends")
            await _ended(work)
            await _ended(loop)
            await self._place.close()


def _is_importing_main() -> bool:
    """Return whether this process of a pool imports the main module of the program that has started it.

    An agent that this import starts would supersede that of the program.
    """
    # The attribute by which Python itself refuses to start processes during that import.
    return getattr(multiprocessing.current_process(), "_inheriting", False)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop of this thread, if one runs in it."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _ended(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
