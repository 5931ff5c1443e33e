import json
import subprocess
import sys
from typing import Any

PROGRAM = """
from multiprocessing.forkserver import main
import lifesign.serving.fork_server
import gc, json, os, signal

def state():
    return sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), gc.isenabled(), gc.get_freeze_count() > 0

reader, writer = os.pipe()
os.kill(os.getpid(), signal.SIGTERM)
before = state()
if os.fork() == 0:
    os.write(writer, json.dumps(state()).encode())
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(1)
_, status = os.wait()
end = os.waitstatus_to_exitcode(status)
worker = json.loads(os.read(reader, 1_000))
print(json.dumps([before, worker, end]))
"""


def outcome() -> list[Any]:
    """Run the program and return what it prints."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return [*json.loads(ended.stdout)]


def test_signals_end_a_worker_but_not_its_fork_server() -> None:
    before, worker, end = outcome()
    # It gets a SIGTERM and lives, but its worker does not.
    assert before[:2] == [[1, 2, 3, 15], False]
    assert worker == [[], True, True]
    assert end == -15


def test_import_in_another_process_blocks_no_signal() -> None:
    program = (
        "import lifesign.serving.fork_server, gc, signal\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []), gc.isenabled())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "set() True\n"
