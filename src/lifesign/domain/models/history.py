"""History of an agent (`/api/v1/agents/{agent_id}/history`).

Observations stand beside the values of the health document, slot by slot. Missing values are absent, and
notes say why.
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
from lifesign.domain.lifecycle.verdict import Monitoring
from lifesign.domain.models.base import moment

NOT_PROBED = (
    "it is watched by its heartbeats alone: no prober asks it or reads its health document, so there are no "
    "shares and latencies of it (monitoring both, with a card_url, would have it probed too)"
)
NOT_YET = (
    "no probe of it counted in the last 30 days: it was not probed, which does not mean that it was down"
)
NO_DOCUMENT = "no prober read a health document of it in this time: what it would say of itself is unknown"
NO_ANSWER = "it answered no probe in this time: how long it takes is unknown"


class SpreadShown(BaseModel):
    """The values of one measure within a slot; of ratios 0 to 1, of latencies ms."""

    lowest: float
    mean: float
    highest: float


class SlotShown(BaseModel):
    """A half hour or a day with at least one probe, done or due."""

    begins_at: Time
    alive: int
    """How many probes saw a sign of life."""
    failed: int
    """How many were measured, and saw none."""
    inconclusive: int
    """How many told neither: the prober held back, or could not look."""
    answer_ms: SpreadShown | None = None
    """How long the agent took to answer: a message if one is sent, else its interface."""
    response_ratio: SpreadShown | None = None
    """This one and the others: as its health document said."""
    error_ratio: SpreadShown | None = None
    latency_p50_ms: SpreadShown | None = None
    latency_p99_ms: SpreadShown | None = None

    def measures(self) -> Iterator[tuple[Measure, SpreadShown]]:
        """Return what was measured or said in it."""
        for measure in Measure:
            spread: SpreadShown | None = getattr(self, measure.value)
            if spread is not None:
                yield measure, spread


class AgentHistory(BaseModel):
    """The answer to `GET /api/v1/agents/{agent_id}/history`; both lists have the oldest first."""

    agent_id: str
    half_hours: list[SlotShown]
    """The last 24 hours; half hours without a probe are absent."""
    days: list[SlotShown]
    """The last 30 days, by UTC; likewise. Today is included up to now."""
    notes: list[str]
    """What is missing, and why."""


def agent_history(agent_id: str, monitoring: Monitoring, history: History) -> AgentHistory:
    """Return what is to be shown of an agent."""
    half_hours = [_slot(slot, HALF_HOUR_SECONDS) for slot in history.half_hours]
    days = [_slot(slot, DAY_SECONDS) for slot in history.days]
    notes = list(_notes(monitoring, [*history.half_hours, *history.days]))
    return AgentHistory(agent_id=agent_id, half_hours=half_hours, days=days, notes=notes)


def _notes(monitoring: Monitoring, slots: Sequence[HistorySlot]) -> Iterator[str]:
    if not slots:
        yield NOT_PROBED if monitoring is Monitoring.HEARTBEAT else NOT_YET
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
    """Return it with as many digits as are known of it."""
    low, mean, high = (_rounded(measure, value) for value in (spread.low, spread.mean, spread.high))
    return SpreadShown(lowest=low, mean=mean, highest=high)


def _rounded(measure: Measure, value: float) -> float:
    return round(value, 5) if measure in RATIOS else float(f"{value:.3g}")
