import asyncio
import json
import os
import pwd
import re
import signal
from collections.abc import Iterator
from contextlib import chdir, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock
from urllib.request import Request, urlopen

import pytest
from tests.support import preloaded
from tests.support.adapting import new_task
from tests.support.complaints import problems_in
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer, registry_server
from tests.support.servers import free_port

from lifesign.adapter.credentials import agent_key_file, agent_lock
from lifesign.adapter.process import process_watcher
from lifesign.adapter.workspaces import Workspaces
from lifesign.cli import main
from lifesign.cli.commands import run
from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.tasks import TaskRecord

ONCE = ("--pool", "coder", "--once")


@pytest.fixture
def at(registry: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RegistryServer:
    """A registry to which the command leads, with a key that may register agents."""
    monkeypatch.setenv("LIFESIGN_REGISTRY", registry.url)
    monkeypatch.setenv("LIFESIGN_KEY", KEYS[Role.ENROLL])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # The adapter's own process is the test's here.
    monkeypatch.setattr(process_watcher, "hide_memory", lambda: None)
    return registry


def task_at(registry: RegistryServer) -> TaskRecord:
    async def make() -> TaskRecord:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
            return await new_task(client)

    return asyncio.run(make())


async def shown(registry: RegistryServer, task: TaskRecord) -> TaskRecord:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        return await client.tasks.get(task.task_id)


def status_at(registry: RegistryServer, task: TaskRecord) -> str:
    return asyncio.run(shown(registry, task)).status


def test_run_exit_code_shows_the_result_of_the_task(
    at: RegistryServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    task = task_at(at)
    assert main(["run", *ONCE, "--agent-id", "coder-1", "--", "sh", "-c", "echo output; exit 3"]) == 4
    out, err = capfd.readouterr()
    assert out == "output\n"
    assert re.search(rf"{task.task_id}: .* 3 \(crash\); .*{tmp_path}/state/lifesign/runs/run_", err)
    # The own key is there from the first time.
    assert (
        main(["run", "--task", task.task_id, "--pool", "coder", "--agent-id", "coder-1", "--", "true"]) == 0
    )
    assert main(["run", *ONCE, "--wait", "0s", "--", "true"]) == 5


def test_two_adapters_cannot_share_an_agent_and_workspaces(
    at: RegistryServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    who = ("--agent-id", "coder-twice", "--workspaces", str(tmp_path / "runs"), "--wait", "0s")
    Workspaces(tmp_path / "runs").__exit__()
    own_key = agent_key_file(tmp_path / "runs", "https://other.example", "coder-twice")
    with agent_lock("coder-twice", own_key):
        assert main(["run", *ONCE, *who, "--", "true"]) == 3
        err = capfd.readouterr().err
        assert err.startswith("lifesign: --agent-id: ")
        # Another agent's place is another one's.
        assert main(["run", *ONCE, *who, "--agent-id", "coder-other", "--", "true"]) == 5
    assert main(["run", *ONCE, *who, "--", "true"]) == 5


def test_own_key_is_sent_only_to_the_registry_that_issued_it(
    at: RegistryServer, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = (*ONCE, "--agent-id", "coder-roaming", "--wait", "0s")
    assert main(["run", *who, "--", "true"]) == 5
    with registry_server(tmp_path_factory.mktemp("other")) as other:
        # This registry would refuse the key of the first one.
        assert main(["run", *who, "--registry", other.url, "--", "true"]) == 5
        monkeypatch.delenv("LIFESIGN_KEY")
        # Both keys are stored.
        for url in (at.url, f"{other.url}/"):
            assert main(["run", *who, "--registry", url, "--", "true"]) == 5


def test_key_without_task_permission_replaces_no_agent(
    at: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def register() -> str | None:
        async with RegistryClient(at.url, key=KEYS[Role.ENROLL]) as client:
            return (await client.agents.register("coder-alive")).agent_key

    own_key = asyncio.run(register())

    async def life() -> tuple[int, str]:
        async with RegistryClient(at.url, key=own_key) as client:
            record = await client.agents.get("coder-alive")
            return record.incarnation, record.status

    monkeypatch.setenv("LIFESIGN_KEY", ADMIN_KEY)
    who = (*ONCE, "--agent-id", "coder-alive", "--wait", "0s")
    assert main(["run", *who, "--", "true"]) == 1
    problem, hint = capfd.readouterr().err.splitlines()
    assert "HTTP 403" in problem
    assert hint.endswith("lifesign keys create --role agent --agent-id coder-alive --name coder-alive")
    assert asyncio.run(life()) == (1, "active")
    # The agent's own key may replace the incarnation at once.
    monkeypatch.setenv("LIFESIGN_KEY", own_key or "")
    assert main(["run", *who, "--", "true"]) == 5
    assert asyncio.run(life()) == (2, "deregistered")
    # Another key cannot register a deregistered agent again either.
    monkeypatch.setenv("LIFESIGN_KEY", ADMIN_KEY)
    assert main(["run", *who, "--workspaces", str(tmp_path / "elsewhere"), "--", "true"]) == 1
    assert "HTTP 403" in capfd.readouterr().err
    assert asyncio.run(life()) == (2, "deregistered")
    # A new agent has nothing to lose and gets its own key.
    assert main(["run", *who, "--agent-id", "coder-of-an-admin", "--", "true"]) == 5


def test_output_need_not_be_read(at: RegistryServer, tmp_path: Path) -> None:
    task = task_at(at)
    unread, full_pipe = os.pipe()
    try:
        os.set_blocking(full_pipe, False)
        with suppress(BlockingIOError):
            while True:
                os.write(full_pipe, b"x" * 4096)
        os.set_blocking(full_pipe, True)
        ended = preloaded.run("run", *ONCE, "--json", "--", "true", stdout=full_pipe, cwd=tmp_path)
    finally:
        os.close(unread)
        os.close(full_pipe)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert status_at(at, task) == "review"


def test_key_of_an_agent_with_a_generated_id_is_revoked_at_the_end(at: RegistryServer) -> None:
    assert main(["run", *ONCE, "--wait", "0s", "--agent-id", "coder-named", "--", "true"]) == 5

    def keys() -> dict[str | None, bool]:
        asked = Request(f"{at.url}/api/v1/keys", headers={"X-API-Key": ADMIN_KEY})  # noqa: S310 - ours
        with urlopen(asked) as answer:  # noqa: S310 - ours
            return {key.get("agent_id"): key["is_valid"] for key in json.load(answer)["keys"]}

    before = keys()
    assert before["coder-named"]
    assert main(["run", *ONCE, "--wait", "0s", "--", "true"]) == 5
    after = keys()
    assert [after[agent_id] for agent_id in after.keys() - before.keys()] == [False]
    assert after["coder-named"]


def test_run_prints_json_lines_and_sends_command_output_to_stderr(
    at: RegistryServer, capfd: pytest.CaptureFixture[str]
) -> None:
    task = task_at(at)
    assert main(["run", *ONCE, "--json", "--", "echo", "output"]) == 0
    out, err = capfd.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["what"] for line in lines] == [
        "registered", "waiting", "granted", "started", "completed", "left"
    ]  # fmt: skip
    assert lines[2] | {"at": ""} == {
        "at": "",
        "what": "granted",
        "text": "Write it (attempt 1, token 1)",
        "task_id": task.task_id,
        "run_id": lines[2]["run_id"],
        "fencing_token": 1,
    }
    assert (lines[4]["exit_reason"], lines[4]["exit_code"]) == ("completed", 0)
    assert err == "output\n"


def test_refused_or_unanswered_request_is_reported_in_one_line(
    at: RegistryServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "task_00000000000000000000000000"
    assert main(["run", "--task", nowhere, "--", "true"]) == 1
    hint = r" \(task_not_found\)\nhint: .*--pool.*--task\n\Z"
    assert re.search(hint, capfd.readouterr().err)
    of_pool = task_at(at).task_id
    assert main(["run", "--task", of_pool, "--", "true"]) == 1
    assert re.search(hint, capfd.readouterr().err)
    assert main(["run", "--task", of_pool, "--pool", "coder", "--", "true"]) == 0
    assert main(["run", *ONCE, "--registry", f"http://127.0.0.1:{free_port()}", "--", "true"]) == 2
    monkeypatch.setenv("LIFESIGN_KEY", "ahk_wrong")
    capfd.readouterr()
    assert main(["run", *ONCE, "--", "true"]) == 1
    err = capfd.readouterr().err
    assert [line.partition(" ")[0] for line in err.splitlines()] == ["lifesign:", "hint:"]
    assert "401" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "no-such-program"], "COMMAND: ; got 'no-such-program'"),
        (
            ["--task", f"task_{'0' * 26}", "--once", "--", "true"],
            "--once: --task",
        ),
        (["--tools", "/absent.yml", "--", "true"], "tools: /absent.yml"),
        (["--workspaces", "/proc/nowhere", "--", "true"], "workspaces: /proc/nowhere"),
        (["--agent-id", "a b", "--", "true"], "agent_id"),
        (
            ["--task", "nope", "--", "true"],
            "--task: task_01jd8w3q5t6v7x9zabcdefghjk; 'nope'",
        ),
        (
            ["--no-progress-timeout", "0s", "--", "true"],
            "--no-progress-timeout: 0s; '0s'",
        ),
        (["--timeout", "0s", "--", "true"], "--timeout: 0s; '0s'"),
        (["--grace", "soon", "--", "true"], "--grace: 'soon'"),
        (
            ["--grace", "99999999d", "--", "true"],
            "--grace: 7d --drain-timeout '99999999d'",
        ),
        (["--drain-timeout", "7d", "--", "true"], "--drain-timeout: 7d --grace '7d'"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_is_one_line(
    at: RegistryServer, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["run", *arguments]) == 3
    err = capfd.readouterr().err
    assert [word for word in message.split() if word not in err] == []
    assert len(problems_in(err)) == 1


def test_user_without_a_home_directory_is_told_to_name_the_workspaces(
    at: RegistryServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    assert main(["run", *ONCE, "true"]) == 3
    assert "--workspaces" in capfd.readouterr().err


ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root may become another user")


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user can reach; those of pytest are its own user's."""
    with TemporaryDirectory() as place:
        Path(place).chmod(0o711)
        yield Path(place)


@ONLY_ROOT
@pytest.mark.parametrize("where", ["in its workspace", "where it was started"])
def test_command_of_another_user_has_its_workspace_and_no_root_privileges(
    at: RegistryServer, open_place: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(open_place if where == "where it was started" else "/root")
    (open_place / "secret").touch(mode=0o600)
    code = """
        cd $LIFESIGN_WORKSPACE && test -r input.json && test ! -r ../../secret || exit 3
        kill -0 $PPID && exit 5
        mkdir sub && seq 200000 && echo y > sub/own || exit 4
        echo "{\\"who\\": \\"$(id -u) $(id -G) $HOME $USER $LOGNAME\\"}" > output.json
    """
    task, nobody = task_at(at), pwd.getpwnam("nobody")
    arguments = ["--user", "nobody", "--workspaces", str(open_place / "runs"), "--agent-id", "of-nobody"]
    arguments += ["--in-workspace"] if where == "in its workspace" else []
    assert main(["run", *ONCE, *arguments, "--", "sh", "-c", code]) == 0
    after = asyncio.run(shown(at, task))
    groups = " ".join(str(group) for group in os.getgrouplist("nobody", nobody.pw_gid))
    assert after.status == "review"
    assert after.output == {"who": f"{nobody.pw_uid} {groups} {nobody.pw_dir} nobody nobody"}
    assert list((open_place / "runs").glob("run_*")) == []


@ONLY_ROOT
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--user", "nobody-here"], "--user: 'nobody-here'"),
        (["--user", "root"], "--user: 'root'"),
        (["--user", "nobody"], "--user: --in-workspace"),
        (["--user", "nobody", "--in-workspace"], "workspaces: state/lifesign/runs"),
    ],
)
def test_user_without_access_is_refused_before_any_request(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
    tmp_path: Path,
) -> None:
    """No registry runs: checking another user's rights changes the whole process, a registry's thread too."""
    monkeypatch.setenv("LIFESIGN_REGISTRY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("LIFESIGN_KEY", KEYS[Role.ENROLL])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert not tmp_path.stat().st_mode & 0o001
    with chdir(tmp_path):
        assert main(["run", *ONCE, *arguments, "--", "true"]) == 3
    err = capfd.readouterr().err
    assert [word for word in message.split() if word not in err] == []
    assert err.count("\n") == 1


@ONLY_ROOT
def test_program_is_found_as_its_user(
    at: RegistryServer, open_place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(open_place)
    roots, theirs = open_place / "roots", open_place / "theirs"
    for place, mode in ((roots, 0o700), (theirs, 0o755)):
        place.mkdir()
        (place / "work").write_text(f"#!/bin/sh\necho by {place.name}\n")
        (place / "work").chmod(0o755)
        place.chmod(mode)
    task = task_at(at)
    arguments = ["--user", "nobody", "--workspaces", str(open_place / "runs"), "--agent-id", "looked-up"]
    monkeypatch.setenv("PATH", str(roots))
    assert main(["run", *ONCE, *arguments, "--", "work"]) == 3
    refused = f"{roots / 'work'}: {roots} has mode 0700 and user 0"
    expected = f"COMMAND: expected a program that nobody can start ({refused}); got 'work'"
    assert capfd.readouterr().err == f"lifesign: {expected}\n"
    assert status_at(at, task) == "queued"
    monkeypatch.setenv("PATH", f"{roots}:{theirs}:/usr/bin:/bin")
    assert main(["run", *ONCE, *arguments, "--", "work"]) == 0
    assert capfd.readouterr().out == "by theirs\n"


def test_missing_interpreter_is_reported_before_a_task_is_claimed(
    at: RegistryServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    task = task_at(at)
    work = tmp_path / "work.py"
    work.write_text("#!/no/such/python\n")
    work.chmod(0o755)
    assert main(["run", *ONCE, "--", str(work)]) == 3
    why = "its first line names '/no/such/python', which does not exist"
    expected = f"COMMAND: expected a program that can be started ({work}: {why}); got '{work}'"
    assert capfd.readouterr().err == f"lifesign: {expected}\n"
    assert status_at(at, task) == "queued"
    work.unlink()


def test_missing_key_is_reported_with_its_sources(
    at: RegistryServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIFESIGN_KEY")
    assert main(["run", *ONCE, "--", "true"]) == 3
    problem, hint = capfd.readouterr().err.splitlines()
    assert problem.startswith("lifesign: key: ")
    assert {"$LIFESIGN_KEY", "--key-file"} <= set(problem.split())
    assert hint.startswith("hint: ")


def test_command_does_not_get_variables_of_tools(
    at: RegistryServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "sesame")
    monkeypatch.setenv("OTHER", "kept")
    (tmp_path / "tools.yml").write_text(
        "upstreams:\n  search:\n    command: [cat]\n    environment:\n"
        "      SEARCH_KEY: {env: SEARCH_KEY}\n      HOME: {env: HOME}\n"
        "    tools: {find: {usd_per_call: 0.01}}\n"
    )
    task_at(at)
    assert main(["run", *ONCE, "--tools", str(tmp_path / "tools.yml"), "--", "env"]) == 0
    environment = dict(line.split("=", 1) for line in capfd.readouterr().out.splitlines())
    assert "SEARCH_KEY" not in environment
    assert {"HOME", "OTHER", "LIFESIGN_PROXY_URL", "LIFESIGN_RUN_TOKEN"} <= environment.keys()


def test_missing_program_of_a_tool_server_is_reported_before_a_task_is_claimed(
    at: RegistryServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tools = tmp_path / "tools.yml"
    tools.write_text(
        "upstreams:\n  search:\n    command: [no-such-program]\n    tools: {find: {usd_per_call: 0}}\n"
    )
    assert main(["run", *ONCE, "--tools", str(tools), "--", "true"]) == 3
    why = "no-such-program (no such file in PATH)"
    message = f"line 3: /upstreams/search/command/0: expected a program that can be started: {why}"
    assert capfd.readouterr().err == f"lifesign: {tools}: {message}\n"


def test_tool_proxy_is_off_without_the_mcp_extra(
    at: RegistryServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.cli.commands.run.find_spec", lambda _: None)
    task_at(at)
    assert main(["run", *ONCE, "--", "env"]) == 0
    assert "LIFESIGN_PROXY_URL" not in capfd.readouterr().out
    assert main(["run", *ONCE, "--tools", "tools.yml", "--", "env"]) == 3
    assert re.match("lifesign: --tools: .* extra mcp ", capfd.readouterr().err)


@pytest.mark.parametrize(
    ("repeat_s", "drains"), [(0.0, ["SIGHUP came", "SIGTERM came", "SIGINT came"]), (1.0, ["SIGHUP came"])]
)
async def test_repeated_signals_drain_once(
    repeat_s: float, drains: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed terminal sends SIGHUP twice at any interval; wrappers repeat other signals within a second."""
    monkeypatch.setattr("lifesign.serving.ending_signals.REPEAT_SECONDS", repeat_s)
    asked: list[str] = []
    adapter = Mock(drain=asked.append)
    loop = asyncio.get_running_loop()
    run._drain_by_signal(adapter)
    try:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
    finally:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    assert asked == drains
