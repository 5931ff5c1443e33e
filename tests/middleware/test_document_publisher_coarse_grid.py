"""Coarse detail depends on the refresh grid and on the status alone, used or not (draft 8; B29)."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.asgi_client import Answer, ask
from tests.support.hand_clock import START_WALL_NS, HandClock
from tests.support.recording import someone_publishing
from tests.support.scripted import PLAIN, Server, Step, app_of, chunk, final, http_scope, start

from lifesign import AgentHealthMiddleware

HEALTH = "/.well-known/agent-health"
TOKEN = "t" * 20
REFRESH_S = 60
REFRESH_NS = REFRESH_S * 10**9
FORMS = [b"application/json", b"application/health+json"]


def coarse(clock: HandClock, *steps: Step, **given_: Any) -> AgentHealthMiddleware:
    app = app_of(steps or (start(), final(b"the app")), clock)
    settings: dict[str, Any] = {"detail": "coarse", "refresh_seconds": REFRESH_S} | given_
    return AgentHealthMiddleware(app, agent_id="agent", clock=clock.clock, **settings)


def use(agent: AgentHealthMiddleware, times: int, outcome: str = "answered") -> None:
    for _ in range(times):
        agent.health.record(outcome, latency_ms=5)


async def public_answers(agent: AgentHealthMiddleware) -> list[Answer]:
    """Return everything that a stranger can get: both forms, and the headers for caches."""
    answers = [await ask(agent, HEALTH, headers=[(b"accept", form)]) for form in FORMS]
    tags = [(b"if-none-match", (answer.header("etag") or "").encode()) for answer in answers]
    again = [await ask(agent, HEALTH, headers=[tag]) for tag in tags]
    return [*answers, *again, await ask(agent, HEALTH, method="HEAD")]


async def status(agent: AgentHealthMiddleware) -> str:
    return str((await ask(agent, HEALTH)).json()["health"]["status"])


def timestamp_s(answer: Answer) -> float:
    return datetime.fromisoformat(answer.json()["timestamp"]).timestamp()


def max_age_s(answer: Answer) -> int:
    return int((answer.header("cache-control") or "").removeprefix("max-age="))


@pytest.fixture
def clock() -> HandClock:
    """17.25 s after a grid point."""
    made = HandClock()
    assert START_WALL_NS % (REFRESH_S * 10**9) == 0
    made.advance(17.25)
    return made


# --- a busy and an idle agent -----------------------------------------------------------------------------


@given(
    phase_s=st.floats(0, 2 * REFRESH_S),
    steps=st.lists(st.tuples(st.floats(0, 90), st.integers(0, 3), st.booleans()), max_size=30),
)
async def test_used_and_idle_agent_of_one_status_answer_the_same(
    phase_s: float, steps: list[tuple[float, int, bool]]
) -> None:
    clock = HandClock()
    clock.advance(phase_s)
    used, idle = coarse(clock), coarse(clock)
    for agent in (used, idle):
        use(agent, 20)
    clock.advance(REFRESH_S)
    for advance_s, times, is_polled in steps:
        clock.advance(advance_s)
        use(used, times)
        if is_polled:
            answers = await public_answers(used)
            assert answers == await public_answers(idle)
            since_grid_ns = clock.wall_ns() % REFRESH_NS
            assert timestamp_s(answers[0]) == (clock.wall_ns() - since_grid_ns) / 1e9
            assert max_age_s(answers[0]) == (REFRESH_NS - since_grid_ns) // 10**9


async def test_coarse_document_over_asgi_does_not_reveal_usage(clock: HandClock) -> None:
    """Earlier, the first request after a due refresh was visible in the timestamp."""
    used, idle = coarse(clock), coarse(clock)
    for agent in (used, idle):
        for _ in range(20):
            await ask(agent, "/ask")
    for _ in range(20):
        clock.advance(95)
        await ask(used, "/ask")
        clock.advance(3.5)
        assert await public_answers(used) == await public_answers(idle)


async def test_coarse_document_of_workers_with_shared_state_does_not_reveal_usage(
    clock: HandClock, tmp_path: Path
) -> None:
    used = [coarse(clock, state_dir=tmp_path / "used") for _ in range(3)]
    idle = [coarse(clock, state_dir=tmp_path / "idle") for _ in range(3)]
    for agent in (*used, *idle):
        agent.health.open()
        use(agent, 20)
    for number in range(30):
        clock.advance(7.3)
        use(used[number % 3], 5)
        clock.advance(4.1)
        expected = await public_answers(idle[number % 2])
        for agent in (*used, *idle):
            assert await public_answers(agent) == expected
    for agent in (*used, *idle):
        agent.health.close()


async def test_coarse_document_with_shared_state_does_not_reveal_a_restart(
    clock: HandClock, tmp_path: Path
) -> None:
    stays, restarts = (coarse(clock, state_dir=tmp_path / name) for name in ("stays", "restarts"))
    for agent in (stays, restarts):
        use(agent, 20)
    for _ in range(10):
        clock.advance(25)
        restarts.health.close()
        restarts = coarse(clock, state_dir=tmp_path / "restarts")
        use(restarts, 3)
        assert await public_answers(restarts) == await public_answers(stays)
    for agent in (stays, restarts):
        agent.health.close()


# --- the status -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
async def test_status_changes_at_a_grid_point_only(clock: HandClock, tmp_path: Path, *, shared: bool) -> None:
    team = [coarse(clock, **({"state_dir": tmp_path} if shared else {})) for _ in range(2 if shared else 1)]
    agent = team[0]
    use(agent, 20)
    assert await status(agent) == "unknown"
    clock.advance(REFRESH_S - 17.25 - 0.001)
    assert [await status(worker) for worker in team] == ["unknown"] * len(team)
    clock.advance(0.001)
    assert [await status(worker) for worker in team] == ["healthy"] * len(team)
    clock.advance(1)
    use(agent, 1000, "server_fault")
    for _ in range(58):
        assert [await status(worker) for worker in team] == ["healthy"] * len(team)
        clock.advance(1)
    clock.advance(1)
    assert [await status(worker) for worker in team] == ["unhealthy"] * len(team)
    for worker in team:
        worker.health.close()


@pytest.mark.parametrize("polled_after_s", [0.5, 30, 59])
async def test_coarse_document_is_as_of_the_grid_point_for_any_build_time(
    clock: HandClock, tmp_path: Path, polled_after_s: float
) -> None:
    """Whichever worker answers first, and however late."""
    team = [coarse(clock, state_dir=tmp_path) for _ in range(2)]
    for worker in team:
        worker.health.open()
    use(team[0], 20)
    clock.advance(REFRESH_S - 17.25 + 0.25)
    use(team[1], 1000, "server_fault")
    clock.advance(polled_after_s)
    assert await status(team[0]) == "healthy"
    for worker in team:
        worker.health.close()


async def test_stuck_publisher_causes_no_status_change_between_grid_points(
    clock: HandClock, tmp_path: Path
) -> None:
    agent = coarse(clock, state_dir=tmp_path)
    use(agent, 20)
    with someone_publishing(tmp_path):
        clock.advance(REFRESH_S - 17.25 + 1)
        assert await status(agent) == "healthy"
        use(agent, 1000, "server_fault")
        for _ in range(50):
            clock.advance(1)
            assert await status(agent) == "healthy"
    # This worker publishes the document that it made at the grid point.
    clock.advance(1)
    assert await status(agent) == "healthy"
    newcomer = coarse(clock, state_dir=tmp_path)
    assert await public_answers(newcomer) == await public_answers(agent)
    clock.advance(10)
    assert await status(agent) == await status(newcomer) == "unhealthy"
    for worker in (agent, newcomer):
        worker.health.close()


async def test_hanging_request_becomes_overdue_at_a_grid_point(clock: HandClock) -> None:
    """Else a late poll would find more of them than an early one."""

    async def hang(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()

    early, late = (
        AgentHealthMiddleware(
            hang, agent_id="agent", clock=clock.clock, detail="coarse", detail_token=TOKEN, timeout_seconds=30
        )
        for _ in range(2)
    )
    pending = []
    for agent in (early, late):
        use(agent, 20)
        for _ in range(60):
            server = Server()
            coroutine: Any = agent(http_scope(), server.receive, server.send)
            coroutine.send(None)
            pending.append(coroutine)
    clock.advance(REFRESH_S - 17.25 + 1)
    assert await status(early) == "unhealthy"
    for agent in (early, late):
        for _ in range(60):
            server = Server()
            coroutine = agent(http_scope(), server.receive, server.send)
            coroutine.send(None)
            pending.append(coroutine)
    clock.advance(50)
    bearer = [(b"authorization", f"Bearer {TOKEN}".encode())]
    answers = [await ask(agent, HEALTH, headers=bearer) for agent in (early, late)]
    counted = [answer.json()["extensions"]["io.github.lifesign.outcomes"] for answer in answers]
    assert counted == [{"answered": 20, "timed_out": 60}] * 2
    for coroutine in pending:
        coroutine.close()


# --- clocks and failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [-3600, -61, -1, 1, 61, 3600])
async def test_grid_follows_the_wall_clock_after_a_clock_change(clock: HandClock, step_s: float) -> None:
    used, idle = coarse(clock), coarse(clock)
    for agent in (used, idle):
        use(agent, 20)
    clock.advance(REFRESH_S)
    await public_answers(used)
    clock.step_wall(step_s)
    for _ in range(40):
        use(used, 1)
        answers, others = await public_answers(used), await public_answers(idle)
        # Set back, the idle one may be held at the status of an hour that comes again.
        assert answers == others or answers[0].json()["health"] != others[0].json()["health"]
        age_s = clock.wall_ns() / 1e9 - timestamp_s(answers[0])
        assert 0 <= age_s < REFRESH_S
        assert max_age_s(answers[0]) <= REFRESH_S
        clock.advance(7.7)


async def test_failed_document_is_also_dated_to_the_grid_point(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError

    agent = coarse(clock)
    monkeypatch.setattr("lifesign.middleware.health_reporter.self_report", fail)
    for _ in range(10):
        answer = await ask(agent, HEALTH)
        assert answer.json()["health"] == {"status": "unknown"}
        assert timestamp_s(answer) % REFRESH_S == 0
        clock.advance(13)
    assert caplog.records


async def test_full_document_is_not_aligned_to_the_grid(clock: HandClock) -> None:
    agent = coarse(clock, start(headers=PLAIN), chunk(), final(), detail="full")
    await ask(agent, "/ask")
    answer = await ask(agent, HEALTH)
    assert timestamp_s(answer) == pytest.approx(clock.wall_ns() / 1e9, abs=0.001)
    assert max_age_s(answer) == REFRESH_S
