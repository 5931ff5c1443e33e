"""Real servers whose database is removed, replaced, set back, or another one when they start again."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support import preloaded
from tests.support.databases import bare_url, postgresql_server
from tests.support.process_tree import worker_processes
from tests.support.registry_process import (
    ADMIN_KEY,
    DATABASE_VARIABLE,
    PATIENT,
    SERVE,
    agent_key,
    kill,
    prepare,
    registry,
    with_database,
)
from tests.support.servers import Server, until

from lifesign.domain.events.database_marker import DatabaseMarker
from lifesign.registry.database_identity.marker_check import current_marker
from lifesign.registry.database_identity.marker_file import marker_file

AGENT = "agent-1"


@pytest.fixture
def url(database_kind: str, tmp_path: Path) -> str:
    """A database with the tables, an admin key and the key of an agent."""
    url = bare_url(database_kind, tmp_path)
    prepare(url, [AGENT])
    return url


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The same, as an SQLite file in a separate directory, with `copy.db` in its parent."""
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "registry.db"
    set_up(file)
    shutil.copy(file, tmp_path / "copy.db")
    return file


def set_up(file: Path) -> None:
    """Make a database as the first start of a server leaves it, but for the marker."""
    prepare(sqlite(file), [AGENT])
    asyncio.run(with_database(sqlite(file), lambda database: database.write(current_marker)))


def sqlite(file: Path) -> str:
    return f"sqlite:///{file}"


def ask(server: Server, method: str, path: str, body: object = None, key: str = ADMIN_KEY) -> tuple[int, Any]:
    """Send one request; return its status and its body, of an error its code."""
    sent = None if body is None else json.dumps(body).encode()
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    status, answer = server.send(path, method=method, body=sent, **headers)
    message: Any = json.loads(answer) if answer.startswith(b"{") else answer.decode()
    return status, message["error"]["code"] if status >= 400 else message


def register(server: Server, agent_id: str = AGENT) -> tuple[int, Any]:
    return ask(server, "POST", "/api/v1/agents", {"agent_id": agent_id})


def lease(server: Server, resource: str = "task:1") -> int:
    """Take a lease and give it back; return its fencing token."""
    status, granted = ask(server, "POST", "/api/v1/leases", {"resource": resource}, agent_key(AGENT))
    assert status == 201, granted
    path = f"/api/v1/leases/{granted['lease_id']}?fencing_token={granted['fencing_token']}"
    ask(server, "DELETE", path, key=agent_key(AGENT))
    return int(granted["fencing_token"])


def ran(url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return preloaded.run(*arguments, env={**os.environ, DATABASE_VARIABLE: url})


def refused(url: str) -> str:
    """Start a server that must refuse; return its output."""
    ended = ran(url, "serve", "--port", "0")
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    lines, hint = ended.stderr.splitlines()
    assert hint.startswith("hint: ")
    assert "lifesign database adopt" in hint
    return lines


def marker_of(url: str) -> DatabaseMarker | None:
    return marker_file(url, None).read()


def marked(url: str, least: int) -> Callable[[], bool]:
    """Return a check whether the marker names this event or a later one."""

    def is_marked() -> bool:
        marker = marker_of(url)
        return marker is not None and marker.head.sequence >= least

    return is_marked


def last_event(server: Server) -> int:
    events = ask(server, "GET", "/api/v1/events?limit=1000")[1]["events"]
    return int(events[-1]["sequence"])


def accept(url: str) -> int:
    """Adopt the database; return the epoch."""
    adopted = ran(url, "database", "adopt", "--json")
    assert adopted.returncode == 0, adopted.stderr
    output = json.loads(adopted.stdout)
    assert output["adopted"] is True
    return int(output["epoch"])


@contextmanager
def serving(url: str, directory: Path, *options: str) -> Iterator[Server]:
    with registry(url, directory, command=[*SERVE, *options], settings=PATIENT) as server:
        yield server


@pytest.mark.fault
def test_killed_server_accepts_its_database_with_an_older_marker(url: str, tmp_path: Path) -> None:
    for number in range(2):
        with serving(url, tmp_path) as server:
            assert register(server, f"agent-{number}")[0] == 201
            sequence = last_event(server)
            if number == 0:
                until("the marker names the event", marked(url, sequence))
            kill(server)
    with serving(url, tmp_path):
        pass
    # `lifesign keys` had created the database, and no marker.
    assert tmp_path.joinpath("registry.log").read_text().count("no marker of this database") == 1


def _remove(file: Path) -> None:
    file.unlink()


def _replace(file: Path) -> None:
    (file.parent.parent / "copy.db").replace(file)


def _move_directory(file: Path) -> None:
    file.parent.rename(file.parent.with_name("moved"))


@pytest.mark.fault
@pytest.mark.parametrize("lose", [_remove, _replace, _move_directory])
def test_no_change_is_acknowledged_once_the_file_is_lost(
    file: Path, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    with serving(sqlite(file), tmp_path, "--sweep-interval", "1m") as server:
        assert register(server)[0] == 201
        until("the marker names the event", marked(sqlite(file), last_event(server)))
        lose(file)
        # The first change already.
        assert register(server, "agent-2") == (503, "database_replaced")
        assert ask(server, "GET", "/healthz") == (503, "database_replaced")
        assert register(server, "agent-3") == (503, "database_replaced")
        kill(server)
    output = refused(sqlite(file))
    assert ("older copy" if lose is _replace else "is absent") in output
    # Nothing was created in its place.
    assert file.exists() is (lose is _replace)


@pytest.mark.fault
def test_healthz_reports_a_lost_file_without_any_write(file: Path, tmp_path: Path) -> None:
    with serving(sqlite(file), tmp_path, "--sweep-interval", "1m") as server:
        assert ask(server, "GET", "/healthz") == (200, "ok\n")
        _replace(file)
        assert ask(server, "GET", "/healthz") == (503, "database_replaced")


@pytest.mark.fault
def test_replacement_process_does_not_serve_another_file_at_the_path(file: Path, tmp_path: Path) -> None:
    with serving(sqlite(file), tmp_path, "--workers", "2") as server:
        log = tmp_path / "registry.log"
        until("both processes serve", lambda: log.read_text().count("Application startup complete") == 2)
        assert register(server)[0] == 201
        until("the marker names the event", marked(sqlite(file), last_event(server)))
        _replace(file)
        for _ in range(5):
            # Every process refuses.
            assert register(server, "agent-2") == (503, "database_replaced")
        for worker in worker_processes(server.process.pid):
            os.kill(worker, signal.SIGKILL)
        until("both are replaced", lambda: log.read_text().count("Application startup complete") >= 4)
        for _ in range(5):
            assert ask(server, "GET", "/healthz") == (503, "database_replaced")
            assert register(server, "agent-2") == (503, "database_replaced")


@pytest.mark.fault
def test_an_older_copy_is_refused_until_it_is_adopted_and_grants_higher_tokens(
    file: Path, tmp_path: Path
) -> None:
    with serving(sqlite(file), tmp_path) as server:
        assert register(server)[0] == 201
        token = lease(server)
        until("the marker names the event", marked(sqlite(file), last_event(server)))
    # Like `cp`, which overwrites the same file.
    file.write_bytes((tmp_path / "copy.db").read_bytes())
    assert "older copy" in refused(sqlite(file))
    findings = json.loads(ran(sqlite(file), "doctor", "--json").stdout)["findings"]
    assert {each["verdict"] for each in findings if each["about"] == "marker"} == {"fault"}
    epoch = accept(sqlite(file))
    marker = marker_of(sqlite(file))
    assert marker is not None
    assert marker.epoch == epoch > 0
    with serving(sqlite(file), tmp_path) as server:
        assert register(server)[0] == 201
        assert lease(server) > token


@pytest.mark.fault
def test_an_empty_file_and_that_of_another_installation_are_refused(file: Path, tmp_path: Path) -> None:
    with serving(sqlite(file), tmp_path) as server:
        assert register(server)[0] == 201
    other = tmp_path / "other.db"
    set_up(other)
    file.rename(tmp_path / "aside.db")
    file.touch(0o600)
    assert "empty" in refused(sqlite(file))
    other.replace(file)
    assert "belongs to another" in refused(sqlite(file))
    (tmp_path / "aside.db").replace(file)
    with serving(sqlite(file), tmp_path) as server:
        assert ask(server, "GET", f"/api/v1/agents/{AGENT}")[0] == 200


@pytest.mark.fault
def test_restored_database_is_served(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it ran as another user, whose state is elsewhere."""
    state = os.environ["XDG_STATE_HOME"]
    with serving(url, tmp_path) as server:
        assert register(server)[0] == 201
        token = lease(server)
        assert ran(url, "backup", str(tmp_path / "backup.gz")).returncode == 0
        lease(server, "task:2")
        until("the marker names the event", marked(url, last_event(server)))
    monkeypatch.setenv("XDG_STATE_HOME", f"{state}-of-root")
    restored = ran(url, "restore", str(tmp_path / "backup.gz"), "--force")
    assert restored.returncode == 0, restored.stderr
    monkeypatch.setenv("XDG_STATE_HOME", state)
    with serving(url, tmp_path) as server:
        assert lease(server) > token


@pytest.mark.fault
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_dropped_or_restored_postgresql_database_is_refused(url: str, tmp_path: Path) -> None:
    name = url.rpartition("/")[2].partition("?")[0]
    with serving(url, tmp_path) as server:
        assert register(server)[0] == 201
        token = lease(server)
    postgresql = postgresql_server()
    postgresql.psql(f"CREATE DATABASE {name}_copy TEMPLATE {name}")
    with serving(url, tmp_path) as server:
        token = lease(server)
        until("the marker names the event", marked(url, last_event(server)))
    postgresql.psql(f"DROP DATABASE {name}")
    postgresql.psql(f"CREATE DATABASE {name}")
    assert "empty" in refused(url)
    postgresql.psql(f"DROP DATABASE {name}")
    postgresql.psql(f"ALTER DATABASE {name}_copy RENAME TO {name}")
    assert "older copy" in refused(url)
    accept(url)
    with serving(url, tmp_path) as server:
        assert lease(server) > token


@pytest.mark.fault
def test_an_adoption_waits_until_no_server_uses_the_database(url: str, tmp_path: Path) -> None:
    with serving(url, tmp_path):
        adopted = ran(url, "database", "adopt")
        assert (adopted.returncode, adopted.stdout) == (1, "")
        assert "in use" in adopted.stderr


@pytest.mark.fault
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_two_servers_share_the_marker_of_one_database(url: str, tmp_path: Path) -> None:
    with serving(url, tmp_path) as first, serving(url, tmp_path) as second:
        for number in range(4):
            assert register((first, second)[number % 2], f"agent-{number}")[0] == 201
        until("the marker names the event", marked(url, last_event(first)))
        for server in (first, second):
            assert ask(server, "GET", "/healthz")[0] == 200
    with serving(url, tmp_path) as server:
        assert ask(server, "GET", "/healthz")[0] == 200


@pytest.mark.parametrize(("variable", "value", "error_text"), [
    ("LIFESIGN_SERVER_STATE_DIR", "/proc/state", "state_dir: "),
    ("LIFESIGN_SERVER_STATE_DIR", "/dev/null", "LIFESIGN_SERVER_STATE_DIR: "),
    ("XDG_STATE_HOME", "/dev/null", "--state-dir: "),
])  # fmt: skip
def test_without_a_directory_for_the_marker_no_server_starts(
    file: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, error_text: str
) -> None:
    monkeypatch.setenv(variable, value)
    ended = ran(sqlite(file), "serve", "--port", "0")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.startswith(f"lifesign: {error_text}")
