import asyncio
import errno
import gc
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.support.servers import PATIENCE_SECONDS, until

from lifesign.adapter.errors import CommandFailed
from lifesign.adapter.process import process_watcher
from lifesign.adapter.process.agent_process import AgentProcess, Job
from lifesign.adapter.process.output import OutputCopy
from lifesign.adapter.process.run_deadline import RunDeadline

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    between = os.getpid()
    if os.fork() == 0:
        while os.getppid() == between:
            time.sleep(0.01)
        open("daemon", "w").write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
while not os.path.exists("daemon") or not open("daemon").read():
    time.sleep(0.01)
"""
"""Leaves an orphan in a session of its own behind, and reports when that runs."""


@asynccontextmanager
async def running(
    directory: Path,
    *command: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    run_deadline: RunDeadline | None = None,
) -> AsyncIterator[AgentProcess]:
    fd, nowhere = os.open(directory, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY)
    output = OutputCopy(fd, stdout_to=nowhere, stderr_to=nowhere)
    os.close(fd)
    whole = {"PATH": os.environ["PATH"], **environment}
    process = None
    try:
        process = await AgentProcess.start(
            Job(command=command, environment=whole, directory=directory, run_deadline=run_deadline), output
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield process
    finally:
        if process is not None:
            await process.kill()
        output.finish()
        os.close(nowhere)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_alive(pid: int) -> bool:
    return pid in process_watcher.processes()


def pid_in(file: Path) -> int:
    return until(f"{file.name} is written", lambda: file.exists() and int(file.read_text() or "0"))


@pytest.mark.parametrize(("code", "expected"), [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", -11)])
async def test_exit_code_is_reported(tmp_path: Path, code: str, expected: int) -> None:
    async with running(tmp_path, "sh", "-c", code) as process:
        assert await process.wait() == expected
        await process.wait_ended()


async def test_process_gets_only_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFESIGN_KEY", "ahk_secret")
    code = "import json, os; print(json.dumps([dict(os.environ), sorted(os.listdir('/proc/self/fd'))]))"
    odd = {"ODD": os.fsdecode(b"\xff\xfe ok"), "LANG": "C"}
    async with running(tmp_path, *python(code), environment=odd) as process:
        assert await process.wait() == 0
        await process.wait_ended()
    environment, descriptors = json.loads((tmp_path / "stdout.log").read_text())
    assert environment.pop("LC_CTYPE", None) in {None, "C.UTF-8"}  # set by Python itself in the child
    assert environment.pop("LIFESIGN_RUN_ID").startswith("server_")
    assert environment == {"PATH": os.environ["PATH"], **odd}
    # The fourth is that of the directory which is listed.
    assert descriptors == ["0", "1", "2", "3"]


async def test_agent_process_has_default_signals_and_its_own_session(tmp_path: Path) -> None:
    code = (
        "import os, signal; "
        "print([n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN "
        "and n not in (signal.SIGPIPE, signal.SIGXFSZ)], signal.pthread_sigmask(0, []), "
        "os.getpid() == os.getpgid(0) == os.getsid(0))"
    )
    async with running(tmp_path, *python(code)) as process:
        await process.wait_ended()
    assert (tmp_path / "stdout.log").read_text() == "[] set() True\n"


async def test_missing_command_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="No such file"):
        async with running(tmp_path, "no-such-program-here"):
            pass
    (tmp_path / "text").write_text("not a program")
    with pytest.raises(CommandFailed, match="Permission denied"):
        async with running(tmp_path, str(tmp_path / "text")):
            pass


async def test_process_may_clean_up_after_sigterm(tmp_path: Path) -> None:
    code = "trap 'echo bye; exit 3' TERM; echo ready > ready; while :; do sleep 0.05; done"
    async with running(tmp_path, "sh", "-c", code) as process:
        until("it is ready", (tmp_path / "ready").exists)
        assert await process.end(30, asyncio.Event())
        assert await process.wait() == 3
    assert (tmp_path / "stdout.log").read_text() == "bye\n"


async def test_process_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    code = "trap '' TERM; echo $$ > ready; while :; do sleep 0.05; done"
    async with running(tmp_path, "sh", "-c", code) as process:
        pid = pid_in(tmp_path / "ready")
        assert await process.end(0.2, asyncio.Event())
        assert await process.wait() == -signal.SIGKILL
        assert not is_alive(pid)


async def test_watcher_kills_all_processes_when_the_lease_timer_ends(tmp_path: Path) -> None:
    run_deadline = RunDeadline(1_000.0)
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{DAEMON}time.sleep(1000)"
    async with running(tmp_path, *python(code), run_deadline=run_deadline) as process:
        daemon = pid_in(tmp_path / "daemon")
        run_deadline.set(0.0)
        assert await process.wait() == -signal.SIGKILL
        until("all is gone", lambda: not is_alive(daemon))
        await process.wait_ended()
        assert process.fault == ""


async def test_deadline_that_passed_before_the_start_ends_the_agent_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, "sleep", "1000", run_deadline=RunDeadline(-1.0)) as process:
        assert await process.wait() == -signal.SIGKILL


async def test_later_deadline_replaces_the_earlier_one(tmp_path: Path) -> None:
    run_deadline = RunDeadline(1_000.0)
    async with running(tmp_path, "sleep", "1000", run_deadline=run_deadline) as process:
        run_deadline.set(0.5)
        run_deadline.set(1_000.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.wait(), 1.0)


async def test_chain_of_short_lived_forks_is_ended(tmp_path: Path) -> None:
    chain = (
        "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('ready', 'w').write('1')\n"
    )
    chain += "while True:\n    if os.fork():\n        os._exit(0)\n    os.setsid()"
    async with running(tmp_path, *python(chain)) as process:
        pid_in(tmp_path / "ready")
        assert await process.end(0.1, asyncio.Event())
        assert process.fault == ""


@pytest.mark.skipif(
    sys.version_info < (3, 11, 3), reason="NOT RUN: asyncio before Python 3.11.3 logs the broken pipe"
)
async def test_message_to_a_watcher_that_has_just_ended_is_no_error(tmp_path: Path) -> None:
    found: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    async with running(tmp_path, "sleep", "1000") as process:
        watcher = watcher_of(process)
        os.kill(watcher, signal.SIGKILL)
        # While the loop hears nothing of it.
        until("it is gone", lambda: not is_alive(watcher))
        process._send(process_watcher.KILL)
        await process.wait_ended()
    del process
    gc.collect()
    await asyncio.sleep(0)
    assert found == []


async def test_second_stop_request_ends_the_grace_period(tmp_path: Path) -> None:
    code = "trap '' TERM; echo $$ > ready; while :; do sleep 0.05; done"
    async with running(tmp_path, "sh", "-c", code) as process:
        pid_in(tmp_path / "ready")
        hurry = asyncio.Event()
        hurry.set()
        assert await process.end(10_000, hurry)


async def test_leftover_processes_are_ended_even_outside_the_group(tmp_path: Path) -> None:
    async with running(tmp_path, *python(DAEMON)) as process:
        assert await process.wait() == 0
        pid = pid_in(tmp_path / "daemon")
        assert is_alive(pid)
        assert await process.end(30, asyncio.Event())
        assert not is_alive(pid)


async def test_suspended_process_gets_sigterm(tmp_path: Path) -> None:
    code = "trap 'exit 5' TERM; echo $$ > ready; while :; do sleep 0.05; done"
    async with running(tmp_path, "sh", "-c", code) as process:
        os.kill(pid_in(tmp_path / "ready"), signal.SIGSTOP)
        assert await process.end(30, asyncio.Event())
        assert await process.wait() == 5


async def test_signal_to_all_processes_is_reported(tmp_path: Path) -> None:
    code = "trap 'exit 0' TERM; echo $$ > ready; while :; do sleep 0.05; done"
    async with running(tmp_path, "sh", "-c", code) as process:
        agent = pid_in(tmp_path / "ready")
        for pid in (watcher_of(process), agent):
            os.kill(pid, signal.SIGTERM)
        assert await process.wait() == 0
        await process.wait_ended()
        assert process.outside_signal == signal.SIGTERM


async def test_signal_of_the_adapter_is_not_from_outside(tmp_path: Path) -> None:
    async with running(tmp_path, "sleep", "1000") as process:
        assert await process.end(30, asyncio.Event())
        assert (await process.wait(), process.outside_signal) == (-signal.SIGTERM, None)


async def test_agent_is_killed_with_its_watcher(tmp_path: Path) -> None:
    code = f"import subprocess\nsubprocess.Popen(['sleep', '1000'])\n{DAEMON}time.sleep(1000)"
    async with running(tmp_path, *python(code)) as process:
        pid_in(tmp_path / "daemon")
        assert process.pid is not None
        watching = process_watcher.processes()[process.pid][0]
        below = process_watcher.descendants(watching).keys()
        # The agent's process, its child, and a detached process.
        assert len(below) == 3
        os.kill(watching, signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        await process.wait_ended()
        assert not below & process_watcher.processes().keys()


async def test_processes_without_a_watcher_are_found_by_environment_or_parent(tmp_path: Path) -> None:
    # The daemon's child has another session and an empty environment; only its parent identifies it.
    child = "subprocess.Popen(['sleep', '1000'], env={}, start_new_session=True)"
    code = DAEMON.replace("time.sleep(1000)", f"import subprocess; {child}; time.sleep(1000)")
    async with running(tmp_path, *python(f"{code}time.sleep(1000)")) as process:
        daemon = pid_in(tmp_path / "daemon")
        until("the daemon has its child", lambda: len(process_watcher.descendants(daemon)) == 1)
        below = process_watcher.descendants(watcher_of(process)).keys()
        assert len(below) == 3
        os.kill(watcher_of(process), signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        await process.wait_ended()
        assert not below & process_watcher.processes().keys()


async def test_adapter_kills_past_a_stopped_watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifesign.adapter.process.agent_process.WATCHER_TIMEOUT_SECONDS", 0.1)
    async with running(tmp_path, *python(f"{DAEMON}time.sleep(1000)")) as process:
        pid_in(tmp_path / "daemon")
        os.kill(watcher_of(process), signal.SIGSTOP)
        below = {watcher_of(process), *process_watcher.descendants(watcher_of(process))}
        assert await process.end(0.1, asyncio.Event())
        assert await process.wait() == -signal.SIGKILL
        assert not below & process_watcher.processes().keys()


async def test_process_whose_start_is_not_confirmed_in_time_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.adapter.process.agent_process.START_SECONDS", 0)
    before = process_watcher.descendants(os.getpid()).keys()
    with pytest.raises(CommandFailed, match=r"\b0 s$"):
        async with running(tmp_path, "sleep", "1000"):
            pass
    assert not process_watcher.descendants(os.getpid()).keys() - before


async def test_failed_process_search_is_not_reported_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.adapter.process.agent_process.WATCHER_TIMEOUT_SECONDS", 0.1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with running(tmp_path, *python(f"{DAEMON}time.sleep(1000)")) as process:
        daemon = pid_in(tmp_path / "daemon")
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            os.kill(watcher_of(process), signal.SIGKILL)
            assert not await process.end(0.1, asyncio.Event())
            assert await process.wait() == -signal.SIGKILL
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert f"[Errno {errno.EMFILE}]" in (process.uncertainty or "")
        assert not process.is_gone
        assert is_alive(daemon)
        os.kill(daemon, signal.SIGKILL)


def watcher_of(process: AgentProcess) -> int:
    return process._process.pid


def test_case_25_an_adapter_that_is_killed_leaves_nothing_of_its_agent_behind(
    tmp_path: Path,
) -> None:
    adapter = (
        "import asyncio, sys; from pathlib import Path; sys.path.insert(0, 'tests'); "
        "from tests.adapter.process.test_agent_process import running\n"
        "async def main():\n"
        f"    async with running(Path({str(tmp_path)!r}), sys.executable, '-c', sys.argv[1]):\n"
        "        await asyncio.sleep(1000)\n"
        "asyncio.run(main())"
    )
    code = f"{DAEMON}open('agent', 'w').write(str(os.getpid())); time.sleep(1000)"
    with subprocess.Popen([*python(adapter), code]) as started:
        pids = {pid_in(tmp_path / name) for name in ("daemon", "agent")}
        below = set(process_watcher.descendants(started.pid))
        assert pids <= below
        started.kill()
    until("nothing is left", lambda: not below & process_watcher.processes().keys())


async def test_last_output_of_the_process_is_kept(tmp_path: Path) -> None:
    code = "import sys\nfor n in range(400_000): print(n)\nprint('last', file=sys.stderr)"
    async with running(tmp_path, *python(code)) as process:
        assert await process.wait() == 0
        await process.wait_ended()
    newer, older = tmp_path / "stdout.log", tmp_path / "stdout.log.older"
    kept = older.read_text() + newer.read_text()
    assert 512 * 1024 <= len(kept) <= 1024 * 1024
    assert kept.endswith("399998\n399999\n")
    assert (tmp_path / "stderr.log").read_text() == "last\n"
