import asyncio
import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.registry_server import ADMIN_KEY, RegistryServer

from lifesign.cli import main
from lifesign.client import RegistryClient
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.client.registry_tasks import HeldRun

Captured = pytest.CaptureFixture[str]

ABSENT = f"task_{'0' * 26}"


def shown_by(capsys: Captured, *arguments: str, ends: int = 0) -> str:
    """Run a command and return its output; its errors are discarded."""
    assert main(["tasks", *arguments]) == ends, capsys.readouterr().err
    captured = capsys.readouterr()
    assert ADMIN_KEY not in captured.out + captured.err
    return captured.out if ends == 0 else captured.err


def json_of(capsys: Captured, *arguments: str) -> Any:
    return json.loads(shown_by(capsys, *arguments, "--json"))


def worked_at(
    registry: RegistryServer,
    agent_id: str = "worker",
    *,
    asks_for_help: bool = False,
    delegates: bool = False,
) -> None:
    """Let an agent take the first task, report, perhaps delegate a part, and hand its result in."""

    async def work() -> None:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
            key = (await client.agents.register(agent_id)).agent_key
        async with RegistryClient(registry.url, key=key) as own:
            grant = await own.tasks.claim()
            assert grant is not None
            run = HeldRun.of(grant)
            report = {"summary": "drafted:\r\n- \x1b[31mit", "nextStep": "polish", "blockers": ["no logo"]}
            await own.tasks.report_progress(run, report, idempotency_key="1")
            if delegates:
                await own.tasks.delegate_subtask(run, {"title": "A part"}, idempotency_key="2")
            if asks_for_help:
                await own.tasks.request_human_help(run, "which logo?")
            else:
                await own.tasks.mark_complete(run, {"page": "index.html"})

    asyncio.run(work())


def test_task_is_created_executed_and_reviewed(
    registry: RegistryServer, capsys: Captured, tmp_path: Path
) -> None:
    given = tmp_path / "input.json"
    given.write_text('{"brief": "b"}')
    made = json_of(capsys, "create", "Write it", "--usd", "1.5", "--tokens", "10", "--input", str(given))
    assert (made["status"], made["input"]) == ("queued", {"brief": "b"})
    assert made["budget"]["envelope"] == {"tokens": 10, "usd": 1.5}
    options = ("--pool", "writers", "--backoff", "1m", "--lease", "2h", "--max-attempts", "7")
    other = json_of(capsys, "create", "Write that", *options)
    assert (other["role_id"], other["backoff_seconds"], other["lease_seconds"]) == ("writers", 60, 7_200)
    assert other["max_attempts"] == 7
    worked_at(registry)
    shown = shown_by(capsys, "show", made["task_id"])
    assert "status      review since" in shown
    assert "blocked by  no logo" in shown
    assert re.search(r"created .* by \w+, key:key_\w+", shown)
    assert "report      drafted:\n              - \ufffd[31mit (" in shown
    assert "10 tokens, 1.500000 USD left of 10 tokens, 1.500000 USD" in shown
    assert "worker with token 1" in shown
    assert "\x1b" not in shown
    fix = shown_by(capsys, "review", made["task_id"], "reject", "--comment", "again")
    assert f"fix of      {made['task_id']}" in fix
    assert json_of(capsys, "show", made["task_id"])["status"] == "done"
    refused = shown_by(capsys, "cancel", made["task_id"], ends=1)
    assert "(invalid_task_transition)" in refused


def test_tasks_are_listed_newest_first(registry: RegistryServer, capsys: Captured) -> None:
    assert shown_by(capsys, "list") == "no task matches\n"
    shown_by(capsys, "create", "first", "--pool", "writers")
    second = json_of(capsys, "create", "second", "--agent", "worker")
    heads, *rows = shown_by(capsys, "list").splitlines()
    assert heads.split() == ["TASK", "STATUS", "SINCE", "HELD", "BY", "FOR", "TITLE"]
    assert [row.split()[-2:] for row in rows] == [["worker", "second"], ["writers", "first"]]
    assert shown_by(capsys, "list", "--limit", "1").endswith("1 of 2 (see --limit)\n")
    listed = json_of(capsys, "list", "--pool", "writers", "--status", "queued")
    assert (listed["total"], listed["tasks"][0]["title"]) == (1, "first")
    shown_by(capsys, "cancel", second["task_id"], "--reason", "no longer needed")
    assert json_of(capsys, "list", "--status", "cancelled")["total"] == 1


def test_cancelled_task_reports_the_delegated_tasks_that_continue(
    registry: RegistryServer, capsys: Captured
) -> None:
    made = json_of(capsys, "create", "whole")
    worked_at(registry, asks_for_help=True, delegates=True)
    assert main(["tasks", "cancel", made["task_id"], "--json"]) == 0
    captured = capsys.readouterr()
    (part,) = json.loads(captured.out)["children"]
    assert part["status"] == "queued"
    assert "1 delegated task" in captured.err
    assert main(["tasks", "cancel", part["task_id"]]) == 0
    assert not capsys.readouterr().err


def test_task_can_be_resolved_and_its_budget_topped_up(
    registry: RegistryServer, capsys: Captured, tmp_path: Path
) -> None:
    made = json_of(capsys, "create", "hard")
    worked_at(registry, asks_for_help=True)
    assert "because     which logo?" in shown_by(capsys, "show", made["task_id"])
    again = json_of(capsys, "resolve", made["task_id"], "requeue", "--comment", "this one")
    assert (again["status"], again["explanation"]) == ("queued", "this one")
    shown = shown_by(capsys, "show", made["task_id"])
    assert ": this one (admin, key:key_admin, " in shown
    assert ": which logo? (worker, " in shown
    (run,) = (line for line in shown.splitlines() if line.startswith("runs "))
    assert run.endswith(": asked for help"), "a run that asked for help is shown as completed"
    assert json_of(capsys, "top-up", made["task_id"], "--usd", "0.5")["budget"]["envelope"]["usd"] == 0.5
    worked_at(registry, "another", asks_for_help=True)
    output = tmp_path / "output.json"
    output.write_text('{"by": "hand"}')
    done = json_of(capsys, "resolve", made["task_id"], "done", "--output", str(output))
    assert (done["status"], done["output"]) == ("done", {"by": "hand"})


def test_invalid_values_are_usage_errors(registry: RegistryServer, capsys: Captured, tmp_path: Path) -> None:
    list_file = tmp_path / "list.json"
    list_file.write_text("[1]")
    for arguments in (
        ("review", ABSENT, "perhaps"),
        ("resolve", ABSENT, "perhaps"),
        ("top-up", ABSENT),
        ("create", "t", "--input", str(tmp_path / "missing.json")),
        ("create", "t", "--input", str(list_file)),
        ("create", "t", "--usd", "0.0000001"),
    ):
        assert shown_by(capsys, *arguments, ends=3), arguments
    for amount in ("nan", "inf", "-1", "much"):
        printed = shown_by(capsys, "create", "t", "--usd", amount, ends=3)
        assert f"expected US dollars such as 1.50; got '{amount}'" in printed
    output = shown_by(capsys, "create", "t", "--input", str(list_file), ends=3)
    assert ("--input: " in output, re.findall(r"\d{5,}", output)[:2]) == (True, ["65536", "262144"])
    assert "(task_not_found)" in shown_by(capsys, "show", ABSENT, ends=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "task_1"], "TASK_ID"),
        (["cancel", "../../x"], "TASK_ID"),
        (["review", "", "approve"], "TASK_ID"),
        (["resolve", "task_1", "requeue"], "'task_1'"),
        (["top-up", "task_1", "--usd", "1"], "'task_1'"),
        (["list", "--parent", "t" * 9_000], "--parent: "),
        (["list", "--status", "queued", "--status", "failed"], "cancelled; got 'failed'"),
        (["create", "t", "--lease", "0s"], "1s to 1d; got '0s'"),
        (["create", "t", "--backoff", "2h"], "0s to 1h; got '2h'"),
    ],
)
def test_local_errors_are_reported_without_a_request(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    # A question there would end with 2.
    monkeypatch.setenv("LIFESIGN_REGISTRY", "http://127.0.0.1:1")
    output = shown_by(capsys, *arguments, ends=3)
    assert message in output
    assert len(output) < 400


def test_lost_answer_is_reported_as_possibly_executed(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, ADMIN_KEY)
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def lose() -> None:
            with silent.accept()[0] as taken:
                taken.recv(65_536)

        thread = threading.Thread(target=lose, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        error = shown_by(capsys, "top-up", ABSENT, "--usd", "1", "--registry", url, ends=2)
        thread.join()
    assert "may have executed" in error
    error = shown_by(capsys, "top-up", ABSENT, "--usd", "1", "--registry", url, ends=2)
    assert "may have executed" not in error


def test_json_has_all_tasks_unless_a_limit_is_given(
    registry: RegistryServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.cli.commands.tasks.PAGE", 2)
    monkeypatch.setattr("lifesign.cli.commands.tasks.USUAL_IN_TABLE", 3)
    for title in "abcde":
        shown_by(capsys, "create", title)
    assert len(json_of(capsys, "list")["tasks"]) == 5
    assert "3 of 5 (see --limit)" in shown_by(capsys, "list")
