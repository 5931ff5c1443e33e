"""Real servers as processes: start, requests, and proof that nothing of them remains."""

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent
HEALTH_PATH = "/.well-known/agent-health"
PATIENCE_SECONDS = 120
"""How long is waited for anything that should take a moment: it ends a hang, and no machine is that slow."""

LONGEST_ANSWER_SECONDS = 60
"""The most that a registry's settings allow for its database, so that a slow machine changes no answer."""

_FIRST_PORT = 18_000
_PORT_RANGES = 8
_PORTS_PER_PROCESS = 1_500
_ports = itertools.count()

Found = TypeVar("Found")


def until(what: str, look: Callable[[], Found | None], seconds: float = PATIENCE_SECONDS) -> Found:
    """Look until something true is found and return it; AssertionError after the deadline."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return found


@dataclass(frozen=True)
class Server:
    """A server process on loopback."""

    port: int
    process: "subprocess.Popen[bytes]"
    log: Path

    def send(
        self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Send one request over a new connection; return status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Connection": "close", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def json(self, path: str) -> Any:
        status, body = self.send(path)
        assert status == 200, body
        return json.loads(body)

    def document(self) -> Any:
        return self.json(HEALTH_PATH)

    def raw(self, request: bytes) -> bytes:
        """Send these bytes; return all that comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65_536), b""))

    def leave_midway(self, path: str, *, after_seconds: float) -> bytes:
        """Send a request, read for a while, and disconnect before the end; return the received bytes."""
        deadline = time.monotonic() + after_seconds
        read = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            while (remaining := deadline - time.monotonic()) > 0:
                connection.settimeout(remaining)
                with contextlib.suppress(TimeoutError):
                    read += connection.recv(65_536)
        return read

    def is_accepting(self) -> bool:
        assert self.process.poll() is None, f"it ended:\n{self.log.read_text()}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


@contextmanager
def serving(
    command: Sequence[str],
    *,
    log: Path,
    port: int | None = None,
    env: Mapping[str, str] | None = None,
    start: "Callable[..., subprocess.Popen[bytes]]" = subprocess.Popen,
) -> Iterator[Server]:
    """Run a server while the body runs; `{port}` in the command stands for a free port.

    At the end it is asked to stop, and then its whole process group must be gone.
    """
    port = port or free_port()
    with (
        log.open("ab") as output,
        start(
            [part.replace("{port}", str(port)) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(env or {})},
            cwd=REPOSITORY,
            start_new_session=True,
        ) as process,
    ):
        server = Server(port, process, log)
        try:
            until("the server accepts connections", server.is_accepting)
            yield server
        finally:
            stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process to stop and wait for it; remaining processes of its session are killed."""
    process.terminate()
    try:
        process.wait(PATIENCE_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)


def free_port() -> int:
    """Return a port at which nothing listens, and nothing will until a server is started there.

    It lies below those that the kernel hands out itself, since a server binds it a moment later. Each process
    of pytest-xdist has a range of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST_PORT + worker % _PORT_RANGES * _PORTS_PER_PROCESS
    for _ in range(_PORTS_PER_PROCESS):
        port = first + (os.getpid() + next(_ports)) % _PORTS_PER_PROCESS
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")
