"""What is told of a probe that measured nothing?

It did not take place, its result was lost, or we do not believe our own eyes: three cases, one class.
"""

from dataclasses import replace

from agent_health.probe_cadence import Cadence, after_probe
from agent_health.probe_memory import ProbeMemory
from agent_health.prober.ledger import ProbeReport
from agent_health.prober.plans import missed_before
from agent_health.prober.shards import Slot


def without_result(
    slot: Slot, memory: ProbeMemory, cadence: Cadence, began_at_s: float, why: str
) -> ProbeReport:
    """Return the report of a probe that began and came to nothing through a fault of ours."""
    observation = slot.not_measured(began_at_s, why)
    after = after_probe(memory, observation, cadence, began_at_s)
    return ProbeReport(subject_id=slot.subject_id, observation=observation, memory=after)


def doubted(
    memory: ProbeMemory, report: ProbeReport, cadence: Cadence, began_at_s: float, why: str
) -> ProbeReport:
    """Return what is reported if failures are not believed; the report itself if there is none.

    `memory` is what was remembered before the probe: a failure that is not believed is not remembered.
    """
    observation = report.observation.doubted(why)
    if observation is report.observation:
        return report
    if observation.is_sign_of_life:
        return replace(report, observation=observation)
    after = after_probe(memory, observation, cadence, began_at_s)
    return replace(report, observation=observation, memory=after)


def missed(
    slot: Slot, memory: ProbeMemory, cadence: Cadence, began_at_s: float, *, keeps_ticks: bool
) -> tuple[int, ProbeReport] | None:
    """Return how many probes before the one that began then left no result, and the report that says so.

    One report tells of all of them, dated as the last; None if there is none. `memory` is what was
    remembered before the probe.
    """
    ticks = missed_before(slot.subject_id, memory, cadence, began_at_s) if keeps_ticks else None
    told = []
    if ticks is not None:
        told.append(
            (ticks[1], ticks[0], f"{ticks[0]} probes were due while this prober did not keep up or run")
        )
    if slot.given_up is not None:
        count, last_at_s = slot.given_up
        told.append((last_at_s, count, f"{count} results were lost while they could not be reported"))
    if not told:
        return None
    observation = slot.not_measured(max(told)[0], "; ".join(why for _, _, why in told))
    report = ProbeReport(subject_id=slot.subject_id, observation=observation, memory=memory, requests=0)
    return sum(count for _, count, _ in told), report
