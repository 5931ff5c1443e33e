from collections.abc import Callable

from sqlalchemy import select

from lifesign.storage.agents import last_requests
from lifesign.storage.agents.last_requests import FORGOTTEN_AFTER_S, MAX_STEP_S
from lifesign.storage.engine.table_definitions import agent_requests
from lifesign.storage.engine.transaction import Database, Transaction


def storing(**ago_s: float) -> Callable[[Transaction], float]:
    """Store of each process how long ago its last request was, and return the time."""

    def store(transaction: Transaction) -> float:
        for process, seconds in ago_s.items():
            last_requests.store(transaction, process, transaction.now_s - seconds)
        return transaction.now_s

    return store


def processes(transaction: Transaction) -> set[str]:
    return set(transaction.connection.scalars(select(agent_requests.c.process)))


async def test_latest_request_of_all_processes_is_returned(database: Database) -> None:
    assert await database.read(last_requests.last_at_s) is None
    now_s = await database.write(storing(one=20.0, two=10.0, three=30.0))
    assert await database.read(last_requests.last_at_s) == now_s - 10


async def test_request_time_in_the_future_is_ignored_and_removed(database: Database) -> None:
    now_s = await database.write(storing(one=20.0, ahead=-MAX_STEP_S - 60))
    assert await database.read(last_requests.last_at_s) == now_s - 20
    now_s = await database.write(storing(one=10.0))
    assert await database.read(processes) == {"one"}
    # The clock may be slowed down between two transactions.
    await database.write(storing(two=-MAX_STEP_S / 2))
    last_at_s = await database.read(last_requests.last_at_s)
    assert last_at_s is not None
    assert last_at_s > now_s


async def test_process_that_ended_long_ago_is_removed(database: Database) -> None:
    await database.write(storing(old=FORGOTTEN_AFTER_S + 1))
    await database.write(storing(one=0.0))
    assert await database.read(processes) == {"one"}
