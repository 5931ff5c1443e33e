"""Evidence age: how long the last measured result counts, and what is shown of a target after that.

A result loses its value over time. The registry stores two times with each result, and every view compares
them with the current time: no job has to expire anything. Times are seconds since the epoch by the registry's
clock.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.results import (
    InconclusiveReason,
    LayerResult,
    Observation,
    ResultClass,
    reason_of_inconclusive,
)
from lifesign.domain.text.durations import duration_text

EVIDENCE_INTERVALS: Final = 3
"""A measured result counts for this many intervals of its crawl."""
MAX_GAP_INTERVALS: Final = 2
"""A gap between two measured results counts as silence for at most this many intervals."""


class UnknownReason(StrEnum):
    """Reason, for programs, why there is no current evidence about an agent or target."""

    NO_PROBER = "no_prober"
    """No result of any kind arrived for three intervals, plus the time that the target asked to wait."""
    NOT_YET_PROBED = "not_yet_probed"
    """The agent was registered recently, and no result has arrived yet."""
    DOCUMENT_ENDED = "document_ended"
    """The last health document has expired, or no probe showed a liveness signal for three intervals.

    Only for `health`.
    """
    NO_WITNESS = InconclusiveReason.NO_WITNESS.value
    """The target failed, and nothing else proved that the prober could have reached it."""
    PROBER_SLOW = InconclusiveReason.PROBER_SLOW.value
    """The request timed out while the prober itself was overloaded or stopped."""
    ASKED_TO_WAIT = InconclusiveReason.ASKED_TO_WAIT.value
    """The target asked for no requests before a later time."""
    NOT_ALLOWED = InconclusiveReason.NOT_ALLOWED.value
    """robots.txt or an opt-out forbids the request, or the prober's `networks.allow` the address.

    Or the target redirects to where the prober does not follow.
    """
    NOT_PROBED = InconclusiveReason.NOT_PROBED.value
    """The probe did not take place, or its result was lost."""
    PROBER_CLOCK = InconclusiveReason.PROBER_CLOCK.value
    """Only the date of a certificate failed, and the prober's clock is wrong, or no witness confirmed it."""
    PROBER_FAULT = InconclusiveReason.PROBER_FAULT.value
    """A defect of the prober ended the probe."""
    NO_CREDENTIAL = InconclusiveReason.NO_CREDENTIAL.value
    """The target asked for a credential that another prober has, and its own prober lacks."""


REASON_WORDS: Final[Mapping[UnknownReason, str]] = MappingProxyType({
    UnknownReason.NO_PROBER: "no prober reports results about it",
    UnknownReason.NOT_YET_PROBED: "the first probe has not ended yet",
    UnknownReason.DOCUMENT_ENDED: "its health document is too old",
    UnknownReason.NO_WITNESS: "it failed, and no witness proves that the prober could reach it",
    UnknownReason.PROBER_SLOW: "the prober is overloaded",
    UnknownReason.ASKED_TO_WAIT: "it asked not to be probed before a later time",
    UnknownReason.NOT_ALLOWED: "robots.txt, an opt-out, networks.allow or a refused redirect prevents probes",
    UnknownReason.NOT_PROBED: "the probe did not take place",
    UnknownReason.PROBER_CLOCK: "its certificate fails by date, and no witness confirms the prober's clock",
    UnknownReason.PROBER_FAULT: "a defect of the prober ended the probe",
    UnknownReason.NO_CREDENTIAL: "its prober lacks a credential that another prober has",
})  # fmt: skip
"""Each reason as a text for people."""

PROBER_FAULTS: Final = frozenset({
    UnknownReason.NO_PROBER,
    UnknownReason.NO_WITNESS,
    UnknownReason.PROBER_SLOW,
    UnknownReason.PROBER_CLOCK,
    UnknownReason.PROBER_FAULT,
    UnknownReason.NOT_PROBED,
    UnknownReason.NO_CREDENTIAL,
})  # fmt: skip
"""Reasons that operators must know of: the monitoring has a fault, not the agent."""


@fast_dataclass(kw_only=True)
class Receipt:
    """When an observation was received, and until when it counts (`receipt.receipt_of`)."""

    at_s: float
    """When the probe ended."""
    max_gap_s: float
    """Maximum time by which this result can extend an observed outage, in seconds."""
    evidence_until_s: float
    """Time until which the result is valid, if it measured something."""
    results_until_s: float
    """When the next result of any kind is due at the latest."""


@fast_dataclass(kw_only=True)
class Evidence:
    """How current the evidence about an agent or target is. `Evidence()`: it is not probed."""

    at_s: float | None = None
    """When the last measured result was observed; None if none ever was."""
    until_s: float | None = None
    """Time until which the result is valid, inclusive. If nothing was measured: at most now, or the time by
    which a first result is expected.
    """
    results_until_s: float | None = None
    """When the next result of any kind was due at the latest; later than that, no prober is running."""
    inconclusive_reason: str | None = None
    """Reason why the last result measured nothing (`InconclusiveReason`); None if it measured."""
    health_until_s: float | None = None
    """Time until which the last health document is valid: at most `until_s`, and at most as long as the last
    result with a liveness signal; None without a document.
    """


def unknown_reason(evidence: Evidence, now_s: float) -> UnknownReason | None:
    """Return why the observed state is unknown; None if the evidence is current, or nothing is probed."""
    if evidence.until_s is None or evidence.results_until_s is None:
        return None
    if now_s <= evidence.until_s:
        return UnknownReason.NOT_YET_PROBED if evidence.at_s is None else None
    if now_s > evidence.results_until_s:
        return UnknownReason.NO_PROBER
    if evidence.inconclusive_reason is not None:
        return UnknownReason(evidence.inconclusive_reason)
    # The last result was measured, and the next one is not due yet: only a wish of the target does that.
    return UnknownReason.ASKED_TO_WAIT


def shown_health(
    health: HealthStatus, evidence: Evidence, now_s: float
) -> tuple[HealthStatus, UnknownReason | None]:
    """Return the health to show. If evidence is too old, that is `unknown`, with the reason.

    `health` is the stored value: the status of the last document. It becomes `unknown` once the evidence no
    longer counts, and after the document's own expiry.
    """
    reason = unknown_reason(evidence, now_s)
    if reason is None and evidence.health_until_s is not None and now_s > evidence.health_until_s:
        reason = UnknownReason.DOCUMENT_ENDED
    return (health, None) if reason is None else (HealthStatus.UNKNOWN, reason)


@fast_dataclass(kw_only=True)
class LastInterface:
    """Last measured result of the interface that an agent's card declares."""

    result: str
    at_s: float


def is_unreachable(
    interface: LastInterface | None, health: HealthStatus, evidence: Evidence, now_s: float
) -> bool:
    """Return whether the declared interface fails, and no current health document says otherwise.

    `health` is the one that is shown. An agent may be alive nevertheless, by its card or its heartbeats.
    False if the evidence is too old, or the interface was measured too long before it: a newer card may name
    none.
    """
    if interface is None or health is not HealthStatus.UNKNOWN or unknown_reason(evidence, now_s) is not None:
        return False
    if not LayerResult(result=ResultClass(interface.result)).has_failed:
        return False
    if evidence.at_s is None or evidence.until_s is None:
        return True
    return 2 * evidence.at_s - evidence.until_s <= interface.at_s


def is_evidence_old(reason: UnknownReason | None) -> bool:
    """Return whether the reason is that the results of probes are too old."""
    return reason not in {None, UnknownReason.DOCUMENT_ENDED}


def lost_text(reason: UnknownReason, evidence_at: datetime | None, now_s: float) -> str:
    """Return in words why there is no current evidence, and how old the last measured result is."""
    if evidence_at is None:
        return f"{REASON_WORDS[reason]}; no probe has measured anything yet"
    age_s = now_s - evidence_at.timestamp()
    return f"{REASON_WORDS[reason]}; the last measured probe was {duration_text(age_s)} ago"


def find_inconclusive_reason(observation: Observation, result: ResultClass) -> InconclusiveReason | None:
    """Return why an observation with this result measured nothing; None if it measured something."""
    by_class = reason_of_inconclusive(result)
    return None if by_class is None else observation.inconclusive_reason or by_class
