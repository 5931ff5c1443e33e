"""An agent is stopped at the moment in which it sends a request to its registry.

By a signal, from another thread, or because its program's loop ends: the agent ends, leaves no task of
its own behind, and its leases are free within the lease's time.
"""

import asyncio
import gc
import itertools
import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.adapting import Adapting, adapter_process, adapting, shell
from tests.support.gate import Gate, Moment, gate
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer, registry_server
from tests.support.servers import PATIENCE_SECONDS

from lifesign.adapter.main_loop import TaskSelection
from lifesign.adapter.process import process_watcher
from lifesign.agent import AgentRunner, ClaimedTask
from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.agents import HeartbeatConfig

pytestmark = pytest.mark.fault

QUICK = HeartbeatConfig(interval_seconds=1, unhealthy_after_seconds=30, dead_after_seconds=60)
LEASE_SECONDS = 1.0
DEEDS = ("register", "beat", "claim", "renew", "complete", "release", "leave")


@dataclass(frozen=True)
class Case:
    """The request that an agent is about to send when it is stopped, and the way of stopping it."""

    function: str
    stop: str
    moment: Moment

    def __str__(self) -> str:
        return f"{self.function}-{self.stop}-{self.moment}"


def cases(stops: Collection[str], every: int) -> list[object]:
    """Return all there are; but for every so many of them they are long."""
    found = itertools.starmap(Case, itertools.product(DEEDS, stops, Moment))
    return [
        pytest.param(case, id=str(case), marks=[pytest.mark.long] if number % every else [])
        for number, case in enumerate(found)
    ]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """One for all tests of this file: their agents and pools have different names."""
    with registry_server(tmp_path_factory.mktemp("registry"), sweep_seconds=0.2) as server:
        yield server


@pytest.fixture
def standing(registry: RegistryServer) -> Iterator[Gate]:
    with gate(registry.port) as standing:
        yield standing


@pytest.fixture
def name(caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    """The name of an agent and its pool; asyncio reports no leftovers after its end."""
    yield f"stopped-{next(NUMBERS)}"
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


NUMBERS = itertools.count(1)


async def create_task(registry: RegistryServer, pool: str) -> str:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as admin:
        made = await admin.tasks.create(
            "Write it", role_id=pool, lease_seconds=LEASE_SECONDS, backoff_seconds=0.0
        )
        return made.task_id


async def finish_with_next_agent(
    registry: RegistryServer, name: str, task_id: str, *, has_left: bool
) -> None:
    """Let another agent take the task, unless it is done; the former agent holds nothing even before."""
    async with RegistryClient(registry.url, key=ADMIN_KEY) as admin:
        if has_left:
            assert (await admin.leases.list(holder=name)).leases == []
        key = (await admin.agents.register(f"{name}-next", role_id=name)).agent_key
        if (await admin.tasks.get(task_id)).status == "review":
            return
    async with RegistryClient(registry.url, key=key) as successor:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (granted := await successor.tasks.claim(wait_seconds=30)) is None:
                pass
        assert granted.task.task_id == task_id


# --- an agent of the SDK -----------------------------------------------------------------------------------


async def live(standing: Gate, name: str, key_file: Path, case: Case) -> None:
    """Be an agent until it is stopped."""
    leaves = asyncio.Event()

    async def work(task: ClaimedTask) -> None:
        if case.function == "complete":
            return
        if case.function != "release":
            await leaves.wait()
        raise ValueError(task.title)

    async def on_drain() -> None:
        leaves.set()

    runner = AgentRunner(
        name,
        role_id=name,
        on_assignment=work,
        on_drain=on_drain,
        tasks=True,
        heartbeat=QUICK,
        registry=standing.url,
        key=KEYS[Role.ENROLL],
        key_file=key_file,
    )
    loop, living = asyncio.get_running_loop(), asyncio.current_task()
    assert living is not None
    stops: dict[str, Callable[[], object]] = {
        "signal": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "thread": runner.drain,
        "cancel": lambda: loop.call_soon_threadsafe(living.cancel),
    }
    standing.arm(case.function, case.moment, stops[case.stop])
    if case.function == "leave":
        loop.call_later(0.3, runner.drain)
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        await runner.run()


@pytest.mark.parametrize("case", cases(("signal", "thread", "cancel"), every=7))
def test_agent_stopped_at_any_moment_ends_and_holds_no_lease(
    registry: RegistryServer, standing: Gate, tmp_path: Path, name: str, case: Case
) -> None:
    task_id = asyncio.run(create_task(registry, name))
    with suppress(asyncio.CancelledError):
        asyncio.run(live(standing, name, tmp_path / "key", case))
    assert standing.has_fired.is_set()
    asyncio.run(finish_with_next_agent(registry, name, task_id, has_left=case.stop != "cancel"))


# --- an adapter --------------------------------------------------------------------------------------------


def command_for(function: str, directory: Path) -> tuple[str, ...]:
    last = {"complete": "exit 0", "release": "exit 3"}.get(function, "exec sleep 1000")
    return shell(f"echo $$ > {directory}/pid; {last}")


async def adapt(standing: Gate, wanted: TaskSelection, directory: Path, case: Case) -> None:
    """Be an adapter until it is stopped."""
    loop = asyncio.get_running_loop()
    lives: list[Adapting] = []

    def stop() -> None:
        if case.stop == "cancel":
            lives[0].living.cancel()
        else:
            lives[0].adapter.drain("it is stopped")

    standing.arm(case.function, case.moment, lambda: loop.call_soon_threadsafe(stop))
    async with adapting(
        standing,
        directory,
        *command_for(case.function, directory),
        agent_id=wanted.role_id,
        wanted=wanted,
        drain_s=0.0,
        grace_s=0.1,
    ) as adapter:
        lives.append(adapter)
        if case.function == "leave":
            loop.call_later(0.3, adapter.adapter.drain, "it has to leave")
        _, waiting = await asyncio.wait({adapter.living}, timeout=2 * PATIENCE_SECONDS)
        assert not waiting, adapter.messages()


@pytest.mark.parametrize("case", cases(("drain", "cancel"), every=7))
def test_adapter_stopped_at_any_moment_ends_with_its_agent(
    registry: RegistryServer, standing: Gate, tmp_path: Path, name: str, case: Case
) -> None:
    task_id = asyncio.run(create_task(registry, name))
    # A run whose lease a slow machine has lost is followed by another.
    wanted = TaskSelection(task_id=task_id, role_id=name)
    asyncio.run(adapt(standing, wanted, tmp_path, case))
    assert standing.has_fired.is_set()
    if (tmp_path / "pid").exists():
        assert int((tmp_path / "pid").read_text()) not in process_watcher.processes()
    asyncio.run(finish_with_next_agent(registry, name, task_id, has_left=case.stop != "cancel"))


@pytest.mark.long
@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("function", DEEDS[:-1])
def test_command_ends_on_signal_at_any_moment(
    registry: RegistryServer, standing: Gate, tmp_path: Path, function: str, moment: Moment
) -> None:
    name = f"stopped-{next(NUMBERS)}"
    task_id = asyncio.run(create_task(registry, name))
    lives: list[int] = []
    standing.arm(function, moment, lambda: os.kill(lives[0], signal.SIGTERM))
    options = ("--pool", name, "--agent-id", name, "--drain-timeout", "0s", "--grace", "1s")
    with adapter_process(standing, tmp_path, *options, "--", *command_for(function, tmp_path)) as adapter:
        lives.append(adapter.process.pid)
        # Without an answer to its first question it has nothing to leave.
        is_nobody = (function, moment) == ("register", Moment.LOST)
        assert adapter.end() == (2 if is_nobody else 0)
    assert standing.has_fired.is_set()
    refusals = [line for line in adapter.errors if line.startswith("lifesign:")]
    assert len(refusals) == is_nobody, adapter.errors
    asyncio.run(finish_with_next_agent(registry, name, task_id, has_left=True))
