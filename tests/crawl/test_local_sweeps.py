import pytest
from tests.support.databases import WoundClock
from tests.support.fleet import add_agents, count_by_status
from tests.support.registry_api import RegistryApi

from lifesign.crawl.local_sweeps import CRAWL_PREFIX, SERVER_SECONDS, local_sweeper
from lifesign.registry.sweep import SERVER_PREFIX, Sweeper
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.transaction import Database


@pytest.fixture
def sweeper(database: Database, clock: WoundClock) -> Sweeper:
    return local_sweeper(database, clock.now_s)


async def _last_sweeper(database: Database) -> str:
    row = await database.read(registry_row.find)
    assert row is not None
    assert row.sweeper is not None
    return row.sweeper


async def test_registered_agents_survive_a_stop_of_the_server_beside_a_crawl(
    api: RegistryApi, sweeper: Sweeper
) -> None:
    await api.register("agent-1")
    await api.registry.sweeper.sweep_once()
    for _ in range(200):
        api.clock.advance(2)
        await sweeper.sweep_once()
    await api.registry.sweeper.sweep_once()
    assert (await api.record("agent-1"))["status"] == "active"
    assert (await api.lifecycle("agent-1"))[1:] == []


@pytest.mark.both_databases
async def test_crawl_leaves_the_sweeps_to_a_server_while_one_runs(api: RegistryApi, sweeper: Sweeper) -> None:
    for _ in range(30):
        await api.registry.sweeper.sweep_once()
        api.clock.advance(10)
        await sweeper.sweep_once()
        assert (await _last_sweeper(api.database)).startswith(SERVER_PREFIX)


async def test_crawl_sweeps_again_after_the_server_stopped(
    api: RegistryApi, sweeper: Sweeper, database: Database
) -> None:
    await add_agents(database, 1)
    await api.registry.sweeper.sweep_once()
    api.clock.advance(SERVER_SECONDS - 1)
    await sweeper.sweep_once()
    assert (await _last_sweeper(database)).startswith(SERVER_PREFIX)
    for _ in range(60):
        api.clock.advance(2)
        await sweeper.sweep_once()
    assert (await _last_sweeper(database)).startswith(CRAWL_PREFIX)
    assert await count_by_status(database) == {"unhealthy": 1}


async def test_next_crawl_sweeps_at_once(database: Database, clock: WoundClock, sweeper: Sweeper) -> None:
    await sweeper.sweep_once()
    first = await _last_sweeper(database)
    clock.advance(2)
    await local_sweeper(database, clock.now_s).sweep_once()
    assert await _last_sweeper(database) != first
