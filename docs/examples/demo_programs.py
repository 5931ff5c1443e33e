"""Programs of a demo: start, output, and end together with the demo."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

COMMAND = [str(Path(sys.executable).with_name("lifesign"))]
PATIENCE_SECONDS = 20
BEGAN_S = time.monotonic()


@contextmanager
def process(command: list[str], environment: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Run a program until the end of the block; Ctrl-C is for the demo, which then ends it."""
    with (
        # Not a pipe: the demo reads it only after a failure, and a full pipe would block the program.
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        ) as running,
    ):
        running.stderr = complaints
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                running.kill()


def first_line(running: "subprocess.Popen[str]") -> str:
    """Return the first line of a program's output; SystemExit with its error output if it ends before."""
    line = running.stdout.readline().strip() if running.stdout else ""
    if not line:
        raise SystemExit(f"the program did not start:\n{_error_output(running)}")
    return line


def _error_output(running: "subprocess.Popen[str]") -> str:
    if running.stderr is None:
        return ""
    running.stderr.seek(0)
    return running.stderr.read()


def address(server: "subprocess.Popen[str]") -> str:
    """Return the URL of a registry, which it prints once it answers."""
    while "registry at" not in (line := first_line(server)):
        pass
    return line.rpartition(" ")[2]


def say(text: str) -> None:
    """Print an event with its time."""
    print(f"{time.monotonic() - BEGAN_S:6.1f} s  {text}", flush=True)


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Exit with the demo's result after all its programs have ended, also if the demo is interrupted."""
    # SIGINT too: a shell that starts this program in the background lets it ignore SIGINT.
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, _end_in_order)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)


def _end_in_order(*_: object) -> None:
    raise KeyboardInterrupt
