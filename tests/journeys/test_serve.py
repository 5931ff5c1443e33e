"""Start, service and shutdown of the server, with real processes."""

import contextlib
import errno
import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.support import preloaded
from tests.support.databases import bare_url
from tests.support.process_tree import descendants, fork_servers, worker_processes
from tests.support.raw_http import exchange
from tests.support.servers import PATIENCE_SECONDS, until

KEY = re.compile(r"ahk_[A-Za-z0-9_-]{43}")


class Serving:
    """A server process, or several with their supervisor, in a separate directory."""

    def __init__(
        self, directory: Path, *options: str, on_terminal: bool = False, database: str | None = None
    ) -> None:
        self.log = directory / f"log-{len(list(directory.glob('log-*')))}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LIFESIGN_")}
        if database is not None:
            environment["LIFESIGN_SERVER_DATABASE"] = database
        reader, writer = os.openpty() if on_terminal else os.pipe()
        with self.log.open("wb") as log:
            self.process = preloaded.PreloadedProcess(
                [preloaded.PROGRAM, "serve", "--port", "0", *options],
                stdout=writer,
                stderr=log,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
        os.close(writer)
        self._output = b""
        self._reading = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self._reading.start()
        try:
            self.url = until("it says where it is", self._address)
        except AssertionError:
            self.kill()
            raise AssertionError(self.log.read_text()) from None

    @property
    def output(self) -> str:
        return self._output.decode()

    @property
    def admin_key(self) -> str:
        (key,) = KEY.findall(self.output)
        return str(key)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def workers(self) -> set[int]:
        """The server processes that a supervisor has."""
        return set(worker_processes(self.process.pid))

    def ask(self, method: str, path: str, body: object = None, *, key: str | None = None) -> tuple[int, Any]:
        """Send one request over a new connection."""
        connection: http.client.HTTPConnection
        if self.url.startswith("https"):
            unchecked = ssl._create_unverified_context()  # noqa: S323 - the test's own certificate
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=PATIENCE_SECONDS, context=unchecked
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        headers = {"Content-Type": "application/json"} | ({} if key is None else {"X-API-Key": key})
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(content) if is_json else content

    def register(self, agent_id: str, key: str) -> str:
        """Register an agent and return its key."""
        status, record = self.ask("POST", "/api/v1/agents", {"agent_id": agent_id}, key=key)
        assert status == 201, record
        return str(record["agent_key"])

    def send_heartbeat(self, agent_id: str, key: str) -> int:
        body = {"status": "active", "client_timestamp": "2026-01-01T00:00:00Z"}
        return self.ask("POST", f"/api/v1/agents/{agent_id}/heartbeat", body, key=key)[0]

    def end(self) -> int:
        """Ask it to end and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Leave nothing of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)
        self._reading.join(PATIENCE_SECONDS)

    def _address(self) -> str | None:
        assert self.process.poll() is None
        # All other lines come before this one.
        found = re.search(r"registry at (\S+)\s", self.output)
        return found[1] if found else None

    def _read(self, reader: int) -> None:
        # At the end, a terminal raises OSError and a pipe returns no bytes.
        with contextlib.suppress(OSError):
            while read := os.read(reader, 4_096):
                self._output += read
        os.close(reader)


Start = Callable[..., Serving]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers; none of them outlives the test."""
    with contextlib.ExitStack() as stack:

        def started(*options: str, **how: Any) -> Serving:
            server = Serving(tmp_path, *options, **how)
            stack.callback(server.kill)
            return server

        yield started


def command(
    directory: Path, *arguments: str, database: str | None = None
) -> "subprocess.CompletedProcess[str]":
    variables = {} if database is None else {"LIFESIGN_SERVER_DATABASE": database}
    return preloaded.run(*arguments, cwd=directory, env={**os.environ, **variables})


def new_key(directory: Path, role: str = "admin", database: str | None = None) -> str:
    created = command(directory, "keys", "create", "--role", role, "--name", "test", database=database)
    assert created.returncode == 0, created.stderr
    return created.stdout.strip()


def test_the_first_start_shows_a_key_once_and_a_restart_keeps_everything(
    start: Start, tmp_path: Path
) -> None:
    first = start(on_terminal=True)
    admin = first.admin_key
    agent = first.register("agent-1", admin)
    assert first.send_heartbeat("agent-1", agent) == 200
    assert first.end() == 0
    second = start(on_terminal=True)
    assert KEY.search(second.output) is None
    status, record = second.ask("GET", "/api/v1/agents/agent-1", key=admin)
    assert (status, record["status"]) == (200, "active")
    assert second.send_heartbeat("agent-1", agent) == 200
    assert second.end() == 0
    for log in tmp_path.glob("log-*"):
        assert KEY.search(log.read_text()) is None
    assert (tmp_path / "lifesign.db").stat().st_mode & 0o077 == 0


def test_key_is_not_printed_without_a_terminal_and_keys_create_makes_one(
    start: Start, tmp_path: Path
) -> None:
    server = start()
    assert "lifesign keys create" in server.output
    assert KEY.search(server.output) is None
    server.register("agent-1", new_key(tmp_path))
    assert server.end() == 0


def test_two_workers_serve_and_a_killed_one_is_replaced(
    start: Start, tmp_path: Path, database_kind: str
) -> None:
    url = bare_url(database_kind, tmp_path)
    admin = new_key(tmp_path, database=url)
    server = start("--workers", "2", database=url)
    before = until("both serve", lambda: found if len(found := server.workers) == 2 else None)
    names = [f"agent-{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as executor:
        keys = list(executor.map(lambda name: server.register(name, admin), names))
    os.kill(min(before), signal.SIGKILL)
    until("another one takes its place", lambda: len(server.workers) == 2 and server.workers != before)
    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(server.send_heartbeat, names, keys)) == [200] * 20
    status, listed = server.ask("GET", "/api/v1/agents?limit=100", key=admin)
    assert (status, listed["total"]) == (200, 20)
    assert server.end() == 0


@pytest.mark.fault
def test_all_workers_are_replaced_if_their_fork_server_is_killed(start: Start) -> None:
    server = start("--workers", "2")
    former = until("both serve", lambda: found if len(found := server.workers) == 2 else None)
    until("both have begun", lambda: server.log.read_text().count("Application startup complete") == 2)
    (fork_server,) = fork_servers(server.process.pid)
    os.kill(fork_server, signal.SIGKILL)
    until("both are replaced", lambda: len(found := server.workers) == 2 and not found & former)
    until("the former have ended", lambda: not any(Path(f"/proc/{pid}").exists() for pid in former))
    assert server.ask("GET", "/healthz")[0] == 200
    assert server.end() == 0


def test_the_fork_server_has_no_thread_and_no_file_of_the_database(start: Start, tmp_path: Path) -> None:
    server = start("--workers", "2")
    (fork_server,) = fork_servers(server.process.pid)
    assert len([*Path(f"/proc/{fork_server}/task").iterdir()]) == 1
    opened = [str(each.readlink()) for each in Path(f"/proc/{fork_server}/fd").iterdir()]
    assert opened
    assert not [each for each in opened if str(tmp_path / "lifesign.db") in each]
    assert server.end() == 0


def test_single_process_shuts_down_when_its_terminal_is_closed(start: Start, tmp_path: Path) -> None:
    server = start()
    server.process.send_signal(signal.SIGHUP)
    assert server.process.wait(PATIENCE_SECONDS) == 0
    assert "Application shutdown complete" in server.log.read_text()
    assert not (tmp_path / "lifesign.db-wal").exists()


@pytest.mark.fault
@pytest.mark.long
def test_several_processes_are_replaced_when_their_terminal_is_closed_and_none_dies(start: Start) -> None:
    server = start("--workers", "2")
    former = until("both serve", lambda: found if len(found := server.workers) == 2 else None)
    until("both have begun", lambda: server.log.read_text().count("Application startup complete") == 2)
    os.killpg(server.process.pid, signal.SIGHUP)
    until("all are replaced", lambda: len(found := server.workers) == 2 and not found & former)
    assert server.end() == 0
    assert "it is replaced" not in server.log.read_text(), "a worker has crashed"


@pytest.mark.parametrize(
    "signal_number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT]
)
def test_signal_to_the_process_group_ends_all_without_errors(start: Start, signal_number: int) -> None:
    """Ctrl-C and systemd send the signal like this."""
    server = start("--workers", "2")
    until("both serve", lambda: len(server.workers) == 2)
    until("both have begun", lambda: server.log.read_text().count("Application startup complete") == 2)
    os.killpg(server.process.pid, signal_number)
    assert server.process.wait(PATIENCE_SECONDS) == 0
    log = server.log.read_text()
    assert not re.search(r"ERROR|WARNING|Traceback|replaced", log), log
    assert log.count("Started server process") == 2


@pytest.mark.fault
@pytest.mark.long
def test_termination_during_a_process_replacement_ends_all_processes(start: Start) -> None:
    server = start("--workers", "2")

    def started() -> int:
        return server.log.read_text().count("Started server process")

    until("both have begun", lambda: server.log.read_text().count("Application startup complete") == 2)
    server.process.send_signal(signal.SIGHUP)
    until("the successor of the first starts", lambda: started() == 3)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE_SECONDS) == 0
    log = server.log.read_text()
    assert not re.search(r"ERROR|Traceback", log), log
    assert started() == 3, "a worker was replaced during the shutdown"


def test_all_processes_are_replaced_while_they_serve(start: Start) -> None:
    server = start("--workers", "2", on_terminal=True)
    former = until("both serve", lambda: found if len(found := server.workers) == 2 else None)
    server.process.send_signal(signal.SIGHUP)

    def are_replaced() -> bool:
        assert server.ask("GET", "/healthz")[0] == 200
        return len(found := server.workers) == 2 and not found & former

    until("none of them is left", are_replaced)
    end_with_open_stream(server, signal.SIGTERM)


def test_workers_refuse_an_endless_head_and_end_when_their_supervisor_is_killed(start: Start) -> None:
    server = start("--workers", "2")
    workers = until("both serve", lambda: found if len(found := server.workers) == 2 else None)
    until("it answers", lambda: server.ask("GET", "/healthz")[0] == 200)
    for _ in range(4):
        answer = exchange(server.port, b"GET / HTTP/1.1\r\nX: ", *[b"x" * 8_192] * 40)
        assert (answer.status, answer.code) == (431, "head_too_large")
    below = descendants(server.process.pid)
    assert workers < {*below}
    server.process.kill()
    server.process.wait(PATIENCE_SECONDS)
    until("all of them are gone", lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
    with pytest.raises(OSError, match="refused"):
        server.ask("GET", "/healthz")


def test_pending_requests_are_stored_and_answered_before_the_end(start: Start) -> None:
    server = start(on_terminal=True)
    agent = server.register("agent-1", server.admin_key)
    body = b'{"status": "active", "client_timestamp": "2026-01-01T00:00:00Z"}'
    head = (
        f"POST /api/v1/agents/agent-1/heartbeat HTTP/1.1\r\nHost: a\r\nX-API-Key: {agent}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(head.encode() + body[:10])
        until("it reads the request", lambda: server.ask("GET", "/healthz")[0] == 200)
        server.process.send_signal(signal.SIGTERM)
        until("it takes no more", lambda: "Shutting down" in server.log.read_text())
        connection.sendall(body[10:])
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
    assert server.process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.fault
@pytest.mark.long
def test_incomplete_requests_are_closed_and_delay_no_other(start: Start) -> None:
    """Slowly dripping heads, 400 at once, and as many who only connect: over after 10 s, and a second."""
    server = start(on_terminal=True)
    agent = server.register("agent-1", server.admin_key)
    with contextlib.ExitStack() as stack:
        callers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS))
            for _ in range(800)
        ]
        for caller in callers[::2]:
            caller.sendall(b"GET / HTTP/1.1\r\nX: ")
        dripping = set(callers[::2])

        def drip() -> bool:
            for caller in [*dripping]:
                try:
                    caller.send(b"x")
                except OSError:
                    dripping.discard(caller)
            assert server.send_heartbeat("agent-1", agent) == 200
            return not dripping

        until("all of them are let go", drip)
        for caller in callers[1::2]:
            assert caller.recv(1) == b""


@pytest.mark.parametrize(
    ("workers", "signal_number"),
    [
        ("1", signal.SIGINT),
        pytest.param("1", signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("2", signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_event_stream_ends_with_the_server(start: Start, signal_number: int, workers: str) -> None:
    end_with_open_stream(start("--workers", workers, on_terminal=True), signal_number)


def end_with_open_stream(server: Serving, signal_number: int) -> None:
    """Ask a server to end while it streams; the stream ends too."""
    key = server.admin_key
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as connection:
        request = f"GET /api/v1/events/stream HTTP/1.1\r\nHost: a\r\nX-API-Key: {key}\r\n\r\n"
        connection.sendall(request.encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal_number)
        assert server.process.wait(PATIENCE_SECONDS) == 0
        until("the stream ends", lambda: connection.recv(65_536) == b"")
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def tls(tmp_path: Path) -> Sequence[str]:
    """The options for a certificate and its key."""
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-days", "1", "-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "cert.pem",
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )  # fmt: skip
    return "--tls-certificate", "cert.pem", "--tls-key", "key.pem"


def test_invalid_new_certificate_keeps_the_running_processes_and_is_logged(
    start: Start, tls: Sequence[str], tmp_path: Path
) -> None:
    server = start("--workers", "2", *tls)

    def is_logged(part: str) -> Callable[[], bool]:
        return lambda: part in server.log.read_text()

    until("both have begun", lambda: server.log.read_text().count("Application startup complete") == 2)
    former = server.workers
    good = (tmp_path / "cert.pem").read_text()
    (tmp_path / "cert.pem").write_text("x")
    server.process.send_signal(signal.SIGHUP)
    until("it says what became of it", is_logged("ended before it was ready (exit code 1): the old process"))
    assert server.ask("GET", "/healthz")[0] == 200
    os.kill(min(former), signal.SIGKILL)
    until("it pauses before it tries again", is_logged("died (exit code 1): it is replaced in 1 s"))
    assert server.ask("GET", "/healthz")[0] == 200
    (tmp_path / "cert.pem").write_text(good)
    until("one takes its place", lambda: server.log.read_text().count("startup complete") == 3)
    assert server.end() == 0
    for line in server.log.read_text().splitlines():
        assert re.match(r"\d{4}-\d\d-\d\dT\S+ (INFO|ERROR) (lifesign|uvicorn)\S*: ", line), line
    refused = line_of(server, "cannot serve with this certificate")
    assert re.search("tls_certificate: .*; got 'cert.pem'", refused)


def test_expired_new_certificate_replaces_no_process(
    start: Start, tls: Sequence[str], tmp_path: Path
) -> None:
    server = start("--workers", "2", *tls)
    until("both have begun", lambda: server.log.read_text().count("Application startup complete") == 2)
    former = server.workers
    issued = trustme.CA().issue_cert("localhost", not_after=datetime(2025, 1, 1, tzinfo=UTC))
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    server.process.send_signal(signal.SIGHUP)
    until("it says so", lambda: "cannot serve with this certificate" in server.log.read_text())
    assert server.workers == former
    assert server.ask("GET", "/healthz")[0] == 200
    assert server.end() == 0
    # A start has no former certificate to keep.
    (tmp_path / "key.pem").chmod(0o640)
    server = start(*tls)
    assert server.ask("GET", "/healthz")[0] == 200
    assert "clients refuse this certificate" in server.log.read_text()
    assert "key.pem (mode 0640)" in line_of(server, "WARNING")
    assert server.end() == 0


def line_of(server: Serving, part: str) -> str:
    """Return the first line of its log that has this part."""
    return next(line for line in server.log.read_text().splitlines() if part in line)


def test_server_with_a_certificate_serves_https(start: Start, tls: Sequence[str]) -> None:
    server = start(*tls)
    assert server.url.startswith("https://")
    assert server.ask("GET", "/healthz") == (200, b"ok\n")
    assert server.end() == 0


@pytest.mark.parametrize(("options", "is_logged"), [((), False), (("--access-log",), True)])
def test_requests_are_logged_only_if_configured(
    start: Start,
    options: Sequence[str],
    is_logged: bool,  # noqa: FBT001
) -> None:
    server = start(*options)
    server.ask("GET", "/api/v1/agents?status=active")
    assert server.end() == 0
    assert ("status=active" in server.log.read_text()) is is_logged


def refused(directory: Path, *options: str, database: str | None = None) -> tuple[int, str]:
    """Start a server that cannot start; return its exit code and all that it wrote."""
    ended = command(directory, "serve", *options, database=database)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_failed_start_prints_no_address(tmp_path: Path, workers: str) -> None:
    without_app = "import sys\nsys.modules['lifesign.registry.app'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(without_app)
    ended = subprocess.run(
        [preloaded.PROGRAM, "serve", "--port", "0", "--workers", workers],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode == 1
    assert "database sqlite:///lifesign.db" in ended.stdout
    assert "registry at" not in ended.stdout


def test_port_that_is_taken_is_reported_with_a_hint(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = refused(tmp_path, "--port", str(port))
    assert code == 1
    problem, hint = output.splitlines()
    assert problem.endswith(f" 127.0.0.1, port {port}: {os.strerror(errno.EADDRINUSE)}")
    assert hint.startswith("hint: ")
    assert list(tmp_path.iterdir()) == []


def test_unreachable_database_is_reported_without_the_password(tmp_path: Path) -> None:
    url = "postgresql://ah:hunter2@127.0.0.1:1/ah"
    code, output = refused(tmp_path, "--port", "0", database=url)
    assert code == 2
    problem, hint = output.splitlines()[-2:]
    assert problem.startswith("lifesign: ")
    assert problem.endswith("(ConnectionRefusedError)")
    assert hint.startswith("hint: ")
    assert "hunter2" not in output


def test_invalid_option_is_one_line_and_creates_no_file(tmp_path: Path) -> None:
    """Others are in tests/cli/commands/test_serve.py; this one is found last."""
    code, output = refused(
        tmp_path, "--port", "0", "--tls-certificate", "absent.pem", "--tls-key", "absent.pem"
    )
    assert code == 3
    assert output.startswith("lifesign: ")
    assert output.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("revision", "advice"), [("0000", "newer version"), (None, "another program")])
def test_database_of_another_program_is_not_changed(
    tmp_path: Path, revision: str | None, advice: str
) -> None:
    assert command(tmp_path, "migrate").returncode == 0
    connection = sqlite3.connect(tmp_path / "lifesign.db")
    if revision is None:
        connection.execute("DROP TABLE lifesign_revision")
    else:
        connection.execute("UPDATE lifesign_revision SET version_num = ?", [revision])
    connection.commit()
    connection.close()
    code, output = refused(tmp_path, "--port", "0")
    assert code == 2
    assert advice in output
    assert output.count("\n") == 1


def test_a_backup_of_sqlite_is_served_from_postgresql(start: Start, tmp_path: Path) -> None:
    first = start(on_terminal=True)
    admin = first.admin_key
    agent = first.register("agent-1", admin)
    lease = {"resource": "task:1"}
    token = first.ask("POST", "/api/v1/leases", lease, key=agent)[1]["fencing_token"]
    assert command(tmp_path, "backup", "registry.gz").returncode == 0
    assert first.end() == 0
    url = bare_url("postgresql", tmp_path)
    assert command(tmp_path, "restore", "registry.gz", "--trust-all-keys", database=url).returncode == 0
    assert command(tmp_path, "restore", "registry.gz", "--trust-all-keys", database=url).returncode == 1
    second = start(database=url)
    assert second.send_heartbeat("agent-1", agent) == 200
    status, granted = second.ask("POST", "/api/v1/leases", lease, key=agent)
    assert status == 201, second.log.read_text()
    assert granted["fencing_token"] > token
    assert second.end() == 0


def test_json_log_format_applies_to_each_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as both:
        process = preloaded.PreloadedProcess(
            [preloaded.PROGRAM, "serve", "--port", "0", "--log-format", "json"],
            stdout=both,
            stderr=both,
            cwd=tmp_path,
        )
    try:
        until("it says that it is ready", lambda: b'"server.ready"' in log.read_bytes())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    members = {line["event"]: line for line in lines}
    assert members["server.prepared"]["needs_admin_key"] is True
    assert members["server.prepared"]["database"] == "sqlite:///lifesign.db"
    assert members["server.ready"]["url"].startswith("http://127.0.0.1:")
