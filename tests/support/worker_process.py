"""A worker process that tests kill, suspend and fork.

It counts by real clocks and obeys commands: a line in, a line out. `Worker` is its remote control.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.servers import PATIENCE_SECONDS

from lifesign import AgentHealth
from lifesign.middleware.published_document import PublishedDocument

IN_MEMORY = "-"


class Worker:
    """A worker process, seen from the test."""

    def __init__(self, state_dir: Path | str) -> None:
        self.process = PreloadedProcess(
            [PYTHON, "-m", "tests.support.worker_process", str(state_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> str:
        """Send a command and return the answer."""
        self.tell(line)
        answer = b""
        while not answer.endswith(b"\n"):
            answer += self.read()
        return answer.decode().strip()

    def read(self, most_bytes: int = 65_536) -> bytes:
        """Wait for output and return it; AssertionError if there is none for too long, or no more."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        ready, _, _ = select.select([fd], [], [], PATIENCE_SECONDS)
        assert ready, "the worker process writes nothing"
        output = os.read(fd, most_bytes)
        assert output, "the worker process has ended"
        return output

    def count(self) -> int:
        """Return the worker's `sample_count`."""
        return int(self.ask("count"))

    def kill_while_counting(self, after: int) -> int:
        """Kill it once it has counted so many, and more may be under way; return how many it counted."""
        self.tell("run")
        counted = 0
        while counted < after:
            counted += len(self.read())
        self.process.kill()
        assert self.process.stdout is not None
        counted += len(self.process.stdout.read())
        self.process.wait()
        return counted

    def end(self) -> None:
        """Nothing is left of it and of what it forked."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()


@contextmanager
def worker_processes(state_dir: Path | str, count: int = 1) -> Iterator[list[Worker]]:
    """Run workers while the body runs."""
    workers = [Worker(state_dir) for _ in range(count)]
    try:
        for worker in workers:
            assert worker.ask("open") == "ok"
        yield workers
    finally:
        for worker in workers:
            worker.end()


# --- inside the process -----------------------------------------------------------------------------------


def record(health: AgentHealth, count: int = 1) -> str:
    for _ in range(count):
        health.record(latency_ms=1)
    return "ok"


def count_samples(health: AgentHealth) -> str:
    calibration = health.document().calibration
    assert calibration is not None
    return str(calibration.sample_count)


def published(health: AgentHealth) -> str:
    return health.published(health.clock.monotonic_ns()).document.decode()


def run(health: AgentHealth) -> str:
    """Count without an end, and print each count."""
    while True:
        health.record(latency_ms=1)
        os.write(1, b".")


def rush(health: AgentHealth) -> str:
    """Count without an end, as fast as possible."""
    os.write(1, b"ok\n")
    while True:
        health.count_quick_answer(5000, health.clock.monotonic_ns())


def rush_in_threads(health: AgentHealth, count: int) -> str:
    """Count in three threads, while children are forked that count ten each; return how many it were."""
    threads = [threading.Thread(target=record, args=(health, count)) for _ in range(3)]
    for thread in threads:
        thread.start()
    children = [_forked(lambda: record(health, 10)) for _ in range(20)]
    for thread in threads:
        thread.join()
    for child in children:
        _wait_for(child)
    return str(3 * count + 10 * len(children))


def hold(health: AgentHealth) -> str:
    """Take the right to publish and keep it."""
    assert health._windows is not None
    held = health._windows.publishing()
    assert held.__enter__()
    os.write(1, b"ok\n")
    while True:
        time.sleep(PATIENCE_SECONDS)


def die_publishing(health: AgentHealth) -> str:
    """Be killed between taking the lock and writing."""

    def die(notice: PublishedDocument) -> None:
        os.write(1, b"dying\n")
        os.kill(os.getpid(), signal.SIGKILL)

    assert health._windows is not None
    health._windows.publish = die  # type: ignore[method-assign]
    return published(health)


def fork(health: AgentHealth, count: int) -> str:
    """Fork a child that counts so many and ends; return what it reports."""
    reading, writing = os.pipe()

    def work() -> None:
        before = count_samples(health)
        record(health, count)
        os.write(writing, f"{before} {count_samples(health)}".encode())

    _wait_for(_forked(work))
    os.close(writing)
    with os.fdopen(reading) as answer:
        return answer.read()


def fork_while_locked(health: AgentHealth, count: int) -> str:
    """Fork a child while another thread holds the recorder's lock."""
    is_held, may_go = threading.Event(), threading.Event()

    def keep_locked() -> None:
        with health._lock:
            is_held.set()
            may_go.wait()

    thread = threading.Thread(target=keep_locked)
    thread.start()
    is_held.wait()
    try:
        return fork(health, count)
    finally:
        may_go.set()
        thread.join()


def fork_idle(health: AgentHealth) -> str:
    """Fork a child that counts nothing and lives on."""
    _forked(signal.pause)
    return "ok"


def _forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    # A child that cannot go on must not hang the test.
    signal.alarm(PATIENCE_SECONDS)
    failure = 1
    try:
        work()
        failure = 0
    finally:
        os._exit(failure)


def _wait_for(child: int) -> None:
    _, status = os.waitpid(child, 0)
    assert status == 0, status


_DEEDS: dict[str, Callable[..., str]] = {
    "record": record,
    "count": count_samples,
    "published": published,
    "run": run,
    "rush": rush,
    "rush_in_threads": rush_in_threads,
    "hold": hold,
    "die_publishing": die_publishing,
    "fork": fork,
    "fork_while_locked": fork_while_locked,
    "fork_idle": fork_idle,
}


def main() -> None:
    state_dir = sys.argv[1]
    health = AgentHealth(
        agent_id="agent", refresh_seconds=1, state_dir=None if state_dir == IN_MEMORY else state_dir
    )
    for line in sys.stdin:
        function, *arguments = line.split()
        if function == "open":
            health.open()
            answer = "ok"
        else:
            answer = _DEEDS[function](health, *map(int, arguments))
        os.write(1, answer.encode() + b"\n")


if __name__ == "__main__":
    main()
