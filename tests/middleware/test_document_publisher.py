import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import pytest
from tests.support.hand_clock import START_WALL_NS, HandClock
from tests.support.recording import (
    AGENT_ID,
    agent,
    outcomes,
    published,
    record,
    samples,
    served,
    someone_publishing,
)
from tests.support.scripted import Server, http_scope

from lifesign import AgentHealth, AgentHealthMiddleware
from lifesign.domain.health.document import HealthStatus
from lifesign.middleware import health_reporter

NOW = datetime.fromtimestamp(START_WALL_NS / 1e9, UTC)
TEAM = 4


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def health(clock: HandClock) -> AgentHealth:
    return agent(clock)


# --- one worker -------------------------------------------------------------------------------------------


def test_document_is_current_and_published_document_is_of_the_last_refresh(
    health: AgentHealth, clock: HandClock
) -> None:
    before = published(health)
    clock.advance(1)
    health.record(latency_ms=5)
    assert samples(health) == 1
    assert health.document().timestamp == NOW + timedelta(seconds=1)
    assert published(health) == before
    clock.advance(59)
    assert published(health).timestamp == NOW + timedelta(seconds=60)
    assert published(health).calibration == health.document().calibration


def test_published_bytes_are_identical_for_refresh_seconds(health: AgentHealth, clock: HandClock) -> None:
    first = health.published(clock.monotonic_ns())
    clock.advance(60 - 1e-9)
    assert health.published(clock.monotonic_ns()).document is first.document
    clock.advance(1e-9)
    assert health.published(clock.monotonic_ns()).document != first.document


def test_document_is_computed_once_for_thousands_of_requests(clock: HandClock) -> None:
    computed: list[int] = []
    health = agent(clock, model_changed_at=lambda: computed.append(1))

    def ask(_: int) -> bytes:
        return health.published(clock.monotonic_ns()).document

    for refresh in range(1, 4):
        with ThreadPoolExecutor(8) as threads:
            assert len(set(threads.map(ask, range(2_000)))) == 1
        assert len(computed) == refresh
        for _ in range(100):
            health.record(latency_ms=5)
        assert len(computed) == refresh
        clock.advance(60)


def test_thread_waiting_during_a_refresh_gets_the_new_document(clock: HandClock) -> None:
    answers: list[bytes] = []
    threads: list[Thread] = []

    def ask_meanwhile() -> None:
        threads.append(
            Thread(target=lambda: answers.append(recorded.published(clock.monotonic_ns()).document))
        )
        threads[-1].start()
        # Long enough for an answer that does not wait for the refresh.
        threads[-1].join(0.1)

    recorded = agent(clock, model_changed_at=ask_meanwhile)
    for _ in range(2):
        document = recorded.published(clock.monotonic_ns()).document
        threads[-1].join()
        assert answers[-1] == document
        recorded.record(latency_ms=5)
        clock.advance(60)


def test_seconds_to_the_next_refresh_are_rounded_down(health: AgentHealth, clock: HandClock) -> None:
    health.published(clock.monotonic_ns())
    for passed_s in (0, 0.5, 1, 30, 59, 59.9, 60, 1000):
        at_ns = clock.monotonic_ns() + round(passed_s * 1e9)
        remaining_s = max(0, 60 - passed_s)
        assert remaining_s - 1 < health.seconds_to_refresh(at_ns) <= remaining_s


def test_function_of_a_setting_may_record_and_read_the_document(clock: HandClock) -> None:
    asked: list[bytes] = []

    def changed_at() -> datetime:
        agent_itself.record(latency_ms=5)
        asked.append(agent_itself.published(clock.monotonic_ns()).document)
        return NOW

    agent_itself = agent(clock, model_changed_at=changed_at)
    assert published(agent_itself).health.status is HealthStatus.UNKNOWN
    # Once per refresh, for any number of callers.
    assert len(asked) == 1


def test_document_is_unknown_until_it_can_be_built_again(
    health: AgentHealth,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError("secret of the inside")

    for _ in range(10):
        health.record(latency_ms=5)
    with monkeypatch.context() as patched:
        patched.setattr(health_reporter, "self_report", fail)
        for _ in range(10):
            document = published(health)
            assert document.health.status is HealthStatus.UNKNOWN
            assert document.agent_id == AGENT_ID
            assert document.timestamp == NOW
            assert document.calibration is None
            assert b"secret" not in document.to_json()
    assert len(caplog.records) == 1
    clock.advance(60)
    assert published(health).health.status is HealthStatus.HEALTHY


# --- several workers --------------------------------------------------------------------------------------


class Team:
    """The workers of one agent; `computed` has those that made a document, in order."""

    def __init__(self, state_dir: Path) -> None:
        self.clock = HandClock()
        self.computed: list[int] = []
        self.state_dir = state_dir
        self.workers = [self._worker(number) for number in range(TEAM)]

    def _worker(self, number: int) -> AgentHealth:
        def compute() -> None:
            self.computed.append(number)

        worker = agent(self.clock, state_dir=self.state_dir, model_changed_at=compute)
        worker.open()
        return worker

    def answers(self) -> set[bytes]:
        return {served(worker) for worker in self.workers}


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    made = Team(tmp_path)
    yield made
    for worker in made.workers:
        worker.close()


def test_workers_serve_identical_bytes_of_one_publisher(team: Team) -> None:
    for refresh in range(1, 6):
        for number, worker in enumerate(team.workers):
            record(worker, number)
        for _ in range(20):
            assert len(team.answers()) == 1
            assert len(team.computed) == refresh
            team.clock.advance(2.9)
        team.clock.advance(2.1)


def test_requests_without_health_polls_build_no_documents(team: Team) -> None:
    for _ in range(10):
        for _ in range(60):
            for worker in team.workers:
                record(worker, 1)
            team.clock.advance(1)
    assert len(team.computed) <= 10
    assert published(team.workers[0]).health.status is HealthStatus.HEALTHY


def test_seconds_to_the_next_refresh_are_equal_in_all_workers(team: Team) -> None:
    first, *others = team.workers
    served(first)
    team.clock.advance(20)
    for worker in others:
        served(worker)
        assert worker.seconds_to_refresh(team.clock.monotonic_ns()) == 40


def test_workers_serve_the_last_document_while_another_publishes_the_next(team: Team) -> None:
    (before,) = team.answers()
    team.clock.advance(60)
    publisher, *others = team.workers
    with someone_publishing(team.state_dir):
        assert {served(worker) for worker in others} == {before}
    after = served(publisher)
    assert after != before
    team.clock.advance(0.1)
    assert {served(worker) for worker in others} == {after}
    assert len(team.computed) == 2


def test_first_request_during_publishing_later_serves_the_published_document(team: Team) -> None:
    """Otherwise a worker that starts in a busy moment would differ from the others for a minute."""
    publisher, newcomer, *_ = team.workers
    with someone_publishing(team.state_dir):
        assert published(newcomer).health.status is HealthStatus.UNKNOWN
        team.clock.advance(0.001)
    after = served(publisher)
    team.clock.advance(1)
    assert served(newcomer) == after


def test_stuck_publisher_blocks_no_worker(team: Team) -> None:
    (before,) = team.answers()
    worker = team.workers[0]
    with someone_publishing(team.state_dir):
        for _ in range(10):
            record(worker, 10, "server_fault")
            for _ in range(60):
                team.clock.advance(1)
                served(worker)
        document = published(worker)
        # It has long been reporting by itself, as often as ever.
        assert document.health.status is HealthStatus.UNHEALTHY
        assert worker.clock.wall_ns() / 1e9 - document.timestamp.timestamp() <= 2 * 60 + 1
        assert len(team.computed) <= 1 + 10
    team.clock.advance(61)
    assert len(team.answers()) == 1
    assert before not in team.answers()


def test_worker_that_cannot_build_the_document_publishes_nothing(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError

    broken, *others = team.workers
    for worker in others:
        record(worker, 10)
    served(others[0])
    team.clock.advance(60)
    monkeypatch.setattr(broken.reporter, "_declared", fail)
    assert published(broken).health.status is HealthStatus.UNKNOWN
    for worker in others:
        assert published(worker).health.status is HealthStatus.HEALTHY


@pytest.mark.parametrize("spoil", [lambda size: b"\xff" * size, os.urandom, bytes])
def test_damaged_shared_state_blocks_no_worker(team: Team, spoil: Callable[[int], bytes]) -> None:
    team.answers()
    (board,) = team.state_dir.glob("*/board")
    for _ in range(3):
        with board.open("r+b") as file:
            file.write(spoil(board.stat().st_size))
        for worker in team.workers:
            record(worker, 10)
        team.clock.advance(60)
        (answer,) = team.answers()
        assert b'"status":"healthy"' in answer


def test_reading_the_current_document_does_not_change_the_published_one(team: Team) -> None:
    (before,) = team.answers()
    for worker in team.workers:
        worker.document()
    assert team.answers() == {before}


@pytest.mark.parametrize("detail", ["full", "coarse"])
async def test_hanging_requests_of_another_worker_are_counted(
    tmp_path: Path, detail: Literal["full", "coarse"]
) -> None:
    """Their worker may never be the one that makes the document."""

    async def hang(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()

    clock = HandClock()
    publishing, hanging = (
        AgentHealthMiddleware(
            hang, agent_id="agent", clock=clock.clock, state_dir=tmp_path, timeout_seconds=30, detail=detail
        )
        for _ in range(2)
    )
    for worker in (publishing, hanging):
        worker.health.open()
    record(publishing.health, 20)
    pending: list[Any] = []
    for _ in range(60):
        server = Server()
        pending.append(hanging(http_scope(), server.receive, server.send))
        pending[-1].send(None)
    for _ in range(3):
        clock.advance(60)
        served(publishing.health)
        record(hanging.health, 1)
    assert published(publishing.health).health.status is HealthStatus.UNHEALTHY
    assert outcomes(publishing.health) == {"answered": 23, "timed_out": 60}
    for coroutine in pending:
        coroutine.close()
    for worker in (publishing, hanging):
        worker.health.close()
