import asyncio
from collections.abc import Sequence

import pytest

from lifesign.registry.request_handling import batcher
from lifesign.registry.request_handling.batcher import Batcher
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable


def _doubled(_transaction: Transaction, asked: Sequence[int]) -> list[tuple[int, int]]:
    return [(2 * number, len(asked)) for number in asked]


async def test_waiting_requests_are_committed_together(database: Database) -> None:
    doubling = Batcher(database, _doubled, most=4)
    answers = await asyncio.gather(*(doubling.ask(number) for number in range(6)))
    assert [answer for answer, _ in answers] == [0, 2, 4, 6, 8, 10]
    assert [size for _, size in answers] == [4, 4, 4, 4, 2, 2]


async def test_batch_is_written_when_all_callers_returned(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A wait for the end of the time would outlast the test.
    monkeypatch.setattr(batcher, "GATHER_SECONDS", 3_600)
    doubling = Batcher(database, _doubled, most=4)

    async def ask_again_and_again(pauses: int) -> list[int]:
        sizes = []
        for number in range(3):
            _, size = await doubling.ask(number)
            sizes.append(size)
            for _ in range(pauses):
                await asyncio.sleep(0)
        return sizes

    sizes = [*await asyncio.gather(ask_again_and_again(0), ask_again_and_again(20))]
    assert sizes == [[2, 2, 2], [2, 2, 2]]


async def test_batch_does_not_wait_for_missing_callers(database: Database) -> None:
    doubling = Batcher(database, _doubled, most=4)
    answers = [*await asyncio.gather(doubling.ask(0), doubling.ask(1))]
    assert answers == [(0, 2), (2, 2)]
    assert await doubling.ask(2) == (4, 1)


async def test_failed_group_fails_its_callers_and_the_next_group_runs(database: Database) -> None:
    def refuse_odd(transaction: Transaction, asked: Sequence[int]) -> list[tuple[int, int]]:
        if 1 in asked:
            raise LookupError("on purpose")
        return _doubled(transaction, asked)

    doubling = Batcher(database, refuse_odd, most=2)
    outcomes = await asyncio.gather(*(doubling.ask(number) for number in range(4)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[:2]] == [LookupError, LookupError]
    assert outcomes[2:] == [(4, 2), (6, 2)]


@pytest.mark.both_databases
async def test_callers_queued_during_an_outage_fail_too(database: Database) -> None:
    tries = []

    def be_away(_transaction: Transaction, asked: Sequence[int]) -> list[tuple[int, int]]:
        tries.append(asked)
        raise StoreUnavailable("on purpose")

    doubling = Batcher(database, be_away, most=2)
    outcomes = await asyncio.gather(*(doubling.ask(number) for number in range(6)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 6
    assert len(tries) == 1


async def test_cancelled_caller_does_not_cancel_the_group(database: Database) -> None:
    doubling = Batcher(database, _doubled, most=4)
    leaving, staying = (asyncio.create_task(doubling.ask(number)) for number in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == (2, 2)
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_number_of_waiting_requests_is_bounded(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "MAX_WAITING", 2)
    doubling = Batcher(database, _doubled, most=4)
    outcomes = await asyncio.gather(*(doubling.ask(number) for number in range(3)), return_exceptions=True)
    assert outcomes[:2] == [(0, 2), (2, 2)]
    assert isinstance(outcomes[2], StoreUnavailable)
    assert await doubling.ask(3) == (6, 1)


@pytest.mark.both_databases
async def test_closing_the_batcher_waits_for_pending_requests(database: Database) -> None:
    done: list[int] = []

    def note(_transaction: Transaction, asked: Sequence[int]) -> Sequence[int]:
        done.extend(asked)
        return asked

    noting = Batcher(database, note, most=1)
    waiting = [asyncio.create_task(noting.ask(number)) for number in range(3)]
    await asyncio.sleep(0)
    await noting.close()
    assert done == [0, 1, 2]
    assert await asyncio.gather(*waiting) == [0, 1, 2]
