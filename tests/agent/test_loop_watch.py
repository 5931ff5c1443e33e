import asyncio
import logging
import threading

import pytest
from tests.support.servers import PATIENCE_SECONDS

from lifesign.agent import loop_watch
from lifesign.agent.loop_watch import LoopWatch


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


async def handler_that_blocks(until: threading.Event) -> None:
    block(until)


async def test_blocked_event_loop_is_reported_with_the_blocking_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 0.3)
    monkeypatch.setattr(loop_watch, "TURN_SECONDS", 0.02)
    warned, watch = Warned(), LoopWatch("writer-1")
    log = logging.getLogger("lifesign.agent")
    log.addHandler(warned)
    try:
        watch.start()
        await asyncio.create_task(handler_that_blocks(warned.first))
        assert await asyncio.to_thread(warned.second.wait, PATIENCE_SECONDS)
    finally:
        watch.stop()
        log.removeHandler(warned)
    begin, end = warned.messages
    assert "handler_that_blocks (test_loop_watch.py:" in begin
    assert "> block (test_loop_watch.py:" in begin
    assert end.startswith("agent writer-1: ")


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
    watch, turns = LoopWatch("writer-1"), CountedTurns()
    monkeypatch.setattr(watch, "_has_turned", turns)
    watch.start()
    assert await asyncio.to_thread(turns.are_enough.wait, PATIENCE_SECONDS)
    watch.stop()
    assert caplog.records == []
