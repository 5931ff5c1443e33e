import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.registry_server import KEYS, RegistryServer
from tests.support.scripted_registry import KEY, ScriptedRegistry, scripted_registry
from tests.support.virtual_loop import in_virtual_time

from lifesign.agent import Agent, AgentEnd, AgentRunner, on_assignment, on_drain, run_agent
from lifesign.agent.errors import InvalidAgent
from lifesign.agent.profile import DRAIN_RESERVE_SECONDS
from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role
from lifesign.domain.errors import InvalidWorkflow
from lifesign.domain.files.workflow_file import read_workflow
from lifesign.domain.models.agents import HeartbeatConfig
from lifesign.errors import InvalidValue

SAID: dict[str, Any] = {
    "role_id": "billing-processor",
    "name": "Billing",
    "capabilities": ["billing", "invoicing"],
    "endpoint": "https://agent.example",
    "card_url": "https://agent.example/card",
    "drain_timeout_seconds": 60.0,
    "metadata": {"version": "1.2.0"},
}
BEATING = HeartbeatConfig(interval_seconds=10, unhealthy_after_seconds=30, dead_after_seconds=90)
WORKFLOW = """
agents:
  billing-processor:
    name: Billing
    capabilities: [billing, invoicing]
    endpoint: https://agent.example
    card_url: https://agent.example/card
    capacity:
      max_concurrent_tasks: 5
    heartbeat:
      interval_seconds: 10
      unhealthy_after_seconds: 30
      dead_after_seconds: 90
    drain_timeout_seconds: 60
    metadata:
      version: 1.2.0
    pool:
      max_instances: 3
"""


def declared_at(registry: ScriptedRegistry) -> AgentRunner:
    @Agent("billing-01", **SAID, capacity=5, heartbeat=BEATING, registry=registry.url, key=KEY)
    class Billing:
        @on_assignment
        async def work(self, task: int) -> int:
            return 2 * task

    return AgentRunner.of(Billing())


def imperative_at(registry: ScriptedRegistry) -> AgentRunner:
    async def work(task: int) -> int:
        return 2 * task

    return AgentRunner(
        "billing-01",
        **SAID,
        capacity=5,
        heartbeat=BEATING,
        on_assignment=work,
        registry=registry.url,
        key=KEY,
    )


def from_workflow_at(registry: ScriptedRegistry, directory: Path) -> AgentRunner:
    file = directory / "agents.yml"
    file.write_text(WORKFLOW)

    @Agent.from_workflow(file, "billing-processor", agent_id="billing-01", registry=registry.url, key=KEY)
    class Billing:
        @on_assignment
        async def work(self, task: int) -> int:
            return 2 * task

    return AgentRunner.of(Billing())


def wire(registry: ScriptedRegistry) -> list[Any]:
    """Return the sent requests without members that depend on the clock."""
    timeless = {"client_timestamp"}
    kept = {"X-API-Key", "X-Agent-Incarnation", "Content-Type", "If-Match", "User-Agent"}
    return [
        (
            asked.method,
            asked.path,
            asked.body and {name: value for name, value in asked.body.items() if name not in timeless},
            {name: value for name, value in asked.headers.items() if name in kept},
        )
        for asked in registry.asked
    ]


async def lived(start: Callable[[ScriptedRegistry], AgentRunner]) -> list[Any]:
    """Return all requests of an agent from registration to the end."""
    async with scripted_registry() as registry:
        async with start(registry) as runner:
            await registry.until_beats(2)
            assert await runner.assign(21) == 42
            await registry.until_beats(1)
        return wire(registry)


@in_virtual_time
async def declared_and_imperative(directory: Path) -> list[list[Any]]:
    return [
        await lived(declared_at),
        await lived(imperative_at),
        await lived(lambda registry: from_workflow_at(registry, directory)),
    ]


def test_declared_imperative_and_workflow_agents_send_the_same_requests(
    tmp_path: Path,
) -> None:
    declared, imperative, from_workflow = declared_and_imperative(tmp_path)
    assert [(method, path.rpartition("/")[2]) for method, path, *_ in declared] == [
        # Whether the agent is new, so that the key need not be its own.
        ("GET", "billing-01"),
        ("POST", "agents"),
        *[("POST", "heartbeat")] * 4,
        ("GET", "billing-01"),
        ("DELETE", "billing-01"),
    ]
    assert declared == imperative == from_workflow


@in_virtual_time
async def test_bare_client_registers_like_the_decorator() -> None:
    declared = await lived(declared_at)
    async with scripted_registry() as registry, RegistryClient(registry.url, key=KEY) as client:
        await client.agents.register(
            "billing-01",
            **SAID | {"drain_timeout_seconds": 60.0 + DRAIN_RESERVE_SECONDS},
            max_concurrent_tasks=5,
            heartbeat_config=BEATING,
            supersede=True,
        )
        assert wire(registry)[0] == declared[1]


@in_virtual_time
async def registered_from_workflow(directory: Path) -> Any:
    return (await lived(lambda registry: from_workflow_at(registry, directory)))[1][2]


def test_workflow_agent_registers_by_its_workflow(tmp_path: Path) -> None:
    declaration = read_workflow(WORKFLOW).agents["billing-processor"]
    assert registered_from_workflow(tmp_path) == {
        **declaration.registration("billing-01"),
        "drain_timeout_seconds": 60 + DRAIN_RESERVE_SECONDS,
        "supersede": True,
    }


@in_virtual_time
async def test_marked_methods_are_called_with_their_object() -> None:
    @Agent("a", key=KEY)
    class Counting:
        def __init__(self) -> None:
            self.done: list[object] = []

        @on_assignment
        async def work(self, task: int) -> None:
            self.done.append(task)

        @on_drain
        async def leave(self) -> None:
            self.done.append("left")

    class Inheriting(Counting):
        pass

    async with scripted_registry() as registry:
        agent = Inheriting()
        settings = type(agent).__lifesign__.runner_settings(agent)  # type: ignore[attr-defined]
        async with AgentRunner(**{**settings, "registry": registry.url}) as runner:
            await runner.assign(1)
        assert agent.done == [1, "left"]


def test_each_runner_of_a_class_without_an_id_is_another_agent(tmp_path: Path) -> None:
    (tmp_path / "agents.yml").write_text(WORKFLOW)

    def ids_of(declare: Agent) -> list[str]:
        @declare
        class Worker:
            @on_assignment
            async def work(self, task: object) -> None: ...

        runners = [AgentRunner.of(Worker()) for _ in range(2)]
        assert [runner.profile.role_id for runner in runners] == ["billing-processor"] * 2
        return [runner.agent_id for runner in runners]

    reached: dict[str, Any] = {"registry": "http://127.0.0.1:1", "key": KEY}
    first, second = ids_of(Agent(role_id="billing-processor", heartbeat=BEATING, **reached))
    third, fourth = ids_of(Agent.from_workflow(tmp_path / "agents.yml", "billing-processor", **reached))
    assert len({first, second, third, fourth}) == 4
    assert ids_of(Agent("billing-01", role_id="billing-processor", **reached)) == ["billing-01"] * 2


def test_decorated_class_stays_usable() -> None:
    @Agent("a")
    class Plain:
        """Its purpose."""

        @on_assignment
        def work(self, task: object) -> object:
            return task

    assert isinstance(Plain, type)
    assert Plain.__doc__ == "Its purpose."
    assert Plain().work(3) == 3


def test_decorated_class_gets_a_run_method_unless_defined() -> None:
    class Base:
        @on_assignment
        def work(self, task: object) -> object: ...

    class Own(Base):
        def run(self) -> str:
            return "own"

    assert Agent("a")(Own)().run() == "own"
    assert callable(Agent("b")(Base).run)  # type: ignore[attr-defined]


def test_invalid_use_of_the_decorator_is_reported_at_the_class() -> None:
    with pytest.raises(InvalidAgent, match=r"\bIdle: .*@on_assignment"):

        @Agent("a")
        class Idle:
            pass

    with pytest.raises(InvalidAgent, match=r"\bDouble: .*@on_drain, .*\bfirst\b.*\bsecond\b"):

        @Agent("a")
        class Double:
            @on_assignment
            def work(self, task: object) -> None: ...

            @on_drain
            def first(self) -> None: ...

            @on_drain
            def second(self) -> None: ...

    with pytest.raises(InvalidAgent, match="a class below @Agent"):
        Agent("a")(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidAgent, match="its agent_id as the first"):

        @Agent  # type: ignore[arg-type]
        class Bare:
            pass

    with pytest.raises(InvalidAgent, match=r"one @Agent\("):

        @Agent("a")
        @Agent("b")
        class Twice:
            @on_assignment
            def work(self, task: object) -> None: ...


def generate(_self: object, task: object) -> Iterator[object]:
    yield task


async def generate_later(_self: object) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("mark", "method", "expected"),
    [
        (on_assignment, lambda self: None, r"takes \(self, task\)"),
        (on_drain, lambda self, more: None, r"takes \(self\)"),
        (on_assignment, property(lambda self: None), "a method below @on_assignment"),
        (on_drain, None, "a method below @on_drain"),
        (on_assignment, generate, "without yield"),
        (on_drain, generate_later, "without yield"),
        (on_drain, on_assignment(lambda self, task=None: None), "has @on_assignment already"),
    ],
)
def test_unsuitable_method_is_reported_at_its_decorator(mark: Any, method: Any, expected: str) -> None:
    with pytest.raises(InvalidAgent, match=expected):
        mark(method)


@pytest.mark.parametrize(
    ("expected", "named"),
    [
        ({"agent_id": "two words"}, "agent_id"),
        ({"agent_id": "a", "capabilities": ["two words"]}, "capabilities"),
        ({"agent_id": "a", "capacity": 0}, "capacity"),
        ({"agent_id": "a", "drain_timeout_seconds": -1.0}, "drain_timeout_seconds"),
        ({"agent_id": "a", "endpoint": "gopher://"}, "endpoint"),
        ({"agent_id": "a", "heartbeat": {"interval": 10}}, "heartbeat[.:]"),
        ({"agent_id": "a", "heartbeat": {"interval_seconds": 60}}, "heartbeat[.:]"),
        ({"agent_id": "a", "heartbeat": 10}, "heartbeat[.:]"),
        ({"agent_id": "a", "key_file": 7}, "key_file"),
        ({"agent_id": "a", "registry": 7}, "registry"),
        ({"agent_id": "a", "tasks": "yes"}, "tasks"),
        ({"agent_id": "a", "auto_heartbeat": 1}, "auto_heartbeat"),
        ({"profile": {"agent_id": "a"}}, "profile"),
        ({"key_file": "a.key"}, "agent_id"),
    ],
)
def test_invalid_profile_is_reported_before_registration(expected: Any, named: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{named}"):
        Agent(**expected)


def test_heartbeat_interval_may_be_written_as_in_a_workflow() -> None:
    members = {"interval_seconds": 10, "unhealthy_after_seconds": 30, "dead_after_seconds": 90}
    profile = Agent("a", heartbeat=members).profile
    assert (profile.heartbeat, profile.rhythm) == (BEATING, BEATING)
    assert Agent("a", heartbeat={"interval_seconds": 10}).profile.rhythm.dead_after_seconds == 300


def test_workflow_without_the_agent_is_refused_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "agents.yml"
    with pytest.raises(InvalidValue, match="readable YAML file"):
        Agent.from_workflow(file, "billing-processor")
    file.write_text(WORKFLOW)
    with pytest.raises(InvalidValue, match=r"an agent that .*agents\.yml declares"):
        Agent.from_workflow(file, "nobody")
    file.write_text("agents:\n  a:\n    capacity: many\n")
    with pytest.raises(InvalidWorkflow, match=r"agents\.yml: line 3"):
        Agent.from_workflow(file, "a")


def test_each_process_of_a_workflow_without_an_id_is_another_agent(tmp_path: Path) -> None:
    file = tmp_path / "agents.yml"
    file.write_text(WORKFLOW)
    with pytest.raises(InvalidValue, match="agent_id: expected an agent_id beside key_file"):
        Agent.from_workflow(file, "billing-processor", key_file=tmp_path / "a.key")
    one, other = (Agent.from_workflow(file, "billing-processor").profile for _ in range(2))
    assert one.agent_id != other.agent_id
    assert one.role_id == other.role_id == "billing-processor"


def test_importing_the_agent_package_imports_no_heavy_modules() -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    look = "import json, sys; import lifesign.agent; print(json.dumps(list(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert {"aiohttp", "yaml", "asyncio"} & set(json.loads(found.stdout)) == set()


@pytest.mark.parametrize("failure", [ValueError("no more input"), InvalidValue("task_id", "", "an id")])
def test_failure_of_a_concurrent_coroutine_drains_the_agent(
    registry: RegistryServer, failure: Exception
) -> None:
    @Agent("billing-01", registry=registry.url, key=KEYS[Role.ENROLL])
    class Billing(Doubling):
        pass

    done: list[object] = []

    async def beside(runner: AgentRunner) -> None:
        running = asyncio.create_task(runner.assign(21))
        running.add_done_callback(lambda ended: done.append(ended.result()))
        await asyncio.sleep(0.05)
        raise failure

    with pytest.raises(type(failure)) as raised:
        run_agent(Billing(), beside=beside)
    assert raised.value is failure
    assert done == [42]


def test_end_of_a_web_server_that_takes_the_signals_drains_the_agent(registry: RegistryServer) -> None:
    @Agent("billing-01", registry=registry.url, key=KEYS[Role.ENROLL])
    class Billing(Doubling):
        pass

    async def serve(_runner: AgentRunner) -> None:
        """Do what hypercorn does."""
        came = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, came.set)
        os.kill(os.getpid(), signal.SIGTERM)
        await came.wait()

    assert run_agent(Billing(), beside=serve) is AgentEnd.FINISHED


def test_failure_of_a_concurrent_coroutine_during_a_drain_changes_nothing(
    registry: RegistryServer, caplog: pytest.LogCaptureFixture
) -> None:
    @Agent("billing-01", registry=registry.url, key=KEYS[Role.ENROLL])
    class Billing(Doubling):
        pass

    done: list[object] = []

    async def beside(runner: AgentRunner) -> None:
        running = asyncio.create_task(runner.assign(21))
        running.add_done_callback(lambda ended: done.append(ended.result()))
        await asyncio.sleep(0.05)
        runner.drain()
        await runner.assign(22)

    assert run_agent(Billing(), beside=beside) is AgentEnd.FINISHED
    assert done == [42]
    assert "WorkRefused" in caplog.text


class Doubling:
    @on_assignment
    async def work(self, task: int) -> int:
        await asyncio.sleep(0.2)
        return 2 * task


@pytest.mark.parametrize("ending", [asyncio.CancelledError(), BaseExceptionGroup("", [SystemExit(5)])])
def test_cancellation_inside_a_concurrent_coroutine_is_its_failure(
    registry: RegistryServer, ending: BaseException
) -> None:
    async def fail(_runner: AgentRunner) -> None:
        raise ending

    @Agent("billing-01", registry=registry.url, key=KEYS[Role.ENROLL])
    class Billing(Doubling):
        pass

    with pytest.raises(RuntimeError, match=type(ending).__name__) as raised:
        run_agent(Billing(), beside=fail)
    assert raised.value.__cause__ is ending


def test_exit_of_a_concurrent_coroutine_drains_the_agent(registry: RegistryServer) -> None:
    done: list[int] = []

    @Agent("billing-01", registry=registry.url, key=KEYS[Role.ENROLL])
    class Billing(Doubling):
        pass

    async def leave(runner: AgentRunner) -> None:
        running = asyncio.create_task(runner.assign(1))
        running.add_done_callback(lambda ended: done.append(ended.result()))
        await asyncio.sleep(0.05)
        sys.exit(3)

    with pytest.raises(SystemExit) as left:
        run_agent(Billing(), beside=leave)
    assert left.value.code == 3
    assert done == [2]
