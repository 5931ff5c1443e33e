"""Which fixtures do all tests share?"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.databases import KINDS, WoundClock, opened, stop_postgresql
from tests.support.registry_api import RegistryApi

from agent_health.storage.database import Database

JOURNEYS = Path(__file__).with_name("journeys")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run journeys first, for they are slow: at the end no worker of pytest-xdist is alone with one."""
    items.sort(key=lambda item: JOURNEYS not in item.path.parents)


def pytest_sessionfinish() -> None:
    """End what all tests of this process shared: pytest-xdist kills a process that takes its time at exit."""
    stop_postgresql()


@pytest.fixture(params=KINDS)
def database_kind(request: pytest.FixtureRequest) -> str:
    """Each kind of database: whoever asks for it is run on all of them."""
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
