import asyncio
import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.registry_server import KEYS, RegistryServer
from tests.support.scripted_registry import KEY, ScriptedRegistry, refusal, scripted_registry
from tests.support.servers import PATIENCE_SECONDS
from tests.support.virtual_loop import in_virtual_time

from lifesign.agent import AgentEnd, AgentProfile, AgentRunner
from lifesign.agent.errors import InvalidAgent, WorkDropped, WorkRefused
from lifesign.agent.work_sources import HandedIn
from lifesign.client import RegistryClient
from lifesign.client.registry_errors import NotAuthorized
from lifesign.domain.access.permissions import Role
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.agents import HeartbeatConfig
from lifesign.errors import InvalidValue

QUICK = HeartbeatConfig(interval_seconds=1, unhealthy_after_seconds=2, dead_after_seconds=4)


class Desk:
    """Work that ends when the test decides."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.farewells = 0
        self.begun: list[Any] = []

    async def work(self, task: Any) -> Any:
        self.begun.append(task)
        await self.may_end.wait()
        return task

    async def leave(self) -> None:
        self.farewells += 1


def runner_at(registry: ScriptedRegistry, desk: Desk, **settings: Any) -> AgentRunner:
    return AgentRunner(
        "a", on_assignment=desk.work, on_drain=desk.leave, registry=registry.url, key=KEY, **settings
    )


async def test_agent_registers_and_leaves_a_real_registry(registry: RegistryServer) -> None:
    desk = Desk()
    runner = AgentRunner(
        "billing-1",
        role_id="billing",
        capabilities=["invoices"],
        capacity=2,
        heartbeat=QUICK,
        on_assignment=desk.work,
        on_drain=desk.leave,
        registry=registry.url,
        key=KEYS[Role.ENROLL],
    )
    async with RegistryClient(registry.url, key=KEYS[Role.ADMIN]) as admin:
        async with runner:
            await runner.registered()
            record = await admin.agents.get("billing-1")
            assert (record.status, record.role_id, record.capabilities) == (
                Status.ACTIVE,
                "billing",
                ["invoices"],
            )
            working = asyncio.create_task(runner.assign("invoice 7"))
            await asyncio.sleep(0)
            await runner.send_heartbeat()
            assert (await admin.agents.get("billing-1")).capacity.current_load == 1
            desk.may_end.set()
            assert await working == "invoice 7"
        assert await runner.wait() is AgentEnd.FINISHED
        assert desk.farewells == 1
        assert (await admin.agents.get("billing-1")).status is Status.DEREGISTERED


async def test_restart_before_the_heartbeat_timeout_begins_a_new_incarnation(
    registry: RegistryServer, tmp_path: Any
) -> None:
    def started() -> AgentRunner:
        runner = AgentRunner("a", registry=registry.url, key=KEYS[Role.ENROLL], key_file=tmp_path / "a.key")
        runner.start()
        return runner

    crashed = started()
    await crashed.registered()
    # As after a crash: the registry is not notified.
    assert crashed._living is not None
    crashed._living.cancel()
    await asyncio.gather(crashed._living, return_exceptions=True)
    again = started()
    await again.registered()
    assert (crashed.incarnation, again.incarnation) == (1, 2)
    again.drain()
    assert await again.wait() is AgentEnd.FINISHED


def test_registration_is_printed_without_a_logging_configuration(registry: RegistryServer) -> None:
    code = (
        "from lifesign.agent import Agent, on_assignment, run_agent\n"
        f"@Agent('shown', registry={registry.url!r}, key={KEYS[Role.ENROLL]!r})\n"
        "class Shown:\n"
        "    @on_assignment\n"
        "    async def work(self, task): ...\n"
        "run_agent(Shown())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        message = ""
        while "registered" not in message and (line := program.stderr.readline()):
            message += line
        program.terminate()
        message += program.stderr.read()
    assert "INFO agent shown: registered" in message
    assert " SIGTERM came\n" in message


async def test_idle_agent_that_is_drained_deregisters_permanently(
    registry: RegistryServer,
) -> None:
    runner = AgentRunner("a", registry=registry.url, key=KEYS[Role.ENROLL])
    runner.start()
    await runner.registered()
    async with RegistryClient(registry.url, key=KEYS[Role.ADMIN]) as admin:
        await admin.agents.drain("a")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await admin.agents.get("a")).status is not Status.DEREGISTERED:  # noqa: ASYNC110 - the sweep
                await asyncio.sleep(0.02)
        await runner.send_heartbeat()
        assert await runner.wait() is AgentEnd.FINISHED
        record = await admin.agents.get("a")
        assert (record.status, record.incarnation) == (Status.DEREGISTERED, 1)


@in_virtual_time
async def test_drain_finishes_running_work_and_deregisters() -> None:
    desk = Desk()
    async with scripted_registry() as registry:
        runner = runner_at(registry, desk, capacity=1)
        runner.start()
        await registry.until_beats(1)
        running = asyncio.create_task(runner.assign(1, task_id="task-1"))
        waiting = asyncio.create_task(runner.assign(2))
        await registry.until_beats(1)
        assert registry.beats()[-1].body["tasks_in_progress"] == ["task-1"]
        runner.drain()
        with pytest.raises(WorkRefused, match="leaves"):
            await runner.assign(3)
        with pytest.raises(WorkRefused):
            await waiting
        await registry.until_beats(2)
        answer = registry.beats()[-1].body
        assert (answer["status"], answer["current_load"]) == ("draining", 1)
        desk.may_end.set()
        assert await runner.wait() is AgentEnd.FINISHED
        assert await running == 1
        assert desk.begun == [1]
        assert desk.farewells == 1
        assert registry.status == "deregistered"
        assert registry.functions()[-1] == "DELETE"


@in_virtual_time
async def test_work_that_outlasts_the_drain_is_dropped_and_the_agent_leaves() -> None:
    desk = Desk()
    async with scripted_registry() as registry:
        runner = runner_at(registry, desk, drain_timeout_seconds=20.0)
        runner.start()
        await registry.until_beats(1)
        running = asyncio.create_task(runner.assign(1))
        await asyncio.sleep(0.01)
        began_s = asyncio.get_running_loop().time()
        runner.drain()
        assert await runner.wait() is AgentEnd.DROPPED
        assert 19.99 < asyncio.get_running_loop().time() - began_s < 21
        with pytest.raises(WorkDropped, match="time"):
            await running
        assert registry.status == "deregistered"


@in_virtual_time
async def test_handler_that_ignores_its_cancellation_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    may_end = asyncio.Event()

    async def ignore(_task: Any) -> None:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    async with scripted_registry() as registry:
        runner = AgentRunner(
            "a", on_assignment=ignore, drain_timeout_seconds=20.0, registry=registry.url, key=KEY
        )
        runner.start()
        await registry.until_beats(1)
        running = asyncio.create_task(runner.assign(1))
        await asyncio.sleep(0.01)
        runner.drain()
        assert await runner.wait() is AgentEnd.DROPPED
        assert registry.status == "deregistered"
        may_end.set()
        await asyncio.gather(running, return_exceptions=True)
    assert "their cancellation: 1" in caplog.messages[-1]


@in_virtual_time
async def test_second_signal_ends_at_once() -> None:
    desk = Desk()
    async with scripted_registry() as registry:
        runner = runner_at(registry, desk)
        runner.start()
        await registry.until_beats(1)
        running = asyncio.create_task(runner.assign(1))
        await asyncio.sleep(0.01)
        began_s = asyncio.get_running_loop().time()
        runner.drain("SIGTERM came")
        await asyncio.sleep(5)
        runner.drain("SIGTERM came")
        assert await runner.wait() is AgentEnd.DROPPED
        assert asyncio.get_running_loop().time() - began_s < 6
        with pytest.raises(WorkDropped):
            await running
        assert desk.farewells == 1


@pytest.mark.parametrize(("signals", "lasts_s"), [(1, 100.0), (2, 1.0)])
def test_first_signal_in_a_requested_drain_leaves_the_agents_own_time(signals: int, lasts_s: float) -> None:
    @in_virtual_time
    async def test() -> None:
        async with scripted_registry() as registry:
            runner = runner_at(registry, Desk(), drain_timeout_seconds=100)
            runner.start()
            await registry.until_beats(1)
            running = asyncio.create_task(runner.assign(1))
            await asyncio.sleep(0.01)
            runner.on_drain_requested("a new version", 3_600.0)
            began_s = asyncio.get_running_loop().time()
            for _ in range(signals):
                runner.drain("SIGTERM came")
            assert await runner.wait() is AgentEnd.DROPPED
            assert asyncio.get_running_loop().time() - began_s == pytest.approx(lasts_s, abs=2.0)
            await asyncio.gather(running, return_exceptions=True)

    test()


@in_virtual_time
async def test_drain_requested_by_the_registry_uses_the_registrys_timeout() -> None:
    desk = Desk()
    async with scripted_registry() as registry:
        runner = runner_at(registry, desk)
        runner.start()
        await registry.until_beats(1)
        running = asyncio.create_task(runner.assign(1))
        registry.commands = [{"id": "c", "command": "drain", "drain_timeout_seconds": 7.0}]
        await registry.until_beats(1)
        began_s = asyncio.get_running_loop().time()
        assert await runner.wait() is AgentEnd.DROPPED
        assert 3.4 < asyncio.get_running_loop().time() - began_s < 5
        assert desk.farewells == 1
        with pytest.raises(WorkDropped):
            await running


async def test_cancelled_work_cleans_up_before_the_registrys_drain_timeout(
    registry: RegistryServer,
) -> None:
    began, cleans_up = asyncio.Event(), asyncio.Event()

    async def work(_task: Any) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1.5)
            cleans_up.set()

    runner = AgentRunner(
        "a",
        on_assignment=work,
        tasks=True,
        heartbeat=QUICK,
        drain_timeout_seconds=1,
        registry=registry.url,
        key=KEYS[Role.ENROLL],
    )
    async with RegistryClient(registry.url, key=KEYS[Role.ADMIN]) as admin:
        task = await admin.tasks.create("t")
        async with asyncio.timeout(PATIENCE_SECONDS):
            runner.start()
            await began.wait()
            runner.drain()
            assert await runner.wait() is AgentEnd.DROPPED
        assert cleans_up.is_set()
        assert (await admin.agents.get("a")).status is Status.DEREGISTERED
        assert (await admin.tasks.get(task.task_id)).runs[0].exit_reason == "killed"


async def test_drain_by_another_caller_counts_from_its_request(registry: RegistryServer) -> None:
    desk = Desk()
    runner = AgentRunner(
        "a",
        on_assignment=desk.work,
        auto_heartbeat=False,
        registry=registry.url,
        key=KEYS[Role.ENROLL],
    )
    async with RegistryClient(registry.url, key=KEYS[Role.ADMIN]) as admin:
        runner.start()
        await runner.registered()
        running = asyncio.create_task(runner.assign(1))
        await asyncio.sleep(0.01)
        await runner.send_heartbeat()
        await admin.agents.drain("a", drain_timeout_seconds=2)
        await runner.send_heartbeat()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await runner.wait() is AgentEnd.DROPPED
        with pytest.raises(WorkDropped):
            await running


@in_virtual_time
async def test_dead_agent_takes_new_work_in_its_next_incarnation() -> None:
    desk = Desk()
    async with scripted_registry() as registry:
        runner = runner_at(registry, desk)
        async with runner:
            await registry.until_beats(1)
            running = asyncio.create_task(runner.assign(1))
            registry.status = "dead"
            await registry.until_beats(1)
            with pytest.raises(WorkDropped, match="registry"):
                await running
            await registry.until_beats(1)
            assert runner.incarnation == 2
            desk.may_end.set()
            assert await runner.assign(2) == 2


@in_virtual_time
async def test_only_dropped_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    async with scripted_registry() as registry, runner_at(registry, desk) as runner:
        await registry.until_beats(1)
        registry.status = "dead"
        await registry.until(lambda: registry.incarnation == 2)
        assert "registers again" in caplog.text
        assert "drops the work" not in caplog.text
        handed_in = asyncio.create_task(runner.assign(1))
        await asyncio.sleep(0.1)
        registry.status = "dead"
        await registry.until(lambda: registry.incarnation == 3)
        with pytest.raises(WorkDropped):
            await handed_in
        assert any(
            re.match("agent a drops the work in progress: ", record.message) for record in caplog.records
        )


async def test_key_of_an_agent_with_a_generated_id_is_removed_with_it(
    registry: RegistryServer, caplog: pytest.LogCaptureFixture
) -> None:
    runner = AgentRunner(role_id="billing", registry=registry.url, key=KEYS[Role.ENROLL])
    async with runner:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await runner.registered()
        own = runner._place._keys.current()
        assert own != KEYS[Role.ENROLL]
    async with RegistryClient(registry.url, key=own) as client:
        with pytest.raises(NotAuthorized):
            await client.agents.get(runner.agent_id)
    assert "key_file" not in caplog.text


@in_virtual_time
async def test_superseded_runner_takes_no_work() -> None:
    desk = Desk()
    async with scripted_registry() as registry:
        runner = runner_at(registry, desk)
        async with runner:
            await registry.until_beats(1)
            registry.incarnation = 2
            await registry.until(lambda: registry.functions().count("POST") == 2)
            with pytest.raises(WorkRefused, match="another process is"):
                await runner.assign(1)
            # The runner ignores tasks of other sources as well.
            runner._handed_in.put(2)
            await asyncio.sleep(1)
            assert desk.begun == []
        # It supersedes no agent.
        assert registry.status == "active"


@in_virtual_time
async def test_leaving_process_keeps_an_incarnation_begun_by_another() -> None:
    desk = Desk()
    async with scripted_registry() as registry:
        async with runner_at(registry, desk):
            await registry.until_beats(1)
            registry.incarnation = 2
        assert registry.status == "active"
        assert "DELETE" not in registry.functions()


@in_virtual_time
async def test_agent_that_is_stopped_while_it_registers_leaves() -> None:
    async with scripted_registry() as registry:
        registry.takes_s = 4
        runner = runner_at(registry, Desk())
        runner.start()
        # The key is looked up first.
        await asyncio.sleep(4.5)
        assert (registry.status, runner.incarnation) == ("active", None)
        runner.drain()
        assert await runner.wait() is AgentEnd.FINISHED
        assert registry.status == "deregistered"


@in_virtual_time
async def test_unreachable_registry_stops_neither_work_nor_shutdown() -> None:
    desk = Desk()
    desk.may_end.set()
    async with scripted_registry() as registry:
        away = [refusal(503, "unavailable")] * 10_000
        for function in ("POST", "beat", "GET", "DELETE"):
            registry.answers(function, *away)
        runner = runner_at(registry, desk)
        runner.start()
        assert await runner.assign(1) == 1
        await asyncio.sleep(1000)
        assert await runner.assign(2) == 2
        began_s = asyncio.get_running_loop().time()
        runner.drain()
        assert await runner.wait() is AgentEnd.FINISHED
        assert asyncio.get_running_loop().time() - began_s < 60


@pytest.mark.parametrize("kind", [ZeroDivisionError, asyncio.CancelledError])
def test_drain_waits_for_running_work_if_on_drain_fails(kind: type[BaseException]) -> None:
    async def farewell() -> None:
        raise kind

    @in_virtual_time
    async def test() -> None:
        async with scripted_registry() as registry:
            runner = AgentRunner(
                "a", on_assignment=asyncio.sleep, on_drain=farewell, registry=registry.url, key=KEY
            )
            async with runner:
                await registry.until_beats(1)
                work = asyncio.create_task(runner.assign(20))
                await asyncio.sleep(1)
            await work
            assert await runner.wait() is AgentEnd.FINISHED

    test()


@in_virtual_time
async def test_source_that_fails_to_close_does_not_prevent_the_end() -> None:
    class Broken(HandedIn):
        def close(self, why: str) -> None:
            raise ZeroDivisionError(why)

    async with scripted_registry() as registry:
        runner = AgentRunner(
            "a", on_assignment=asyncio.sleep, source=Broken("a"), registry=registry.url, key=KEY
        )
        async with runner:
            await registry.until_beats(1)
        assert registry.status == "deregistered"


@in_virtual_time
async def test_failed_deregistration_is_logged_and_does_not_delay_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async with scripted_registry() as registry:

        async def farewell() -> None:
            fail()

        runner = AgentRunner("a", on_drain=farewell, registry=registry.url, key=KEY)
        async with runner:
            await registry.until_beats(1)
        assert await runner.wait() is AgentEnd.FINISHED
        assert "on_drain failed" in caplog.text
        assert registry.status == "deregistered"


@in_virtual_time
async def test_cancelled_wait_cancels_its_work() -> None:
    desk = Desk()
    async with scripted_registry() as registry, runner_at(registry, desk) as runner:
        running = asyncio.create_task(runner.assign(1))
        await registry.until_beats(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await runner.send_heartbeat()
        assert registry.beats()[-1].body["current_load"] == 0


async def test_blocking_method_does_not_delay_heartbeats(
    registry: RegistryServer,
) -> None:
    may_end = threading.Event()
    runner = AgentRunner(
        "a",
        on_assignment=lambda _task: may_end.wait(PATIENCE_SECONDS),
        registry=registry.url,
        key=KEYS[Role.COORDINATOR],
        key_file=registry.directory / "a.key",
    )
    async with runner:
        await runner.registered()
        running = asyncio.create_task(runner.assign(1))
        await asyncio.sleep(0)
        await runner.send_heartbeat()
        async with RegistryClient(registry.url, key=KEYS[Role.ADMIN]) as admin:
            assert (await admin.agents.get("a")).capacity.current_load == 1
        may_end.set()
        assert await running is True


async def test_invalid_values_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFESIGN_KEY", raising=False)
    monkeypatch.delenv("LIFESIGN_REGISTRY", raising=False)
    with pytest.raises(InvalidValue, match="registry: expected a URL"):
        AgentRunner("a", key=KEY)
    with pytest.raises(InvalidValue, match=r"^key: "):
        AgentRunner("a", registry="http://127.0.0.1")
    with pytest.raises(InvalidValue, match="https"):
        AgentRunner("a", registry="http://registry.example", key=KEY)
    with pytest.raises(InvalidValue, match="agent_id"):
        AgentRunner("two words", registry="http://127.0.0.1", key=KEY)
    with pytest.raises(InvalidValue, match="capacity"):
        AgentRunner("a", capacity=0, registry="http://127.0.0.1", key=KEY)
    with pytest.raises(InvalidValue, match=r"^profile: .*agent_id"):
        AgentRunner("a", profile=AgentProfile(agent_id="b"), registry="http://127.0.0.1", key=KEY)


async def test_call_in_the_wrong_state_is_reported() -> None:
    runner = AgentRunner("a", registry="http://127.0.0.1:1", key=KEY)
    with pytest.raises(InvalidAgent, match="start before wait"):
        await runner.wait()
    with pytest.raises(WorkRefused, match="no on_assignment"):
        await runner.assign(1)
    with pytest.raises(InvalidAgent, match="declared with @Agent"):
        AgentRunner.of(object())
    async with runner:
        with pytest.raises(InvalidAgent, match="one start"):
            runner.start()


def test_start_outside_of_asyncio_is_refused() -> None:
    runner = AgentRunner("a", registry="http://127.0.0.1:1", key=KEY)
    with pytest.raises(InvalidAgent, match="running event loop"):
        runner.start()
    # trio and other frameworks call coroutines without an event loop of asyncio.
    running = runner.run()
    with pytest.raises(InvalidAgent, match="running event loop"):
        running.send(None)


PROGRAM_WITH_A_POOL = """
import asyncio, multiprocessing
from concurrent.futures import ProcessPoolExecutor
from lifesign.agent import AgentRunner

async def main():
    async with AgentRunner("pooled", registry="http://127.0.0.1:1", key="ahk_of_a_test"):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context({method!r})) as pool:
            await asyncio.get_running_loop().run_in_executor(pool, abs, -1)

asyncio.run(main())
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_process_of_a_pool_that_imports_the_program_starts_no_agent(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM_WITH_A_POOL.format(method=method))
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert ended.returncode == 1
    assert "InvalidAgent: pooled" in ended.stderr


@in_virtual_time
async def test_work_from_another_event_loop_is_refused() -> None:
    async with scripted_registry() as registry:
        desk = Desk()
        desk.may_end.set()
        async with runner_at(registry, desk) as runner:

            def call_from_thread() -> None:
                for called in (lambda: runner.assign("work"), runner.send_heartbeat):
                    with pytest.raises(InvalidAgent, match="event loop"):
                        asyncio.run(asyncio.wait_for(called(), 2))

            with ThreadPoolExecutor() as pool:
                pool.submit(call_from_thread).result()
            assert await runner.assign("work") == "work"
        assert desk.begun == ["work"]


def test_agent_can_be_stopped_from_another_thread(registry: RegistryServer) -> None:
    async def live() -> AgentEnd:
        # Nothing but the drain wakes its loop.
        runner = AgentRunner(
            "drained-by-a-thread", auto_heartbeat=False, registry=registry.url, key=KEYS[Role.ENROLL]
        )
        runner.start()
        await runner.registered()
        threading.Timer(0.2, runner.drain).start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            ended = await runner.wait()
        leave.append(runner.drain)
        return ended

    leave: list[Callable[[], None]] = []
    assert asyncio.run(live()) is AgentEnd.FINISHED
    # The event loop of the runner is closed now.
    leave[0]()


@in_virtual_time
async def test_next_run_in_the_process_waits_for_the_work_of_the_former() -> None:
    desk, next_desk = Desk(), Desk()
    async with scripted_registry() as registry:
        former, following, last = [runner_at(registry, each) for each in (desk, Desk(), next_desk)]
        former.start()
        await former.registered()
        work = asyncio.create_task(former.assign("work"))
        await asyncio.sleep(1)
        following.start()
        last.start()
        await asyncio.sleep(5)
        assert (former.is_leaving, following.is_leaving, last.incarnation) == (True, True, None)
        assert registry.functions().count("POST") == 1
        desk.may_end.set()
        assert await work == "work"
        assert await former.wait() is AgentEnd.FINISHED
        await last.registered()
        last.drain()
        await last.wait()
        await following.wait()
        assert registry.functions().count("POST") == 2


def test_next_run_in_another_thread_waits_for_the_former(registry: RegistryServer) -> None:
    order: list[str] = []
    is_registered = threading.Event()

    async def live(name: str) -> None:
        runner = AgentRunner("run-twice", registry=registry.url, key=KEYS[Role.ADMIN])
        runner.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await runner.registered()
            order.append(f"{name} began")
            if is_registered.is_set():
                runner.drain()
            is_registered.set()
            await runner.wait()
        order.append(f"{name} ended")

    with ThreadPoolExecutor() as threads:
        former = threads.submit(asyncio.run, live("former"))
        assert is_registered.wait(PATIENCE_SECONDS)
        threads.submit(asyncio.run, live("next")).result()
        former.result()
    assert order.index("former ended") < order.index("next ended")
    assert sorted(order) == ["former began", "former ended", "next began", "next ended"]
