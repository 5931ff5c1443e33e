import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import UserDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer, registry_server
from tests.support.renewing import LONG_SECONDS, renew_soon
from tests.support.servers import PATIENCE_SECONDS, until

from lifesign import boot_clock
from lifesign.agent import Agent, AgentEnd, AgentRunner, ClaimedTask, on_assignment, task_source
from lifesign.agent.task_source import TaskSource
from lifesign.client import RegistryClient, registry_connection
from lifesign.client.registry_errors import Stale, Unavailable, Unreachable, error_of
from lifesign.client.registry_tasks import HeldRun, RegistryTasks
from lifesign.domain.access.permissions import Role
from lifesign.domain.lifecycle.heartbeat_interval import next_beat_try_at_s
from lifesign.domain.models.agents import HeartbeatConfig
from lifesign.domain.models.tasks import TaskRecord
from lifesign.domain.tasks import lease_renewal
from lifesign.errors import InvalidValue

QUICK = HeartbeatConfig(interval_seconds=1, unhealthy_after_seconds=2, dead_after_seconds=4)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """One for all tests of this file: their agents have different names."""
    with registry_server(tmp_path_factory.mktemp("registry"), sweep_seconds=60) as server:
        yield server


@pytest.fixture
async def admin(registry: RegistryServer) -> AsyncIterator[RegistryClient]:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        yield client


@contextlib.asynccontextmanager
async def working(
    registry: RegistryServer, agent_id: str, handler: Callable[[ClaimedTask], Awaitable[Any]], **settings: Any
) -> AsyncIterator[AgentRunner]:
    """Live as an agent that takes tasks, until the block ends."""
    runner = AgentRunner(
        agent_id,
        on_assignment=handler,
        tasks=True,
        heartbeat=QUICK,
        registry=registry.url,
        key=KEYS[Role.ENROLL],
        **settings,
    )
    async with runner:
        await runner.registered()
        yield runner


async def becomes(admin: RegistryClient, task_id: str, status: str) -> TaskRecord:
    """Wait until a task has a status."""
    task = await admin.tasks.get(task_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while task.status != status:
            await asyncio.sleep(0.02)
            task = await admin.tasks.get(task_id)
    return task


class Bench:
    """Work that ends when the test decides."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.begun: asyncio.Queue[ClaimedTask] = asyncio.Queue()
        self.was_cancelled = asyncio.Event()

    async def work(self, task: ClaimedTask) -> dict[str, str]:
        self.begun.put_nowait(task)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise
        return {"done": task.title}


@pytest.mark.parametrize(
    ("result", "output"), [({"page": 1}, {"page": 1}), ("text", {"result": "text"}), (None, {})]
)
async def test_return_value_of_a_handler_is_submitted(
    registry: RegistryServer, admin: RegistryClient, result: Any, output: dict[str, Any]
) -> None:
    name = f"returns-{type(result).__name__}"
    made = await admin.tasks.create("Write it", agent_id=name, input={"brief": "b"})

    async def work(task: ClaimedTask) -> Any:
        assert (task.title, task.input, task.latest_report) == ("Write it", {"brief": "b"}, None)
        assert await task.report_progress("begun", next_step="go on", blockers=["none"]) == 1
        return result

    async with working(registry, name, work):
        task = await becomes(admin, made.task_id, "review")
    assert task.output == output
    assert task.latest_report is not None
    assert task.latest_report.report["nextStep"] == "go on"
    assert task.runs[0].exit_reason == "completed"


async def test_agent_holds_tasks_up_to_its_capacity(registry: RegistryServer, admin: RegistryClient) -> None:
    bench = Bench()
    made = [await admin.tasks.create(f"part {n}", agent_id="roomy") for n in range(3)]
    async with working(registry, "roomy", bench.work, capacity=2) as runner:
        held = [await bench.begun.get() for _ in range(2)]
        assert [task.task_id for task in held] == [task.task_id for task in made[:2]]
        await runner.send_heartbeat()
        record = await admin.agents.get("roomy")
        assert record.capacity.current_load == 2
        assert (await admin.tasks.get(made[2].task_id)).status == "queued"
        bench.may_end.set()
        for task in made:
            await becomes(admin, task.task_id, "review")


async def test_requests_of_handlers_do_not_delay_heartbeats(
    registry: RegistryServer, admin: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_connection, "MAX_CONNECTIONS", 2)
    bench = Bench()

    async def work(task: ClaimedTask) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                stream = task.client.events.stream(after=0)
                await stack.enter_async_context(contextlib.aclosing(stream))
                await anext(stream)
            await bench.work(task)

    made = await admin.tasks.create("Follow the log", agent_id="follower")
    async with working(registry, "follower", work) as runner:
        await asyncio.wait_for(bench.begun.get(), PATIENCE_SECONDS)
        await runner.send_heartbeat()
        assert (await admin.agents.get("follower")).capacity.current_load == 1
        bench.may_end.set()
        await becomes(admin, made.task_id, "review")


async def test_agent_without_capacity_gets_one_task_at_a_time(
    registry: RegistryServer, admin: RegistryClient
) -> None:
    bench = Bench()
    made = [await admin.tasks.create(f"part {n}", agent_id="modest") for n in range(2)]
    async with working(registry, "modest", bench.work):
        await bench.begun.get()
        assert (await admin.tasks.get(made[1].task_id)).status == "queued"
        bench.may_end.set()
        await becomes(admin, made[1].task_id, "review")


@pytest.mark.parametrize("capacity", [1, 2])
async def test_task_whose_grant_was_lost_is_released_for_the_next_claim(
    registry: RegistryServer, admin: RegistryClient, monkeypatch: pytest.MonkeyPatch, capacity: int
) -> None:
    made = await admin.tasks.create("lost", agent_id=f"forgetful-{capacity}")
    bench, claim, lost = Bench(), RegistryTasks.claim, list[str]()

    async def lose_first(tasks: RegistryTasks, **wanted: Any) -> Any:
        granted = await claim(tasks, **wanted)
        if granted is not None and not lost:
            lost.append(granted.task.task_id)
            raise Unreachable("the answer is lost", was_sent=True)
        return granted

    monkeypatch.setattr(RegistryTasks, "claim", lose_first)
    async with working(registry, f"forgetful-{capacity}", bench.work, capacity=capacity):
        task = await asyncio.wait_for(bench.begun.get(), PATIENCE_SECONDS)
        bench.may_end.set()
        await becomes(admin, made.task_id, "review")
    assert lost == [task.task_id]


async def test_lease_that_a_handler_acquired_is_not_given_back(
    registry: RegistryServer, admin: RegistryClient
) -> None:
    async with working(registry, "builds", Bench().work) as runner:
        for resource in ("task:nightly-build", "database"):
            await runner._place.handler_client.leases.acquire(resource)
        assert isinstance(runner._source, TaskSource)
        await runner._source._give_back(runner.incarnation)
        held = (await admin.leases.list(holder="builds")).leases
        assert {lease.resource for lease in held} == {"task:nightly-build", "database"}


async def test_case_23_next_holder_continues_after_a_crash(
    registry: RegistryServer, admin: RegistryClient, caplog: pytest.LogCaptureFixture
) -> None:
    made = await admin.tasks.create("hard", agent_id="stumbles", backoff_seconds=0)
    tokens: list[int] = []

    async def work(task: ClaimedTask) -> None:
        tokens.append(task.run.fencing_token)
        if task.latest_report is None:
            await task.report_progress("half of it", beliefs=["it is hard"])
            raise ValueError("no more")
        assert task.latest_report["beliefs"] == ["it is hard"]

    async with working(registry, "stumbles", work):
        task = await becomes(admin, made.task_id, "review")
    assert [run.exit_reason for run in task.runs] == ["completed", "crash"]
    assert task.explanation is None
    assert tokens[1] > tokens[0]
    assert "no more" in caplog.text


async def test_invalid_return_value_is_a_crash(registry: RegistryServer, admin: RegistryClient) -> None:
    made = await admin.tasks.create("large", agent_id="verbose", max_attempts=1)

    async def work(_task: ClaimedTask) -> dict[str, str]:
        return {"page": "x" * 70_000}

    async with working(registry, "verbose", work):
        task = await becomes(admin, made.task_id, "handoff")
    assert task.runs[0].exit_reason == "crash"
    assert ": crash: " in (task.explanation or "")


async def test_handler_failure_is_reported_and_system_exit_ends_only_the_task(
    registry: RegistryServer, admin: RegistryClient
) -> None:
    made = [await admin.tasks.create(title, agent_id="exits", max_attempts=1) for title in ("one", "two")]

    async def work(task: ClaimedTask) -> None:
        if task.title == "one":
            sys.exit("no invoice\nat all")
        raise LookupError("no customer")

    async with working(registry, "exits", work):
        found = [(await becomes(admin, task.task_id, "handoff")).explanation for task in made]
    assert found == [
        "run 1, attempt 1 of 1: crash: RuntimeError: the handler raised SystemExit('no invoice\\nat all')",
        "run 1, attempt 1 of 1: crash: LookupError: no customer",
    ]


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class _Unreadable(UserDict[str, Any]):
    def __iter__(self) -> Any:
        raise LookupError("no keys")


async def test_exception_without_text_and_unreadable_result_are_crashes(
    registry: RegistryServer, admin: RegistryClient
) -> None:
    made = [await admin.tasks.create(title, agent_id="odd", max_attempts=1) for title in ("one", "two")]

    async def work(task: ClaimedTask) -> Mapping[str, Any]:
        if task.title == "one":
            raise _Unprintable
        return _Unreadable()

    async with working(registry, "odd", work):
        found = [(await becomes(admin, task.task_id, "handoff")).explanation for task in made]
    assert [text and text.partition("crash: ")[2].rpartition(": ")[2] for text in found] == [
        "_Unprintable",
        "no keys",
    ]


async def test_handler_gets_the_comments_of_a_resolution(
    registry: RegistryServer, admin: RegistryClient
) -> None:
    made = await admin.tasks.create("ask", agent_id="asks", budget=None)

    async def work(task: ClaimedTask) -> list[str]:
        if not task.comments:
            await task.request_help("which logo?")
        return [comment["comment"] for comment in task.comments]

    async with working(registry, "asks", work):
        await becomes(admin, made.task_id, "handoff")
        await admin.tasks.resolve(made.task_id, "requeue", comment="use logo-2026")
        task = await becomes(admin, made.task_id, "review")
    assert task.output == {"result": ["use logo-2026", "which logo?"]}


async def test_task_is_delegated_and_another_handed_off(
    registry: RegistryServer, admin: RegistryClient
) -> None:
    made = await admin.tasks.create("divide", agent_id="leader", budget={"tokens": 10})
    children: list[str] = []

    async def work(task: ClaimedTask) -> str:
        children.append(await task.delegate("a part", agent_id="nobody", budget={"tokens": 4}))
        children.append(await task.delegate("another part", agent_id="nobody", budget=None))
        await task.request_help("which logo?", summary="all but the logo")
        return "passed over"

    async with working(registry, "leader", work) as runner:
        task = await becomes(admin, made.task_id, "handoff")
        assert "which logo?" in [comment.comment for comment in task.comments]
        runner.drain()
        assert await runner.wait() is AgentEnd.FINISHED
    assert (task.explanation, task.output) == ("which logo?", None)
    assert [child.task_id for child in task.children] == children[::-1]
    assert task.latest_report is not None
    assert task.latest_report.report["summary"] == "all but the logo"


async def test_lost_lease_stops_its_holder_and_its_writes(
    registry: RegistryServer, admin: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_soon(monkeypatch)
    bench = Bench()
    made = await admin.tasks.create("taken", agent_id="loser", lease_seconds=LONG_SECONDS)
    async with working(registry, "loser", bench.work):
        task = await bench.begun.get()
        await admin.tasks.cancel(made.task_id)
        await asyncio.wait_for(bench.was_cancelled.wait(), PATIENCE_SECONDS)
        with pytest.raises(Stale):
            await task.report_progress("late")
    assert (await admin.tasks.get(made.task_id)).status == "cancelled"


async def test_cancelled_task_stops_at_the_next_heartbeat(
    registry: RegistryServer, admin: RegistryClient
) -> None:
    bench = Bench()
    made = await admin.tasks.create("cancelled", agent_id="notified")
    async with working(registry, "notified", bench.work) as runner:
        await bench.begun.get()
        await runner.send_heartbeat()
        await admin.tasks.cancel(made.task_id)
        # The lease is still valid for minutes.
        await runner.send_heartbeat()
        await asyncio.wait_for(bench.was_cancelled.wait(), PATIENCE_SECONDS)


async def test_a_lease_is_kept_for_as_long_as_the_work_takes(
    registry: RegistryServer, admin: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_soon(monkeypatch)
    bench = Bench()
    made = await admin.tasks.create("slow", agent_id="keeper", lease_seconds=LONG_SECONDS)
    async with working(registry, "keeper", bench.work):
        await bench.begun.get()
        (first,) = (await admin.leases.list(holder="keeper")).leases
        async with asyncio.timeout(PATIENCE_SECONDS):
            (now,) = (await admin.leases.list(holder="keeper")).leases
            # Renewed, and once more.
            while (now.expires_at - first.expires_at).total_seconds() < 0.8:
                await asyncio.sleep(0.05)
                (now,) = (await admin.leases.list(holder="keeper")).leases
        assert now.fencing_token == first.fencing_token
        bench.may_end.set()
        await becomes(admin, made.task_id, "review")


async def test_drain_claims_no_new_task_and_finishes_running_ones(
    registry: RegistryServer, admin: RegistryClient
) -> None:
    bench = Bench()
    made = [await admin.tasks.create(f"part {n}", agent_id="drained") for n in range(2)]
    async with working(registry, "drained", bench.work, drain_timeout_seconds=30) as runner:
        await bench.begun.get()
        await admin.agents.send_command("drained", "drain")
        await runner.send_heartbeat()
        bench.may_end.set()
        assert await runner.wait() is AgentEnd.FINISHED
    assert (await admin.tasks.get(made[0].task_id)).status == "review"
    assert (await admin.tasks.get(made[1].task_id)).status == "queued"
    assert (await admin.agents.get("drained")).status == "deregistered"


async def test_unfinished_task_is_released_at_the_deadline(
    registry: RegistryServer, admin: RegistryClient
) -> None:
    bench = Bench()
    made = await admin.tasks.create("endless", agent_id="hurried")
    async with working(registry, "hurried", bench.work, drain_timeout_seconds=1) as runner:
        await bench.begun.get()
        runner.drain()
        assert await runner.wait() is AgentEnd.DROPPED
    task = await admin.tasks.get(made.task_id)
    assert (task.status, task.runs[0].exit_reason) == ("queued", "killed")


async def test_dead_agent_drops_its_task_and_gets_it_in_its_next_incarnation(
    registry: RegistryServer, admin: RegistryClient
) -> None:
    bench = Bench()
    made = await admin.tasks.create("twice", agent_id="reborn")
    async with working(registry, "reborn", bench.work) as runner:
        first = await bench.begun.get()
        await admin.agents.deregister("reborn")
        await runner.send_heartbeat()
        await asyncio.wait_for(bench.was_cancelled.wait(), PATIENCE_SECONDS)
        second = await asyncio.wait_for(bench.begun.get(), PATIENCE_SECONDS)
        assert second.run.fencing_token > first.run.fencing_token
        assert runner.incarnation == 2
        bench.may_end.set()
        await becomes(admin, made.task_id, "review")


async def test_grant_that_comes_after_the_end_of_its_incarnation_begins_no_work(
    registry: RegistryServer, admin: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, claim, late = Bench(), RegistryTasks.claim, list[str]()
    made = await admin.tasks.create("late", agent_id="reborn-late")

    async def delay_first(tasks: RegistryTasks, **wanted: Any) -> Any:
        granted = await claim(tasks, **wanted)
        if granted is not None and not late:
            late.append(granted.run_id)
            await admin.agents.deregister("reborn-late")
            await runner.send_heartbeat()
            await runner.registered()
        return granted

    monkeypatch.setattr(RegistryTasks, "claim", delay_first)
    async with working(registry, "reborn-late", bench.work, capacity=2) as runner:
        task = await asyncio.wait_for(bench.begun.get(), PATIENCE_SECONDS)
        assert (runner.incarnation, task.run.run_id not in late) == (2, True)
        bench.may_end.set()
        await becomes(admin, made.task_id, "review")
        assert bench.begun.empty()


async def test_result_is_delivered_when_the_registry_returns(tmp_path: Path) -> None:
    bench = Bench()
    with registry_server(tmp_path) as registry:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as admin:
            made = await admin.tasks.create("patient", agent_id="waits")
            async with working(registry, "waits", bench.work):
                await bench.begun.get()
                await asyncio.to_thread(registry.stop)
                bench.may_end.set()
                await asyncio.sleep(0.1)
                await asyncio.to_thread(registry.start)
                assert (await becomes(admin, made.task_id, "review")).output == {"done": "patient"}


@pytest.mark.parametrize(("method", "status"), [("mark_complete", "review"), ("release", "handoff")])
async def test_end_is_reported_again_after_the_refusal_of_a_proxy(
    registry: RegistryServer,
    admin: RegistryClient,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    status: str,
) -> None:
    name = method.replace("_", "-")
    made = await admin.tasks.create("behind a proxy", agent_id=name, max_attempts=1)

    write = getattr(RegistryTasks, method)
    refusals: list[str] = []

    async def refuse_once(*arguments: Any, **settings: Any) -> Any:
        if not refusals:
            refusals.append(method)
            raise error_of(403, None, reason="Forbidden")
        return await write(*arguments, **settings)

    monkeypatch.setattr(RegistryTasks, method, refuse_once)

    async def work(_: ClaimedTask) -> None:
        if method == "release":
            raise LookupError

    async with working(registry, name, work):
        found = await becomes(admin, made.task_id, status)
    assert (len(found.runs), len(refusals)) == (1, 1)


def retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat failed reports more often than leases are renewed."""
    monkeypatch.setattr(task_source, "next_beat_try_at_s", lambda now_s, *_: now_s + 0.2)


@pytest.mark.parametrize("status", [403, 413])
async def test_result_that_a_proxy_refuses_is_a_crash(
    registry: RegistryServer, admin: RegistryClient, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    renew_soon(monkeypatch)
    retry_soon(monkeypatch)
    name = f"refused-{status}"
    made = await admin.tasks.create("behind a proxy", agent_id=name, max_attempts=1)

    async def refuse(*_: Any, **__: Any) -> Any:
        raise error_of(status, None, reason="Forbidden")

    monkeypatch.setattr(RegistryTasks, "mark_complete", refuse)

    async def work(_: ClaimedTask) -> None: ...

    async with working(registry, name, work):
        found = await becomes(admin, made.task_id, "handoff")
    assert [run.exit_reason for run in found.runs] == ["crash"]
    assert str(status) in str(found.explanation)


@pytest.mark.parametrize("status", [403, 413])
async def test_crash_is_reported_without_a_text_that_a_proxy_refuses(
    registry: RegistryServer, admin: RegistryClient, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    renew_soon(monkeypatch)
    retry_soon(monkeypatch)
    name = f"refused-text-{status}"
    made = await admin.tasks.create("behind a proxy", agent_id=name, max_attempts=1)

    release = RegistryTasks.release

    async def refuse_text(tasks: RegistryTasks, run: HeldRun, reason: str, *, detail: str) -> Any:
        if "<script" in detail:
            raise error_of(status, None, reason="refused")
        return await release(tasks, run, reason, detail=detail)

    monkeypatch.setattr(RegistryTasks, "release", refuse_text)

    async def work(_: ClaimedTask) -> None:
        raise LookupError("<script>")

    async with working(registry, name, work):
        found = await becomes(admin, made.task_id, "handoff")
    assert [run.exit_reason for run in found.runs] == ["crash"]
    assert task_source.REFUSED_DETAIL in str(found.explanation)


async def test_result_that_waits_is_submitted_when_a_drain_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, is_waiting = Bench(), asyncio.Event()

    def in_an_hour(now_s: float, *_: Any) -> float:
        is_waiting.set()
        return now_s + 3600

    monkeypatch.setattr(task_source, "next_beat_try_at_s", in_an_hour)
    with registry_server(tmp_path) as registry:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as admin:
            made = await admin.tasks.create("patient", agent_id="drains")
            async with working(registry, "drains", bench.work) as runner:
                await bench.begun.get()
                await asyncio.to_thread(registry.stop)
                bench.may_end.set()
                await is_waiting.wait()
                await asyncio.to_thread(registry.start)
                runner.drain()
                assert (await becomes(admin, made.task_id, "review")).output == {"done": "patient"}


async def test_wait_that_a_proxy_requests_is_bounded() -> None:
    async def registered() -> None: ...

    source = TaskSource("a", None, registered)  # type: ignore[arg-type]
    due_s = source._retry_at_s(1, Unavailable("HTTP 503", retry_after_s=3600))
    assert due_s - asyncio.get_running_loop().time() <= 2 * task_source.RETRY_SECONDS


async def test_failure_is_reported_when_the_registry_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, is_retried = Bench(), asyncio.Event()

    def note_retry(*times: Any) -> float:
        is_retried.set()
        return next_beat_try_at_s(*times)

    monkeypatch.setattr(task_source, "next_beat_try_at_s", note_retry)

    async def fail(task: ClaimedTask) -> None:
        await bench.work(task)
        raise LookupError("no customer")

    with registry_server(tmp_path) as registry:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as admin:
            made = await admin.tasks.create("fails", agent_id="fails-later", max_attempts=1)
            # With this capacity, no claim is repeated meanwhile.
            async with working(registry, "fails-later", fail, capacity=1):
                await bench.begun.get()
                await asyncio.to_thread(registry.stop)
                bench.may_end.set()
                await asyncio.wait_for(is_retried.wait(), PATIENCE_SECONDS)
                await asyncio.to_thread(registry.start)
                found = await becomes(admin, made.task_id, "handoff")
    assert [run.exit_reason for run in found.runs] == ["crash"]


async def test_handler_is_cancelled_before_another_agent_can_hold_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Most of what is left of the lease is for the handler to hear of it.
    monkeypatch.setattr(lease_renewal, "RENEW_RATIO", 0.1)
    monkeypatch.setattr(lease_renewal, "NOTICE_RATIO", 0.8)
    left_s: asyncio.Queue[float] = asyncio.Queue()
    with registry_server(tmp_path) as registry:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as admin:
            await admin.tasks.create("cleans up", agent_id="cleans-up", lease_seconds=6.0)

            async def work(_: ClaimedTask) -> None:
                await asyncio.to_thread(registry.stop)
                source = runner._source
                assert isinstance(source, TaskSource)
                (kept,) = source._kept.values()
                try:
                    await asyncio.sleep(1_000)
                finally:
                    left_s.put_nowait(kept.keeper.deadline_s - boot_clock.now_s())

            async with working(registry, "cleans-up", work) as runner:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert await left_s.get() > 0
                await asyncio.to_thread(registry.start)


async def test_key_without_task_permission_begins_no_incarnation(
    registry: RegistryServer, admin: RegistryClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(registry, "of-another-key", Bench().work):
        pass
    runner = AgentRunner(
        "of-another-key", on_assignment=Bench().work, tasks=True, registry=registry.url, key=ADMIN_KEY
    )
    async with runner:
        await runner.send_heartbeat()
        assert runner.incarnation is None
    assert ": HTTP 403: " in caplog.text
    record = await admin.agents.get("of-another-key")
    assert (record.incarnation, record.status) == (1, "deregistered")


def test_tasks_without_a_handler_are_refused() -> None:
    with pytest.raises(InvalidValue, match="tasks: expected an on_assignment, without another source"):
        AgentRunner("a", tasks=True, registry="http://127.0.0.1:9", key="ahk_x")


def test_decorator_accepts_tasks() -> None:
    @Agent("a", tasks=True, registry="http://127.0.0.1:9", key="ahk_x")
    class Writer:
        @on_assignment
        async def work(self, task: ClaimedTask) -> None: ...

    assert Writer.__lifesign__.takes_tasks is True  # type: ignore[attr-defined]


@contextlib.contextmanager
def example(registry: RegistryServer, directory: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Run the example; its output is in `log`."""
    settings = {"LIFESIGN_REGISTRY": registry.url, "LIFESIGN_KEY": KEYS[Role.ENROLL]}
    with (directory / "log").open("wb") as output:
        process = PreloadedProcess(
            [PYTHON, "docs/examples/task_worker.py", directory / "writer.key"],
            stdout=output,
            stderr=output,
            env={**os.environ, **settings},
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


async def test_example_works_on_tasks_until_it_is_terminated(
    registry: RegistryServer, admin: RegistryClient, tmp_path: Path
) -> None:
    good = await admin.tasks.create("Count", role_id="writers", input={"words": ["a", "b"]})
    odd = await admin.tasks.create("Count nothing", role_id="writers")
    with example(registry, tmp_path) as process:
        assert (await becomes(admin, good.task_id, "review")).output == {"count": 2}
        assert (await becomes(admin, odd.task_id, "handoff")).explanation == "which words?"
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(until, "it has ended", lambda: process.poll() is not None)
    lines = [line.partition(" INFO ")[2] or line for line in (tmp_path / "log").read_text().splitlines()]
    assert lines == [
        "agent writer-1: registered, incarnation 1",
        "begun: Count",
        "begun: Count nothing",
        "agent writer-1 begins to drain: SIGTERM came",
        "left: finished",
    ]
