import contextlib
import itertools
import sys
import threading
import tracemalloc
from collections.abc import Callable

import pytest
from tests.support.hand_clock import HandClock
from tests.support.recording import agent, outcomes, samples
from tests.support.repetitions import in_faults

from lifesign import AgentHealth, AgentHealthMiddleware
from lifesign.middleware import Outcome
from lifesign.middleware.body import Message
from lifesign.middleware.exchange import Receive, Scope, Send


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _ignore(message: Message) -> None:
    pass


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"].endswith("3"):
        raise LookupError(scope["path"])
    await send({"type": "http.response.start", "status": 200 + len(scope["path"]) % 3 * 100, "headers": []})
    await send({"type": "http.response.body", "body": b"text"})


@pytest.mark.parametrize("visitors", [5_000, *in_faults(20_000)])
async def test_memory_does_not_grow_with_paths_callers_and_errors(clock: HandClock, visitors: int) -> None:
    middleware = AgentHealthMiddleware(_answer, agent_id="agent", clock=clock.clock)

    async def visit(number: int) -> None:
        scope = {
            "type": "http", "method": "GET", "path": f"/visitor/{number}", "root_path": "", "headers": [],
            "client": (f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 50_000),
        }  # fmt: skip
        with contextlib.suppress(LookupError):
            await middleware(scope, _nothing, _ignore)

    for number in range(1000):
        await visit(number)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(visitors):
            await visit(number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(outcomes(middleware.health).values()) == 1_000 + visitors
    assert after - before < 64 * 1024


def _record_in_threads(record: Callable[[], None], threads: int = 4, each: int = 20_000) -> int:
    def work() -> None:
        for _ in range(each):
            record()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    # Switch threads as often as possible: a race would lose increments.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    return threads * each


@pytest.mark.parametrize("has_gil", [True, False])
def test_threads_lose_no_interaction(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch, *, has_gil: bool
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_gil, raising=False)
    health = agent(clock)
    sent = _record_in_threads(lambda: health.record(latency_ms=5, first_byte_ms=1))
    assert outcomes(health) == {"answered": sent}
    assert samples(health) == sent
    assert sum(health._latencies) == sum(health._first_bytes) == sent


def test_threads_lose_no_fast_answer_during_concurrent_reads(clock: HandClock) -> None:
    health = agent(clock)
    now_ns = clock.monotonic_ns()
    turns = itertools.count()

    def count_and_look() -> None:
        health.count_quick_answer(5_000_000, now_ns)
        if next(turns) % 100 == 0:
            health.document()

    sent = _record_in_threads(count_and_look, each=5000)
    assert outcomes(health) == {"answered": sent}
    assert sum(health._latencies) == sent


class SpyLock:
    """The recorder's lock, and how often it was taken."""

    def __init__(self) -> None:
        self.taken = 0
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self.taken += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("way", ["record", "count", "count_quick_answer"])
def test_each_counting_function_takes_the_lock_without_a_gil(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """On a free-threaded build an increment is no longer one step."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    health = agent(clock)
    health.open()
    health._lock = lock = SpyLock()  # type: ignore[assignment]
    match way:
        case "record":
            health.record(latency_ms=5)
        case "count":
            health.count(Outcome.ANSWERED, 5, None, clock.monotonic_ns())
        case _:
            health.count_quick_answer(5, clock.monotonic_ns())
    assert lock.taken == 1


def test_docstring_states_the_thread_safety() -> None:
    assert "many threads" in (AgentHealth.__doc__ or "")
