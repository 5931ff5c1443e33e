"""Commands about the event log. Asked on the command line."""

import asyncio
import functools
import json
import os
import re
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.preloaded import PROGRAM, PreloadedProcess
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer
from tests.support.reporting import reported
from tests.support.servers import PATIENCE_SECONDS

from lifesign.cli import main
from lifesign.cli.commands.events import event_line
from lifesign.client import RegistryClient
from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE
from lifesign.client.registry_events import LoggedEvent
from lifesign.domain.access.permissions import Role
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.targets.target import target_id

TARGET = target_id("https://agent.example/a2a")

Captured = pytest.CaptureFixture[str]


def shown_by(capsys: Captured, *arguments: str, ends: int = 0) -> str:
    assert main([*arguments]) == ends
    captured = capsys.readouterr()
    return captured.out if ends == 0 else captured.err


def register(capsys: Captured, *agent_ids: str) -> None:
    for agent_id in agent_ids:
        shown_by(capsys, "agents", "register", agent_id)


def test_columns_of_events_are_aligned(registry: RegistryServer, capsys: Captured) -> None:
    register(capsys, "a")
    shown_by(capsys, "agents", "drain", "a")
    lines = shown_by(capsys, "events", "list").splitlines()
    assert lines[0].split() == ["SEQUENCE", "TIME", "TYPE", "WHAT"]
    assert "a: registering -> active (registered) by " in lines[1]
    assert lines[2].split()[0] == "2"
    assert "a: active -> draining (drain_initiated)" in lines[3]


def test_events_are_filtered_and_the_next_page_is_named(registry: RegistryServer, capsys: Captured) -> None:
    register(capsys, "a", "b")

    def sequences(*options: str) -> list[int]:
        found = json.loads(shown_by(capsys, "events", "list", "--json", *options))
        return [event["sequence"] for event in found["events"]]

    assert sequences() == [1, 2, 3, 4]
    assert sequences("--after", "1", "--limit", "2") == [2, 3]
    assert sequences("--type", "key.created", "--type", "agent.updated") == [2, 4]
    assert sequences("--agent", "b") == [3, 4]
    assert "more: --after 2, up to 4" in shown_by(capsys, "events", "list", "--limit", "2")


def test_events_of_several_pages_are_listed(
    registry: RegistryServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.cli.commands.events.PAGE", 3)
    register(capsys, "a", "b", "c", "d")
    found = json.loads(shown_by(capsys, "events", "list", "--json", "--limit", "7"))
    assert [event["sequence"] for event in found["events"]] == [*range(1, 8)]
    assert (found["next_after"], found["last_sequence"]) == (7, 8)


def test_refusal_of_the_registry_exits_with_1(registry: RegistryServer, capsys: Captured) -> None:
    assert "422" in shown_by(capsys, "events", "list", "--type", "bogus", ends=1)
    assert "422" in shown_by(capsys, "events", "tail", "--after", "1000", ends=1)


def test_wrong_usage_exits_with_3(capsys: Captured) -> None:
    assert shown_by(capsys, "events", "list", "--after", "-1", ends=3)
    assert shown_by(capsys, "events", "tail", "--after", "soon", ends=3)


# ── tail ──


@contextmanager
def tailing(*options: str, key: str | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the command in a separate process, since a signal ends it."""
    environment = dict(os.environ) | ({} if key is None else {KEY_VARIABLE: key})
    with PreloadedProcess(
        [PROGRAM, "events", "tail", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        watch = threading.Timer(PATIENCE_SECONDS, process.kill)
        watch.start()
        try:
            yield process
        finally:
            watch.cancel()
            process.kill()


def read_lines(process: "subprocess.Popen[bytes]", number: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().decode() for _ in range(number)]


def send_result(registry: RegistryServer) -> None:
    """Import a list with one target, and send the result of its probe."""
    seen = Observation(
        target_url="https://agent.example/a2a",
        observed_at=datetime.now(UTC),
        discovery=LayerResult(result=ResultClass.OK, status_code=200),
    )

    async def fill() -> None:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
            await client.directories.put("a-list", ["https://agent.example/a2a"])

    asyncio.run(fill())
    reported(registry.url, seen, memories=[ProbeMemory()])


def test_event_tail_shows_a_target_by_its_url(registry: RegistryServer, capsys: Captured) -> None:
    send_result(registry)
    with tailing("--after", "0", "--type", "agent.lifecycle") as process:
        (line,) = read_lines(process, 1)
    assert "agent.example/a2a: registering -> active" in line
    assert main(["events", "list", "--type", "agent.lifecycle"]) == 0
    assert "agent.example/a2a: registering -> active" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_event_tail_shows_new_events_until_a_signal(
    registry: RegistryServer, capsys: Captured, number: int
) -> None:
    register(capsys, "a")
    with tailing("--after", "0", "--type", "agent.lifecycle") as process:
        (first,) = read_lines(process, 1)
        register(capsys, "b")
        (second,) = read_lines(process, 1)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert first.split()[0] == "1"
    assert "b: registering -> active (registered) by " in second
    assert first.index("agent.lifecycle") == second.index("agent.lifecycle")


def test_event_tail_prints_json_lines_and_reconnects_after_a_restart(
    registry: RegistryServer, capsys: Captured
) -> None:
    register(capsys, "a")
    with tailing("--after", "0", "--json") as process:
        before = read_lines(process, 2)
        registry.stop()
        registry.start()
        register(capsys, "b")
        after = read_lines(process, 2)
    assert [json.loads(line)["sequence"] for line in (*before, *after)] == [1, 2, 3, 4]


def test_event_tail_exits_with_1_if_its_key_is_revoked(registry: RegistryServer, capsys: Captured) -> None:
    register(capsys, "a")
    with tailing("--after", "0", key=KEYS[Role.READER]) as process:
        read_lines(process, 2)
        registry.stop()
        registry.revoke(KEYS[Role.READER])
        registry.start()
        assert process.wait(PATIENCE_SECONDS) == 1
        assert process.stderr is not None
        assert b"unknown_key" in process.stderr.read()


def test_event_tail_ends_without_an_error_if_its_output_is_closed(
    registry: RegistryServer, capsys: Captured
) -> None:
    register(capsys, "a")
    with tailing("--after", "0") as process:
        read_lines(process, 2)
        assert process.stdout is not None
        process.stdout.close()
        register(capsys, "b")
        assert process.wait(PATIENCE_SECONDS) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_unreachable_registry_exits_with_2(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "ahk_any")
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:1")
    impatient = functools.partial(RegistryClient, timeout_seconds=0.3)
    monkeypatch.setattr("lifesign.client.registry.RegistryClient", impatient)
    assert "Connection refused" in shown_by(capsys, "events", "tail", ends=2)


# ── verify ──


def verify(capsys: Captured, url: str, *options: str, ends: int = 0) -> str:
    assert main(["events", "verify", "--database", url, *options]) == ends
    captured = capsys.readouterr()
    return captured.err if ends > 1 else captured.out


def test_intact_log_is_reported_with_its_checkpoint(registry: RegistryServer, capsys: Captured) -> None:
    register(capsys, "a", "b")
    last = json.loads(shown_by(capsys, "events", "list", "--json"))["events"][-1]
    shown = verify(capsys, registry.database_url)
    assert f"checkpoint  4 {last['hash']}\n" in shown
    report = json.loads(verify(capsys, registry.database_url, "--json"))
    assert (report["good"], report["agents"], report["events"]) == (True, 2, 4)
    assert report["checkpoint"] == {"sequence": 4, "hash": last["hash"]}


def test_erased_events_are_counted_with_archived_ones(registry: RegistryServer, capsys: Captured) -> None:
    register(capsys, "a", "b")
    assert "erased" not in verify(capsys, registry.database_url)
    shown_by(capsys, "agents", "erase", "a", "--yes")
    (line,) = [line for line in verify(capsys, registry.database_url).splitlines() if "erased" in line]
    assert "archived ones" in line
    report = json.loads(verify(capsys, registry.database_url, "--json"))
    assert [int(number) for number in re.findall(r"\d+", line)] == [report["events"], report["erased"]]


def test_archives_that_still_contain_erased_agents_are_reported(
    registry: RegistryServer, capsys: Captured
) -> None:
    assert json.loads(verify(capsys, registry.database_url, "--json"))["archive_erasures"] == 0
    assert "archives" not in verify(capsys, registry.database_url)
    with closing(sqlite3.connect(registry.directory / "registry.db")) as connection, connection:
        connection.execute("INSERT INTO archive_erasures VALUES (9, 'agent-1', '[[1,5]]', 0)")
    assert json.loads(verify(capsys, registry.database_url, "--json"))["archive_erasures"] == 1
    assert "may still contain 1 erased agent\n" in verify(capsys, registry.database_url)


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("UPDATE events SET actor = 'somebody' WHERE sequence = 2", "event 2"),
        ("DELETE FROM events WHERE sequence = 3", "event 3"),
    ],
)
def test_verify_of_a_changed_log_exits_with_1(
    registry: RegistryServer, capsys: Captured, statement: str, word: str
) -> None:
    register(capsys, "a", "b")
    with closing(sqlite3.connect(registry.directory / "registry.db")) as connection, connection:
        connection.execute(statement)
    shown = verify(capsys, registry.database_url, ends=1)
    assert re.search(" (NOT|CHANGED) ", shown)
    assert word in shown
    assert "the store" not in shown
    assert not json.loads(verify(capsys, registry.database_url, "--json", ends=1))["good"]


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("UPDATE agents SET status = 'dead'", "agent a: status is active "),
        ("UPDATE keys SET role = 'admin' WHERE agent_id = 'a'", ": role is agent "),
    ],
)
def test_changed_table_is_reported_apart_from_the_log(
    registry: RegistryServer, capsys: Captured, statement: str, word: str
) -> None:
    register(capsys, "a", "b")
    with closing(sqlite3.connect(registry.directory / "registry.db")) as connection, connection:
        connection.execute(statement)
    shown = verify(capsys, registry.database_url, ends=1)
    assert re.search(r"^the store .* NOT .*\nbecause ", shown, re.MULTILINE)
    assert word in shown
    report = json.loads(verify(capsys, registry.database_url, "--json", ends=1))
    assert (report["good"], report["fault"], len(report["differences"]) > 0) == (False, None, True)


def test_verify_of_an_unreadable_database_exits_with_2(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    assert "migrate" in verify(capsys, f"sqlite:///{tmp_path}/empty.db", ends=2)
    (tmp_path / "text.db").write_text("no database at all " * 100)
    assert verify(capsys, f"sqlite:///{tmp_path}/text.db", ends=2)


def test_verify_creates_no_database(capsys: Captured, tmp_path: Path) -> None:
    assert verify(capsys, f"sqlite:///{tmp_path}/none.db", ends=3)
    assert verify(capsys, "mysql://x", ends=3)
    assert list(tmp_path.iterdir()) == []


# ── events ──


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"agent_id": "a", "previous_health": "unknown", "new_health": "healthy"}, "a: unknown -> healthy"),
        ({"erased": "0" * 64}, "(erased)"),
        (
            {"agent_id": "a", "without_lease": ["t1", "t2"], "not_in_progress": []},
            "a: without_lease t1, t2 by x",
        ),
        ({"resource": "task:1", "fencing_token": 3}, "task:1: fencing_token 3 by x"),
        ({"cause": "suspended", "exits": 30}, "cause suspended; exits 30 by x"),
        (
            {"holder": "h", "shards": [{"shard": n, "fencing_token": 1} for n in (9, 3, 1, 2)]},
            "holder h; shards 1-3, 9 by x",
        ),
        (
            {
                "version": 2,
                "changes": [
                    {"pointer": "/skills/a", "change": "removed", "breaking": True},
                    {"pointer": "/name", "change": "changed", "breaking": False},
                ],
            },
            "version 2; changes /skills/a removed (breaking), /name changed by x",
        ),
        # Values of a later version, or of another program.
        ({"changes": [{"pointer": "/name"}]}, 'changes [{"pointer":"/name"}] by x'),
        ({"shards": [{"shard": "one"}]}, 'shards [{"shard":"one"}] by x'),
        ({"is_held": True, "until": None}, "is_held true; until null by x"),
        ({"agent_id": 7, "places": [[1, 2], []]}, "7: places [[1,2],[]] by x"),
        ({"agent_id": "a", "settings": {"on": True, "name": "ö"}}, 'a: settings {"on":true,"name":"ö"} by x'),
        (
            {
                "agent_id": "a",
                "previous_status": "active",
                "new_status": "unhealthy",
                "reason": "assertion_failed",
                "explanation": "got 41",
            },
            "a: active -> unhealthy (assertion_failed: got 41) by x",
        ),
        (
            {"task_id": "t", "previous_status": "queued", "new_status": "assigned", "signal": "granted"},
            "t: queued -> assigned (granted) by x",
        ),
        (
            {"task_id": "t", "previous_status": "running", "new_status": "failed", "exit_reason": "crash"},
            "t: running -> failed (crash) by x",
        ),
        (
            {
                "task_id": "t",
                "previous_status": "running",
                "new_status": "failed",
                "signal": "run_failed",
                "exit_reason": "lease_expired",
            },
            "t: running -> failed (run failed, lease expired) by x",
        ),
        (
            {
                "task_id": "t",
                "previous_status": "running",
                "new_status": "handoff",
                "signal": "help_asked",
                "exit_reason": "completed",
            },
            "t: running -> handoff (help asked) by x",
        ),
        ({"task_id": "t", "run_id": "r", "report": 2}, "t: run_id r; report 2 by x"),
    ],
)
def test_each_event_is_one_line(payload: dict[str, Any], text: str) -> None:
    members = {"id": "evt_1", "type": "any", "created_at": "", "previous_hash": "", "hash": ""}
    event = LoggedEvent.model_validate({"sequence": 1, "actor": "x", "payload": payload, **members})
    assert event_line(event) == text


@pytest.mark.parametrize(
    "payload",
    [
        {"previous_status": "active", "new_status": "dead", "agent_id": TARGET},
        {"previous_health": "healthy", "new_health": "unknown", "agent_id": TARGET},
        {"agent_id": TARGET, "changed": ["name"]},
    ],
)
def test_target_is_shown_by_its_url(payload: dict[str, Any]) -> None:
    members = {"id": "evt_1", "type": "any", "created_at": "", "previous_hash": "", "hash": ""}
    event = LoggedEvent.model_validate({"sequence": 1, "actor": "x", "payload": payload, **members})
    assert event_line(event, {TARGET: "agent.example/a2a"}).startswith("agent.example/a2a: ")


@pytest.mark.parametrize("what", ["maintenance", "override"])
def test_ended_entries_are_listed(what: str) -> None:
    members = {
        "id": "evt_1",
        "created_at": "",
        "previous_hash": "",
        "hash": "",
        "type": f"agent.{what}_changed",
    }
    event = LoggedEvent.model_validate({"sequence": 1, "actor": "x", "payload": {"agent_id": "a"}, **members})
    assert event_line(event) == f"a: {what} ended by x"


def test_json_has_all_events_unless_a_limit_is_given(
    registry: RegistryServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["agents", "register", "a"]) == 0
    assert main(["agents", "register", "b"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("lifesign.cli.commands.events.PAGE", 1)
    monkeypatch.setattr("lifesign.cli.commands.events.USUAL_IN_TABLE", 1)
    found = json.loads(shown_by(capsys, "events", "list", "--json"))
    assert len(found["events"]) == found["last_sequence"] > 1
    assert "more: --after 1" in shown_by(capsys, "events", "list")


def test_events_of_shards_are_listed_only_on_request(registry: RegistryServer, capsys: Captured) -> None:
    register(capsys, "a")
    assert "(use --all)" not in shown_by(capsys, "events", "list")
    send_result(registry)
    shown = shown_by(capsys, "events", "list")
    assert "shards." not in shown
    assert shown.endswith("(use --all)\n")
    for option in ("--all", "--json", "--type=shards.granted"):
        complete = shown_by(capsys, "events", "list", option)
        assert "shards.granted" in complete
        assert "use --all" not in complete
