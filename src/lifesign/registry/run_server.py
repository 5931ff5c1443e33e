"""Start, processes and end of the server.

The socket is bound and the database checked before anything is served, so that a wrong set-up ends with one
line. The processes get their settings through a pipe: the database's password is neither in their arguments
nor in their environment.
"""

import asyncio
import logging
import logging.config
import multiprocessing
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os.path import exists
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from lifesign.client.secret_file import complain_if_open
from lifesign.domain.access.event_actor import OwnActor
from lifesign.domain.access.permissions import Role
from lifesign.domain.events.database_marker import DatabaseMarker
from lifesign.domain.net.database_url import shown_database_url
from lifesign.errors import InvalidValue
from lifesign.registry.database_identity.marker_check import (
    KnownIdentity,
    check_filled,
    check_known,
    check_present,
    current_marker,
    is_uncomparable,
)
from lifesign.registry.database_identity.marker_file import MarkerFile, state_directory
from lifesign.registry.keys.manage_keys import create_first_admin_key
from lifesign.registry.request_handling.work_counts import SharedCounts, WorkCounts, shared_counts
from lifesign.registry.settings import RegistrySettings
from lifesign.serving.bounded_server import BoundedServer
from lifesign.serving.connection_limits import BoundedProtocol
from lifesign.serving.garbage_collection import rarely_collected
from lifesign.serving.listening_socket import BACKLOG, bound, check_host, url_of
from lifesign.serving.log_lines import LogFormat, log_config
from lifesign.serving.process_supervisor import EXIT_FAILED, Supervisor
from lifesign.serving.proxied_callers import ProxiedCallers
from lifesign.serving.self_signed_certificate import certificate_ends_s
from lifesign.serving.tls_files import check_pair, check_validity
from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database, read_url
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys import key_rows

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from lifesign.registry.app import MakeFrontend

GRACE_SECONDS = 5
"""Time for running requests and streams after the server gets a signal to end."""
ACTOR = OwnActor.SERVER.value
"""Actor of the event about the first admin key."""

WORKER_MODULES = (
    "lifesign.cli",
    "lifesign.dashboard.routes",
    "lifesign.registry.app",
    "lifesign.registry.run_server",
    "uvicorn.lifespan.on",
    "uvloop",
)
"""Modules of each of several server processes."""

TRUSTS_EVERYBODY = (
    "trusted_proxies contains all addresses: any client can forge its address, so that limits per "
    "address have no effect. Name only your proxies"
)

UNCOMPARABLE = (
    "the database cannot be compared with this host's marker, because the marker's event was archived. If "
    "the database is a copy that was served elsewhere, stop its servers, and run lifesign database adopt "
    "--force"
)

_log = logging.getLogger("lifesign.registry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Addresses and limits for accepting connections."""

    host: str
    port: int
    """0: any that is free."""
    workers: int = 1
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    access_log: bool = False
    log_format: LogFormat = "console"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Facts to show before the server is reachable."""

    database: str
    """Database without its password."""
    admin_key: str | None
    """The first admin key, shown once and stored nowhere."""
    needs_admin_key: bool
    """There never was one, and none was made."""


def run_server(
    settings: RegistrySettings,
    listening: Listening,
    *,
    face: "MakeFrontend | None" = None,
    may_show_key: bool,
    say_prepared: Callable[[Prepared], None],
    say_ready: Callable[[str], None],
) -> int:
    """Serve until asked to stop; return the exit code: 0, or 1 if it could not continue.

    `face` is the web interface; each process creates its own. `may_show_key`: the first admin key is created
    only where a person sees it. `say_ready` receives the URL once the server answers.

    Raise InvalidValue, CannotListen, StoreUnavailable, SchemaOutdated, SchemaUnknown, ForeignDatabase or
    DatabaseMismatch if it cannot start.
    """
    # SIGTERM also ends the start cleanly; uvicorn has its own handler while it serves, and raises the signal
    # afterwards.
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # With several processes, the supervisor has its own handler, which replaces them.
        signal.signal(signal.SIGHUP, _end_as_on_sigterm)
    try:
        return _run(
            settings,
            listening,
            face=face,
            may_show_key=may_show_key,
            say_prepared=say_prepared,
            say_ready=say_ready,
        )
    except KeyboardInterrupt:
        return 0
    except SystemExit as ended:
        return 1 if ended.code else 0


def check(settings: RegistrySettings, listening: Listening) -> None:
    """Raise InvalidValue if a server evidently cannot start with these settings."""
    _check_database(settings.database)
    check_host(listening.host)
    _check_tls(listening)
    _check_directory("archive_dir", settings.archive_dir)
    _check_directory("state_dir", state_directory(settings.state_dir))


def _run(
    settings: RegistrySettings,
    listening: Listening,
    *,
    face: "MakeFrontend | None" = None,
    may_show_key: bool,
    say_prepared: Callable[[Prepared], None],
    say_ready: Callable[[str], None],
) -> int:
    check(settings, listening)
    logging.config.dictConfig(dict(_log_config(listening)))
    with bound(listening.host, listening.port) as opened:
        admin_key, needs_admin_key = asyncio.run(_prepare(settings, may_show_key=may_show_key))
        prepared = Prepared(
            database=shown_database_url(settings.database) or "",
            admin_key=admin_key,
            needs_admin_key=needs_admin_key,
        )
        say_prepared(prepared)
        _warn_of_plain_http(listening, settings)
        _warn_of_open_key(listening)
        _warn_of_trust(settings)
        _raise_file_limit()
        if settings.archive_dir is not None:
            _make_archive_directory(settings.archive_dir)
        config = _uvicorn_config(settings, listening, face)
        scheme = "http" if listening.tls_certificate is None else "https"
        ready = partial(say_ready, url_of(opened, listening.host, scheme))
        if listening.workers == 1:
            _AnnouncingServer(config, ready).run([opened])
            return 0
        return Supervisor(config, [opened], ready, WORKER_MODULES).run_to_end()


async def _prepare(settings: RegistrySettings, *, may_show_key: bool) -> tuple[str | None, bool]:
    """Set up an empty database, check any other; return the first admin key, and whether one is missing.

    DatabaseMismatch if it is not the database that this host knows.
    """
    url = read_url(settings.database)
    file = MarkerFile.of(url, state_directory(settings.state_dir))
    assert file is not None  # noqa: S101 - a database in memory was refused before
    # Before anything is made that is shown once.
    file.check_writable()
    known = KnownIdentity.read(file)
    check_present(known, url)

    def function(transaction: Transaction) -> tuple[str | None, bool, DatabaseMarker, bool]:
        # Its lock also serialises processes that would create the first key.
        schema_version.lock(transaction)
        check_filled(transaction, known)
        is_empty = schema_version.set_up_or_check(transaction)
        check_known(transaction, known)
        if may_show_key:
            admin_key, needs_one = create_first_admin_key(transaction, ACTOR), False
        else:
            admin_key, needs_one = None, key_rows.count(transaction, Role.ADMIN) == 0
        return admin_key, needs_one, current_marker(transaction), is_empty

    opened = open_database(settings.database)
    try:
        admin_key, needs_one, marker, is_empty = await opened.write(function)
        if await opened.read(lambda transaction: is_uncomparable(transaction, known)):
            _log.warning(UNCOMPARABLE)
    finally:
        await opened.close()
    _write_marker(file, known, marker, is_announced=known.is_new and not is_empty)
    return admin_key, needs_one


def _write_marker(
    file: MarkerFile, known: KnownIdentity, marker: DatabaseMarker, *, is_announced: bool
) -> None:
    if known.damage:
        _log.warning(
            "the marker file %s is written again, because it was damaged: %s", file.path, known.damage
        )
    try:
        file.write(marker)
    except OSError as error:
        # It could be written just now; the server tries again every two seconds.
        _log.warning("the marker of the database cannot be written: %s: %s", file.path, error.strerror)
    else:
        if is_announced:
            members = {"file": str(file.path), "installation_id": marker.installation_id}
            _log.info("no marker of this database on this host: created one", extra=members)


def app_of(
    settings: RegistrySettings,
    face: "MakeFrontend | None",
    shared: SharedCounts | None,
    certificate_ends_s: float | None,
) -> "ASGIApp":
    """Return the app of one server process; it ends when its supervisor has ended."""
    with rarely_collected():
        from lifesign.registry.app import Registry, create_app  # noqa: PLC0415 - the supervisor needs none

    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        # A terminal that is closed sends it to all: what becomes of us is the supervisor's to say.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        threading.excepthook = _log_thread
        threading.Thread(target=_end_after, args=(supervisor,), daemon=True).start()
    counts = WorkCounts(shared)
    # It was set up before: a process that replaces another one must not create an empty file.
    database = open_database(settings.database, must_exist=True)
    registry = Registry(settings, database=database, counts=counts, certificate_ends_s=certificate_ends_s)
    app = create_app(registry, face)
    return ProxiedCallers(app, settings.trusted_proxies) if settings.trusted_proxies else app


def _end_after(supervisor: "multiprocessing.process.BaseProcess") -> None:
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _log_thread(failed: threading.ExceptHookArgs) -> None:
    """Do not log an error when the supervisor's pipe is closed, as at every regular end of a process."""
    if failed.exc_type not in {EOFError, SystemExit} and failed.exc_value is not None:
        _log.error("a background thread failed", exc_info=failed.exc_value)


class _AnnouncingServer(BoundedServer):
    """Says so once it answers."""

    def __init__(self, config: uvicorn.Config, say_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._say_ready = say_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say_ready()


class _Config(uvicorn.Config):
    """Says in one line, in each process, if the certificate and its key have become unusable."""

    def load(self) -> None:
        if self.ssl_certfile is not None and self.ssl_keyfile is not None:
            try:
                check_pair(Path(self.ssl_certfile), Path(self.ssl_keyfile))
            except InvalidValue as error:
                _log.error("cannot serve with this certificate: %s", error)
                raise SystemExit(EXIT_FAILED) from None
        super().load()


def _uvicorn_config(
    settings: RegistrySettings, listening: Listening, face: "MakeFrontend | None" = None
) -> uvicorn.Config:
    shared = shared_counts(listening.workers) if listening.workers > 1 else None
    certificate = listening.tls_certificate
    ends_s = None if certificate is None else certificate_ends_s(certificate)
    return _Config(
        partial(app_of, settings, face, shared, ends_s),
        factory=True,
        workers=listening.workers,
        lifespan="on",
        http=BoundedProtocol,
        ws="none",
        log_config=dict(_log_config(listening)),
        access_log=listening.access_log,
        server_header=False,
        # Ours reads them: see `proxied_callers`.
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_certfile=listening.tls_certificate,
        ssl_keyfile=listening.tls_key,
    )


def _log_config(listening: Listening) -> Mapping[str, object]:
    return log_config(access_log=listening.access_log, log_format=listening.log_format)


def _end(_signal_number: int, _frame: object) -> None:
    raise SystemExit(0)


def _end_as_on_sigterm(_signal_number: int, _frame: object) -> None:
    """Stop as on SIGTERM."""
    signal.raise_signal(signal.SIGTERM)


def _check_database(url: str) -> None:
    if url in {"sqlite://", "sqlite:///:memory:"}:
        raise InvalidValue("database", url, "a file: a database in memory ends with its process")
    read_url(url)


def _check_tls(listening: Listening) -> None:
    """Refuse half of a pair, and files that are no certificate with its key."""
    certificate, key = listening.tls_certificate, listening.tls_key
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        # The message names the given path, also if a file contains it.
        name, missing = (
            ("tls_key", "tls_certificate") if certificate is None else ("tls_certificate", "tls_key")
        )
        raise InvalidValue(name, None, f"{missing} beside it: a certificate and its key belong together")
    check_pair(certificate, key)
    try:
        check_validity(certificate, time.time())
    except InvalidValue as error:
        # The clock may be wrong, and callers through a proxy may not verify it: a server is better than none.
        _log.error("clients refuse this certificate: %s", error)


def _check_directory(name: str, directory: Path | None) -> None:
    """Refuse a directory that can neither be written to nor be made; `name` is the setting."""
    if directory is None:
        return
    places = (directory.absolute(), *directory.absolute().parents)
    there = next(each for each in places if exists(each))  # noqa: PTH110 - Path.exists raises EACCES
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        expected = f"a directory that this user can write to or create (check {there})"
        raise InvalidValue(name, str(directory), expected)


def _warn_of_plain_http(listening: Listening, settings: RegistrySettings) -> None:
    is_local = listening.host in {"localhost", "::1"} or listening.host.startswith("127.")
    if not is_local and listening.tls_certificate is None and not settings.trusted_proxies:
        _log.warning("keys are sent unencrypted: use TLS, or a trusted proxy (--trusted-proxies)")


def _warn_of_open_key(listening: Listening) -> None:
    if listening.tls_key is not None:
        complain_if_open(listening.tls_key, listening.tls_key.stat(), "TLS key", _log.warning)


def _make_archive_directory(directory: Path) -> None:
    """Make it before the first events are archived, which may be in months."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        expected = f"a directory that this user can write to or create ({error.strerror})"
        raise InvalidValue("archive_dir", str(directory), expected) from None


def _warn_of_trust(settings: RegistrySettings) -> None:
    if settings.trusts_everybody:
        _log.warning(TRUSTS_EVERYBODY)


def _raise_file_limit() -> None:
    """Allow as many connections as this user may have: the usual 1,024 are few for a fleet."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
