"""Reports of probes that measured nothing.

The probe did not take place, its result was lost, or its failure does not count. All three have one result
class.
"""

from dataclasses import replace
from typing import Final

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import InconclusiveReason, Observation
from lifesign.domain.probing.cadence import Cadence, after_probe
from lifesign.domain.text.counts import plural, pluralize
from lifesign.prober.registry_exchange.ledger import ProbeReport
from lifesign.prober.worker.schedule import missed_before
from lifesign.prober.worker.shards import TargetSlot

_JUST_BEFORE_SECONDS: Final = 1e-3


def without_result(
    slot: TargetSlot,
    memory: ProbeMemory,
    cadence: Cadence,
    began_at_s: float,
    *,
    reason: InconclusiveReason,
    why: str,
) -> ProbeReport:
    """Return the report of a probe that gave no result, because of a fault of the prober."""
    observation = slot.not_measured(began_at_s, reason, why)
    after = after_probe(memory, observation, cadence, began_at_s)
    return ProbeReport(subject_id=slot.subject_id, observation=observation, memory=after)


def discount_failures(
    learned: ProbeMemory, report: ProbeReport, observation: Observation, cadence: Cadence, began_at_s: float
) -> ProbeReport:
    """Return a report in which only `observation` is left, without the failures that do not count.

    `learned` is the memory before the probe with its new facts; `observation` is what remains of the
    observation. A failure that does not count is not remembered.
    """
    if observation.is_liveness_signal or observation.is_measured_failure:
        # Something else is certain, and remembered as it is.
        return replace(report, observation=observation)
    return replace(
        report, observation=observation, memory=after_probe(learned, observation, cadence, began_at_s)
    )


def missed(
    slot: TargetSlot, memory: ProbeMemory, cadence: Cadence, began_at_s: float, *, keeps_ticks: bool
) -> tuple[int, ProbeReport] | None:
    """Return how many earlier probes of a target gave no result, with a report about them.

    None if all gave one. `memory` is the memory before the probe.
    """
    ticks = missed_before(slot.subject_id, memory, cadence, began_at_s) if keeps_ticks else None
    missed_reports, count, at_s = [], 0, 0.0
    if ticks is not None:
        count, at_s = ticks
        missed_reports.append(f"{_several(count, 'probe')} due and not made: no prober had the capacity")
    if slot.given_up:
        missed_reports.append(f"{_several(slot.given_up, 'result')} lost: the ledger was unreachable")
        count += slot.given_up
        # Later results were reported meanwhile: an earlier time would make this one late.
        at_s = began_at_s - _JUST_BEFORE_SECONDS
    if not missed_reports:
        return None
    observation = slot.not_measured(at_s, InconclusiveReason.NOT_PROBED, "; ".join(missed_reports))
    return count, ProbeReport(subject_id=slot.subject_id, observation=observation, memory=memory, requests=0)


def _several(count: int, what: str) -> str:
    return f"{pluralize(count, what)} {plural(count, 'was', 'were')}"
