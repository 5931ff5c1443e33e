import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess, SpawnProcess
from pathlib import Path

import pytest

from lifesign.serving import worker_start
from lifesign.serving.worker_start import EXIT_UNKNOWN, WorkerContext, WorkerProcess, death_text, start_worker

PROGRAM = """
import os, signal
from pathlib import Path
from lifesign.serving.worker_start import start_worker

LOADED = "import sys; sys.exit(3 if 'colorsys' in sys.modules else 4)"

def started(code):
    return start_worker(lambda context: context.Process(target=exec, args=(code,)), ["colorsys", "absent"])

def exit_code_of(process):
    process.join()
    return process.exitcode

print(exit_code_of(started(LOADED)))
waiting = started("import signal; signal.pause()")
fork_server = int(Path(f"/proc/{waiting.pid}/stat").read_text().rpartition(")")[2].split()[1])
os.kill(fork_server, signal.SIGKILL)
os.kill(waiting.pid, signal.SIGKILL)
print(exit_code_of(waiting))
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
print(exit_code_of(started(LOADED)))
"""

IN_SHARED_DIRECTORY = """
import multiprocessing, os, sys
from lifesign.registry.request_handling.work_counts import shared_counts
from lifesign.serving.worker_start import start_worker

def new_process(context):
    if context.get_start_method() not in sys.argv:
        raise OSError
    return context.Process(target=os._exit, args=(7,))

if __name__ == "__main__":
    shared_counts(1)
    process = start_worker(new_process, ["colorsys"])
    process.join()
    print(process.exitcode, os.environ.get("PYTHONSAFEPATH"))
"""


def ending(target: Callable[[int], object], number: int) -> Callable[[WorkerContext], WorkerProcess]:
    return lambda context: context.Process(target=target, args=(number,))


def exit_codes() -> list[int]:
    """Run the program and return the exit codes that it prints."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return [*map(int, ended.stdout.split())]


def test_worker_is_forked_with_its_modules_also_after_the_fork_server_was_killed() -> None:
    assert exit_codes() == [3, EXIT_UNKNOWN, 3]


@pytest.mark.parametrize(
    ("target", "number", "exit_code", "text"),
    [
        (sys.exit, 0, 0, "exit code 0"),
        (sys.exit, 7, 7, "exit code 7"),
        (signal.raise_signal, signal.SIGKILL, -9, "signal 9"),
    ],
)
def test_exit_code_of_a_fork_is_known(
    target: Callable[[int], object], number: int, exit_code: int, text: str
) -> None:
    process = start_worker(ending(target, number), [])
    process.join()
    assert isinstance(process, ForkServerProcess)
    assert (process.exitcode, death_text(process.exitcode)) == (exit_code, text)


@pytest.mark.parametrize("methods", [["forkserver"], ["spawn"]])
def test_no_process_imports_a_module_of_the_working_directory(tmp_path: Path, methods: list[str]) -> None:
    """Another user may be allowed to create files there."""
    script, shared, imported = tmp_path / "bin/program.py", tmp_path / "shared", tmp_path / "imported"
    for directory in (script.parent, shared):
        directory.mkdir()
    script.write_text(IN_SHARED_DIRECTORY)
    for name in ("multiprocessing", "colorsys"):
        (shared / f"{name}.py").write_text(f"open({str(imported)!r}, 'w')")
    ended = subprocess.run(
        [sys.executable, script, *methods], capture_output=True, text=True, check=True, cwd=shared
    )
    assert ended.stdout == "7 None\n"
    assert not imported.exists()


def test_worker_is_a_new_interpreter_if_it_cannot_be_forked(caplog: pytest.LogCaptureFixture) -> None:
    def new_process(context: WorkerContext) -> WorkerProcess:
        if context.get_start_method() == "forkserver":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return ending(sys.exit, 7)(context)

    process = start_worker(new_process, [])
    process.join()
    assert isinstance(process, SpawnProcess)
    assert process.exitcode == 7
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_worker_forbids_core_dumps_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(worker_start, "forbid_core_dumps", lambda: done.append("forbidden"))
    given = worker_start.main_with_listeners(done.append, "began")
    given["target"](*given["args"])
    assert done == ["forbidden", "began"]
