"""Fixtures of all tests."""

import fcntl
import gc
import itertools
import logging
import os
import re
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from tests.support.databases import KINDS, WoundClock, opened, stop_postgresql
from tests.support.preloaded import stop_forking
from tests.support.registry_api import RegistryApi

from lifesign.loopback.listeners import IN_THIS_PROCESS
from lifesign.serving.garbage_collection import YOUNG_OBJECTS
from lifesign.storage.engine.transaction import Database

pytest_plugins = ["tests.support.database_choice", "tests.support.properties"]

LEVELS = {name: logging.getLogger(name).level for name in ("", "lifesign", "uvicorn", "uvicorn.access")}
"""At the beginning, of those that a program sets when it is run in this process; the first is the root."""
_numbers = itertools.count(1)

# Background jobs of a shell ignore Ctrl-C, and those under `nohup` the end of the terminal; programs that
# tests start would inherit that.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


# The surroundings decide nothing. Tests in which one of these matters set it themselves.
os.umask(0o022)
os.environ["TERM"] = "xterm"
for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "columns", "lines"):
    for spelled in (name, name.upper()):
        os.environ.pop(spelled, None)
# Above all not the database of an operator's shell.
for name in [*os.environ]:
    if name.startswith("LIFESIGN_") and name != "LIFESIGN_SCREENSHOTS":
        del os.environ[name]


# The garbage collector would search 18,000 tests and all modules again and again; none of them goes away.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let one process of pytest-xdist compile the tests; the others load its bytecode."""
    with Path(__file__).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
            fcntl.flock(lock, fcntl.LOCK_UN)
        return (yield)


def pytest_collection_finish() -> None:
    """From now on, collect the garbage that tests leave, as rarely as a server does."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
    gc.enable()


def pytest_sessionfinish() -> None:
    """End what all tests of this process shared: pytest-xdist kills a process that takes its time at exit."""
    stop_forking()
    stop_postgresql()


@pytest.fixture(autouse=True)
def _forget_servers() -> None:
    """Ports of loopback are used again, by servers of other users too."""
    IN_THIS_PROCESS.forget()


@pytest.fixture(autouse=True)
def logging_as_ever() -> Iterator[None]:
    """Let each test begin with the same levels and leave no handler, whatever programs it runs in here."""
    for name, level in LEVELS.items():
        # To set a level empties the caches of all loggers.
        if (logger := logging.getLogger(name)).level != level:
            logger.setLevel(level)
    root = logging.getLogger()
    handlers = root.handlers[:]
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)


@pytest.fixture(autouse=True, scope="session")
def no_state_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep shared servers away from the user's files below `$XDG_STATE_HOME`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        yield


@pytest.fixture(autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test see what another one, or the user, keeps below `$XDG_STATE_HOME`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / f"state-{next(_numbers)}"))


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new directory with the name of the test; pytest's own also looks for a free name, and links to it."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}{next(_numbers)}"
    path.mkdir(0o700)
    return path


@pytest.fixture(params=KINDS)
def database_kind(request: pytest.FixtureRequest) -> str:
    """Each kind of database: a test with this fixture is run on all of them."""
    return str(request.param)


@pytest.fixture
def clock() -> WoundClock:
    """A clock wound by hand."""
    return WoundClock()


@pytest.fixture
async def database(database_kind: str, clock: WoundClock, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database with all tables, whose time is the wound clock's."""
    async with opened(database_kind, tmp_path, clock.now_s) as database:
        yield database


@pytest.fixture
async def api(database: Database, clock: WoundClock) -> RegistryApi:
    """The registry's API over an empty database."""
    api = RegistryApi(database, clock)
    await api.add_keys()
    return api
