"""A registry on a real socket.

The server has a separate thread, over an SQLite file: tests of the client keep their event loop, and commands
open their own.
"""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import uvicorn
from tests.support.databases import put_file
from tests.support.keys_without_events import add_without_event
from tests.support.servers import LONGEST_ANSWER_SECONDS, PATIENCE_SECONDS, free_port, until

from lifesign.domain.access.permissions import Role, StoredKey, digest_of, key_of
from lifesign.registry.app import MakeFrontend, Registry, create_app
from lifesign.registry.settings import RegistrySettings
from lifesign.serving.connection_limits import BoundedProtocol
from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys import key_rows

KEYS = {role: key_of(bytes([64 + number]) * 32) for number, role in enumerate(Role) if role is not Role.AGENT}
"""One for each role but `agent`, whose keys belong to agents."""
ADMIN_KEY = KEYS[Role.ADMIN]


@dataclass
class RegistryServer:
    """A registry on loopback that can be stopped, and started again at the same place."""

    directory: Path
    settings: dict[str, object] = field(default_factory=dict)
    face: MakeFrontend | None = None
    port: int = 0
    bare_database_url: str | None = None
    """Of another database than SQLite's file, with nothing in it."""
    _server: uvicorn.Server | None = None
    _thread: threading.Thread | None = None
    _failures: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def database_url(self) -> str:
        return self.bare_database_url or f"sqlite:///{self.directory}/registry.db"

    def start(self) -> None:
        """Serve, at first over a database that holds the keys; return once connections are accepted."""
        if self.bare_database_url is not None:
            asyncio.run(_fill(self.bare_database_url))
        elif not (file := self.directory / "registry.db").exists():
            put_file(file, _file())
        self._thread = threading.Thread(target=self._run, name="registry-server", daemon=True)
        self._thread.start()
        until("the registry serves", lambda: self._failures or (self._server and self._server.started))
        assert self._server is not None, self._failures
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        """End all connections and the server."""
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        self._server = None

    def revoke(self, key: str) -> None:
        """Let a key be refused from now on."""

        def end(transaction: Transaction) -> None:
            stored = key_rows.find(transaction, digest_of(key))
            assert stored is not None
            key_rows.end(transaction, stored.key_id, expires_at_s=None, revoked_at_s=transaction.now_s)

        self.write(end)

    def write(self, function: Callable[[Transaction], None]) -> None:
        """Change the database past the server."""

        async def write() -> None:
            database = open_database(self.database_url)
            try:
                await database.write(function)
            finally:
                await database.close()

        asyncio.run(write())

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the test's own thread tells it
            self._failures.append(error)

    async def _serve(self) -> None:
        database = open_database(self.database_url)
        settings = RegistrySettings.read(
            **{"database": self.database_url, "answer_seconds": LONGEST_ANSWER_SECONDS} | self.settings
        )
        config = uvicorn.Config(
            create_app(Registry(settings, database=database), self.face),
            # No other process can take this port while the server is stopped.
            port=self.port or free_port(),
            log_level="warning",
            http=BoundedProtocol,
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        await self._server.serve()


@cache
def _file() -> bytes:
    """The file that every registry here begins with, set up once for all of them."""
    with ThreadPoolExecutor(1) as executor, tempfile.TemporaryDirectory(prefix="ah-sqlite-") as directory:
        file = Path(directory, "registry.db")
        # In a thread of its own: the caller's loop may be running.
        executor.submit(asyncio.run, _fill(f"sqlite:///{file}")).result()
        return file.read_bytes()


async def _fill(url: str) -> None:
    """Set a new database up and store the keys."""

    def fill(transaction: Transaction) -> None:
        schema_version.set_up_or_check(transaction)
        for role, key in KEYS.items():
            stored = StoredKey(
                key_id=f"key_{role}", name=role, role=role, digest=digest_of(key), created_at_s=0.0
            )
            add_without_event(transaction, stored)

    database = open_database(url)
    try:
        await database.write(fill)
    finally:
        await database.close()


@contextmanager
def registry_server(
    directory: Path, *, face: MakeFrontend | None = None, **settings: object
) -> Iterator[RegistryServer]:
    """Serve a new registry until the block ends."""
    server = RegistryServer(directory, settings, face)
    server.start()
    try:
        yield server
    finally:
        server.stop()
