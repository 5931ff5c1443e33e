"""Who looks whether this prober is well, and who is told if it is not?"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.support.memory_ledger import MemoryLedger
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from agent_health.observation import ResultClass
from agent_health.prober.self_check import SILENT_HOSTS, Doubt, NetworkCounts, SelfCheck
from agent_health.prober.self_watch import SelfWatch

CANARIES = [f"https://canary-{number}.example/" for number in range(5)]


class Watching:
    """A watch, a ledger, canaries that answer or not, and what was told."""

    def __init__(self) -> None:
        self.loop = virtual_loop()
        self.ledger = MemoryLedger(self.loop.clock)
        self.check = SelfCheck(self.loop.time())
        self.turns: list[Doubt | None] = []
        self.asked_at_s: list[float] = []
        self.answer: bool | Exception = True
        self.counts = NetworkCounts()
        self.seconds = 0

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        watch = SelfWatch(
            self.ledger,
            "worker",
            self.check,
            self.loop.clock,
            canaries=CANARIES,
            reaches=self._reaches,
            network=lambda: self.counts,
            turned=self.turns.append,
            each_second=self._count,
            chance=lambda: 0.5,
        )
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0.01)
        yield
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def fall_silent(self) -> None:
        for number in range(SILENT_HOSTS):
            self.check.note_probe(f"host {number}", ResultClass.OK, ResultClass.TIMEOUT, self.loop.time())

    async def _reaches(self, _url: str) -> bool:
        self.asked_at_s.append(self.loop.time())
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def _count(self) -> None:
        self.seconds += 1


@in_virtual_time
async def test_canaries_are_asked_once_a_minute_and_at_once_on_a_suspicion() -> None:
    watching = Watching()
    async with watching.going_on():
        await asyncio.sleep(150)
        assert len(watching.asked_at_s) == 3 * len(CANARIES)
        watching.fall_silent()
        await asyncio.sleep(2)
        assert len(watching.asked_at_s) == 4 * len(CANARIES)
        # While it lasts, not more often than every ten seconds.
        await asyncio.sleep(30)
        assert 6 * len(CANARIES) <= len(watching.asked_at_s) <= 7 * len(CANARIES)
    assert watching.turns == []


@in_virtual_time
async def test_the_ledger_hears_of_an_illness_while_it_lasts_and_once_of_its_end() -> None:
    watching = Watching()
    async with watching.going_on():
        watching.answer = False
        await asyncio.sleep(140)
        said = len(watching.ledger.said)
        assert 3 <= said <= 6
        assert set(watching.ledger.said) == {("worker", "5 of 5 canaries do not answer")}
        watching.answer = True
        await asyncio.sleep(100)
    assert watching.ledger.said[-1] == ("worker", None)
    assert [turn is None for turn in watching.turns] == [False, True]
    assert watching.ledger.said.count(("worker", None)) == 1


@in_virtual_time
async def test_an_illness_that_begins_while_the_ledger_is_away_is_told_when_it_is_back() -> None:
    watching = Watching()
    async with watching.going_on():
        watching.ledger.is_away = True
        watching.answer = False
        await asyncio.sleep(200)
        assert watching.ledger.said == []
        watching.ledger.is_away = False
        await asyncio.sleep(35)
        assert watching.ledger.said != []


@in_virtual_time
async def test_a_canary_that_cannot_be_asked_through_a_defect_counts_as_lost() -> None:
    watching = Watching()
    watching.answer = ValueError("a defect")
    async with watching.going_on():
        await asyncio.sleep(5)
    assert watching.turns[0] is not None


@in_virtual_time
async def test_it_notices_that_the_process_stood_still_or_the_machine_slept() -> None:
    for sleep in ("process", "machine"):
        watching = Watching()
        async with watching.going_on():
            await asyncio.sleep(5)
            if sleep == "process":
                watching.loop.stand_still(30)
            else:
                # The calendar went on, the other clock did not.
                watching.loop.steps_s += 30
            await asyncio.sleep(2)
            turn = watching.turns[0]
            assert turn is not None
            assert turn.why.startswith(
                ("this process stood still for 29.9", "this process stood still for 30.0")
            )


@in_virtual_time
async def test_a_resolver_that_fails_is_noticed_within_seconds() -> None:
    watching = Watching()
    async with watching.going_on():
        await asyncio.sleep(5)
        watching.counts = NetworkCounts(lookups=30, lookup_faults=30)
        await asyncio.sleep(1.5)
        assert [turn.why for turn in watching.turns if turn] == [
            "the resolver failed: 30 of 30 lookups came to nothing"
        ]
        assert watching.seconds >= 5
