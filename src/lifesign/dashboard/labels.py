"""Labels of statuses and results.

Four states look alike and differ: down, gated, unknown, never probed. Each has its own word and mark, so
that colour is never the only difference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, Literal

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.models.agents import AgentRecord, ObservedLayer, ObservedState
from lifesign.domain.models.targets import TargetSummary
from lifesign.domain.observation.evidence_age import lost_text
from lifesign.domain.observation.result_sums import Layer
from lifesign.domain.observation.results import (
    ANSWERED,
    CREDENTIAL_FAULTS,
    INCONCLUSIVE,
    LayerResult,
    ResultClass,
    decisive,
)
from lifesign.domain.observation.summary_line import (
    combine_with_card,
    layer_words,
    liveness_signals,
    probe_summary,
)
from lifesign.domain.probing.no_prober_hint import NO_PROBER, no_prober_text
from lifesign.domain.text.counts import UNKNOWN, pluralize
from lifesign.domain.text.durations import duration_text
from lifesign.domain.text.safe_text import harmless

MAX_SHOWN_CHARACTERS: Final = 300
"""Maximum length of foreign text on a line."""
_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"
_NO_PROBER_TEXT: Final = no_prober_text(NO_PROBER, "--registry URL")

MEANINGS: Final[Mapping[str, str]] = MappingProxyType({
    "active": "alive, and accepting work",
    "unhealthy": "silent or failing for a while; keeps its leases, and may recover",
    "draining": "finishing its work, accepts no more",
    "dead": "silent for too long; its leases have expired",
    "deregistered": "gone in good order",
    "health healthy": "it answers as expected, by its health document",
    "health degraded": "it answers worse than expected, by its health document or by assertions",
    "health unhealthy": "it mostly fails by its health document, or its answers failed assertions",
    "health unknown": "there is no recent health document, and no assertion failed; it may still be healthy",
    "answers": "a server answered",
    "gated": "a server answered, and requires credentials or payment first",
    "down": "it was probed, and no agent answered",
    "unknown": "unknown: the last result is too old, or the probe measured nothing",
    "never probed": "it was never probed, which does not mean that it is down",
})  # fmt: skip
"""Explanations of the words, for tooltips and screen readers."""

EvidenceAge = Literal["5 min", "15 min", "1 h", "1 d", "7 d"]
EVIDENCE_AGES_S: Final[Mapping[EvidenceAge, float]] = MappingProxyType(
    {"5 min": 300.0, "15 min": 900.0, "1 h": 3_600.0, "1 d": 86_400.0, "7 d": 604_800.0}
)
"""Options of the filter by the age of the last measured probe."""

RECHECK_RESULTS: Final[Mapping[str, str]] = MappingProxyType({
    "recheck": "A probe was requested: its result arrives within seconds.",
    "recheck_later": "The target asked not to be probed for a while (Retry-After): it is probed after that.",
    "recheck_unheard": _NO_PROBER_TEXT[0].upper() + _NO_PROBER_TEXT[1:],
})  # fmt: skip
"""Messages after a request for a probe."""


@dataclass(frozen=True, slots=True)
class ProbeLabel:
    """Result of the probes of an agent or a target, in a word and in a line."""

    word: str
    """`answers`, `gated`, `down`, `unknown` or `never probed`."""
    why: str = ""

    @property
    def mark(self) -> str:
        """CSS class of the label."""
        return self.word.replace(" ", "-")


NEVER_PROBED: Final = ProbeLabel("never probed")


def label_of_result(result: ResultClass | str | None, why: str = "") -> ProbeLabel:
    """Return the label for a probe's result; None: never probed."""
    if result is None:
        return NEVER_PROBED
    known = ResultClass(result)
    if known is ResultClass.GATED or known in CREDENTIAL_FAULTS:
        return ProbeLabel("gated", why)
    if known in ANSWERED:
        return ProbeLabel("answers", why)
    text = why or known.value
    if known in INCONCLUSIVE:
        return ProbeLabel("unknown", text)
    return ProbeLabel("down" if LayerResult(result=known).has_failed else "unknown", text)


def target_probe_label(target: TargetSummary, now_s: float) -> ProbeLabel:
    """Return the label for a target's present state: `unknown` if its last result is too old."""
    if target.result is None or target.unknown_reason is None:
        return label_of_result(target.result, target.finding)
    return ProbeLabel("unknown", lost_text(target.unknown_reason, target.evidence_at, now_s))


def agent_probe_label(agent: AgentRecord, now_s: float) -> ProbeLabel:
    """Return the label for an agent's present state: `unknown` if its last result is too old."""
    if agent.observed is None or agent.unknown_reason is None or not agent.has_old_evidence:
        return label_of_observed(agent.observed)
    return ProbeLabel("unknown", lost_text(agent.unknown_reason, agent.evidence_at, now_s))


def label_of_observed(seen: ObservedState | None) -> ProbeLabel:
    """Return the label for the last observation of an agent, layer by layer."""
    if seen is None:
        return NEVER_PROBED
    named = (
        (Layer.DISCOVERY, seen.discovery),
        (Layer.TRANSPORT, seen.transport),
        (Layer.READINESS, seen.readiness),
        (Layer.MESSAGE, seen.message),
    )
    # The last measured layers: a layer that was not probed again keeps its result.
    last_at = max((layer.observed_at for _, layer in named if layer is not None), default=None)
    layers = [
        (name, LayerResult(result=layer.result, reason=layer.reason))
        for name, layer in named
        if layer is not None and layer.observed_at == last_at
    ]
    if liveness_signals(layers):
        shown = combine_with_card(layers, None if seen.discovery is None else seen.discovery.result)
        is_ok = any(layer.result is ResultClass.OK for _, layer in shown)
        summary = probe_summary(shown, seen.kind)
        return label_of_result(ResultClass.OK if is_ok else ResultClass.GATED, summary)
    last = decisive(layers)
    if last is None:
        return NEVER_PROBED
    stale = next((layer for _, layer in layers if layer.result is ResultClass.STALE_DOCUMENT), None)
    if stale is not None and not seen.failures_in_row:
        return label_of_result(stale.result, stale.reason)
    if last.has_failed and not seen.failures_in_row:
        # The only trace of an inconclusive probe: the failure did not count.
        what = layer_words(seen.kind)[Layer.DISCOVERY]
        return ProbeLabel("unknown", f"{last.reason or last.result}; the {what} could not be requested")
    return label_of_result(last.result, last.reason)


def observed_layers(seen: ObservedState) -> list[tuple[str, ObservedLayer]]:
    """Return the layers and paths that were ever requested, in the order of a probe."""
    named = (
        (Layer.DISCOVERY, seen.discovery),
        (Layer.TRANSPORT, seen.transport),
        (Layer.READINESS, seen.readiness),
        (Layer.MESSAGE, seen.message),
    )
    words = layer_words(seen.kind)
    layers = [(words[name], layer) for name, layer in named if layer is not None]
    return [*layers, *(seen.paths or {}).items()]


def agent_status_text(agent: AgentRecord) -> str:
    """Return the explanation of an agent's present status as text."""
    if agent.current_explanation:
        return agent.current_explanation
    return agent.explanation if agent.explanation not in {"", agent.reason} else as_words(agent.reason)


def is_health_by_assertions(health: HealthStatus, observed: ObservedState | None) -> bool:
    """Return whether failed assertions make the health worse than the agent's own document."""
    if observed is None or health not in {HealthStatus.DEGRADED, HealthStatus.UNHEALTHY}:
        return False
    has_failed = any(each.has_failed for each in observed.assertions or ())
    return has_failed and (observed.document is None or observed.document.status is not health)


def failing_text(agent: AgentRecord) -> str:
    """Return what fails of an active agent: its last probes, or only its interface; empty if nothing does."""
    if agent.failing_probes:
        return f"last {pluralize(agent.failing_probes, 'probe')} failed"
    return "interface fails" if agent.is_unreachable and agent.status is Status.ACTIVE else ""


def unread_reason(agent: AgentRecord) -> str:
    """Return why the content of an agent's health document is unknown, and a remedy; else empty."""
    if agent.monitoring is DecidingEvidence.HEARTBEAT:
        return "the agent is monitored only by heartbeats; register it with monitoring both and a card_url"
    if agent.observed is None:
        return "no prober has probed it since it registered; start one (lifesign crawl --registry)"
    return ""


def meaning(word: str) -> str:
    """Return the explanation of a label; empty if it needs none."""
    return MEANINGS.get(word, "")


def as_words(name: str) -> str:
    """Return an identifier of the API, such as `re_registered`, as readable text."""
    return name.replace("re_registered", "re-registered").replace("_", " ")


def moment_text(at: datetime | float | None) -> str:
    """Return a time in UTC, to the second; a dash for none."""
    if at is None:
        return UNKNOWN
    moment = at if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration_s(seconds: float | None) -> str:
    """Return a duration in seconds as text; a dash if it is unknown."""
    return UNKNOWN if seconds is None else duration_text(seconds)


def brief(text: object, most: int = MAX_SHOWN_CHARACTERS) -> str:
    """Return a foreign text in one line: bounded, and without control characters.

    Several lines are joined.
    """
    return harmless(_cut(" ".join(str(text)[: 2 * most + 1].splitlines()), most))


def block(text: object, most: int = MAX_SHOWN_CHARACTERS) -> str:
    """Return a foreign text with its line breaks: bounded, and without other control characters."""
    return harmless(_cut("\n".join(str(text)[: 2 * most + 1].splitlines()), most), keep="\n")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + _ELLIPSIS
