from collections.abc import Callable

from sqlalchemy import select

from lifesign.storage.agents import last_requests
from lifesign.storage.agents.last_requests import FORGOTTEN_AFTER_S, MAX_STEP_S, LastRequests
from lifesign.storage.engine.table_definitions import agent_requests
from lifesign.storage.engine.transaction import Database, Transaction


def storing(**ago_s: float) -> Callable[[Transaction], float]:
    """Store of each process how long ago its last request was, and return the time."""

    def store(transaction: Transaction) -> float:
        for process, seconds in ago_s.items():
            times = LastRequests(transaction.now_s - seconds, None)
            last_requests.store(transaction, process, times)
        return transaction.now_s

    return store


def processes(transaction: Transaction) -> set[str]:
    return set(transaction.connection.scalars(select(agent_requests.c.process)))


async def test_latest_request_of_all_processes_is_returned(database: Database) -> None:
    assert await database.read(last_requests.last) == (None, None)
    now_s = await database.write(storing(one=20.0, two=10.0, three=30.0))
    assert await database.read(last_requests.last) == (now_s - 10, None)


async def test_refusals_count_apart_from_requests(database: Database) -> None:
    def store(transaction: Transaction) -> float:
        last_requests.store(transaction, "one", LastRequests(None, transaction.now_s - 5))
        return transaction.now_s

    await database.write(storing(two=FORGOTTEN_AFTER_S + 1))
    now_s = await database.write(store)
    await database.write(storing(two=20.0))
    assert await database.read(last_requests.last) == (now_s - 20, now_s - 5)
    assert await database.read(processes) == {"one", "two"}


async def test_request_time_in_the_future_is_ignored_and_removed(database: Database) -> None:
    now_s = await database.write(storing(one=20.0, ahead=-MAX_STEP_S - 60))
    assert await database.read(last_requests.last) == (now_s - 20, None)
    now_s = await database.write(storing(one=10.0))
    assert await database.read(processes) == {"one"}
    # The clock may be slowed down between two transactions.
    await database.write(storing(two=-MAX_STEP_S / 2))
    latest = await database.read(last_requests.last)
    assert latest.at_s is not None
    assert latest.at_s > now_s


async def test_process_that_ended_long_ago_is_removed(database: Database) -> None:
    await database.write(storing(old=FORGOTTEN_AFTER_S + 1))
    await database.write(storing(one=0.0))
    assert await database.read(processes) == {"one"}
