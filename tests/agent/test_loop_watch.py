import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest
from tests.support.servers import PATIENCE_SECONDS

from lifesign.agent import loop_watch
from lifesign.agent.loop_watch import LoopWatch, watching_loop


class Warned(logging.Handler):
    """Collects messages; `first` and `second` are set with them."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.first, self.second = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        (self.second if self.first.is_set() else self.first).set()


def block(until: threading.Event) -> None:
    assert until.wait(PATIENCE_SECONDS)


async def handler_that_blocks(until: threading.Event, depth: int = 0) -> None:
    call(until, depth)


def call(until: threading.Event, depth: int) -> None:
    if depth:
        call(until, depth - 1)
    else:
        block(until)


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warned]:
    """Return the warnings about a loop that is blocked for 0.3 s."""
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 0.3)
    monkeypatch.setattr(loop_watch, "TURN_SECONDS", 0.02)
    warned, log = Warned(), logging.getLogger("lifesign.agent")
    log.addHandler(warned)
    yield warned
    log.removeHandler(warned)


async def test_blocked_event_loop_is_reported_with_the_blocking_call(warned: Warned) -> None:
    with watching_loop("writer-1"):
        await asyncio.create_task(handler_that_blocks(warned.first))
        assert await asyncio.to_thread(warned.second.wait, PATIENCE_SECONDS)
    begin, end = warned.messages
    assert "handler_that_blocks (test_loop_watch.py:" in begin
    assert "> block (test_loop_watch.py:" in begin
    assert end.startswith("agent writer-1: ")


async def test_first_and_last_calls_of_a_deep_stack_are_named(warned: Warned) -> None:
    with watching_loop("writer-1"):
        await asyncio.create_task(handler_that_blocks(warned.first, depth=50))
    begin = warned.messages[0]
    assert "handler_that_blocks (test_loop_watch.py:" in begin
    assert "> block (test_loop_watch.py:" in begin
    assert begin.count("> call (test_loop_watch.py:") < 6


async def test_agents_of_one_event_loop_share_a_thread(warned: Warned) -> None:
    with watching_loop("writer-2"):
        with watching_loop("writer-1"), watching_loop("writer-3"):
            await asyncio.create_task(handler_that_blocks(warned.first))
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("lifesign-loop-watch") == 1
        assert await asyncio.to_thread(warned.second.wait, PATIENCE_SECONDS)
    assert len(warned.messages) == 2
    assert "writer-2 and 2 more" in warned.messages[0]


class CountedTurns(threading.Event):
    """An event that counts how often it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.are_enough = threading.Event()

    def set(self) -> None:
        super().set()
        self.count += 1
        if self.count == 5:
            self.are_enough.set()


async def test_waiting_event_loop_is_not_blocked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 5.0)
    monkeypatch.setattr(loop_watch, "TURN_SECONDS", 0.01)
    watch, turns = LoopWatch(), CountedTurns()
    monkeypatch.setattr(watch, "_has_turned", turns)
    watch.start()
    assert await asyncio.to_thread(turns.are_enough.wait, PATIENCE_SECONDS)
    watch.stop()
    assert caplog.records == []
