import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.hand_clock import HandClock
from tests.support.recording import agent, outcomes, p99_ms

from lifesign import AgentHealth
from lifesign.errors import InvalidValue
from lifesign.middleware import Outcome


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def health(clock: HandClock) -> AgentHealth:
    return agent(clock)


def test_interaction_latency_is_the_duration_of_its_block(health: AgentHealth, clock: HandClock) -> None:
    with health.interaction():
        clock.advance(0.25)
    assert outcomes(health) == {"answered": 1}
    assert p99_ms(health) == pytest.approx(250, rel=0.01)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("wrong"), "raised"),
        (TimeoutError(), "timed_out"),
        (KeyboardInterrupt(), "abandoned"),
        (SystemExit(), "raised"),
        (OSError("the backend is gone"), "raised"),
    ],
)
def test_exception_is_counted_and_reraised(health: AgentHealth, error: BaseException, outcome: str) -> None:
    with pytest.raises(type(error)) as raised, health.interaction():
        raise error
    assert raised.value is error
    assert outcomes(health) == {outcome: 1}


async def test_a_cancelled_task_is_cancelled_and_counted_as_abandoned(health: AgentHealth) -> None:
    is_within = asyncio.Event()

    async def work() -> None:
        with health.interaction():
            is_within.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await is_within.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert outcomes(health) == {"abandoned": 1}


async def test_cancellation_of_an_awaited_future_is_a_failure(health: AgentHealth) -> None:
    shared = asyncio.get_running_loop().create_future()
    shared.cancel()
    with pytest.raises(asyncio.CancelledError), health.interaction():
        await shared
    assert outcomes(health) == {"raised": 1}


async def test_a_deadline_within_the_interaction_is_a_timeout(health: AgentHealth) -> None:
    with pytest.raises(TimeoutError), health.interaction():
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    assert outcomes(health) == {"timed_out": 1}


@pytest.mark.parametrize("outcome", ["task_failed", Outcome.TASK_FAILED])
def test_explicitly_set_outcome_is_recorded(health: AgentHealth, outcome: Outcome | str) -> None:
    with health.interaction() as interaction:
        interaction.outcome = outcome
    assert outcomes(health) == {"task_failed": 1}


def test_recorded_outcome_survives_a_later_exception(health: AgentHealth) -> None:
    def work() -> None:
        with health.interaction() as interaction:
            interaction.outcome = "task_failed"
            raise LookupError

    with pytest.raises(LookupError):
        work()
    assert outcomes(health) == {"task_failed": 1}


def test_the_latency_of_a_streamed_answer_ends_with_its_first_byte(
    health: AgentHealth, clock: HandClock
) -> None:
    with health.interaction() as interaction:
        clock.advance(0.02)
        interaction.first_byte()
        clock.advance(5)
        interaction.first_byte()
    extensions = health.document().extensions or {}
    assert p99_ms(health) == pytest.approx(20, rel=0.01)
    first_byte = extensions["io.github.lifesign.first-byte"]
    assert first_byte["latency_p99_ms"] == pytest.approx(20, rel=0.01)


def test_decorated_function_is_counted_at_each_call(health: AgentHealth, clock: HandClock) -> None:
    @health.interaction()
    def answer(text: str, *, takes_s: float) -> str:
        clock.advance(takes_s)
        if not text:
            raise LookupError
        return text.upper()

    assert answer("good", takes_s=0.1) == "GOOD"
    assert answer("morning", takes_s=0.3) == "MORNING"
    with pytest.raises(LookupError):
        answer("", takes_s=0)
    assert outcomes(health) == {"answered": 2, "raised": 1}
    assert p99_ms(health) == pytest.approx(300, rel=0.01)
    assert answer.__name__ == "answer"


class _AsyncTool:
    async def __call__(self) -> str:
        await asyncio.sleep(0)
        raise LookupError


async def test_coroutine_of_another_function_is_counted_when_it_ends(health: AgentHealth) -> None:
    coroutine = health.interaction()(_AsyncTool())()
    assert outcomes(health) == {}
    with pytest.raises(LookupError):
        await coroutine
    assert outcomes(health) == {"raised": 1}


async def test_decorated_coroutine_function_is_counted_when_it_ends(
    health: AgentHealth, clock: HandClock
) -> None:
    @health.interaction()
    async def answer() -> str:
        await asyncio.sleep(0)
        clock.advance(0.2)
        return "answer"

    coroutines = [answer(), answer()]
    assert outcomes(health) == {}
    assert await asyncio.gather(*coroutines) == ["answer"] * 2
    assert outcomes(health) == {"answered": 2}


def test_interaction_decorator_refuses_a_generator_function(health: AgentHealth) -> None:
    def chunks() -> Iterator[str]:
        yield "chunk"

    async def events() -> AsyncIterator[str]:
        yield "event"

    for function in (chunks, events):
        with pytest.raises(InvalidValue) as refused:
            health.interaction()(function)
        assert refused.value.name == "function"


def test_invalid_outcome_raises_at_its_assignment() -> None:
    health = AgentHealth(agent_id="urn:agent")
    with pytest.raises(InvalidValue, match="outcome"), health.interaction() as interaction:
        interaction.outcome = "task failed"
