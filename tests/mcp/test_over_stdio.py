import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from mcp_types import PARSE_ERROR
from tests.support import preloaded
from tests.support.agent_check import card, document
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, as_json, serving
from tests.support.mcp_process import COMMAND, by_stdio, settings
from tests.support.mcp_tools import text_of
from tests.support.preloaded import PROGRAM, PreloadedProcess
from tests.support.registry_server import ADMIN_KEY, RegistryServer
from tests.support.servers import PATIENCE_SECONDS
from tests.support.task_tools import holding

from lifesign.client import RegistryClient
from lifesign.mcp.over_stdio import _StandardInput
from lifesign.mcp.tool_list import TOOLS

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}


def opened_with_call(checked: socket.socket) -> list[dict[str, Any]]:
    """Return the messages that open a session and check the agent at a listening socket."""
    arguments = {"url": f"http://127.0.0.1:{checked.getsockname()[1]}/"}
    params = {"name": "check_agent", "arguments": arguments}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
    return [INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"}, call]


async def test_stdio_client_calls_each_tool(registry: RegistryServer, tmp_path: Path) -> None:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as known:
        await known.agents.register("worker", role_id="team-1", capabilities=["billing"])
    errors = tmp_path / "stderr"
    async with (
        serving({CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}) as agent,
        by_stdio(
            "--allow-network",
            "127.0.0.0/8",
            environment=settings(registry.url, ADMIN_KEY),
            errors=errors,
        ) as model,
    ):
        names = [tool.name for tool in (await model.list_tools()).tools]
        send_heartbeat: Any = await model.call_tool("heartbeat", {"agentId": "worker", "teamName": "team-1"})
        found: Any = await model.call_tool("find_agents", {"capabilities": ["billing"]})
        checked: Any = await model.call_tool("check_agent", {"url": agent.url})
        inside = await model.call_tool("check_agent", {"url": "http://169.254.169.254/"})
    assert names == [tool.name for tool in TOOLS]
    assert send_heartbeat.structured_content["success"]
    assert [agent["agent_id"] for agent in found.structured_content["agents"]] == ["worker"]
    assert checked.structured_content["decision"]["action"] == "proceed"
    assert inside.is_error
    assert "169.254.169.254" in text_of(inside)
    assert errors.read_text() == f"lifesign mcp: tools: {', '.join(names)}\n"


async def test_process_with_run_variables_writes_for_its_run(
    registry: RegistryServer, tmp_path: Path
) -> None:
    async with holding(registry, "leased") as holder:
        environment = {
            **settings(registry.url, holder.key),
            "LIFESIGN_TASK_ID": holder.run.task_id,
            "LIFESIGN_RUN_ID": holder.run.run_id,
            "LIFESIGN_FENCING_TOKEN": str(holder.run.fencing_token),
        }
        async with by_stdio(environment=environment, errors=tmp_path / "stderr") as model:
            reported = await model.call_tool("report_progress", {"summary": "begun"})
            completed = await model.call_tool("mark_complete", {"output": {}})
        status = await holder.status()
    assert (reported.is_error, completed.is_error, status) == (False, False, "review")


def test_stdio_server_writes_only_protocol_messages_and_ends_with_its_input() -> None:
    with tempfile.TemporaryFile("w+") as lines:
        lines.write("what is this?\n\n" + json.dumps(INITIALIZE) + "\n")
        lines.seek(0)
        ended = preloaded.run("mcp", stdin=lines, env={})
    assert ended.returncode == 0
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {answer["jsonrpc"] for answer in answers} == {"2.0"}
    assert [answer["error"]["code"] for answer in answers if answer["id"] is None] == [PARSE_ERROR]
    (opened,) = (answer for answer in answers if answer.get("id") == 1)
    assert opened["result"]["serverInfo"]["name"] == "lifesign"
    first, problem, hint = ended.stderr.splitlines()[:3]
    assert first == "lifesign mcp: tools: check_agent"
    assert problem.startswith("lifesign: ")
    assert {"hint:", "--registry", "--key-file", "LIFESIGN_REGISTRY", "LIFESIGN_KEY"} <= set(hint.split())
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="NOT RUN: this system has no small pipes")
def test_server_answers_although_nobody_reads_its_log(registry: RegistryServer) -> None:
    async def own_key() -> str:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
            return (await client.agents.register("own")).agent_key or ""

    key = asyncio.run(own_key())
    unread, errors = os.pipe()
    pipe_bytes = fcntl.fcntl(errors, fcntl.F_SETPIPE_SZ, 4_096)
    # Each call for an agent of another key is logged.
    agent_id = "x" * 128
    call = {"name": "heartbeat", "arguments": {"agentId": agent_id, "teamName": "w"}}
    with subprocess.Popen(
        [sys.executable, *COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=settings(registry.url, key),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        os.close(errors)
        patience = threading.Timer(PATIENCE_SECONDS, process.kill)
        patience.start()
        try:
            numbers = range(1, 2 + 2 * pipe_bytes // len(agent_id))
            for number in numbers:
                calls = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
                process.stdin.write(json.dumps(INITIALIZE if number == 1 else calls) + "\n")
                process.stdin.flush()
                assert json.loads(process.stdout.readline())["id"] == number
            process.stdin.close()
            assert process.wait(PATIENCE_SECONDS) == 0
            assert agent_id.encode() in os.read(unread, pipe_bytes)
        finally:
            patience.cancel()
            process.kill()
            os.close(unread)


def test_calls_in_progress_are_answered_after_the_end_of_the_input() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        PreloadedProcess(
            [PROGRAM, "mcp", "--allow-network", "127.0.0.0/8"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for message in opened_with_call(silent):
                process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.close()
            silent.settimeout(PATIENCE_SECONDS)
            silent.accept()[0].close()
            # No server answers a second attempt.
            silent.close()
            answers = [json.loads(line) for line in process.stdout]
            code = process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
    (answered,) = (answer for answer in answers if answer.get("id") == 2)
    assert answered["result"]["structuredContent"]["status"] == "unknown"
    assert code == 0


def test_client_that_ends_during_a_call_ends_the_stdio_server_with_exit_code_0() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        PreloadedProcess(
            [PROGRAM, "mcp", "--allow-network", "127.0.0.0/8"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for message in opened_with_call(silent):
                process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            silent.settimeout(PATIENCE_SECONDS)
            with silent.accept()[0]:
                process.stdout.close()
                process.stdin.close()
                code = process.wait(PATIENCE_SECONDS)
            errors = process.stderr.read()
        finally:
            process.kill()
    assert code == 0, errors
    assert b"Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_stdio_server_with_open_input(number: int) -> None:
    with PreloadedProcess(
        [PROGRAM, "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == 1
            process.send_signal(number)
            assert process.wait(PATIENCE_SECONDS) == -number
            assert process.stdout.read() == b""
        finally:
            process.kill()


async def test_lines_of_standard_input_are_text_whatever_their_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "input"
    file.write_bytes(b'{"id": 1}\n{"a": "\\ud83d"}\n\xff\n')
    with file.open() as opened:
        monkeypatch.setattr(sys, "stdin", opened)
        lines = [line async for line in _StandardInput()]
    assert lines == ['{"id": 1}\n', '{"a": "\\ufffd"}\n', "\ufffd\n"]
