import asyncio
import errno
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.adapting import World, python, shell
from tests.support.renewing import LONG_SECONDS, renew_soon
from tests.support.servers import PATIENCE_SECONDS, until

from lifesign.adapter.process import process_watcher
from lifesign.adapter.process.agent_process import AgentProcess
from lifesign.adapter.process.agent_user import AgentUser
from lifesign.adapter.process.run_deadline import RunDeadline
from lifesign.adapter.run_events import RunEvent, RunEventKind
from lifesign.adapter.task_run import BUDGET_GONE
from lifesign.adapter.tools.proxy_context import EndRequest, ToolProxyContext
from lifesign.adapter.workspaces import Workspaces
from lifesign.client.registry_tasks import HeldRun

ROOT = AgentUser(name="root", uid=0, gid=0, groups=(0,), home="/", login_shell="/bin/sh")
SLEEPER = shell("echo $$ > pid; exec sleep 1000")


def pid_in(file: Path) -> int:
    return until(f"{file.name} is written", lambda: file.exists() and int(file.read_text() or "0"))


async def written(file: Path) -> int:
    """Wait for a process number without keeping the loop from its work."""
    return await asyncio.to_thread(pid_in, file)


async def test_exit_code_0_submits_the_task_with_the_output_file(world: World) -> None:
    code = """echo '{"page": "index.html"}' > $LIFESIGN_WORKSPACE/output.json"""
    async with world.adapting(*shell(code)) as adapter:
        assert (await adapter.outcome()).is_done
    after = await world.now()
    assert (after.status, after.output) == ("review", {"page": "index.html"})
    # Nothing of a run that is done is kept.
    assert list((world.directory / "runs").iterdir()) == []


async def test_loop_continues_while_a_workspace_is_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, goes_on = threading.Event(), threading.Event()
    remove = Workspaces._remove

    def remove_slowly(places: Workspaces, run_id: str) -> bool:
        has_begun.set()
        # On the loop, this wait would never end.
        return goes_on.wait(PATIENCE_SECONDS) and remove(places, run_id)

    monkeypatch.setattr(Workspaces, "_remove", remove_slowly)
    async with world.adapting("true") as adapter:
        assert await asyncio.to_thread(has_begun.wait, 60)
        assert not adapter.living.done()
        goes_on.set()
        assert (await adapter.outcome()).is_done
    assert list((world.directory / "runs").iterdir()) == []


async def test_command_gets_lease_and_input_and_no_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFESIGN_KEY", "ahk_ours")
    monkeypatch.setenv("LIFESIGN_SERVER_DATABASE", "postgresql://user:secret@host/db")
    monkeypatch.setenv("OTHERS", "kept")
    monkeypatch.setenv("HIDDEN", "secret")
    seen = world.directory / "seen.json"
    code = (
        "import json, os; from pathlib import Path; work = Path.cwd(); "
        f"Path({str(seen)!r}).write_text(json.dumps([dict(os.environ), sorted(os.listdir()), "
        "json.loads((work / 'input.json').read_text()), work.stat().st_mode & 0o777, str(work)]))"
    )
    async with world.adapting(*python(code), hidden=["HIDDEN"]) as adapter:
        await adapter.outcome()
        granted = await adapter.until("granted")
        own_key = adapter.keys.current()
    environment, files, given, mode, at = json.loads(seen.read_text())
    assert (given, mode) == ({"brief": "b"}, 0o700)
    assert files == ["input.json", "stderr.log", "stdout.log"]
    ours = {
        name.removeprefix("LIFESIGN_"): value
        for name, value in environment.items()
        if name.startswith("LIFESIGN_")
    }
    lease = json.loads(ours.pop("LEASE"))
    assert ours == {
        "TASK_ID": world.task.task_id,
        "RUN_ID": granted.run_id,
        "FENCING_TOKEN": "1",
        "LEASE_EXPIRES_AT": lease["leaseExpiresAt"],
        "WORKSPACE": str(world.directory / "runs" / str(granted.run_id)),
    }
    assert lease == {
        "taskId": world.task.task_id,
        "runId": granted.run_id,
        "leaseExpiresAt": lease["leaseExpiresAt"],
        "fencingToken": 1,
        "budgetEnvelope": {"tokens": 0, "usd": 0},
        "workspacePath": ours["WORKSPACE"],
    }
    assert at == ours["WORKSPACE"]
    assert environment["OTHERS"] == "kept"
    assert "HIDDEN" not in environment
    assert own_key is not None
    assert not {own_key, "ahk_ours"} & set(environment.values())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("echo '[1]' > $OUT", "output.json: expected a JSON object"),
        ("echo '{' > $OUT", "output.json: expected a JSON object"),
        ("""echo '{"a": NaN}' > $OUT""", "expected finite numbers"),
        ("""echo '{"a": [{"b": 1e400}]}' > $OUT""", "expected finite numbers"),
        ("head -c 300000 /dev/zero > $OUT", "262144 bytes"),
        (r"printf '{\"a\": \"\377\"}' > $OUT", "UTF-8"),
        ("mkfifo $OUT", "output.json: expected a file"),
        ("mkdir $OUT", "output.json: expected a file"),
        ("ln -s /etc/hostname $OUT", "output.json: expected a readable file (it is a link)"),
    ],
)
async def test_output_that_cannot_be_submitted_is_a_crash_with_a_reason(
    world: World, code: str, message: str
) -> None:
    async with world.adapting(*shell(f"OUT=$LIFESIGN_WORKSPACE/output.json; {code}")) as adapter:
        outcome = await adapter.outcome()
        assert message in outcome.text
    assert await world.runs() == [("crash", 0)]


async def test_exit_code_0_without_completion_on_exit_is_no_result(world: World) -> None:
    async with world.adapting("true", completes_on_exit=False) as adapter:
        await adapter.outcome()
    assert await world.runs() == [("crash", 0)]


async def test_slow_command_is_ended_with_its_children(world: World) -> None:
    ready = world.directory / "ready"
    code = f"sleep 1000 & echo $! > pid; trap '' TERM; touch {ready}; while :; do sleep 0.1; done"

    def once_ready(expected: RunEvent) -> None:
        # The time limit of the run begins when this function returns.
        if expected.what is RunEventKind.STARTED:
            until("the agent is ready", ready.exists)

    async with world.adapting(*shell(code), timeout_s=0.5, grace_s=0.2, hears=once_ready) as adapter:
        outcome = await adapter.outcome()
        assert (outcome.end.exit_reason, outcome.exit_code) == ("timeout", -9)
        assert pid_in(adapter.workspace() / "pid") not in process_watcher.processes()
    assert await world.runs() == [("timeout", -9)]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("while :; do sleep 0.1; done", id="a loop that sleeps"),
        pytest.param("kill -STOP $$; exit 3", id="stopped"),
    ],
)
async def test_hung_agent_is_killed_and_its_task_is_released(world: World, code: str) -> None:
    async with world.adapting(*shell(f"echo begun; {code}"), no_progress_s=0.5, grace_s=5) as adapter:
        outcome = await adapter.outcome()
        stopping = await adapter.until("stopping")
    assert (outcome.end.exit_reason, outcome.was_notified) == ("no_progress", True)
    assert stopping.text.endswith("it has written nothing and called no tool for 0.5 s")
    assert [reason for reason, _ in await world.runs()] == ["no_progress"]
    assert (await world.now()).status == "queued"


@pytest.mark.parametrize("stop", [{"no_progress_s": 0.5}, {"timeout_s": 0.5}])
async def test_hung_agent_that_exits_with_0_when_stopped_submits_nothing(
    world: World, stop: dict[str, float]
) -> None:
    hung = "trap 'exit 0' TERM; echo '{}' > $LIFESIGN_WORKSPACE/output.json; while :; do sleep 0.1; done"
    async with world.adapting(*shell(hung), grace_s=5, **stop) as adapter:
        outcome = await adapter.outcome()
    assert outcome.exit_code == 0
    reason = "no_progress" if "no_progress_s" in stop else "timeout"
    assert await world.runs() == [(reason, 0)]
    assert (await world.now()).status == "queued"


async def test_agent_without_progress_is_stopped_only_if_configured(world: World) -> None:
    async with world.adapting(*shell("sleep 1")) as adapter:
        assert (await adapter.outcome()).is_done


async def test_a_task_that_is_cancelled_ends_its_agent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    renew_soon(monkeypatch)
    world = await world.leased_for(LONG_SECONDS)
    async with world.adapting(*SLEEPER) as adapter:
        await adapter.until("started")
        pid = await written(adapter.workspace() / "pid")
        await world.client.tasks.cancel(world.task.task_id)
        outcome = await adapter.outcome()
        assert (outcome.end.exit_reason, outcome.exit_code) == ("lease_expired", -15)
        assert "cancelled" in (await adapter.until("stopping")).text
        assert "cancelled" in outcome.text
        assert pid not in process_watcher.processes()
        assert adapter.workspace().is_dir()


async def test_a_task_that_is_cancelled_ends_its_agent_with_the_next_heartbeat(world: World) -> None:
    async with world.adapting(*SLEEPER) as adapter:
        await adapter.until("started")
        await adapter.adapter._loop.send_heartbeat()
        await world.client.tasks.cancel(world.task.task_id)
        # The lease is still valid for minutes.
        await adapter.adapter._loop.send_heartbeat()
        assert "cancelled" in (await adapter.outcome()).text


@pytest.mark.parametrize(("code", "reason"), [("kill -9 $$", "lease_expired"), ("exit 1", "crash")])
async def test_agent_that_was_killed_at_its_deadline_has_not_crashed(
    world: World, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    monkeypatch.setattr(RunDeadline, "is_due", True)
    async with world.adapting(*shell(code)) as adapter:
        assert (await adapter.outcome()).end.exit_reason == reason


async def test_a_lease_is_renewed_while_its_agent_works(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_soon(monkeypatch)
    world = await world.leased_for(LONG_SECONDS)
    go = world.directory / "go"
    async with world.adapting(*shell(f"until test -e {go}; do sleep 0.05; done")) as adapter:
        await adapter.until("started")
        first_s = adapter.lease().deadline_s
        async with asyncio.timeout(PATIENCE_SECONDS):
            # Renewed, and once more.
            while adapter.lease().deadline_s < first_s + 0.8:  # noqa: ASYNC110 - a keeper tells its run alone
                await asyncio.sleep(0.05)
        go.touch()
        assert (await adapter.outcome()).is_done
    assert (await world.now()).status == "review"


async def test_case_23_the_next_run_gets_the_latest_report_and_a_new_token(world: World) -> None:
    async with world.adapting(*SLEEPER) as adapter:
        granted = await adapter.until("started")
        pid = await written(adapter.workspace() / "pid")
        first = HeldRun(task_id=world.task.task_id, run_id=str(granted.run_id), fencing_token=1)
        async with adapter.client() as own:
            await own.tasks.report_progress(
                first, {"summary": "half of it", "nextStep": "the rest"}, idempotency_key="1"
            )
        os.kill(pid, 9)
        await adapter.outcome()
    code = "cat $LIFESIGN_WORKSPACE/latest_report.json; echo $LIFESIGN_FENCING_TOKEN; exit 1"
    async with replace(world, directory=world.directory / "2").adapting(*shell(code)) as adapter:
        await adapter.outcome()
        output = (adapter.workspace() / "stdout.log").read_text()
        report, end = json.JSONDecoder().raw_decode(output)
        assert (report["summary"], report["nextStep"]) == ("half of it", "the rest")
        assert int(output[end:]) > first.fencing_token


async def test_next_run_gets_the_comments_of_a_resolution(world: World) -> None:
    async with world.adapting(*shell("test ! -e $LIFESIGN_WORKSPACE/comments.json && exit 77")) as adapter:
        assert (await adapter.outcome()).exit_code == 77
    await world.client.tasks.resolve(world.task.task_id, "requeue", comment="use logo-2026")
    other = replace(world, directory=world.directory / "2")
    async with other.adapting(*shell("cat $LIFESIGN_WORKSPACE/comments.json; exit 1")) as adapter:
        await adapter.outcome()
        (output,) = json.loads((adapter.workspace() / "stdout.log").read_text())
    assert (output["signal"], output["comment"]) == ("requeued", "use logo-2026")


async def test_task_whose_command_cannot_start_is_released_at_once(world: World) -> None:
    async with world.adapting("no-such-program") as adapter:
        outcome = await adapter.outcome()
        assert not outcome.could_start
    assert await world.runs() == [("killed", None)]
    assert (await world.now()).status == "queued"


async def test_run_is_not_released_after_a_failed_process_search(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.adapter.process.agent_process.WATCHER_TIMEOUT_SECONDS", 0.1)

    async def refused(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "/proc")

    monkeypatch.setattr("lifesign.adapter.process.agent_process.end_remaining", refused)
    async with world.adapting(*SLEEPER) as adapter:
        await adapter.until("started")
        watching = process_watcher.processes()[await written(adapter.workspace() / "pid")][0]
        os.kill(watching, signal.SIGKILL)
        result = await adapter.until("stopping")
        assert result.text.startswith(
            "the task is not released, since processes of it may still run: "
            "[Errno 24] Too many open files: '/proc'; its lease expires in "
        )
        # No other agent gets it while the lease lasts, and the lease is lost to us.
        assert (await world.now()).status == "assigned"
        assert not adapter.living.done()
        assert not adapter.lease().is_held()
        adapter.adapter.drain("the test ends")
        adapter.adapter.drain("the test does not wait so long")
        outcome = await adapter.outcome()
        assert (outcome.end.exit_reason, outcome.exit_code) == ("lease_expired", -9)
        assert not outcome.could_start
        # A reader of the files finds all of it.
        assert adapter.workspace().is_dir()


@dataclass(frozen=True)
class Place:
    url: str = "http://127.0.0.1:1/mcp"
    run_token: str = "ahr_token"


def tools(function: Callable[[ToolProxyContext], Any], when: Path) -> Callable[[ToolProxyContext], Any]:
    """A tool proxy that does one thing as soon as a file is there."""

    @asynccontextmanager
    async def open_tools(held: ToolProxyContext) -> AsyncIterator[Place]:
        async def act() -> None:
            await asyncio.to_thread(until, "the agent is ready", when.exists)
            await function(held)

        acting = asyncio.create_task(act())
        try:
            yield Place()
        finally:
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)

    return open_tools


async def test_tool_calls_use_other_connections_than_the_lease(world: World) -> None:
    ready, are_shared = world.directory / "ready", []

    async def complete(held: ToolProxyContext) -> None:
        are_shared.append(held.registry.leases._connection is adapter.lease()._leases._connection)
        await held.registry.tasks.mark_complete(held.run, {}, idempotency_key="1")
        held.ended("mark_complete")

    code = f"touch {ready}; exec sleep 1000"
    async with world.adapting(*shell(code), open_tools=tools(complete, ready), grace_s=0.2) as adapter:
        assert (await adapter.outcome()).is_done
    assert are_shared == [False]


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root may become another user")
@pytest.mark.parametrize(("user", "uid"), [(None, None), (ROOT, 0)])
async def test_tools_know_the_user_of_the_agent(
    user: AgentUser | None, uid: int | None, world: World
) -> None:
    ready, heard = world.directory / "ready", []

    async def note(held: ToolProxyContext) -> None:
        heard.append(held.agent_uid)
        (world.directory / "noted").touch()

    code = f"cd {world.directory}; touch ready; until test -e noted; do sleep 0.02; done"
    async with world.adapting(*shell(code), open_tools=tools(note, ready), user=user) as adapter:
        await adapter.outcome()
    assert heard == [uid]


async def test_agent_that_submits_its_task_itself_may_exit_gracefully(world: World) -> None:
    ready, done = world.directory / "ready", world.directory / "done"

    async def complete(held: ToolProxyContext) -> None:
        assert held.is_held()
        await held.registry.tasks.mark_complete(held.run, {"by": "tool"})
        held.ended("mark_complete")
        assert not held.is_held()
        done.touch()

    message = "$LIFESIGN_PROXY_URL $LIFESIGN_RUN_TOKEN"
    code = f"echo {message} > {ready}; until test -e {done}; do sleep 0.05; done; exit 9"
    async with world.adapting(*shell(code), open_tools=tools(complete, ready)) as adapter:
        outcome = await adapter.outcome()
        assert (outcome.end.exit_reason, outcome.exit_code, outcome.is_done) == ("completed", 9, True)
    assert ready.read_text() == "http://127.0.0.1:1/mcp ahr_token\n"
    assert (await world.now()).output == {"by": "tool"}


@pytest.mark.parametrize(
    ("refusal", "status", "output", "runs"),
    [
        ("", "review", {"by": "tool"}, [("completed", None)]),
        ("invalid_argument", "queued", None, [("crash", 0)]),
    ],
)
async def test_agent_whose_result_was_not_confirmed_submits_no_empty_one(
    world: World,
    refusal: str,
    status: str,
    output: dict[str, str] | None,
    runs: list[tuple[str, int | None]],
) -> None:
    ready, done = world.directory / "ready", world.directory / "done"

    async def fail(held: ToolProxyContext) -> None:
        given = {"output": {"by": "tool"}, "idempotency_key": "its-key", "refusal": refusal}
        held.ending(EndRequest(tool="mark_complete", **given))  # type: ignore[arg-type]
        done.touch()

    code = f"touch {ready}; until test -e {done}; do sleep 0.05; done"
    async with world.adapting(*shell(code), open_tools=tools(fail, ready)) as adapter:
        outcome = await adapter.outcome()
    now = await world.now()
    assert (now.status, now.output) == (status, output)
    assert refusal in outcome.text
    assert await world.runs() == runs


async def test_agent_that_continues_after_its_run_is_ended(world: World) -> None:
    async def ask(held: ToolProxyContext) -> None:
        await held.registry.tasks.request_human_help(held.run, "which logo?")
        held.ended("request_human_help")

    ready = world.directory / "ready"
    opened = tools(ask, ready)
    async with world.adapting(
        *shell(f"touch {ready}; exec sleep 1000"), open_tools=opened, grace_s=0.2
    ) as adapter:
        outcome = await adapter.outcome()
        assert outcome.end.exit_reason == "completed"
        # SIGTERM, or SIGKILL if the process did not end within its grace period.
        assert outcome.exit_code in {-15, -9}
        # The workspace of such a run needs a review.
        assert not outcome.has_result
        assert (await adapter.until("help_requested")).workspace == str(adapter.workspace())
    assert await world.runs() == [("completed", None)]
    assert (await world.now()).status == "handoff"


async def test_agent_that_submitted_its_task_gets_one_grace_period(world: World) -> None:
    ready, grace_s = world.directory / "ready", 4.0
    now_s = asyncio.get_running_loop().time
    ended_s: list[float] = []

    async def ask(held: ToolProxyContext) -> None:
        held.ended("request_human_help")
        ended_s.append(now_s())

    code = f"trap '' TERM; touch {ready}; while :; do sleep 0.05; done"
    opened = tools(ask, ready)
    async with world.adapting(*shell(code), open_tools=opened, grace_s=grace_s) as adapter:
        await adapter.until("stopping")
        run, asked_s = adapter.adapter._run, now_s()
        assert run is not None
        assert asked_s + run._grace_s() <= ended_s[0] + grace_s
        assert (await adapter.outcome()).exit_code == -9
        assert adapter.messages()[-2] == ("help_requested", "it has called request_human_help, and goes on")


async def test_process_that_cannot_be_killed_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end(process: AgentProcess, *_: object) -> bool:
        # Simulates a process of another user, which cannot be killed.
        await process.kill()
        return False

    monkeypatch.setattr(AgentProcess, "end", end)
    async with world.adapting("true") as adapter:
        await adapter.outcome()
        assert "still run" in dict(adapter.messages())["stopping"]


async def test_agent_without_budget_is_stopped_and_its_task_escalated_if_configured(
    world: World,
) -> None:
    async def spend(held: ToolProxyContext) -> None:
        held.budget_gone()

    ready = world.directory / "ready"
    opened = tools(spend, ready)
    async with world.adapting(
        *shell(f"touch {ready}; exec sleep 1000"),
        open_tools=opened,
        stops_on_budget=True,
    ) as adapter:
        outcome = await adapter.outcome()
        assert not outcome.has_result
        assert await world.runs() == [(outcome.end.exit_reason, None)]
        assert adapter.workspace().is_dir()
    after = await world.now()
    assert (after.status, after.explanation) == ("handoff", BUDGET_GONE)
    assert (await world.client.leases.list()).leases == []
