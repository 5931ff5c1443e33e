import asyncio
import json
import re
import stat
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.assertions import asserted
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer
from tests.support.reporting import report
from tests.support.suspension import suspend

from lifesign.cli import main
from lifesign.cli.output.agent_page import health_with_age, page, status_text
from lifesign.client import RegistryClient
from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.agents import AgentRecord
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.targets.target import target_id

EVIL = "\x1b]0;owned\x07\u202e\x7f\n"
Captured = pytest.CaptureFixture[str]


def shown_by(capsys: Captured, *arguments: str, ends: int = 0) -> str:
    """Run a command and return its output; its errors are discarded."""
    assert main(["agents", *arguments]) == ends, capsys.readouterr().err
    captured = capsys.readouterr()
    assert ADMIN_KEY not in captured.out + captured.err
    assert bool(captured.err) == (ends != 0)
    return captured.out if ends == 0 else captured.err


def json_of(capsys: Captured, *arguments: str) -> Any:
    return json.loads(shown_by(capsys, *arguments, "--json"))


def test_columns_of_agents_are_aligned(registry: RegistryServer, capsys: Captured) -> None:
    shown_by(capsys, "register", "short", "--pool", "billing", "--max-tasks", "5", "--name", "Billing 1")
    shown_by(capsys, "register", "a-longer-name", "--pool", "billing")
    lines = shown_by(capsys, "list", "--pool", "billing").splitlines()
    assert lines[0].split() == ["AGENT", "STATUS", "HEALTH", "LOAD", "POOL", "LAST", "HEARTBEAT", "NAME"]
    assert {line.index(word) for line, word in zip(lines, ("STATUS", "active", "active"), strict=False)} == {
        lines[0].index("STATUS")
    }
    assert "0/5" in lines[1]
    assert lines[1].endswith("Billing 1")
    assert "0/?" in lines[2]
    assert re.findall(r"\d+", lines[3]) == ["5"], "free capacity of the pool"


def test_metadata_is_shown_as_json() -> None:
    time, metadata = "2026-11-20T12:00:00Z", {"a": True, "b": {"c": [1, None]}, "d": "true", "e": "é"}
    record = {
        "agent_id": "a", "capabilities": [], "status": "active", "capacity": {}, "health": "unknown",
        "monitoring": "heartbeat", "heartbeat_config": {}, "drain_timeout_seconds": 1, "metadata": metadata,
        "registered_at": time, "version": 1, "incarnation": 1, "etag": "e", "reason": "registered",
        "status_since": time, "explanation": "", "reported": {"current_load": 0, "tasks_in_progress": []},
    }  # fmt: skip
    shown = [line.text for line in page(AgentRecord.model_validate(record)) if line.label == "metadata"]
    assert shown == ["a: true", 'b: {"c": [1, null]}', 'd: "true"', 'e: "é"']


def test_a_record_shows_which_targets_the_agent_claims() -> None:
    time, target = "2026-11-20T12:00:00Z", {"target_id": "tgt_1", "url": "https://agent.example/"}
    links = [
        {**target, "state": "linked", "proof": "card", "proven_at": time, "linked_at": time},
        {**target, "state": "proven", "proof": "token", "proven_at": time},
        {**target, "state": "claimed"},
    ]
    record = {
        "agent_id": "a", "capabilities": [], "status": "active", "capacity": {}, "health": "unknown",
        "monitoring": "heartbeat", "heartbeat_config": {}, "drain_timeout_seconds": 1, "metadata": {},
        "registered_at": time, "version": 1, "incarnation": 1, "etag": "e", "reason": "registered",
        "status_since": time, "explanation": "", "reported": {"current_load": 0, "tasks_in_progress": []},
        "links": links,
    }  # fmt: skip
    shown = [line.text for line in page(AgentRecord.model_validate(record)) if "agent.example" in line.text]
    assert [text.partition("example/: ")[2].split()[0] for text in shown] == ["linked", "proven", "not"]


def test_agents_are_filtered_by_the_options(registry: RegistryServer, capsys: Captured) -> None:
    for number in range(3):
        shown_by(capsys, "register", f"a-{number}", "--capability", "x", "--capability", f"y{number}")
    shown_by(capsys, "deregister", "a-0")

    def listed(*options: str) -> list[str]:
        return [agent["agent_id"] for agent in json_of(capsys, "list", *options)["agents"]]

    # The last progress of a former agent no longer applies.
    assert "0/?" not in shown_by(capsys, "list", "--status", "deregistered")
    assert "load" not in shown_by(capsys, "show", "a-0")
    assert "load" in shown_by(capsys, "show", "a-1")
    assert listed() == ["a-1", "a-2"]
    assert listed("--status", "all") == ["a-0", "a-1", "a-2"]
    assert listed("--status", "dead", "--status", "deregistered") == ["a-0"]
    assert listed("--capability", "y1", "--capability", "y2") == ["a-1", "a-2"]
    assert listed("--free", "1") == []
    assert "1 of 2 (see --limit)" in shown_by(capsys, "list", "--limit", "1")


def test_agents_of_several_pages_are_listed(
    registry: RegistryServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.cli.commands.agents.PAGE", 2)
    for number in range(5):
        shown_by(capsys, "register", f"a-{number}")
    assert len(json_of(capsys, "list")["agents"]) == 5
    assert len(json_of(capsys, "list", "--limit", "3")["agents"]) == 3


def test_record_shows_all_known_fields(registry: RegistryServer, capsys: Captured) -> None:
    shown_by(capsys, "register", "a", "--card-url", "https://agent.example/card", "--endpoint", "https://x")
    shown = shown_by(capsys, "show", "a")
    for expected in (
        "agent       a\n", "status      active since", "because     registered", "https://x",
        "https://agent.example/card", "incarnation 1", 'version     "1"', "dead after 5 min",
    ):  # fmt: skip
        assert expected in shown
    assert "ahk_" not in shown
    assert json_of(capsys, "show", "a")["etag"] == '"1"'


def test_probed_agent_is_shown_without_a_heartbeat(registry: RegistryServer, capsys: Captured) -> None:
    card = "https://agent.example/card"
    shown_by(capsys, "register", "beats")
    shown_by(capsys, "register", "probed", "--card-url", card, "--monitoring", "probe")
    for option, word in (("", "heartbeat   last 20"), ("--json", "last_heartbeat_at")):
        options = [option] if option else []
        assert word in shown_by(capsys, "show", "beats", *options)
        assert word not in shown_by(capsys, "show", "probed", *options)
    beats, probed = shown_by(capsys, "list").splitlines()[1:]
    assert beats.split()[-1].startswith("20")
    assert probed.split() == ["probed", "active", "unknown", "(not_yet_probed)", "0/?", card]


def test_a_new_agents_key_is_shown_once_or_written_to_a_file(
    registry: RegistryServer, capsys: Captured, tmp_path: Path
) -> None:
    assert json_of(capsys, "register", "a")["agent_key"].startswith("ahk_")
    assert "ahk_" in shown_by(capsys, "register", "b")
    for agent_id, options in (("c", ()), ("f", ("--json",))):
        file = tmp_path / f"{agent_id}.key"
        assert main(["agents", "register", agent_id, "--write-key", str(file), *options]) == 0
        output = capsys.readouterr()
        assert "ahk_" not in output.out + output.err
        assert (str(file) in output.err, output.err.count("\n")) == (True, 1)
    # An agent that registers again with its own key keeps it.
    unwritten = tmp_path / "new.key"
    again = ["register", "c", "--supersede", "--write-key", str(unwritten)]
    assert main(["agents", *again, "--key-file", str(tmp_path / "c.key")]) == 0
    second_error = capsys.readouterr().err
    assert (second_error.split()[0], second_error.count("\n")) == ("c", 1)
    assert str(unwritten) in second_error
    assert not unwritten.exists()
    file = tmp_path / "c.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json_of(capsys, "list", "--key-file", str(file))["total"] == 1
    # Existing agents stay, and none was registered.
    shown_by(capsys, "register", "d", "--write-key", str(file), ends=3)
    shown_by(capsys, "show", "d", ends=1)
    # A refusal leaves no empty file behind.
    shown_by(capsys, "register", "c", "--write-key", str(tmp_path / "e.key"), ends=1)
    assert not (tmp_path / "e.key").exists()


def listed(registry: RegistryServer, *urls: str) -> None:
    async def fill() -> None:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
            await client.directories.put("a-list", urls)

    asyncio.run(fill())


def test_an_agent_is_shown_by_the_url_at_which_it_is_probed(
    registry: RegistryServer, capsys: Captured
) -> None:
    card = "https://agent.example/card"
    shown_by(capsys, "register", "billing-1", "--card-url", card, "--monitoring", "probe")
    assert json_of(capsys, "show", "HTTPS://agent.example:443/card")["agent_id"] == "billing-1"
    assert json_of(capsys, "show", "agent.example/card")["agent_id"] == "billing-1"
    # The same host says nothing, and who sends heartbeats alone is not looked at anywhere.
    shown_by(capsys, "register", "billing-2", "--card-url", f"{card}/2")
    for url in ("https://agent.example/", f"{card}/2"):
        assert url in shown_by(capsys, "show", url, ends=1)
    assert "'nobody'" in shown_by(capsys, "show", "nobody", ends=1)
    assert "ftp://agent.example" in shown_by(capsys, "show", "ftp://agent.example", ends=3)


def test_agent_excluded_by_robots_txt_shows_since_when(registry: RegistryServer, capsys: Captured) -> None:
    url = "https://closed.example/"
    listed(registry, url)
    closed = LayerResult(result=ResultClass.NOT_MEASURED, reason="robots.txt: disallowed")

    async def look() -> None:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
            for layer in (LayerResult(result=ResultClass.OK), closed):
                seen = Observation(target_url=url, observed_at=datetime.now(UTC), discovery=layer)
                memory = ProbeMemory(is_disallowed_by_robots=layer is closed)
                await report(client, seen, memories=[memory])

    asyncio.run(look())
    assert json_of(capsys, "show", url)["observed"]["inconclusive"]["reason"] == closed.reason
    (lines,) = [line for line in shown_by(capsys, "show", url).splitlines() if "not measured" in line]
    assert lines.startswith("but ")
    assert lines.endswith(f": {closed.reason}")


def test_ambiguous_url_is_answered_with_ids(registry: RegistryServer, capsys: Captured) -> None:
    url = "https://agent.example/card"
    listed(registry, url)
    unseen = shown_by(capsys, "show", url, ends=1)
    assert "has not given a liveness signal yet" in unseen
    shown_by(capsys, "register", "billing-1", "--card-url", url, "--monitoring", "probe")
    output = shown_by(capsys, "show", url, ends=3)
    assert f"with this URL: {target_id(url)}, billing-1;" in output
    # Former targets do not interfere.
    shown_by(capsys, "deregister", "billing-1")
    assert shown_by(capsys, "show", url, ends=1) == unseen


@pytest.mark.parametrize(
    "command", ["drain", "deregister", "erase", "command {} drain", "maintenance {} --for 1h --reason disk"]
)
def test_change_names_its_agent_by_id(command: str, capsys: Captured) -> None:
    url = "https://agent.example"
    arguments = [word.format(url) for word in (command if "{}" in command else f"{command} {{}}").split()]
    output = shown_by(capsys, *arguments, ends=3)
    assert ("AGENT_ID" in output, repr(url) in output) == (True, True)


@pytest.mark.parametrize(
    "arguments",
    [("show", "nobody"), ("drain", "nobody"), ("command", "nobody", "drain")],
)
def test_refused_agents_command_exits_with_1(
    registry: RegistryServer, capsys: Captured, arguments: tuple[str, ...]
) -> None:
    error = shown_by(capsys, *arguments, ends=1)
    first, *hints = error.splitlines()
    assert first.startswith("lifesign: HTTP 4")
    assert all(line.startswith("hint: ") for line in hints)
    assert len(hints) <= 1


def test_key_without_permission_exits_with_1(
    registry: RegistryServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEYS[Role.READER])
    assert "(not_allowed)" in shown_by(capsys, "register", "a", ends=1)
    monkeypatch.setenv(KEY_VARIABLE, "ahk_nobodys")
    assert "(unknown_key)" in shown_by(capsys, "list", ends=1)


def test_unreachable_registry_exits_with_2_for_each_agents_command(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, ADMIN_KEY)
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:1")
    assert "Connection refused" in shown_by(capsys, "list", ends=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--registry", "nonsense"],
        ["list", "--registry", "http://registry.example"],
        ["list", "--limit", "0"],
        ["list", "--key-file", "/nonexistent"],
        ["command", "a", "dance"],
        ["register", "a b"],
        ["register", "--monitoring", "telepathy"],
        ["show", ".."],
        ["show"],
        [],
    ],
)
def test_wrong_usage_exits_with_3_without_a_request(
    arguments: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, ADMIN_KEY)
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:1")
    assert shown_by(capsys, *arguments, ends=3).startswith("lifesign: ")


def test_missing_key_is_refused_without_a_request(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:1")
    assert "--key-file" in shown_by(capsys, "list", ends=3)
    empty = tmp_path / "empty"
    empty.write_text("\n")
    assert "--key-file" in shown_by(capsys, "list", "--key-file", str(empty), ends=3)


@pytest.fixture
def evil_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A registry that sends what steers terminals."""

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time = "2026-11-20T12:00:00Z"
            summary = {
                "agent_id": EVIL, "name": EVIL, "role_id": EVIL, "capabilities": [EVIL], "status": "active",
                "capacity": {}, "health": "unknown", "monitoring": "heartbeat", "last_heartbeat_at": time,
            }  # fmt: skip
            record = {
                **summary, "heartbeat_config": {}, "drain_timeout_seconds": 1, "metadata": {EVIL: EVIL},
                "registered_at": time, "version": 1, "incarnation": 1, "etag": EVIL, "reason": "registered",
                "status_since": time, "explanation": EVIL,
                "reported": {"last_heartbeat_at": time, "current_load": 0, "tasks_in_progress": [EVIL]},
            }  # fmt: skip
            status, body = 200, {"agents": [summary], "total": 1}
            if self.path.endswith("/evil"):
                body = record
            elif self.path.endswith("/nobody"):
                error = {"code": EVIL, "message": EVIL, "details": {}}
                status, body = 404, {"error": error, "message": EVIL}
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv(URL_VARIABLE, f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv(KEY_VARIABLE, ADMIN_KEY)
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("arguments", [["list"], ["show", "evil"], ["show", "nobody"]])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_control_characters_from_the_registry_are_replaced(
    evil_registry: None, capsys: Captured, arguments: list[str], options: list[str]
) -> None:
    main(["agents", *arguments, *options])
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert "owned" in shown
    assert all(line.isprintable() for line in shown.split("\n"))


def test_key_is_not_accepted_as_an_argument(capsys: Captured) -> None:
    assert "No such option" in shown_by(capsys, "list", "--key", "x", ends=3)


def test_empty_list_is_stated(registry: RegistryServer, capsys: Captured) -> None:
    assert "active" in shown_by(capsys, "list")
    assert shown_by(capsys, "list", "--status", "all") == "no agent matches\n"
    assert json_of(capsys, "list")["agents"] == []


def test_pending_commands_are_shown_with_the_agent(registry: RegistryServer, capsys: Captured) -> None:
    shown_by(capsys, "register", "a")
    shown_by(capsys, "command", "a", "drain", "--reason", "new disk")
    assert re.search(r" drain .*: new disk \(command_\w+\)", shown_by(capsys, "show", "a"))


def left_out_of(listing: str) -> int:
    """Return the number of agents that a list reports as not shown."""
    (line,) = [line for line in listing.splitlines() if "(use --status all)" in line]
    return int(line.split()[0])


def test_agents_left_out_of_a_list_are_counted(registry: RegistryServer, capsys: Captured) -> None:
    for number in range(3):
        shown_by(capsys, "register", f"a-{number}", "--pool", "hidden")
    assert "--status" not in shown_by(capsys, "list", "--pool", "hidden")
    shown_by(capsys, "deregister", "a-0")
    assert left_out_of(shown_by(capsys, "list", "--pool", "hidden")) == 1
    shown_by(capsys, "deregister", "a-1")
    assert left_out_of(shown_by(capsys, "list", "--pool", "hidden")) == 2
    assert json_of(capsys, "list", "--pool", "hidden")["not_active"] == 2
    shown_by(capsys, "deregister", "a-2")
    listing = shown_by(capsys, "list", "--pool", "hidden")
    assert (left_out_of(listing), listing.count("\n")) == (3, 2)
    for word in ("all", "any"):
        found = json_of(capsys, "list", "--pool", "hidden", "--status", word)
        assert (found["total"], "not_active" in found) == (3, False)
    refused = shown_by(capsys, "list", "--status", "alive", ends=3)
    assert "--status: " in refused
    assert {"active", "unhealthy", "draining", "dead", "deregistered", "all"} <= {
        *re.findall(r"\w+", refused)
    }


def test_suspended_verdicts_are_reported_by_list_and_show(registry: RegistryServer, capsys: Captured) -> None:
    shown_by(capsys, "register", "silent")
    assert json_of(capsys, "show", "silent")["decisions_suspended"] is False
    registry.write(suspend)

    def stderr_of(*arguments: str) -> str:
        assert main(["agents", *arguments]) == 0
        return capsys.readouterr().err

    for arguments in (["list"], ["show", "silent"]):
        assert stderr_of(*arguments).startswith("lifesign: verdicts are suspended: missed heartbeats")
        assert stderr_of(*arguments, "--json") == ""
    for arguments in (["list", "--json"], ["show", "silent", "--json"]):
        assert main(["agents", *arguments]) == 0
        assert json.loads(capsys.readouterr().out)["decisions_suspended"] is True
    assert main(["doctor", "--registry", registry.url, "--port", "1", "--json"]) in {0, 1}
    findings = json.loads(capsys.readouterr().out)["findings"]
    (held,) = [one for one in findings if one["about"] == "decisions"]
    assert (held["verdict"], held["summary"].split(" since ")[0]) == ("warning", "suspended")
    assert "30 agents are silent" in held["summary"]


def test_invalid_agent_id_is_refused_with_the_rule(registry: RegistryServer, capsys: Captured) -> None:
    output = shown_by(capsys, "register", "a b", ends=3)
    assert output == "lifesign: agent_id: expected 1 to 128 letters, digits and . _ ~ : -; got 'a b'\n"


def test_json_has_all_agents_unless_a_limit_is_given(
    registry: RegistryServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.cli.commands.agents.PAGE", 2)
    monkeypatch.setattr("lifesign.cli.commands.agents.USUAL_IN_TABLE", 3)
    for name in "abcde":
        shown_by(capsys, "register", name)
    assert len(json_of(capsys, "list")["agents"]) == 5
    assert len(json_of(capsys, "list", "--limit", "4")["agents"]) == 4
    assert "3 of 5 (see --limit)" in shown_by(capsys, "list")


@pytest.mark.parametrize("option", ["--health", "--status"])
def test_invalid_choice_is_refused_with_the_valid_ones(
    registry: RegistryServer, capsys: Captured, option: str
) -> None:
    assert f"{option}: expected one of " in shown_by(capsys, "list", option, "nosuch", ends=3)


def record_of(**members: Any) -> AgentRecord:
    """Return the record of an active agent, with some members changed."""
    time = "2026-11-20T12:00:00Z"
    record = {
        "agent_id": "a", "capabilities": [], "status": "active", "capacity": {}, "health": "unknown",
        "monitoring": "heartbeat", "heartbeat_config": {}, "drain_timeout_seconds": 1, "metadata": {},
        "registered_at": time, "version": 1, "incarnation": 1, "etag": "e", "reason": "registered",
        "status_since": time, "explanation": "", "reported": {"current_load": 0, "tasks_in_progress": []},
    }  # fmt: skip
    return AgentRecord.model_validate(record | members)


def test_record_of_a_heartbeat_agent_explains_unknown_health() -> None:
    lines = [(line.label, line.text) for line in page(record_of())]
    (label, text) = lines[lines.index(("health", "unknown")) + 1]
    assert label == "why"
    assert "monitoring both" in text
    assert "why" not in [line.label for line in page(record_of(monitoring="probe", health="healthy"))]


def test_assertions_are_shown_with_both_values() -> None:
    observed = {"failures_in_row": 0, "recent_interactions": "1"}
    given = [asserted(result).model_dump(mode="json") for result in ("assertion_failed", "not_measured")]
    lines = [
        line.text
        for line in page(record_of(observed=observed | {"assertions": given}))
        if line.label == "assertion"
    ]
    assert lines == [
        "assertion_failed: message text_contains 'OK', got 'no idea'",
        "not_measured: message text_contains 'OK'",
    ]


def test_failure_that_was_not_measured_again_has_its_time_and_paths_have_rows() -> None:
    time, failed = "2026-11-20T12:00:00Z", asserted("assertion_failed").model_dump(mode="json")
    kept = failed | {"measured_at": time, "unmeasured_reason": "HTTP 401"}
    path = {"result": "credentials_rejected", "reason": "HTTP 401", "observed_at": time}
    observed = {
        "failures_in_row": 0, "recent_interactions": "1", "assertions": [kept], "paths": {"/status": path},
    }  # fmt: skip
    lines = [(line.label, line.text) for line in page(record_of(observed=observed))]
    assert any(label == "observed" and "/status credentials_rejected" in text for label, text in lines)
    place = next(place for place, (label, _) in enumerate(lines) if label == "assertion")
    assert lines[place][1].startswith("assertion_failed at ")
    assert lines[place + 1][0] == "but"
    assert "HTTP 401" in lines[place + 1][1]


def test_login_of_the_agent_is_shown() -> None:
    observed = {"failures_in_row": 0, "recent_interactions": "1", "login": {"schemes": ["bearer"]}}
    lines = [line.text for line in page(record_of(observed=observed)) if line.label == "login"]
    assert len(lines) == 1
    assert "bearer" in lines[0]


def test_links_and_claims_have_their_own_labels() -> None:
    time, place = "2026-11-20T12:00:00Z", {"target_id": "tgt_x", "url": "https://a.example/"}
    linked = {**place, "state": "linked", "proof": "card", "proven_at": time, "linked_at": time}
    lines = [line.label for line in page(record_of(links=[linked, {**place, "state": "claimed"}]))]
    assert (lines.count("linked"), lines.count("claims")) == (1, 1)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "no token was requested"),
        ({"token_requested_at": "2026-11-20T12:00:00Z"}, "not looked for yet"),
        (
            {"token_requested_at": "2026-11-20T12:00:00Z", "token_checked_at": "2026-11-20T12:10:00Z"},
            "not found at 2026-11-20",
        ),
        (
            {"token_requested_at": "2026-11-20T12:00:00Z", "token_refusal": "the address is private"},
            "is private",
        ),
    ],
)
def test_unproven_claim_is_shown_with_its_reason(members: dict[str, str], message: str) -> None:
    link = {"target_id": "tgt_x", "url": "https://a.example/", "state": "claimed", **members}
    (line,) = [line for line in page(record_of(links=[link])) if line.label == "claims"]
    assert message in line.text


def test_record_with_old_evidence_shows_reason_and_age() -> None:
    evidence_at = datetime.now(UTC) - timedelta(hours=3, minutes=5, seconds=10)
    record = record_of(monitoring="probe", unknown_reason="no_prober", evidence_at=evidence_at)
    lines = [(line.label, line.text) for line in page(record)]
    place = lines.index(("health", "unknown (no_prober)"))
    assert "3 h 5 min ago" in lines[place + 1][1]


@pytest.mark.parametrize(("age", "expected"), [
    (None, "unknown (no_prober)"),
    (timedelta(hours=3, minutes=5), "unknown (no_prober, last measured 3 h 5 min ago)"),
])  # fmt: skip
def test_list_shows_the_age_of_old_evidence(age: timedelta | None, expected: str) -> None:
    now = datetime.now(UTC)
    record = record_of(unknown_reason="no_prober", evidence_at=None if age is None else now - age)
    assert health_with_age(record, now.timestamp()) == expected


@pytest.mark.parametrize(
    ("failing", "expected", "status"),
    [(None, [], "active"), (2, ["its last 2 probes failed"], "active (last 2 probes failed)")],
)
def test_an_active_agent_is_shown_with_its_last_failures(
    failing: int | None, expected: list[str], status: str
) -> None:
    record = record_of(failing_probes=failing)
    assert [line.text for line in page(record) if line.label == "but"] == expected
    assert status_text(record) == status


@pytest.mark.parametrize(("status", "text"), [("active", "active (interface fails)"), ("dead", "dead")])
def test_active_agent_whose_interface_fails_is_shown_with_that(status: str, text: str) -> None:
    assert status_text(record_of(status=status, is_unreachable=True)) == text
