"""History of an agent (`/api/v1/agents/{agent_id}/history`).

Observations and values of the health document are shown together, slot by slot. Missing values are absent,
and notes give the reason.
"""

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from lifesign.domain.health.document import Time
from lifesign.domain.lifecycle.agent_history import (
    DAY_SECONDS,
    HALF_HOUR_SECONDS,
    RATIOS,
    History,
    HistorySlot,
    Measure,
    Spread,
)
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.models.base import moment

NOT_PROBED = (
    "the agent is monitored only by heartbeats: no prober probes it or reads its health document, so "
    "there are no shares and latencies (with monitoring both and a card_url, it is probed too)"
)
NOT_YET = (
    "no probe of the agent counted in the last 30 days: it was not probed, which does not mean that it "
    "was down"
)
NO_DOCUMENT = "in this time, no prober read a health document of the agent that has ratios or latencies"
NO_ANSWER = "the agent answered no probe in this time: its latency is unknown"


class SpreadShown(BaseModel):
    """Lowest, mean and highest value of a measure: ratios from 0 to 1, latencies in ms."""

    lowest: float
    mean: float
    highest: float


class SlotShown(BaseModel):
    """Results of one half hour or day in which a probe took place or was due."""

    begins_at: Time
    alive: int
    """Number of probes with a liveness signal."""
    failed: int
    """Number of probes that measured a failure."""
    inconclusive: int
    """Number of probes without a measurement: the prober waited, or could not probe."""
    answer_ms: SpreadShown | None = None
    """Latency of the agent's answers: of messages if they are sent, else of the interface."""
    response_ratio: SpreadShown | None = None
    """Ratios as the agent's health document reported them."""
    error_ratio: SpreadShown | None = None
    latency_p50_ms: SpreadShown | None = None
    latency_p99_ms: SpreadShown | None = None

    def measures(self) -> Iterator[tuple[Measure, SpreadShown]]:
        """Return the measures of a slot that have values."""
        for measure in Measure:
            spread: SpreadShown | None = getattr(self, measure.value)
            if spread is not None:
                yield measure, spread


class AgentHistory(BaseModel):
    """The answer to `GET /api/v1/agents/{agent_id}/history`; both lists have the oldest first."""

    agent_id: str
    half_hours: list[SlotShown]
    """Last 24 hours by half hour; half hours without a probe are absent."""
    days: list[SlotShown]
    """Last 30 days by UTC day; days without a probe are absent, and today is included up to now."""
    notes: list[str]
    """Missing parts of the history, with the reason."""


def agent_history(agent_id: str, monitoring: DecidingEvidence, history: History) -> AgentHistory:
    """Return the history of an agent for the API."""
    half_hours = [_slot(slot, HALF_HOUR_SECONDS) for slot in history.half_hours]
    days = [_slot(slot, DAY_SECONDS) for slot in history.days]
    notes = list(_notes(monitoring, [*history.half_hours, *history.days]))
    return AgentHistory(agent_id=agent_id, half_hours=half_hours, days=days, notes=notes)


def _notes(monitoring: DecidingEvidence, slots: Sequence[HistorySlot]) -> Iterator[str]:
    if not slots:
        yield NOT_PROBED if monitoring is DecidingEvidence.HEARTBEAT else NOT_YET
        return
    measured = {measure for slot in slots for measure in slot.spreads}
    if Measure.ANSWER_MS not in measured:
        yield NO_ANSWER
    if not measured - {Measure.ANSWER_MS}:
        yield NO_DOCUMENT


def _slot(slot: HistorySlot, seconds: int) -> SlotShown:
    return SlotShown(
        begins_at=moment(slot.number * seconds),
        alive=slot.alive,
        failed=slot.failed,
        inconclusive=slot.inconclusive,
        **{measure.value: _spread(measure, spread) for measure, spread in slot.spreads.items()},
    )


def _spread(measure: Measure, spread: Spread) -> SpreadShown:
    """Return the values rounded to their known digits."""
    low, mean, high = (_rounded(measure, value) for value in (spread.low, spread.mean, spread.high))
    return SpreadShown(lowest=low, mean=mean, highest=high)


def _rounded(measure: Measure, value: float) -> float:
    return round(value, 5) if measure in RATIOS else float(f"{value:.3g}")
