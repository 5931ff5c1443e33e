"""Processes of `lifesign`, and of other Python programs, that begin with modules loaded.

Loading the modules takes a second of CPU time, which was most of what a journey needed. One process for each
process of pytest loads them once and forks at each start. A fork runs what the installed script or Python
runs, with its own arguments, environment, directory, session and streams. The processes that it starts
through multiprocessing are forks too. In `/proc`, the command line and environment of all of them are those
of the process that forks. Variables that are read while modules load have no effect: a test with PYTHONPATH
or SSL_CERT_FILE starts the program itself.
"""

import gc
import json
import os
import runpy
import select
import selectors
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

from tests.support.forked_workers import fork_instead_of_spawning
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY, SCRIPTS

_MODULES: Final = (
    "lifesign.adapter.main_loop",
    "lifesign.adapter.tools.proxy_server",
    "lifesign.adapter.tools.tool_proxy",
    "lifesign.cli.application",
    "lifesign.crawl.run",
    "lifesign.dashboard.routes",
    "lifesign.mcp.over_http",
    "lifesign.mcp.server",
    "lifesign.registry.app",
    "lifesign.registry.backup.update_backup",
    "lifesign.registry.run_server",
    "mcp.client.streamable_http",
    "mcp.server",
    "uvicorn.main",
)
_ENVIRONMENT: Final = dict(os.environ)
"""Before any test has changed it."""
_READ_WHILE_LOADING: Final = ("PYTHONPATH", "SSL_CERT_FILE")
PROGRAM: Final = str(SCRIPTS / "lifesign")
PYTHON: Final = sys.executable
"""Its options are one of `-c CODE`, `-m MODULE` and a file."""
_LONGEST_REQUEST_BYTES: Final = 131_072
_NUMBER_BYTES: Final = 4

Stream = int | IO[Any]


def is_startable(env: Mapping[str, str]) -> bool:
    """Return whether a process with loaded modules behaves as one with this environment."""
    return all(env.get(name) in {None, _ENVIRONMENT.get(name)} for name in _READ_WHILE_LOADING)


class PreloadedProcess(subprocess.Popen[bytes]):
    """A process of `PROGRAM` or `PYTHON` as if `subprocess.Popen` had started it."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream,
        stderr: Stream = 2,
        cwd: Path = REPOSITORY,
        env: Mapping[str, str] = os.environ,
        start_new_session: bool = False,
    ) -> None:
        assert command[0] in {PROGRAM, PYTHON}
        assert is_startable(env), "the modules are loaded already"
        self.args = [*map(str, command)]
        self.stdin, self.stdout, self.stderr = None, None, None
        self.returncode: Any = None
        self._numbers, numbers = os.pipe()
        request = [self.args, str(cwd), dict(env), start_new_session]
        with ExitStack() as opened:
            opened.callback(os.close, numbers)
            streams = [_given(stream, opened) for stream in (stdin, stdout, stderr)]
            if stdin == subprocess.PIPE:
                streams[0], writer = os.pipe()
                opened.callback(os.close, streams[0])
                self.stdin = os.fdopen(writer, "wb")
            if stdout == subprocess.PIPE:
                self.stdout, streams[1] = _pipe(opened)
            if stderr == subprocess.PIPE:
                self.stderr, streams[2] = _pipe(opened)
            socket.send_fds(_forking_process()[1], [json.dumps(request).encode()], [*streams, numbers])
        self.pid = self._next_number()

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code."""
        if self.returncode is None:
            arrival = select.poll()
            arrival.register(self._numbers, select.POLLIN)
            if not arrival.poll(None if timeout is None else timeout * 1_000):
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = self._next_number()
            os.close(self._numbers)
        return int(self.returncode)

    def _next_number(self) -> int:
        sent = os.read(self._numbers, _NUMBER_BYTES)
        assert sent, "the process that forks has ended"
        return int.from_bytes(sent, signed=True)


def _given(stream: Stream, opened: ExitStack) -> int:
    if stream == subprocess.DEVNULL:
        return opened.enter_context(Path(os.devnull).open("r+b", buffering=0)).fileno()
    return stream if isinstance(stream, int) else stream.fileno()


def _pipe(opened: ExitStack) -> tuple[IO[bytes], int]:
    reader, writer = os.pipe()
    opened.callback(os.close, writer)
    return os.fdopen(reader, "rb"), writer


def run(
    *arguments: str | Path,
    program: str = PROGRAM,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.PIPE,
    cwd: Path = REPOSITORY,
    env: Mapping[str, str] = os.environ,
) -> "subprocess.CompletedProcess[str]":
    """Run a command of `lifesign`, or another program, to its end."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = PreloadedProcess(
            [program, *arguments],
            stdin=stdin,
            stdout=output if stdout == subprocess.PIPE else stdout,
            stderr=errors,
            cwd=cwd,
            env=env,
        )
        try:
            code = process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(process.args, code, output.read(), errors.read())


def stop_forking() -> None:
    """End the process that forks, if it was started."""
    if _forking_process.cache_info().currsize:
        process, requests = _forking_process()
        requests.close()
        process.wait()
        _forking_process.cache_clear()


@cache
def _forking_process() -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Start the process that forks; return it and where it takes requests."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        # Processes that multiprocessing starts load the main module again if it has a file.
        program = f"from tests.support.preloaded import main; main({its.fileno()})"
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            cwd=REPOSITORY,
            env=_ENVIRONMENT,
            pass_fds=[its.fileno()],
        )
    return process, ours


def main(requests_fd: int) -> None:
    """Load the modules and fork at each request; the forks go on with the command line."""
    # The working directory is first, and would be another one in each fork.
    sys.path.remove("")
    # The modules leave no garbage.
    gc.disable()
    for name in _MODULES:
        import_module(name)
    gc.freeze()
    gc.enable()
    with socket.socket(fileno=requests_fd) as requests:
        arguments = _forked(requests)
    if arguments is None:
        return None
    fork_instead_of_spawning()
    if arguments[0] == PYTHON:
        return _run_python(arguments[1:])
    from lifesign.cli import main as run_command  # noqa: PLC0415 - loaded by now

    sys.argv[:] = arguments
    sys.exit(run_command())


def _run_python(arguments: list[str]) -> None:
    """Do what Python does with these arguments."""
    option, name, *_ = [*arguments, ""]
    if option == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        exec(compile(name, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - a test's own program
    elif option == "-m":
        sys.argv[:] = arguments[1:]
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a string
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = arguments
        sys.path.insert(0, str(Path(option).parent))
        runpy.run_path(option, run_name="__main__")


def _forked(requests: socket.socket) -> list[str] | None:
    """Fork at each request; return the arguments in a fork, and None once there are no more requests."""
    running: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in running:
                    selector.unregister(key.fd)
                    _report_end(*running.pop(key.fd), key.fd)
                    continue
                request, descriptors, *_ = socket.recv_fds(requests, _LONGEST_REQUEST_BYTES, 4)
                if not request:
                    return None
                *streams, numbers = descriptors
                if (pid := os.fork()) == 0:
                    for descriptor in (numbers, *running, *(numbers for _, numbers in running.values())):
                        os.close(descriptor)
                    return _become(json.loads(request), streams)
                for descriptor in streams:
                    os.close(descriptor)
                _send(numbers, pid)
                ended = os.pidfd_open(pid)
                running[ended] = (pid, numbers)
                selector.register(ended, selectors.EVENT_READ)


def _become(request: list[Any], streams: Sequence[int]) -> list[str]:
    """Take over what the request asks for; return the arguments."""
    arguments: list[str]
    arguments, directory, environment, has_own_session = request
    if has_own_session:
        os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout = os.fdopen(1, "w", 1 if os.isatty(1) else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    return arguments


def _report_end(pid: int, numbers: int, ended: int) -> None:
    _, status = os.waitpid(pid, 0)
    _send(numbers, os.waitstatus_to_exitcode(status))
    os.close(numbers)
    os.close(ended)


def _send(numbers: int, number: int) -> None:
    os.write(numbers, number.to_bytes(_NUMBER_BYTES, signed=True))
