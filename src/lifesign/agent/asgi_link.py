"""Middleware that makes an ASGI app an agent of the registry."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Unpack

from lifesign.agent.beat_election import IS_LOST, default_directory
from lifesign.agent.credentials import AgentKeys, registry_url
from lifesign.agent.default_logging import show_log
from lifesign.agent.drain import LEAVE_SECONDS, DrainContext, leave
from lifesign.agent.handler import Handler
from lifesign.agent.heartbeat_loop import HeartbeatLoop
from lifesign.agent.profile import AgentProfile, ProfileSettings, drain_work_s
from lifesign.agent.registration import Load, RegistrySession
from lifesign.agent.settings_validation import check_kinds
from lifesign.agent.worker_group import WorkerGroup
from lifesign.client.registry_errors import RegistryError

App = Callable[[Any, Any, Any], Awaitable[None]]
Message = MutableMapping[str, Any]

POLL_SECONDS: Final = 1.0
"""Interval at which a worker that sends no heartbeats checks whether it must."""

KEEP_SECONDS: Final = POLL_SECONDS / 4
"""Interval at which the worker that sends the heartbeats checks its lock files."""

_log = logging.getLogger("lifesign.agent")


class AgentLink:
    """Wraps an ASGI app, and registers the app as an agent while it is served.

        app = AgentLink(app, registry="https://registry.example", agent_id="billing-01")

    It registers once the app has started, ends an earlier incarnation of its own, and sends heartbeats; it
    drains and deregisters when the server shuts down. Of several worker processes on one machine one sends
    the heartbeats, with the number of all requests in progress as the load; if it dies another one continues
    the same incarnation. Messages, scopes and exceptions of the app pass through unchanged, and a registry
    that is unreachable or refuses does not prevent the app from being served.

    `settings` are the other fields of the `AgentProfile`. `registry` is a URL, else LIFESIGN_REGISTRY; `key`
    and `key_file`: see `AgentKeys`. With several workers and a key that only enrolls, `key_file` is required:
    the next worker reads the agent's own key from it.

    on_drain: called once, in the worker that sends heartbeats, when the registry requests a drain or the
        server shuts down. The registry cannot stop a server: after a drain that it requested the app is
        served as before, and stays deregistered until all its workers were restarted.
    lock_dir: a directory for this agent's workers only, which only their user may write to. None: one
        below the system's directory for temporary files, named for the registry and the agent.

    Raise InvalidValue for invalid arguments.
    """

    def __init__(
        self,
        app: App,
        *,
        agent_id: str,
        registry: str | None = None,
        key: str | None = None,
        key_file: str | Path | None = None,
        on_drain: Handler | None = None,
        lock_dir: str | Path | None = None,
        allow_plain_http: bool = False,
        **settings: Unpack[ProfileSettings],
    ) -> None:
        check_kinds(
            registry=registry,
            key=key,
            key_file=key_file,
            on_drain=on_drain,
            lock_dir=lock_dir,
            allow_plain_http=allow_plain_http,
        )
        self.app = app
        self.profile = AgentProfile(agent_id=agent_id, **settings)
        url = registry_url(registry)
        directory = default_directory(url, agent_id) if lock_dir is None else Path(lock_dir).absolute()
        self._workers = WorkerGroup(directory, agent_id)
        keys = AgentKeys(key=key, key_file=key_file)
        self._place = RegistrySession(self.profile, keys, url, allow_plain_http=allow_plain_http)
        self._on_drain = on_drain
        self._drain_s = self.profile.drain_s
        self._in_flight = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_asked_to_leave = False
        self._leaves = asyncio.Event()
        """Set when this worker has to stop beating, by the registry or by the end of the server."""
        self._ends = asyncio.Event()
        self._living: asyncio.Task[None] | None = None
        self._has_no_loop = False
        """Whether the server runs the app without asyncio."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            self._reset()
            await _Lifespan(self, receive, send).serve(scope)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # A server without lifespan support, or an app that is mounted in another one.
        self.begin()
        self._count(1)
        try:
            await self.app(scope, receive, send)
        finally:
            self._count(-1)

    def begin(self) -> None:
        """Start to register the app as an agent; returns at once. A repeated call does nothing."""
        if self._living is not None or self._has_no_loop:
            return
        # uvicorn sets up its own loggers only.
        show_log()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._has_no_loop = True
            _log.error(
                "agent %s is not registered: the web server does not use asyncio; the app is served anyway",
                self.profile.agent_id,
            )
            return
        self._living = loop.create_task(self._live(), name=f"agent {self.profile.agent_id}")

    async def end(self) -> None:
        """Stop this worker's part; if no other worker continues the agent, deregister it.

        Returns after the attempt.
        """
        self._leaves.set()
        self._ends.set()
        if self._living is not None:
            await asyncio.gather(self._living, return_exceptions=True)

    # Callbacks of the heartbeat loop.

    def on_drain_requested(self, why: str, timeout_s: float | None) -> None:
        """Leave the registry; the server continues."""
        if not self._leaves.is_set():
            _log.warning(
                "agent %s deregisters (%s); the web server continues to serve requests",
                self.profile.agent_id,
                why,
            )
            self._drain_s = self._drain_s if timeout_s is None else drain_work_s(timeout_s)
            self._is_asked_to_leave = True
            self._leaves.set()

    def on_registered(self, incarnation: int) -> None:
        """Store the incarnation for the other workers, so that one of them can continue it."""
        self._workers.note_incarnation(incarnation)

    def on_incarnation_lost(self, why: str) -> None:  # noqa: ARG002 - the loop has logged it
        """Let the next worker not supersede: another process may be registered as this agent.

        Requests in progress continue: no other agent can answer their callers.
        """
        self._workers.note_incarnation(IS_LOST)

    def on_standby(self) -> None:
        """Do nothing: the app is served even if another process is registered as this agent."""

    def _reset(self) -> None:
        """Prepare to register again if the app was served before, perhaps in another event loop."""
        if self._living is None or not self._living.done():
            return
        self._living = None
        self._leaves, self._ends, self._is_idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._is_asked_to_leave = False
        self._drain_s = self.profile.drain_s
        self._count(0)

    def _count(self, change: int) -> None:
        self._in_flight += change
        if self._in_flight:
            self._is_idle.clear()
        else:
            self._is_idle.set()
        self._workers.set_load(self._in_flight)

    def _load(self) -> Load:
        return Load(self._workers.total_load())

    async def _live(self) -> None:
        try:
            self._workers.join()
            while await self._has_lead():
                if await self._heartbeat_until_left():
                    break
            await self._ends.wait()
            await self._run_idle()
            await self._shut_down()
        except Exception:  # noqa: BLE001 - the app must not fail for what it is linked to
            _log.exception(
                "agent %s is no longer linked to the registry, because of an unexpected error",
                self.profile.agent_id,
            )
        finally:
            self._workers.leave()
            await self._place.close()

    async def _has_lead(self) -> bool:
        """Wait until this worker leads; False if it leaves before."""
        while not self._workers.can_lead():
            # Not all at the same moment.
            if await self._must_leave_within(POLL_SECONDS * (0.5 + 0.5 * random.random())):  # noqa: S311
                return False
        return True

    async def _must_leave_within(self, seconds: float) -> bool:
        """Wait so long, or until this worker has to leave; return whether it has to."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaves.wait()
        return self._leaves.is_set()

    async def _heartbeat_until_left(self) -> bool:
        """Send heartbeats until this worker has to leave; False if another worker sends them before.

        Deregister the agent unless another worker continues it.
        """
        incarnation = self._workers.incarnation
        loop = HeartbeatLoop(self._place, self, self._load, is_sender=self._is_sender)
        if incarnation == IS_LOST:
            _log.warning(
                "agent %s: this worker process now registers the agent, unless another process has done so",
                self.profile.agent_id,
            )
            loop.stand_by()
        elif incarnation is not None:
            _log.info(
                "agent %s: this worker process now sends the heartbeats of incarnation %s",
                self.profile.agent_id,
                incarnation,
            )
            loop.resume(incarnation)
        beating = asyncio.create_task(loop.run())
        try:
            while not await self._must_leave_within(KEEP_SECONDS):
                is_sender = self._is_sender()
                if not is_sender:
                    _log.warning(
                        "agent %s: another worker process now sends the heartbeats", self.profile.agent_id
                    )
                if loop.has_left.is_set() or not is_sender:
                    self._place.incarnation = None
                    return False
            if not self._is_asked_to_leave and not self._workers.is_alone():
                # Before its own requests have ended: heartbeats must continue meanwhile.
                self._workers.give_lead()
                return True
            workers = self._workers.names()
            leaving = DrainContext(
                loop=loop,
                place=self._place,
                idle=self._until_idle,
                drop=self._hand_requests_to_server,
                on_drain=self._on_drain,
                hurry=asyncio.Event(),
            )
            await leave(leaving, self._drain_s)
            # A worker that has started meanwhile registers again: after a drain that the registry requested,
            # once all others have ended.
            if self._is_asked_to_leave:
                self._workers.note_drain(workers)
            else:
                self._workers.note_incarnation(None)
            return True
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    def _is_sender(self) -> bool:
        """Return whether this worker still sends the heartbeats: another one may, if files were removed."""
        return self._workers.keep_lead()

    async def _run_idle(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                await self._until_idle()

    async def _until_idle(self) -> None:
        await self._is_idle.wait()

    def _hand_requests_to_server(self, why: str) -> None:
        """Leave running requests to the server: only the server may end them."""
        _log.warning(
            "agent %s: %s; the web server ends the %d requests that are still in progress",
            self.profile.agent_id,
            why,
            self._in_flight,
        )

    async def _shut_down(self) -> None:
        """Leave; the last worker deregisters the agent if the one with the heartbeats has not."""
        incarnation = self._workers.leave(self._place.incarnation)
        if incarnation is not None:
            self._place.incarnation = incarnation
            try:
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._place.leave()
            except (RegistryError, TimeoutError) as error:
                _log.warning("agent %s could not deregister: %s", self.profile.agent_id, error)


class _Lifespan:
    """One lifespan: starts the agent once the app has started, and ends it before the app."""

    def __init__(self, link: AgentLink, receive: Any, send: Any) -> None:
        self._link = link
        self._receive = receive
        self._send = send
        self._is_known = False
        """Whether the app supports lifespan."""
        self._is_open = False
        """Whether the app has started, and has not received the end of the server."""

    async def serve(self, scope: Any) -> None:
        try:
            await self._link.app(scope, self._receive_for_app, self._send_for_app)
        except Exception:
            # An app that raises before it receives the first message does not support lifespan (ASGI,
            # lifespan 2.0). If it raises later, it has failed, and the server decides.
            if self._is_known:
                raise
        if not self._is_known:
            await self._serve_alone()
        elif self._is_open:
            await self._wait_for_shutdown()

    async def _serve_alone(self) -> None:
        """Take part in place of an app that does not."""
        await self._receive()
        self._link.begin()
        await self._send({"type": "lifespan.startup.complete"})
        await self._wait_for_shutdown()

    async def _wait_for_shutdown(self) -> None:
        """End the agent with the server, in place of an app that has returned."""
        await self._receive()
        await self._link.end()
        await self._send({"type": "lifespan.shutdown.complete"})

    async def _receive_for_app(self) -> Message:
        self._is_known = True
        message: Message = await self._receive()
        if message["type"] == "lifespan.shutdown":
            self._is_open = False
            await self._link.end()
        return message

    async def _send_for_app(self, message: Message) -> None:
        self._is_known = True
        if message["type"] == "lifespan.startup.complete":
            self._is_open = True
            self._link.begin()
        await self._send(message)
