import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse
from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.servers import PATIENCE_SECONDS, until

from lifesign.adapter.errors import CommandFailed
from lifesign.adapter.process.run_deadline import RunDeadline
from lifesign.adapter.tools import server_pipes as module
from lifesign.adapter.tools.server_pipes import ServerEnd, ServerProgram, server_pipes
from lifesign.domain.credentials.secret import Scrubber

ASKED = SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized"))
ANSWER = '{"jsonrpc":"2.0","id":1,"result":{}}'
PING = '{"jsonrpc":"2.0","id":"p","method":"ping"}'
LEAVES_TWO = (
    'echo $$ > own; (trap "" TERM; exec sleep 1000) & echo $! > child; setsid sleep 1000 & echo $! > apart; '
    "cat > rest"
)
"""One child hears no SIGTERM, the other one has left the session; the server ends with its input."""
STUBBORN = 'trap "" TERM; (trap "" TERM; exec sleep 1000) & echo $! > child; echo $$ > own; wait; wait'


def program(script: str, directory: Path, run_deadline: RunDeadline | None = None) -> ServerProgram:
    return ServerProgram(
        name="acme",
        command=["sh", "-c", script],
        environment={},
        directory=directory,
        max_line_bytes=64,
        run_deadline=run_deadline,
    )


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # The latter if it goes between `open` and `read`.
        return True
    return state == "Z"


def pid_in(file: Path) -> int:
    return until(f"{file.name} is written", lambda: file.exists() and int(file.read_text() or "0"))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_pipes_carry_requests_and_answers(tmp_path: Path) -> None:
    end = ServerEnd()
    script = f"read line; echo '{ANSWER}'; printf '%s' \"$line\" > asked; cat > rest"
    async with server_pipes(program(script, tmp_path), end) as (incoming, outgoing):
        await outgoing.send(ASKED)
        result = await incoming.receive()
        assert isinstance(result, SessionMessage)
        assert isinstance(result.message, JSONRPCResponse)
        assert not end.is_there.is_set()
    assert (tmp_path / "asked").read_text() == '{"jsonrpc":"2.0","method":"notifications/initialized"}'
    assert end.is_there.is_set()


RICH_LOG = """
import logging, sys
from rich.console import Console
from rich.logging import RichHandler
logging.basicConfig(handlers=[RichHandler(console=Console(stderr=True))])
logging.error("the key was " + sys.argv[1])
"""
"""What the MCP SDK for Python logs by default."""


async def test_secret_in_a_line_of_a_servers_log_is_not_wrapped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log.py").write_text(RICH_LOG)
    secret = "".join(f"{number:04x}" for number in range(64))
    wanted = replace(
        program(f"'{sys.executable}' log.py {secret}; cat", tmp_path), scrubber=Scrubber([secret])
    )
    async with server_pipes(wanted, ServerEnd()):
        await asyncio.to_thread(until, "it is logged", lambda: "the key was" in caplog.text)
    assert not any(secret[begin : begin + 20] in caplog.text for begin in range(len(secret) - 20))


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "it has ended"),
        ("printf '\\377\\376\\n'; cat", "is not UTF-8"),
        ("printf '%065d\\n' 1; cat", "than 64 bytes"),
        # No end of the line is waited for.
        ("printf '%065d' 1; cat", "than 64 bytes"),
        ("yes no-message", "the server wrote more than 10000 lines without a message"),
        # A child of it holds its pipes.
        ("sleep 1000 & exit 3", "it has ended"),
        ("yes no-end-at-all | tr -d '\\n'", "than 64 bytes"),
    ],
)
async def test_end_of_the_output_is_detected_at_once(
    tmp_path: Path, script: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXIT_SECONDS", 0.1)
    end = ServerEnd()
    async with server_pipes(program(script, tmp_path), end) as (incoming, _):
        async for _message in incoming:
            pytest.fail("there is no message")
        await end.is_there.wait()
    assert why in end.why


async def test_server_that_requests_without_reading_the_answers_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXIT_SECONDS", 0.1)
    end = ServerEnd()
    script = f"yes '{PING}'"
    async with server_pipes(program(script, tmp_path), end) as (incoming, _outgoing):
        received = [message async for message in incoming]
    assert len(received) == 1_000
    assert (end.is_fault, "more than 1000 requests" in end.why) == (True, True)


async def test_server_may_send_any_number_of_requests_whose_answers_it_reads(tmp_path: Path) -> None:
    end = ServerEnd()
    script = f"i=0; while [ $i -lt 2500 ]; do echo '{PING}'; read -r answer; i=$((i+1)); done; cat > rest"
    async with server_pipes(program(script, tmp_path), end) as (incoming, outgoing):
        for _ in range(2_500):
            assert isinstance(await incoming.receive(), SessionMessage)
            await outgoing.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id="p", result={})))
        assert not end.is_there.is_set()


async def test_child_processes_of_a_server_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXIT_SECONDS", 0.1)
    async with server_pipes(program(STUBBORN, tmp_path), ServerEnd()):
        await asyncio.to_thread(until, "it is started", (tmp_path / "own").exists)
        await asyncio.to_thread(until, "it is written", lambda: (tmp_path / "own").read_text() != "")
        pids = [int((tmp_path / name).read_text()) for name in ("own", "child")]
        assert not any(is_gone(pid) for pid in pids)
    for pid in pids:
        await asyncio.to_thread(until, "it is gone", lambda pid=pid: is_gone(pid))


async def test_child_processes_are_killed_if_the_server_exits_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXIT_SECONDS", 0.1)
    async with server_pipes(program(LEAVES_TWO, tmp_path), ServerEnd()):
        pids = [await asyncio.to_thread(pid_in, tmp_path / name) for name in ("child", "apart")]
        assert not any(is_gone(pid) for pid in pids)
    assert all(is_gone(pid) for pid in pids)


def test_server_that_ignores_its_input_ends_with_a_killed_adapter(tmp_path: Path) -> None:
    code = (
        "import asyncio; from pathlib import Path\n"
        "from tests.adapter.tools.test_server_pipes import ServerEnd, program, server_pipes\n"
        "async def main():\n"
        f"    deaf = program({f'{LEAVES_TWO}; sleep 1000'!r}, Path({str(tmp_path)!r}))\n"
        "    async with server_pipes(deaf, ServerEnd()):\n"
        "        await asyncio.sleep(1000)\n"
        "asyncio.run(main())"
    )
    with PreloadedProcess([PYTHON, "-c", code], stdout=subprocess.DEVNULL) as adapter:
        pids = [pid_in(tmp_path / name) for name in ("own", "child", "apart")]
        adapter.kill()
    until("nothing is left", lambda: all(is_gone(pid) for pid in pids))


async def test_a_program_that_cannot_be_started_leaves_nothing_open(tmp_path: Path) -> None:
    before = open_files()
    absent = ServerProgram(
        name="acme", command=["/no/such"], environment={}, directory=tmp_path, max_line_bytes=64
    )
    with pytest.raises(CommandFailed, match="No such file"):
        async with server_pipes(absent, ServerEnd()):
            pytest.fail("it is not there")
    await asyncio.to_thread(until, "all is closed", lambda: open_files() <= before)


async def test_server_ends_with_the_lease_of_its_run(tmp_path: Path) -> None:
    run_deadline, end = RunDeadline(1_000.0), ServerEnd()
    script = "trap '' TERM; sleep 1000 & echo $! > pid; while :; do sleep 0.05; done"
    async with server_pipes(program(script, tmp_path, run_deadline), end):
        pid = await asyncio.to_thread(pid_in, tmp_path / "pid")
        run_deadline.set(0.0)
        await asyncio.wait_for(end.is_there.wait(), PATIENCE_SECONDS)
        await asyncio.to_thread(until, "nothing of it is left", lambda: is_gone(pid))
