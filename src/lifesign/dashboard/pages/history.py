"""An agent's last day, from changes, and its present state.

Changes are stored: those of its status and reports in the event log, those of probe results with its target.
A strip shows the state between changes. `plots` draws numbers over time.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lifesign.dashboard.labels import (
    label_of_result,
    observed_layers,
    target_probe_label,
)
from lifesign.domain.events.chain import Event
from lifesign.domain.events.event_type import EventType
from lifesign.domain.models.agents import AgentRecord
from lifesign.domain.models.targets import TargetRecord
from lifesign.domain.observation.result_sums import Layer
from lifesign.domain.text.counts import percent_text, pluralize
from lifesign.domain.text.durations import latency_text

SPAN_SECONDS: Final = 86_400.0
LATENCY_SCALE_MS: Final = (1.0, 60_000.0)
"""Ends of the logarithmic scale; values beyond it are drawn at its ends."""
LATENCY_MARKS_MS: Final = (1, 10, 100, 1_000, 10_000, 60_000)
MAX_SEGMENTS: Final = 200


@dataclass(frozen=True, slots=True)
class Segment:
    """State of a period; widths are shares of the strip, in percent."""

    word: str
    left: float
    width: float
    begin_s: float
    end_s: float

    @property
    def mark(self) -> str:
        """CSS class of the segment."""
        return self.word.replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Strip:
    """Status, health or probe results of an agent over time, drawn as one line."""

    kind: str
    """Kind of the labels: `status`, `health` or `probe_label`."""
    title: str
    segments: Sequence[Segment]

    @property
    def alt_text(self) -> str:
        """The strip as text, for screen readers."""
        shares: dict[str, float] = {}
        for segment in self.segments:
            shares[segment.word] = shares.get(segment.word, 0.0) + segment.width
        text = ", ".join(f"{word} {percent_text(share / 100)}" for word, share in shares.items())
        return f"{self.title}: {text} of the time shown"


@dataclass(frozen=True, slots=True)
class LatencyBar:
    """A latency, and its position on the scale."""

    name: str
    ms: float
    place: float
    """Position, in percent of the width."""
    is_reported: bool
    """True if the agent itself reported the value; False if a probe measured it."""

    @property
    def text(self) -> str:
        """The latency as text."""
        return latency_text(self.ms)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A share of answered requests."""

    name: str
    ratio: float
    alt_text: str


def status_strip(agent: AgentRecord, events: Iterable[Event], now_s: float) -> Strip:
    """Return the status of an agent over time; `events` are those of its lifecycle, the latest first."""
    changes = [
        (_at_s(event.created_at), str(event.payload["previous_status"]))
        for event in events
        if event.type is EventType.AGENT_LIFECYCLE and not event.is_erased
    ]
    began_s = agent.registered_at.timestamp()
    return Strip("status", "Status", _segments(agent.status.value, changes, began_s, now_s))


def health_strip(agent: AgentRecord, events: Iterable[Event], now_s: float) -> Strip:
    """Return the health of an agent over time.

    `events` are those of its health, the latest first.
    """
    changes = [
        (_at_s(event.created_at), str(event.payload["previous_health"]))
        for event in events
        if event.type is EventType.AGENT_HEALTH_CHANGED and not event.is_erased
    ]
    document = None if agent.observed is None else agent.observed.document
    if agent.unknown_reason is not None and document is not None and not document.is_stale:
        # The document is too old by now: the health is unknown since it was read.
        changes = [(document.observed_at.timestamp(), document.status.value), *changes]
    began_s = agent.registered_at.timestamp()
    return Strip("health", "Health", _segments(agent.health.value, changes, began_s, now_s))


def probe_strip(target: TargetRecord, now_s: float) -> Strip:
    """Return the results of probes over time."""
    changes = [
        (change.at.timestamp(), label_of_result(change.previous).word)
        for change in target.changes
        if change.layer is Layer.OVERALL
    ]
    now = target_probe_label(target, now_s).word
    if target.evidence_at is not None and now != (last := label_of_result(target.result).word):
        # The evidence is too old by now: the state is unknown since the last measured result.
        changes = [(target.evidence_at.timestamp(), last), *changes]
    if target.result_since is not None and not changes:
        changes = [(target.result_since.timestamp(), "never probed")]
    return Strip("probe_label", "Observed", _segments(now, changes, target.added_at.timestamp(), now_s))


def latencies(agent: AgentRecord) -> list[LatencyBar]:
    """Return the latency of each layer at its last request, and those that the agent reports."""
    if agent.observed is None:
        return []
    found = [
        LatencyBar(name, layer.latency_ms, _latency_height(layer.latency_ms), is_reported=False)
        for name, layer in observed_layers(agent.observed)
        if layer.latency_ms is not None
    ]
    document = agent.observed.document
    if document is not None and document.latency_p99_ms is not None:
        p99_ms = document.latency_p99_ms
        found.append(LatencyBar("reported p99", p99_ms, _latency_height(p99_ms), is_reported=True))
    return found


def scale() -> list[tuple[str, float]]:
    """Return the marks of the scale of latencies, and where they are in percent."""
    return [(latency_text(ms).replace(".0", ""), _latency_height(ms)) for ms in LATENCY_MARKS_MS]


def ratios(agent: AgentRecord) -> list[Ratio]:
    """Return the share of answered requests, as reported and as observed."""
    found = []
    if agent.observed is not None and agent.observed.document is not None:
        document = agent.observed.document
        if document.response_ratio is not None:
            samples = "" if document.sample_count is None else f" of {document.sample_count:,}"
            found.append(
                Ratio(
                    "reported", document.response_ratio, f"{percent_text(document.response_ratio)}{samples}"
                )
            )
    if agent.observed is not None and agent.observed.recent_interactions:
        recent = agent.observed.recent_interactions
        ratio = recent.count("1") / len(recent)
        found.append(
            Ratio("observed", ratio, f"{recent.count('1')} of the last {pluralize(len(recent), 'probe')}")
        )
    return found


def _segments(now: str, changes: Iterable[tuple[float, str]], began_s: float, now_s: float) -> list[Segment]:
    """Return the states over time, the oldest first.

    `changes` have time and previous state, the latest first.
    """
    start_s = max(began_s, now_s - SPAN_SECONDS)
    width_s = max(now_s - start_s, 1.0)
    segments: list[Segment] = []
    word, end_s = now, now_s
    for at_s, before in changes:
        begin_s = max(at_s, start_s)
        if begin_s < end_s:
            segments.append(_segment(word, begin_s, end_s, start_s, width_s))
        word, end_s = before, min(begin_s, end_s)
        if at_s <= start_s or len(segments) == MAX_SEGMENTS:
            break
    if end_s > start_s and word != "registering":
        segments.append(_segment(word, start_s, end_s, start_s, width_s))
    return segments[::-1]


def _segment(word: str, begin_s: float, end_s: float, start_s: float, width_s: float) -> Segment:
    left, width = (begin_s - start_s) * 100 / width_s, (end_s - begin_s) * 100 / width_s
    return Segment(word, left, width, begin_s, end_s)


def _latency_height(ms: float) -> float:
    low, high = LATENCY_SCALE_MS
    within = min(max(ms, low), high)
    return 2 + 96 * math.log(within / low) / math.log(high / low)


def _at_s(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
