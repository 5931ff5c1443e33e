"""Counts and documents of a recorder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.hand_clock import HandClock
from tests.support.scripted import OUTCOMES

from lifesign import AgentHealth
from lifesign.domain.health.document import Calibration, HealthDocument, HealthStatus, Trend
from lifesign.domain.health.document_reader import read_document

AGENT_ID = "agent"


def agent(clock: HandClock, **settings: Any) -> AgentHealth:
    """A recorder that goes by a hand-wound clock."""
    given: dict[str, Any] = {"agent_id": AGENT_ID, "clock": clock.clock} | settings
    return AgentHealth(**given)


def record(health: AgentHealth, count: int, outcome: str = "answered", *, latency_ms: float = 5) -> None:
    for _ in range(count):
        health.record(outcome, latency_ms=latency_ms)


def calibration(health: AgentHealth) -> Calibration:
    found = health.document().calibration
    assert found is not None
    return found


def samples(health: AgentHealth) -> int:
    return calibration(health).sample_count


def p99_ms(health: AgentHealth) -> float:
    found = calibration(health).latency_p99_ms
    assert found is not None
    return found


def outcomes(health: AgentHealth) -> dict[str, int]:
    counted: dict[str, int] = (health.document().extensions or {})[OUTCOMES]
    return counted


def status(health: AgentHealth) -> HealthStatus:
    return health.document().health.status


def trend(health: AgentHealth) -> Trend:
    decay = health.document().decay
    assert decay is not None
    return decay.calibration_trend


def served(health: AgentHealth) -> bytes:
    """The bytes that are published now."""
    return health.published(health.clock.monotonic_ns()).document


def published(health: AgentHealth) -> HealthDocument:
    """Return the published document, valid for a reader that knows the draft only."""
    document, _ = read_document(served(health))
    return document


@contextmanager
def someone_publishing(state_dir: Path) -> Iterator[None]:
    """Another worker holds the right to publish while the body runs."""
    (board,) = state_dir.glob("*/board")
    fd = os.open(board, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        os.close(fd)
