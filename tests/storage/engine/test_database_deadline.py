import asyncio
import logging
import time
from collections.abc import Callable

import pytest
from sqlalchemy import func, select
from tests.support.databases import WoundClock
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.storage.engine import registry_row
from lifesign.storage.engine.database_deadline import DeadlineDatabase
from lifesign.storage.engine.postgresql import POOL_CONNECTIONS, PostgresqlDatabase
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable

MOST_S = 0.2
LONG_S = 0.6


def _wait(transaction: Transaction) -> None:
    """Keep the database busy, and not the event loop."""
    if transaction.is_postgresql:
        transaction.connection.execute(select(func.pg_sleep(LONG_S)))
    else:
        time.sleep(LONG_S)


def _add(transaction: Transaction) -> str:
    """Leave a trace."""
    registry_row.lock(transaction)
    return "added"


def _slowly(function: Callable[[Transaction], str]) -> Callable[[Transaction], str]:
    def wait_first(transaction: Transaction) -> str:
        _wait(transaction)
        return function(transaction)

    return wait_first


async def _connect(database: Database) -> None:
    """Let it have a connection, so that the next function begins at once."""
    await database.write(_do_nothing)


def _do_nothing(_transaction: Transaction) -> str:
    return "nothing"


def _fail(_transaction: Transaction) -> str:
    raise LookupError("on purpose")


async def _until_nothing_goes_on(prompt: DeadlineDatabase) -> None:
    while prompt._going_on:
        await asyncio.wait([*prompt._going_on])
        await asyncio.sleep(0)


async def _is_added(database: Database) -> bool:
    return await database.read(registry_row.find) is not None


async def test_timely_answer_is_unchanged(database: Database) -> None:
    prompt = DeadlineDatabase(database, 20)
    assert await prompt.write(_add) == "added"
    assert await prompt.read(registry_row.find) is not None
    with pytest.raises(LookupError):
        await prompt.write(_fail)
    with pytest.raises(LookupError):
        await prompt.read(_fail)


async def test_started_transaction_continues_after_the_timeout_answer(database: Database) -> None:
    prompt = DeadlineDatabase(database, MOST_S)
    await _connect(database)
    with pytest.raises(StoreUnavailable, match="may be made"):
        await prompt.write(_slowly(_add))
    assert database.writes.failure is not None
    assert not await _is_added(database)
    await _until_nothing_goes_on(prompt)
    assert await _is_added(database)


@pytest.mark.both_databases
async def test_transaction_that_has_not_begun_by_the_deadline_is_cancelled(database: Database) -> None:
    prompt = DeadlineDatabase(database, MOST_S)
    busy = POOL_CONNECTIONS if isinstance(database, PostgresqlDatabase) else 1
    slow = [asyncio.create_task(database.write(_slowly(_do_nothing))) for _ in range(busy)]
    # Until all of them work.
    await asyncio.sleep(MOST_S)
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await prompt.write(_add)
    await asyncio.gather(*slow)
    await _until_nothing_goes_on(prompt)
    await database.write(lambda transaction: transaction.now_s)
    assert not await _is_added(database)


async def test_slow_read_raises_store_unavailable(database: Database) -> None:
    prompt = DeadlineDatabase(database, MOST_S)
    with pytest.raises(StoreUnavailable, match=r"not answered .*nothing was changed"):
        await prompt.read(_slowly(_do_nothing))
    await _until_nothing_goes_on(prompt)


async def test_failure_after_the_answer_is_logged(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = DeadlineDatabase(database, MOST_S)
    await _connect(database)
    with pytest.raises(StoreUnavailable):
        await prompt.write(_slowly(_fail))
    await _until_nothing_goes_on(prompt)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "on purpose" in str(record.exc_info)


async def test_cancelled_caller_cancels_its_transaction(database: Database) -> None:
    prompt = DeadlineDatabase(database, 20)
    busy = POOL_CONNECTIONS if isinstance(database, PostgresqlDatabase) else 1
    slow = [asyncio.create_task(database.write(_slowly(_do_nothing))) for _ in range(busy)]
    await asyncio.sleep(MOST_S)
    leaving = asyncio.create_task(prompt.write(_add))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await asyncio.gather(*slow)


@pytest.mark.both_databases
async def test_all_callers_get_503_while_the_database_does_not_answer(
    database: Database, clock: WoundClock
) -> None:
    api, patient = RegistryApi(database, clock, answer_seconds=0.5), RegistryApi(database, clock)
    await patient.add_keys()
    key = (await patient.register("agent-1"))["agent_key"]
    busy = POOL_CONNECTIONS if isinstance(database, PostgresqlDatabase) else 3
    slow = [asyncio.create_task(database.write(_slowly(_do_nothing))) for _ in range(busy)]
    slow += [asyncio.create_task(database.read(_slowly(_do_nothing))) for _ in range(busy)]
    await asyncio.sleep(0.01)
    body = {"status": "active", "client_timestamp": api.time_text()}
    answers = await asyncio.gather(
        api.ask("POST", f"{AGENTS}/agent-1/heartbeat", body, key=key),
        api.ask("POST", "/api/v1/leases", {"resource": "r:1"}, key=key),
        api.ask("POST", AGENTS, {"agent_id": "agent-2"}),
    )
    assert [(one.status, one.json()["error"]["code"]) for one in answers] == [(503, "store_unavailable")] * 3
    assert {one.header("retry-after") for one in answers} == {"2"}
    await asyncio.gather(*slow)
    assert (await patient.send_heartbeat("agent-1", key)).status == 200
