import asyncio
import errno
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.request import Request, urlopen

import asyncpg  # type: ignore[import-untyped]
import pytest
import trustme
from tests.support.certificates import LONG_AGO, Authority
from tests.support.databases import bare_url, migrated_url
from tests.support.dns_server import dns_serving
from tests.support.hostile_server import answer, serving
from tests.support.registry_server import KEYS, RegistryServer, registry_server
from tests.support.servers import PATIENCE_SECONDS, free_port

from lifesign.cli import main
from lifesign.cli.doctor import http, machine_checks, registry_checks
from lifesign.cli.doctor.check_result import CheckResult, ahead_s, of_the_clock
from lifesign.cli.doctor.database_checks import _of_the_sweeps
from lifesign.cli.doctor.registry_checks import of_the_monitor, of_the_reports
from lifesign.cli.doctor.server_checks import listener_text, of_the_server
from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE
from lifesign.domain.access.permissions import Role, key_of
from lifesign.domain.common.project import install_command
from lifesign.domain.models.base import moment
from lifesign.domain.models.shards import LivingProber
from lifesign.prober.reachability.witness_requests import WitnessReply, WitnessRequests
from lifesign.registry.request_handling.error_statuses import error_response
from lifesign.storage.engine import file_use
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.errors import StoreUnavailable


@pytest.fixture(autouse=True)
def _bare_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (KEY_VARIABLE, URL_VARIABLE, "LIFESIGN_SERVER_DATABASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def port() -> str:
    return str(free_port())


@contextmanager
def answering(status: int, body: bytes, keys: list[str | None] | None = None) -> Iterator[str]:
    """Run a server that gives one answer to all requests; `keys` takes the key of each."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if keys is not None and self.path.startswith("/api/"):
                keys.append(self.headers.get("X-API-Key"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Examined:
    """The findings of the doctor."""

    def __init__(self, code: int, summary: dict[str, Any]) -> None:
        self.code = code
        self.findings = summary["findings"]
        assert summary["is_well"] is (code == 0)

    def of(self, about: str, verdict: str) -> list[str]:
        return [
            f"{found['summary']}; {found['advice']}"
            for found in self.findings
            if (found["about"], found["verdict"]) == (about, verdict)
        ]


def examine(capsys: pytest.CaptureFixture[str], *arguments: str) -> Examined:
    code = main(["doctor", "--json", *arguments])
    return Examined(code, json.loads(capsys.readouterr().out))


def test_missing_database_is_no_doctor_fault(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = examine(capsys, "--port", port)
    assert found.code == 0
    assert "lifesign serve" in found.of("database", "skipped")[0]
    assert found.of("port", "ok")
    assert list(tmp_path.iterdir()) == []


def test_sound_registry_is_reported(tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with registry_server(tmp_path) as server:
        key = tmp_path / "reader.key"
        key.write_text(KEYS[Role.READER])
        key.chmod(0o600)
        given = ["--database", server.database_url, "--registry", server.url, "--key-file", str(key)]
        found = examine(capsys, *given, "--port", str(server.port))
        assert found.code == 0
        assert found.of("registry", "ok")
        assert found.of("key", "ok")
        assert len(found.of("clock", "ok")) == 2
        assert f"port {server.port}" in found.of("port", "ok")[0]
        assert found.of("keys", "ok")
        assert KEYS[Role.READER] not in json.dumps(found.findings)

        key.write_text(key_of(b"z" * 32))
        key.chmod(0o644)
        found = examine(capsys, *given, "--port", port)
        assert found.code == 1
        assert len(found.of("key", "fault")) == 1
        assert "chmod 600" in found.of("key", "warning")[0]


def test_probers_of_a_registry_are_examined(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry_server(tmp_path) as server:
        monkeypatch.setenv(KEY_VARIABLE, KEYS[Role.READER])
        given = ["--database", server.database_url, "--registry", server.url, "--port", port]
        found = examine(capsys, *given)
        assert found.of("probers", "skipped")
        assert found.of("probers", "ok") == []

        agent = {"agent_id": "a", "monitoring": "probe", "card_url": "https://a.example/card.json"}
        send(server, "/api/v1/agents", agent, KEYS[Role.ADMIN])
        found = examine(capsys, *given)
        assert "1 target" in found.of("probers", "warning")[0]

        sent_at = datetime.now(UTC) - timedelta(hours=2)
        claim = {"worker": "w", "ttl_seconds": 60, "sent_at": sent_at.isoformat()}
        send(server, "/api/v1/shards/claim", claim, KEYS[Role.PROBER])
        found = examine(capsys, *given)
        assert found.of("probers", "ok")
        assert "2 h behind" in found.of("clock", "warning")[0] or "1 h 59" in found.of("clock", "warning")[0]


def test_long_list_of_probers_is_read_whole(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry_server(tmp_path) as server:
        monkeypatch.setenv(KEY_VARIABLE, KEYS[Role.READER])
        classes = [f"10.{number // 250}.{number % 250}.0/24" for number in range(1_000)]
        for number in range(8):
            claim = {"worker": f"w{number}", "ttl_seconds": 60, "reached_classes": classes}
            send(server, "/api/v1/shards/claim", claim, KEYS[Role.PROBER])
        shards = http.fetch(f"{server.url}/api/v1/shards", KEYS[Role.READER])
        assert shards is not None
        assert len(shards[2]) == http.MAX_ANSWER_BYTES, "the response is too short for this test"
        found = examine(capsys, "--database", server.database_url, "--registry", server.url, "--port", port)
        assert "of 8 probers" in found.of("probers", "ok")[0]


def test_answer_that_cannot_be_read_is_a_warning(
    port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEYS[Role.READER])
    with answering(200, b'{"tracks": {}}') as url:
        found = examine(capsys, "--registry", url, "--port", port)
    assert "/api/v1/monitor" in found.of("decisions", "warning")[0]
    assert "/api/v1/shards" in found.of("probers", "warning")[0]
    monkeypatch.setattr("lifesign.cli.doctor.registry_checks.MAX_LIST_BYTES", 10)
    with answering(200, b'{"tracks": {}}') as url:
        found = examine(capsys, "--registry", url, "--port", port)
    assert "10 bytes" in found.of("decisions", "warning")[0]


ASKED_AT_S = 1_764_000_000.0


def prober(joined_s: float, reported_s: float | None = None) -> LivingProber:
    """A worker with an interval of 15 s that joined, and reported last, so many seconds ago."""
    return LivingProber(
        holder="key:a/w",
        joined_at=moment(ASKED_AT_S - joined_s),
        expires_at=moment(ASKED_AT_S + 10),
        interval_s=15,
        reported_at=None if reported_s is None else moment(ASKED_AT_S - reported_s),
    )


@pytest.mark.parametrize(
    ("living", "verdict", "summary"),
    [
        ([prober(900, 50)], "warning", " 50 s "),
        (
            [prober(900, 20)],
            "ok",
            "1 of 1 prober ",
        ),
        ([prober(900, 50), prober(900, 4)], "ok", "1 of 2 probers"),
        ([prober(5)], "ok", "none "),
        ([prober(50)], "warning", "none "),
    ],
)
def test_probers_are_listed_with_their_last_result(
    living: list[LivingProber], verdict: str, summary: str
) -> None:
    """A prober that was killed 50 s ago still has its lease."""
    found = of_the_reports(living, ASKED_AT_S, has_targets=True)
    assert (found.about, found.verdict) == ("probers", verdict)
    assert summary in found.summary
    assert of_the_reports(living, ASKED_AT_S, has_targets=False).verdict == "ok"


def send(server: RegistryServer, path: str, body: Mapping[str, object], key: str) -> None:
    """Post a body; it is accepted."""
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    request = Request(f"{server.url}{path}", json.dumps(body).encode(), headers)  # noqa: S310 - http
    with urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
        assert answer.status in {200, 201}


def test_lost_evidence_and_mass_silence_are_warnings_with_their_counts() -> None:
    since = "2026-11-23T08:00:00Z"
    track = {"state": "normal", "since": since, "exits": 0, "limit": 20, "baseline": 0, "unwitnessed": 0}
    record = {
        "state": "suspended", "since": since,
        "tracks": {"heartbeat": track, "probe": {**track, "state": "suspended"}},
        "excluded_downtime": [], "silent_classes": {"10.1.0.0/16": since, "10.2.0.0/16": since},
        "confirmed_classes": {"10.2.0.0/16": "2026-11-23T09:00:00Z"},
        "lost_evidence": {
            "agents": 12, "reasons": {"no_prober": 10, "prober_slow": 2}, "since": since,
            "is_reported": False,
        },
    }  # fmt: skip
    found = list(of_the_monitor(json.dumps(record).encode()))
    assert [finding.verdict for finding in found] == ["warning"] * 4
    decisions, lost, silence, _ = (finding.summary for finding in found)
    assert "lifesign monitor confirm --class 10.1.0.0/16" in found[2].advice
    assert "lifesign monitor confirm" not in found[3].advice, "this class is already confirmed"
    assert "monitored by probe" in decisions
    assert "12 living agents" in lost
    assert "(10)" in lost
    assert "(2)" in lost
    assert "10.1.0.0/16" in silence


def test_credential_faults_of_probers_are_warnings_with_their_names(
    port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEYS[Role.READER])
    acme = {"name": "acme", "origin": "https://agents.acme.example", "path": "/billing"}
    rejected = acme | {"name": "lab", "origin": "https://lab.example", "state": "credentials_rejected"}
    with registry_server(tmp_path, watch_seconds=0.1) as server:
        for worker, credentials in (("a", [acme, rejected]), ("b", [rejected])):
            claim = {"worker": worker, "ttl_seconds": 60, "held": {}, "credentials": credentials}
            send(server, "/api/v1/shards/claim", claim, KEYS[Role.PROBER])
        deadline_s = time.monotonic() + PATIENCE_SECONDS
        while True:
            found = examine(capsys, "--registry", server.url, "--port", port)
            warnings = [each for each in found.of("evidence", "warning") if "credential" in each]
            if len(warnings) == 2 or time.monotonic() > deadline_s:
                break
        assert main(["monitor", "show", "--registry", server.url]) == 0
        shown = capsys.readouterr().out
    missing, fault = sorted(warnings, key=lambda each: "lab" in each)
    for name in ("/b", "/a", "acme", "https://agents.acme.example/billing"):
        assert name in missing
        assert name in shown
    for name in ("lab", "https://lab.example", "credentials_rejected"):
        assert name in fault
        assert name in shown


def test_missing_extra_is_reported_with_its_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [finding.about for finding in machine_checks.of_the_program()] == ["program"]
    monkeypatch.setitem(machine_checks.EXTRAS, "metrics", "no_module_is_called_so")
    (summary,) = (finding for finding in machine_checks.of_the_program() if finding.about == "metrics")
    assert install_command("metrics") in summary.advice


@pytest.mark.both_databases
def test_unsupported_database_is_reported(
    database_kind: str, tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = bare_url(database_kind, tmp_path)
    if database_kind == "sqlite":
        Path(url.removeprefix("sqlite:///")).touch(0o600)
    found = examine(capsys, "--port", port, "--database", url)
    assert found.code == 1
    assert "lifesign migrate" in found.of("database", "fault")[0]


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


@pytest.mark.both_databases
def test_database_of_another_program_is_reported(
    database_kind: str, tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = bare_url(database_kind, tmp_path)
    if database_kind == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as foreign:
            foreign.execute("CREATE TABLE customers (name)")
    else:
        asyncio.run(_execute(url, "CREATE TABLE customers (name text)"))
    found = examine(capsys, "--port", port, "--database", url)
    (summary,) = found.of("database", "fault")
    assert found.of("database", "warning") == []
    assert "customers" in summary
    assert "--database" in summary


# ── no change of any state ──


def directory_contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in directory.iterdir()}


def customers(file: Path, journal: str) -> None:
    with closing(sqlite3.connect(file)) as foreign:
        foreign.execute(f"PRAGMA journal_mode={journal}")
        foreign.execute("CREATE TABLE customers (name)")


def killed_at_work(file: Path) -> None:
    """Leave a database of ours as a crash does: its latest changes are in the log beside it."""
    assert main(["keys", "create", "--role", "admin", "--name", "a", "--database", f"sqlite:///{file}"]) == 0
    program = (
        "import os, sqlite3, sys; opened = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "opened.execute('CREATE TABLE late (x)'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(file)], check=True)
    assert file.with_name(f"{file.name}-wal").stat().st_size


@contextmanager
def opened_by_another_process(file: Path, statement: str) -> Iterator[None]:
    """Have another process keep the file open after it has executed something."""
    program = (
        "import sqlite3, sys; opened = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "opened.execute(sys.argv[2]); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(file), statement], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.communicate(b"\n")


@pytest.mark.parametrize(
    ("prepare", "summary"),
    [
        (lambda file: file.touch(0o600), "is empty"),
        (lambda file: customers(file, "DELETE"), "customers"),
        (lambda file: customers(file, "WAL"), "customers"),
        (lambda file: file.write_bytes(b"no database" * 1_000), "not an SQLite database"),
        (lambda file: file.mkdir(), "directory"),
        (killed_at_work, None),
    ],
)
def test_doctor_changes_no_database(
    prepare: Callable[[Path], object],
    summary: str | None,
    tmp_path: Path,
    port: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "theirs"
    place.mkdir()
    prepare(place / "x.db")
    capsys.readouterr()
    before = {} if (place / "x.db").is_dir() else directory_contents(place)
    found = examine(capsys, "--port", port, "--database", f"sqlite:///{place}/x.db")
    if summary is None:
        assert found.code == 0
        # Free disk space is reported separately.
        assert len(found.of("database", "ok")) == 2
    else:
        assert any(summary in text for text in found.of("database", "fault"))
    assert before == ({} if (place / "x.db").is_dir() else directory_contents(place))


def test_a_database_in_use_is_examined_without_a_change(
    database_kind: str, tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = migrated_url(database_kind, tmp_path)
    file = Path(url.removeprefix("sqlite:///"))
    if database_kind == "postgresql":
        assert len(examine(capsys, "--port", port, "--database", url).of("database", "ok")) == 2
        return
    with opened_by_another_process(file, "CREATE TABLE late (x)"):
        before = directory_contents(tmp_path)
        assert "-shm" in "".join(before)
        assert examine(capsys, "--port", port, "--database", url).code == 0
        assert directory_contents(tmp_path) == before


def test_process_that_locks_the_database_is_named(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_use, "BUSY_SECONDS", 0.1)
    url = migrated_url("sqlite", tmp_path)
    with opened_by_another_process(Path(url.removeprefix("sqlite:///")), "BEGIN IMMEDIATE"):
        locked = examine(capsys, "--port", port, "--database", url)
    (summary,) = locked.of("database", "fault")
    assert "another process" in summary
    assert examine(capsys, "--port", port, "--database", url).code == 0


@pytest.mark.parametrize(
    ("url", "summary"),
    [
        ("sqlite:///nowhere/x.db", "mkdir -p nowhere"),
        ("postgresql://u:hunter2@127.0.0.1:1/x", "PostgreSQL is running"),
        ("mysql://u:hunter2@h/x", "expected"),
        ("mysql://u:x@y/hunter2@h/x", "expected"),
        ("postgresql://u:x hunter2@h/x", "correct the URL"),
        ("postgresql://u:x@y:hunter2@h/x", "correct the URL"),
        ("hunter2", "postgresql://USER@HOST/NAME"),
    ],
)
def test_invalid_database_url_is_shown_without_its_password(
    url: str, summary: str, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = examine(capsys, "--port", port, "--database", url)
    assert found.code == 1
    assert any(summary in text for text in found.of("database", "fault"))
    assert "hunter2" not in json.dumps(found.findings)


def test_file_that_is_not_a_database_is_reported(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.db").write_bytes(b"no database" * 1_000)
    found = examine(capsys, "--port", port, "--database", "sqlite:///x.db")
    (fault,) = found.of("database", "fault")
    assert "damaged" in fault
    assert "name another file" in fault
    assert fault.count("restore a backup") == 1
    assert found.of("database", "warning") == []


def test_directory_in_place_of_the_database_is_reported(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe.db")
    (tmp_path / "loop.db").symlink_to("loop.db")
    for name in ("pipe.db", "loop.db"):
        found = examine(capsys, "--port", port, "--database", f"sqlite:///{name}")
        assert name in found.of("database", "fault")[0]

    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    # Root, who runs the tests at times, may come to every place.
    monkeypatch.setattr(Path, "exists", refuse)
    found = examine(capsys, "--port", port, "--database", "sqlite:///x.db")
    assert "x.db" in found.of("database", "fault")[0]


def test_damaged_and_world_readable_database_is_reported(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.db").write_bytes(b"SQLite format 3\0" * 1_000)
    found = examine(capsys, "--port", port, "--database", "sqlite:///x.db")
    assert "damaged" in found.of("database", "fault")[0]
    assert "chmod 600" in found.of("database", "warning")[0]


def test_each_finding_appears_once(tmp_path: Path, port: str) -> None:
    (tmp_path / "x.db").write_bytes(b"SQLite format 3\0" * 1_000)
    command = [sys.executable, "-c", "from lifesign.cli import main; main()", "doctor", "--port", port]
    ran = subprocess.run(
        [*command, "--database", f"sqlite:///{tmp_path}/x.db"], capture_output=True, text=True, check=False
    )
    assert ran.stdout.count("contains secrets") == 1
    assert ran.stderr == ""


def test_occupied_port_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TIMEOUT_SECONDS", 0.1)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        found = examine(capsys, "--port", str(taken.getsockname()[1]))
    assert "--port" in found.of("port", "fault")[0]


@pytest.mark.parametrize(
    ("networks", "verdict", "part"),
    [
        ("10.0.0.0/8, ::1", "ok", "10.0.0.0/8, ::1: "),
        ("10.0.0.0/8,0.0.0.0/0", "warning", "--trusted-proxies"),
        ("::/0", "warning", "can forge"),
        ("proxy.example", "fault", "trusted_proxies"),
    ],
)
def test_proxy_network_that_covers_all_addresses_is_reported(
    port: str, capsys: pytest.CaptureFixture[str], networks: str, verdict: str, part: str
) -> None:
    found = examine(capsys, "--port", port, "--trusted-proxies", networks)
    assert part in found.of("proxies", verdict)[0]
    assert found.code == (verdict == "fault")


@pytest.mark.parametrize(
    ("days", "verdict"),
    [((-30, 100), "ok"), ((-30, 5), "warning"), ((-30, -1), "fault"), ((1, 100), "fault")],
)
def test_validity_of_the_certificate_is_reported(
    days: tuple[int, int], verdict: str, tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begins, ends = (datetime.now(UTC) + timedelta(days=number) for number in days)
    issued = trustme.CA().issue_cert("localhost", not_before=begins, not_after=ends)
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "key.pem").chmod(0o600)
    found = examine(capsys, "--port", port, "--tls-certificate", "cert.pem", "--tls-key", "key.pem")
    assert len(found.of("certificate", verdict)) == 1
    assert found.code == (1 if verdict == "fault" else 0)
    swapped = examine(capsys, "--port", port, "--tls-certificate", "key.pem", "--tls-key", "cert.pem")
    assert swapped.of("certificate", "fault")
    absent = examine(capsys, "--port", port, "--tls-certificate", "cert.pem", "--tls-key", "absent.pem")
    assert "absent.pem: " in absent.of("TLS key", "fault")[0]
    half = examine(capsys, "--port", port, "--tls-key", "key.pem")
    assert half.of("certificate", "fault")


def test_a_driver_that_is_not_installed_is_a_fault_among_the_others(
    port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    found = examine(capsys, "--port", port, "--database", "postgresql://ah:secret@db.example/ah")
    [summary] = found.of("database", "fault")
    assert "postgresql://ah:...@db.example/ah needs asyncpg" in summary
    assert found.of("port", "ok")
    assert found.code == 1


def test_credentials_are_reported_by_name(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_TOKEN", "canary-1b7c9d2e")
    (tmp_path / "open.token").write_text("canary-1b7c9d2e")
    (tmp_path / "open.token").chmod(0o644)
    for name, text in (("lines", "canary-1b7c\n9d2e-next"), ("umlaut", "canary-1b7cü9d2e")):
        (tmp_path / f"{name}.token").touch(0o600)
        (tmp_path / f"{name}.token").write_text(text)
    (tmp_path / "lab.yml").write_text(
        "name: a\ncontact: mailto:a@b.example\ntargets: [https://lab.example/]\ncredentials:\n"
        "- {name: lab, origin: https://lab.example, bearer: {env: LAB_TOKEN}}\n"
        "- {name: open, origin: https://open.example, bearer: {file: open.token}}\n"
        "- {name: none, origin: https://none.example, bearer: {systemd: none}}\n"
        "- {name: lines, origin: https://lines.example, bearer: {file: lines.token}}\n"
        "- {name: umlaut, origin: https://umlaut.example, bearer: {file: umlaut.token}}\n"
    )
    found = examine(capsys, "--port", port, "--definition", "lab.yml")
    assert found.code == 1
    (sound,) = found.of("credentials", "ok")
    assert all(part in sound for part in ("lab", "bearer", "LAB_TOKEN", "https://lab.example/"))
    opened, missing, lines, umlaut = found.of("credentials", "fault")
    assert "chmod 600" in opened
    assert "CREDENTIALS_DIRECTORY" in missing
    assert "credentials.lines.bearer" in lines
    assert "credentials.umlaut.bearer" in umlaut
    assert "canary" not in f"{sound}{opened}{missing}{lines}{umlaut}"


def test_credential_without_a_target_is_a_warning(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_TOKEN", "canary-1b7c9d2e")
    head = "name: a\ncontact: mailto:a@b.example\n"
    credentials = (
        "credentials:\n"
        "- {name: lab, origin: 'http://localhost:8772', bearer: {env: LAB_TOKEN}}\n"
        "- {name: card, origin: https://card.example, card_origins: ['http://127.0.0.1:8772'], "
        "bearer: {env: LAB_TOKEN}}\n"
    )
    (tmp_path / "lab.yml").write_text(f"{head}targets: ['http://127.0.0.1:8772']\n{credentials}")
    (warning,) = examine(capsys, "--port", port, "--definition", "lab.yml").of("credentials", "warning")
    assert "lab" in warning
    # The list may name such a target.
    (tmp_path / "urls.txt").write_text("http://localhost:8772\n")
    directory = "directories: [{name: list, kind: list, file: urls.txt}]\n"
    (tmp_path / "lab.yml").write_text(head + directory + credentials)
    assert examine(capsys, "--port", port, "--definition", "lab.yml").of("credentials", "warning") == []


def test_inline_secret_is_a_fault_and_is_not_quoted(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lab.yml").write_text(
        "name: a\ncontact: mailto:a@b.example\ntargets: [https://lab.example/]\ncredentials:\n"
        "- {name: lab, origin: https://lab.example, bearer: canary-1b7c9d2e}\n"
    )
    found = examine(capsys, "--port", port, "--definition", "lab.yml")
    assert found.code == 1
    (fault,) = found.of("definition", "fault")
    assert "/credentials/0/bearer" in fault
    assert "{env: NAME}" in fault
    assert "canary" not in fault


def test_client_certificates_are_examined(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    ends_at = datetime(2030, 5, 6, tzinfo=UTC)
    authority.client(tmp_path, "good", ends_at=ends_at)
    authority.client(tmp_path, "old", begins_at=LONG_AGO, ends_at=datetime(2021, 1, 1, tzinfo=UTC))
    pairs = {"good": ("good.pem", "good.key"), "old": ("old.pem", "old.key"), "odd": ("good.pem", "old.key")}
    (tmp_path / "lab.yml").write_text(
        "name: a\ncontact: mailto:a@b.example\ntargets: [https://lab.example/]\ncredentials:\n"
        + "".join(
            f"- {{name: {name}, origin: 'https://{name}.example', client_certificate: {certificate},"
            f" client_key: {{file: {key}}}, ca_file: authority.pem}}\n"
            for name, (certificate, key) in pairs.items()
        )
    )
    found = examine(capsys, "--port", port, "--definition", "lab.yml")
    assert found.code == 1
    (sound,) = found.of("credentials", "ok")
    assert "2030-05-06" in sound
    expired, mismatch = found.of("credentials", "fault")
    assert "credentials.old.client_certificate" in expired
    assert "2021-01-01" in expired
    assert "credentials.odd.client_key" in mismatch


def test_definition_with_credentials_that_others_can_change_is_a_fault(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lab.yml"
    file.write_text(
        "name: a\ncontact: mailto:a@b.example\ntargets: [https://a.example/]\n"
        "credentials: [{name: lab, origin: https://a.example, bearer: {env: LAB_TOKEN}}]\n"
    )
    tmp_path.chmod(0o777)
    found = examine(capsys, "--port", port, "--definition", str(file))
    [fault] = found.of("definition", "fault")
    assert f"{tmp_path} has mode 0777" in fault
    assert f"chmod o-w {tmp_path}" in fault


def test_definitions_are_read(tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.yml").write_text(
        "name: a\ncontact: mailto:a@b.example\ntargets: [https://a.example/]\n"
    )
    (tmp_path / "bad.yml").write_text("name: a\ncontcat: x\n")
    (tmp_path / "bare.yml").write_text(
        "name: a\ncontact: mailto:a@b.example\ndirectories: [{file: nope.txt}]\n"
    )
    (tmp_path / "prose.txt").write_text("hello world foo\n")
    (tmp_path / "prose.yml").write_text(
        "name: a\ncontact: mailto:a@b.example\ndirectories: [{file: prose.txt}]\n"
    )
    (tmp_path / "mute.yml").write_text("name: a\ntargets: [https://a.example/]\n")
    names = ("good", "bad", "bare", "prose", "none", "mute")
    files = [word for name in names for word in ("--definition", f"{name}.yml")]
    found = examine(capsys, "--port", port, *files)
    assert found.code == 1
    assert found.of("definition", "ok") == ["good.yml: a; "]
    assert "good.yml" in found.of("canaries", "warning")[0]
    faults = "".join(found.of("definition", "fault"))
    assert "contcat" in faults
    assert "none.yml" in faults
    assert "mute.yml: contact: " in faults
    assert re.search(r"prose\.yml: .*prose\.txt: ", faults)
    assert re.search(r"bare\.yml: line 3: /directories/0/file: .*: nope\.txt", faults)


@pytest.mark.parametrize(
    ("targets", "networks", "expected"),
    [
        ("'http://127.0.0.1:1', 'http://[::1]:1', 'http://LOCALHOST:1'", "", ["127.0.0.0/8", "::1/128"]),
        ("'http://10.1.2.3', 'https://a.example'", "127.0.0.0/8", ["10.0.0.0/8"]),
        ("'http://10.1.2.3', 'https://a.example'", "10.1.0.0/16", None),
    ],
)
def test_targets_at_addresses_that_are_not_allowed_are_a_warning(
    tmp_path: Path,
    port: str,
    capsys: pytest.CaptureFixture[str],
    *,
    targets: str,
    networks: str,
    expected: list[str] | None,
) -> None:
    (tmp_path / "lab.yml").write_text(
        f"name: a\ncontact: mailto:a@b.example\ntargets: [{targets}]\nnetworks: {{allow: [{networks}]}}\n"
    )
    found = examine(capsys, "--port", port, "--definition", "lab.yml").of("targets", "warning")
    assert len(found) == (expected is not None)
    assert all(network in found[0] for network in expected or ())
    assert all("blocked_address" in text and "networks.allow" in text for text in found)


async def test_canaries_are_resolved_with_the_definitions_name_servers(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        serving({"/gate": answer(401), "/": answer(200)}, host="127.0.0.2") as server,
        dns_serving({"canary.test": ("127.0.0.2",)}) as names,
    ):
        lines = (
            "name: a",
            "contact: mailto:a@b.example",
            "targets: [https://a.example/]",
            "networks: {allow: [127.0.0.0/8]}",
            f"resolver: {{servers: ['{names.address}']}}",
            "witnesses: {answer_seconds: 5}",
            "canaries:",
            "  127.0.0.0/8:",
            f"    - http://canary.test:{server.port}/",
            f"    - {{url: '{server.url}/gate', status: 401}}",
        )
        (tmp_path / "named.yml").write_text("\n".join(lines))
        words = ("--port", port, "--definition", "named.yml")
        (summary,) = (await asyncio.to_thread(examine, capsys, *words)).of("canaries", "ok")
        assert "2 of 2 canaries of 127.0.0.0/8" in summary
        names.names.clear()
        found = await asyncio.to_thread(examine, capsys, *words)
    (summary,) = found.of("canaries", "fault")
    assert "1 of 2 canaries of 127.0.0.0/8" in summary
    assert f"http://canary.test:{server.port}/" in summary
    assert "/gate" not in summary
    assert found.code == 1


def test_placeholder_canaries_are_reported(
    tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answering(
        _requests: WitnessRequests, urls: Sequence[str], _network_class: str, _timeout_s: float
    ) -> list[WitnessReply]:
        return [WitnessReply(status=200) for _ in urls]

    monkeypatch.setattr(WitnessRequests, "ask", answering)
    hosts = ["https://www.example.com/", *(f"https://c{number}.test/" for number in range(4))]
    lines = ("name: a", "contact: mailto:a@b.example", "targets: [a.example]")
    canaries = f"canaries: {{public_ipv4: [{', '.join(hosts)}]}}"
    (tmp_path / "left.yml").write_text("\n".join([*lines, canaries]))
    found = examine(capsys, "--port", port, "--definition", "left.yml")
    (summary,) = found.of("canaries", "warning")
    assert "https://www.example.com/" in summary
    assert "c0.test" not in summary
    assert len(found.of("canaries", "ok")) == 1


@pytest.mark.parametrize(("server_time_s", "expected"), [(100, 0), (107, 0), (95, -5), (110, 0), (112, 2)])
def test_slow_answer_does_not_count_as_clock_difference(server_time_s: float, expected: float) -> None:
    assert ahead_s(server_time_s, asked_s=100, answered_s=110) == expected


async def test_server_time_is_compared_with_the_midpoint_of_request_and_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "time", Mock(time=Mock(side_effect=[1_790_000_000.0, 1_790_000_004.9])))
    date = format_datetime(datetime.fromtimestamp(1_790_000_001, UTC), usegmt=True)
    async with serving({"/healthz": answer(200, Date=date)}) as server:
        assert await asyncio.to_thread(http.fetch, f"{server.url}/healthz") == (200, 0.0, b"")


@pytest.mark.parametrize(("apart_s", "verdict"), [(0.5, "ok"), (-5, "warning"), (100, "fault")])
def test_clock_difference_is_reported(apart_s: float, verdict: str) -> None:
    found = of_the_clock("clock", "the registry's", apart_s)
    assert found.verdict == verdict
    assert ("agrees" in found.summary) is (verdict == "ok")
    assert ("ahead" in found.summary) is (apart_s > 2)
    assert ("behind" in found.summary) is (apart_s < -2)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"<h1>Not Found</h1>"),
        (200, b"ok\n"),
        (200, b'{"error": "none"}'),
        (502, b"[]"),
        (503, b'{"error": {}}'),
    ],
)
def test_address_of_another_server_is_reported(
    status: int, body: bytes, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(status, body) as url:
        found = examine(capsys, "--port", port, "--registry", url)
    assert found.code == 1
    (summary,) = found.of("registry", "fault")
    assert f"{url} answers {status}, " in summary
    assert "database" not in summary
    assert not found.of("registry", "ok")


@pytest.mark.parametrize("key", [None, KEYS[Role.READER]])
def test_doctor_sends_its_key_with_each_request(
    key: str | None, port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request without a key is refused and logged by the registry."""
    if key is not None:
        monkeypatch.setenv(KEY_VARIABLE, key)
    asked: list[str | None] = []
    with answering(200, b'{"state": "normal", "tracks": {"probe": {"state"', asked) as url:
        found = examine(capsys, "--port", port, "--registry", url)
    assert set(asked) == {key}
    assert found.of("registry", "ok")


def test_doctor_sends_its_key_to_no_other_machine_without_tls(
    port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEYS[Role.READER])
    asked: list[str | None] = []
    with answering(200, b'{"tracks": {}}', asked) as url:
        # Linux connects to this machine, but the address does not say so.
        found = examine(capsys, "--port", port, "--registry", url.replace("127.0.0.1", "0.0.0.0"))
    assert set(asked) == {None}
    assert found.of("registry", "ok")
    assert found.of("key", "skipped")


def test_password_in_the_url_of_a_registry_is_not_shown(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = examine(capsys, "--port", port, "--registry", "http://ops:password@127.0.0.1:1")
    (summary,) = found.of("registry", "fault")
    assert summary.startswith("http://...@127.0.0.1:1 ")


def test_hint_to_start_a_prober_shows_no_secret_of_the_registrys_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards, targets = (
        b'{"probers": [], "version": 1, "changed": {}, "share": 1}',
        b'{"targets": [], "total": 3}',
    )
    monkeypatch.setattr(
        registry_checks, "fetch", lambda url, *_: (200, 0.0, shards if "shards" in url else targets)
    )
    (found,) = registry_checks._of_the_probers("http://s3cret@registry.example?key=s3cret", "")
    assert found.advice.startswith("lifesign crawl")
    assert "s3cret" not in f"{found.summary} {found.advice}"


def test_doctor_without_a_registry_reports_the_skipped_check(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert URL_VARIABLE in examine(capsys, "--port", port).of("registry", "skipped")[0]


def test_registry_that_cannot_serve_is_reported(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    unavailable = error_response(StoreUnavailable("it is unreachable"))
    with answering(unavailable.status_code, bytes(unavailable.body)) as url:
        found = examine(capsys, "--port", port, "--registry", url)
    (summary,) = found.of("registry", "fault")
    assert "database" in summary


def test_doctor_prints_a_readable_page(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", port]) == 0
    out = capsys.readouterr().out
    assert "ok          program: lifesign" in out
    assert "IPv4: this machine has " in out
    assert "\x1b" not in out
    assert main(["doctor", "--port", "0"]) == 3


# ── sweeps ──

NOW_S = 1_800_000_000.0


def sweeps(ago_s: float, place: str = "", claimed_s: float = -1.0) -> CheckResult:
    row = RegistryRow(
        token_floor=0, swept_at_s=NOW_S - ago_s, monitor="", excluded_downtime="", sweeper="s",
        sweeper_until_s=NOW_S + claimed_s,
    )  # fmt: skip
    return _of_the_sweeps(row, NOW_S, place)


def test_server_that_does_not_sweep_is_a_warning() -> None:
    assert sweeps(9.9, "127.0.0.1, port 8440").verdict == "ok"
    stalled = sweeps(109.0, "127.0.0.1, port 8440")
    assert stalled.verdict == "warning"
    assert stalled.summary.startswith(
        "the last sweep was 1 min 49 s ago, although a server listens at 127.0.0.1"
    )
    assert stalled.advice
    assert sweeps(11.0, claimed_s=1.0).verdict == "warning"
    ended = sweeps(109.0)
    assert (ended.verdict, "1 min 49 s" in ended.summary, ended.advice) == ("ok", True, "")


def test_silent_process_on_the_port_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_SECONDS", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert listener_text("127.0.0.1", port) == f"127.0.0.1, port {port}"
        (found,) = of_the_server("127.0.0.1", port, None, None)
        assert found.verdict == "fault"
        assert " 0.2 s" in found.summary
    assert listener_text("127.0.0.1", port) == ""
