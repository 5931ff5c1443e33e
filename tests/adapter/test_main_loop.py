import asyncio
import errno
import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.adapting import World, adapter_process, new_task, shell, world_of
from tests.support.registry_server import RegistryServer, registry_server
from tests.support.renewing import LONG_SECONDS, renew_soon
from tests.support.servers import PATIENCE_SECONDS, until

from lifesign.adapter import main_loop
from lifesign.adapter.main_loop import Adapter, TaskSelection
from lifesign.adapter.process import process_watcher
from lifesign.adapter.workspaces import Workspaces
from lifesign.client.registry_errors import Conflict, NotFound, Unavailable
from lifesign.client.registry_tasks import RegistryTasks
from lifesign.domain.tasks import lease_renewal

OF_POOL = TaskSelection(role_id="coder")


async def number_in_file(what: str, file: Path) -> int:
    """Wait for the number in a file without keeping the loop from its work."""
    return await asyncio.to_thread(
        until, what, lambda: file.exists() and int(file.read_text().strip() or "0")
    )


async def test_adapter_runs_tasks_in_turn_until_drained(world: World) -> None:
    second = await new_task(world.client)
    async with world.adapting("true", wanted=OF_POOL) as adapter:
        await adapter.until("completed", task_id=second.task_id)
        adapter.adapter.drain("enough")
        outcome = await adapter.outcome()
        assert outcome.is_done
        agent_id = adapter.agent_id
    assert {(await world.client.tasks.get(one)).status for one in (world.task.task_id, second.task_id)} == {
        "review"
    }
    assert (await world.client.agents.get(agent_id)).status == "deregistered"


async def test_heartbeat_names_the_running_task(world: World) -> None:
    async with world.adapting(*shell("exec sleep 1000")) as adapter:
        await adapter.until("started")
        await adapter.adapter._loop.send_heartbeat()
        record = await world.client.agents.get(adapter.agent_id)
        assert record.status == "active"
        assert record.role_id == "coder"
        assert record.reported.tasks_in_progress == [world.task.task_id]


async def test_grant_that_comes_after_the_end_of_its_incarnation_starts_no_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, late = RegistryTasks.claim, list[str]()

    async def delay_first(tasks: RegistryTasks, **wanted: Any) -> Any:
        granted = await claim(tasks, **wanted)
        if granted is not None and not late:
            late.append(granted.run_id)
            await world.client.agents.deregister(adapter.agent_id)
            await adapter.adapter._loop.send_heartbeat()
            await adapter.adapter._loop.is_registered.wait()
        return granted

    monkeypatch.setattr(RegistryTasks, "claim", delay_first)
    async with world.adapting("true") as adapter:
        started = await adapter.until("started")
        assert started.run_id not in late
        assert (await adapter.outcome()).is_done


async def test_running_task_ends_during_a_drain(world: World) -> None:
    go = world.directory / "go"
    async with world.adapting(*shell(f"until test -e {go}; do sleep 0.05; done")) as adapter:
        await adapter.until("started")
        adapter.adapter.drain("enough")
        go.touch()
        assert (await adapter.outcome()).is_done
    assert (await world.now()).status == "review"


async def test_drain_releases_a_run_that_takes_too_long(world: World) -> None:
    code = "trap 'exit 9' TERM; echo $$ > pid; while :; do sleep 0.05; done"
    async with world.adapting(*shell(code), wanted=OF_POOL, drain_s=0.3, grace_s=0.1) as adapter:
        await adapter.until("started")
        await number_in_file("pid written", adapter.workspace() / "pid")
        adapter.adapter.drain("enough")
        assert (await adapter.outcome()).end.exit_reason == "killed"
    assert await world.runs() in ([("killed", 9)], [("killed", -9)])
    now = await world.now()
    # The task is not at fault.
    assert (now.status, now.attempts, now.lost_runs) == ("queued", 0, 1)


@pytest.mark.parametrize(("leaves", "run"), [("true", ("completed", None)), ("false", ("killed", 0))])
async def test_exit_code_0_of_a_drained_agent_counts_with_an_output_only(
    world: World, leaves: str, run: tuple[str, int | None]
) -> None:
    out = f"{leaves} && echo '{{}}' > $LIFESIGN_WORKSPACE/output.json; exit 0"
    code = f'trap "{out}" TERM; echo $$ > pid; while :; do sleep 0.05; done'
    async with world.adapting(*shell(code), wanted=OF_POOL, drain_s=0.3, grace_s=5) as adapter:
        await adapter.until("started")
        await number_in_file("pid written", adapter.workspace() / "pid")
        adapter.adapter.drain("enough")
        assert (await adapter.outcome()).exit_code == 0
    assert await world.runs() == [run]


@pytest.mark.parametrize(
    ("trap", "runs", "left"),
    [
        ("trap 'exit 0' TERM", [("killed", 0)], ("queued", 0, 1)),
        ("true", [("killed", -15)], ("queued", 0, 1)),
        (
            "trap 'echo {} > $LIFESIGN_WORKSPACE/output.json; exit 0' TERM",
            [("completed", None)],
            ("review", 1, 0),
        ),
    ],
)
async def test_agent_that_a_service_manager_ends_with_its_adapter_submits_only_an_output_file(
    world: World, trap: str, runs: list[tuple[str, int | None]], left: tuple[str, int, int]
) -> None:
    code = f"{trap}; echo $$ > pid; while :; do sleep 0.05; done"
    async with world.adapting(*shell(code), wanted=OF_POOL, grace_s=5) as adapter:
        await adapter.until("started")
        pid = await number_in_file("pid written", adapter.workspace() / "pid")
        adapter.adapter.drain("SIGTERM came")
        for each in (process_watcher.processes()[pid][0], pid):
            os.kill(each, signal.SIGTERM)
        await adapter.outcome()
    assert await world.runs() == runs
    now = await world.now()
    assert (now.status, now.attempts, now.lost_runs) == left


async def test_agent_gets_the_full_drain_time_before_its_grace_period(world: World) -> None:
    go = world.directory / "go"
    code = f"until test -e {go}; do sleep 0.05; done"
    async with world.adapting(*shell(code), drain_s=60.0, grace_s=60.0) as adapter:
        await adapter.until("started")
        adapter.adapter.drain("enough")
        assert (await adapter.until("leaving")).text.endswith("60 s to end, and 60 s after the signal")
        await adapter.adapter._loop.send_heartbeat()
        go.touch()
        assert (await adapter.outcome()).is_done
        assert "stopping" not in {event.what for event in adapter.events}


async def test_grace_is_part_of_the_drain_timeout(world: World) -> None:
    async with world.adapting(*shell("exec sleep 1000"), grace_s=10.0) as adapter:
        await adapter.until("started")
        adapter.adapter.on_drain_requested("a new version", 60.0)
        assert (await adapter.until("leaving")).text.endswith("40 s to end, and 10 s after the signal")


@pytest.mark.parametrize("is_told_by_heartbeat", [True, False])
async def test_superseding_process_ends_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_told_by_heartbeat: bool
) -> None:
    if not is_told_by_heartbeat:
        renew_soon(monkeypatch)
    world = await world.leased_for(LONG_SECONDS)
    async with world.adapting(*shell("echo $$ > pid; exec sleep 1000")) as adapter:
        await adapter.until("started")
        pid = await number_in_file("pid written", adapter.workspace() / "pid")
        async with adapter.client() as second:
            await second.agents.register(adapter.agent_id, role_id="coder", supersede=True)
        if is_told_by_heartbeat:
            await adapter.adapter._loop.send_heartbeat()
        failed = await adapter.until("failed")
        assert (failed.exit_reason, failed.exit_code) == ("lease_expired", -15)
        assert pid not in process_watcher.processes()


async def test_next_adapter_ends_processes_of_a_killed_one(world: World, registry: RegistryServer) -> None:
    code = (
        "setsid sh -c 'echo $$ > left; env -i sleep 1000 & echo $! > below; wait' & "
        "echo $$ > pid; exec sleep 1000"
    )
    command = ("--pool", "coder", "--agent-id", "coder-left", "--in-workspace", "--", *shell(code))
    with adapter_process(registry, world.directory, *command) as first:
        workspace = Path((await asyncio.to_thread(first.until, "started"))["text"].partition(" works in ")[2])
        pids = [await number_in_file("it has begun", workspace / name) for name in ("left", "below")]
        agent = await number_in_file("it has begun", workspace / "pid")
        watching = process_watcher.processes()[agent][0]
        # A stopped process does not notice that the other ends.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in (watching, first.process.pid):
                os.kill(pid, number)
        await asyncio.to_thread(first.process.wait)
        killed = {agent, watching}
        await asyncio.to_thread(
            until, "these are gone", lambda: not killed & process_watcher.processes().keys()
        )
    assert set(pids) <= process_watcher.processes().keys()
    nothing = TaskSelection(role_id="nobody", is_once=True, wait_s=0.0)
    async with world.adapting("true", wanted=nothing) as adapter:
        await adapter.until("registered")
        assert not set(pids) & process_watcher.processes().keys()
        what, text = adapter.messages()[0]
        assert (what, text.split()[:2]) == ("pruned", ["2", "processes"])


async def test_second_drain_request_ends_the_adapter_at_once(world: World) -> None:
    async with world.adapting(*shell("trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done")) as adapter:
        await adapter.until("started")
        pid = await number_in_file("pid written", adapter.workspace() / "pid")
        adapter.adapter.drain("enough")
        adapter.adapter.drain("now")
        outcome = await adapter.living
        # On a machine that stands still it does not stay to hear how that ended.
        assert outcome is None or outcome.exit_code == -9
        assert pid not in process_watcher.processes()


async def test_first_signal_in_a_requested_drain_leaves_the_adapters_own_time(world: World) -> None:
    code = "trap 'exit 9' TERM; echo $$ > pid; while :; do sleep 0.05; done"
    async with world.adapting(*shell(code), wanted=OF_POOL, drain_s=1.0, grace_s=5.0) as adapter:
        await adapter.until("started")
        await number_in_file("pid written", adapter.workspace() / "pid")
        adapter.adapter.on_drain_requested("a new version", 3_600.0)
        began_s = time.monotonic()
        adapter.adapter.drain("SIGTERM came")
        outcome = await adapter.outcome()
        assert time.monotonic() - began_s > 1.0
        assert outcome.exit_code == 9


async def test_drain_requested_by_the_registry_is_followed(world: World) -> None:
    async with world.adapting("true", wanted=OF_POOL) as adapter:
        await adapter.until("completed")
        await world.client.agents.send_command(adapter.agent_id, "drain", reason="a new version")
        await adapter.adapter._loop.send_heartbeat()
        await adapter.outcome()


async def test_waiting_without_a_task_is_no_failure(world: World) -> None:
    await world.client.tasks.cancel(world.task.task_id)
    async with world.adapting(
        "true", wanted=TaskSelection(role_id="coder", is_once=True, wait_s=0.0)
    ) as adapter:
        assert await adapter.living is None


async def test_lost_answer_to_a_claim_blocks_no_later_claim(world: World) -> None:
    async with world.adapting(*shell("exec sleep 1000"), wanted=OF_POOL) as adapter:
        started = await adapter.until("started")
        adapter.adapter._run = None
        async with adapter.client() as own:
            error = await _refused(own.tasks.claim())
            assert error.code == "too_many"
            await own.leases.acquire("task:nightly-build")
            await adapter.adapter._give_back(own)
            # Only leases on tasks of the registry are released.
            assert [lease.resource for lease in (await own.leases.list()).leases] == ["task:nightly-build"]
        assert started.task_id == world.task.task_id
        assert (await world.now()).status == "queued"


async def _refused(claim: object) -> Conflict:
    with pytest.raises(Conflict) as refused:
        await claim  # type: ignore[misc]
    return refused.value


async def test_claiming_a_task_for_others_ends_the_adapter_with_the_reason(world: World) -> None:
    made = await new_task(world.client, role_id="writers")
    async with world.adapting("true", wanted=TaskSelection(task_id=made.task_id, is_once=True)) as adapter:
        with pytest.raises(NotFound) as refused:
            await adapter.living
    assert (refused.value.code, made.task_id in str(refused.value)) == ("task_not_found", True)


async def test_restart_of_the_registry_does_not_end_a_run(tmp_path: Path) -> None:
    with registry_server(tmp_path) as other:
        go = tmp_path / "go"
        async with world_of(other, tmp_path) as there:
            async with there.adapting(*shell(f"until test -e {go}; do sleep 0.05; done")) as adapter:
                await adapter.until("started")
                await asyncio.to_thread(other.stop)
                go.touch()
                await asyncio.sleep(0.5)
                assert not adapter.living.done()
                await asyncio.to_thread(other.start)
                assert (await adapter.outcome()).is_done
            assert (await there.now()).status == "review"


async def test_unreachable_registry_ends_the_agent_at_the_lease_deadline(tmp_path: Path) -> None:
    with registry_server(tmp_path) as other:
        code = "echo $$ > pid; exec sleep 1000"
        async with world_of(other, tmp_path) as there, there.adapting(*shell(code)) as adapter:
            await adapter.until("started")
            pid = await number_in_file("pid written", adapter.workspace() / "pid")
            await adapter.shorten_lease(1.5)
            await asyncio.to_thread(other.stop)
            try:
                result = await adapter.until("failed")
                assert result.exit_reason == "lease_expired"
                assert pid not in process_watcher.processes()
            finally:
                await asyncio.to_thread(other.start)


async def test_agent_that_ignores_sigterm_is_killed_by_the_lease_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Most of the time left after the registry became unreachable belongs to the agent.
    monkeypatch.setattr(lease_renewal, "RENEW_RATIO", 0.1)
    monkeypatch.setattr(lease_renewal, "NOTICE_RATIO", 0.8)
    with registry_server(tmp_path) as other:
        code = "trap 'echo asked > asked' TERM; echo $$ > pid; while :; do sleep 0.05; done"
        lives = world_of(other, tmp_path)
        async with lives as there, there.adapting(*shell(code), grace_s=100_000.0) as adapter:
            await adapter.until("started")
            pid = await number_in_file("pid written", adapter.workspace() / "pid")
            await adapter.shorten_lease(4.0)
            await asyncio.to_thread(other.stop)
            try:
                result = await adapter.until("failed")
                assert result.exit_reason == "lease_expired"
                assert pid not in process_watcher.processes()
                # The request came before any other agent could start.
                assert (adapter.workspace() / "asked").exists()
            finally:
                await asyncio.to_thread(other.start)


async def test_adapter_without_room_for_a_workspace_claims_no_task(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Workspaces) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Workspaces, "check_room", full)
    wanted = TaskSelection(role_id="coder", is_once=True, wait_s=0.0)
    async with world.adapting("true", wanted=wanted) as adapter:
        messages = adapter.messages
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any("; hint: remove" in text for _, text in messages()):  # noqa: ASYNC110 - events say nothing of texts
                await asyncio.sleep(0.02)
    now = await world.now()
    assert (now.status, now.runs) == ("queued", [])


async def test_adapter_reports_a_full_disk_also_after_a_failed_claim(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = itertools.count()

    def full(_: Workspaces) -> None:
        if next(tries):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def fail(*_: object) -> None:
        raise Unavailable("HTTP 503", status=503)

    monkeypatch.setattr(Workspaces, "check_room", full)
    monkeypatch.setattr(Adapter, "_claim", fail)
    monkeypatch.setattr(main_loop, "next_beat_try_at_s", lambda now_s, *_: now_s + 0.01)
    async with world.adapting("true", wanted=TaskSelection(role_id="coder", is_once=True)) as adapter:
        messages = adapter.messages
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any("; hint: remove" in text for _, text in messages()):  # noqa: ASYNC110 - events say nothing of texts
                await asyncio.sleep(0.02)
