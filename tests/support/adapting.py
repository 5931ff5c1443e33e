"""Runs an adapter in the test's own loop, or as a process that may be killed."""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.gate import Gate
from tests.support.preloaded import PROGRAM, PreloadedProcess
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer
from tests.support.servers import PATIENCE_SECONDS, until

from lifesign.adapter.main_loop import Adapter, TaskSelection
from lifesign.adapter.run_events import RunEvent
from lifesign.adapter.run_outcome import RunOutcome
from lifesign.adapter.task_run import OpenTools, RunSettings
from lifesign.adapter.workspaces import Workspaces
from lifesign.agent.credentials import AgentKeys
from lifesign.agent.profile import AgentProfile
from lifesign.agent.registration import RegistrySession
from lifesign.client import RegistryClient
from lifesign.client.lease_keeper import LeaseKeeper
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.tasks import TaskRecord

POOL = "coder"
_NUMBERS = itertools.count(1)
"""Numbers of agents: each stores its key in a directory that ends with its test."""


class Adapting:
    """An adapter that lives in the test's own loop."""

    def __init__(
        self,
        registry: RegistryServer | Gate,
        directory: Path,
        command: Sequence[str],
        *,
        agent_id: str | None = None,
        wanted: TaskSelection | None = None,
        open_tools: OpenTools | None = None,
        drain_s: float = 120.0,
        hears: Callable[[RunEvent], object] | None = None,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.agent_id = agent_id or f"coder-{next(_NUMBERS)}"
        self.events: list[RunEvent] = []
        self._hears = hears
        self._has_come = asyncio.Event()
        own_key = directory / "own.key"
        self.keys = AgentKeys(key=KEYS[Role.ENROLL], key_file=own_key, environment={})
        self.workspaces = Workspaces(directory / "runs", user=settings.get("user"))
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        given = RunSettings(
            command=command,
            environment=dict(os.environ),
            stdout_to=self._nowhere,
            stderr_to=self._nowhere,
            **settings,
        )
        self._url = registry.url
        wanted = wanted or TaskSelection(role_id=POOL, is_once=True)
        self.adapter = Adapter(
            RegistrySession(
                AgentProfile(agent_id=self.agent_id, role_id=wanted.role_id or POOL, capacity=1),
                self.keys,
                registry.url,
                works_tasks=True,
            ),
            self.client,
            wanted=wanted,
            settings=given,
            workspaces=self.workspaces,
            emit=self._take,
            open_tools=open_tools,
            drain_s=drain_s,
            # Waits between tries are as short as they may be.
            chance=lambda: 0.0,
        )
        self.living = asyncio.create_task(self.adapter.run())

    def client(self) -> RegistryClient:
        """Ask the registry as the agent."""
        return RegistryClient(self._url, key=self.keys)

    def _take(self, expected: RunEvent) -> None:
        self.events.append(expected)
        self._has_come.set()
        if self._hears is not None:
            self._hears(expected)

    async def until(self, what: str, task_id: str | None = None) -> RunEvent:
        """Wait for this message, of a task if one is named."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for event in self.events:
                    if event.what == what and task_id in {None, event.task_id}:
                        return event
                assert not self.living.done(), self.messages()
                self._has_come.clear()
                await self._has_come.wait()

    async def outcome(self) -> RunOutcome:
        """Wait for its end; return the result of its last run."""
        outcome = await asyncio.wait_for(asyncio.shield(self.living), 2 * PATIENCE_SECONDS)
        assert outcome is not None, self.messages()
        return outcome

    def lease(self) -> LeaseKeeper:
        """Return the keeper of the current run's lease."""
        assert self.adapter._run is not None, self.messages()
        return self.adapter._run._keeper

    async def shorten_lease(self, seconds: float) -> None:
        """Have the lease renewed for so long only, from now on.

        With one that is short from its grant, a slow machine loses it before its agent is ready.
        """
        lease = self.lease()
        before_s = lease.deadline_s
        lease._window_s = seconds
        lease.renew_now()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while lease.deadline_s == before_s and lease.loss is None:  # noqa: ASYNC110 - only its run is notified
                await asyncio.sleep(0.01)

    def messages(self) -> list[tuple[str, str]]:
        """Return all messages."""
        return [(event.what, event.text) for event in self.events]

    def workspace(self) -> Path:
        """The one workspace that is there."""
        (found,) = [path for path in (self.directory / "runs").glob("run_*") if path.is_dir()]
        return found

    async def close(self) -> None:
        if not self.living.done():
            self.adapter.drain("the test ends")
            self.adapter.drain("the test ends")
        await asyncio.gather(self.living, return_exceptions=True)
        self.workspaces.__exit__()
        os.close(self._nowhere)


@asynccontextmanager
async def adapting(
    registry: RegistryServer | Gate, directory: Path, *command: str, **settings: Any
) -> AsyncIterator[Adapting]:
    """Run an adapter until the block ends; it leaves at once then."""
    adapting = Adapting(registry, directory, command, **settings)
    try:
        yield adapting
    finally:
        await adapting.close()


def shell(code: str) -> tuple[str, ...]:
    """A command."""
    return ("sh", "-c", code)


def python(code: str) -> tuple[str, ...]:
    """A command."""
    return (sys.executable, "-c", code)


@dataclass(frozen=True)
class World:
    """A task in the queue of a pool, and room for an adapter that takes it."""

    registry: RegistryServer
    client: RegistryClient
    directory: Path
    task: TaskRecord

    def adapting(self, *command: str, **settings: Any) -> AbstractAsyncContextManager[Adapting]:
        """Run an adapter for one task."""
        return adapting(self.registry, self.directory, *command, **settings)

    async def leased_for(self, seconds: float) -> "World":
        """Put a task with a short lease in its place."""
        await self.client.tasks.cancel(self.task.task_id)
        return replace(self, task=await new_task(self.client, lease_seconds=seconds))

    async def now(self) -> TaskRecord:
        """The task as it is now."""
        return await self.client.tasks.get(self.task.task_id)

    async def runs(self) -> list[tuple[str | None, int | None]]:
        """Return the ends of its runs, the newest first."""
        return [(run.exit_reason, run.exit_code) for run in (await self.now()).runs]


@asynccontextmanager
async def world_of(registry: RegistryServer, directory: Path) -> AsyncIterator[World]:
    """A task at a registry; none is left in the queue."""
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        yield World(registry, client, directory, await new_task(client))
        left = await client.tasks.list(status=["queued", "assigned", "running", "handoff"])
        for task in left.tasks:
            await client.tasks.cancel(task.task_id)


async def new_task(client: RegistryClient, **members: Any) -> TaskRecord:
    """Put a task into the queue that may be tried again at once."""
    given = {"role_id": POOL, "input": {"brief": "b"}, "backoff_seconds": 0.0, **members}
    return await client.tasks.create("Write it", **given)


class AdapterProcess:
    """`lifesign run --json`, as people start it."""

    def __init__(
        self, registry: RegistryServer | Gate, directory: Path, *arguments: str, key: str | None = None
    ) -> None:
        environment = {
            **os.environ,
            "LIFESIGN_KEY": key or KEYS[Role.ENROLL],
            "LIFESIGN_REGISTRY": registry.url,
        }
        self.process = PreloadedProcess(
            [PROGRAM, "run", "--json", "--workspaces", directory / "runs", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=directory,
        )
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line.decode())

    def until(self, what: str) -> dict[str, Any]:
        """Wait for this message."""

        def look() -> dict[str, Any] | None:
            found = [line for line in self.lines if line["what"] == what]
            assert found or self.process.poll() is None, (self.lines, self.errors)
            return found[0] if found else None

        return until(f"message {what}", look)

    def end(self) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait(2 * PATIENCE_SECONDS)
        for reader in self._readers:
            reader.join(PATIENCE_SECONDS)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.end()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@contextmanager
def adapter_process(
    registry: RegistryServer | Gate, directory: Path, *arguments: str, key: str | None = None
) -> Iterator[AdapterProcess]:
    """Run the command until the block ends; it is killed then, if it is still there."""
    started = AdapterProcess(registry, directory, *arguments, key=key)
    try:
        yield started
    finally:
        started.close()
