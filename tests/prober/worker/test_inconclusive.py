"""Reports of a probe that measured nothing."""

from dataclasses import replace
from datetime import UTC, datetime

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import InconclusiveReason, LayerResult, Observation, ResultClass
from lifesign.domain.probing.cadence import Cadence, after_probe, without_result
from lifesign.domain.targets.target import phase_of, target_id
from lifesign.prober.registry_exchange.ledger import ProbeReport, ShardClaim, TargetEntry
from lifesign.prober.worker import inconclusive
from lifesign.prober.worker.inconclusive import missed
from lifesign.prober.worker.shards import Shard, TargetSlot

CADENCE = Cadence()
A = "https://a.example/"
BEGAN_S = 1_763_640_000.1 + phase_of(target_id(A)) * 300
"""A tenth of a second after its tick."""
ALIVE = ProbeMemory(probed_at_s=BEGAN_S - 300, result=ResultClass.OK, card_read_at_s=BEGAN_S - 300)


def slot_of(memory: ProbeMemory = ALIVE) -> TargetSlot:
    shard = Shard(ShardClaim(shard=1, fencing_token=1, expires_at_s=1e9))
    return TargetSlot(shard, TargetEntry(subject_id=target_id(A), url=A, memory=memory))


def report_of(**layers: str) -> ProbeReport:
    observation = Observation(
        target_url=A,
        observed_at=datetime.fromtimestamp(BEGAN_S + 5, UTC),
        **{name: LayerResult(result=ResultClass(result)) for name, result in layers.items()},  # type: ignore[arg-type]  # layers alone
    )
    return ProbeReport(
        subject_id=target_id(A),
        observation=observation,
        memory=after_probe(ALIVE, observation, CADENCE, BEGAN_S),
    )


def discounted(report: ProbeReport, *, layers: tuple[str, ...] | None = None) -> ProbeReport:
    seen = report.observation.discounted(InconclusiveReason.NO_WITNESS, "no witness", layers=layers)
    learned = without_result(ALIVE, report.memory)
    return inconclusive.discount_failures(learned, report, seen, CADENCE, BEGAN_S)


def test_discounted_failure_is_not_stored_in_the_memory() -> None:
    report = report_of(discovery="timeout")
    assert report.memory.failures_in_row == 1
    result = discounted(report)
    assert result.observation.result is ResultClass.NOT_MEASURED
    assert result.observation.inconclusive_reason is InconclusiveReason.NO_WITNESS
    memory = result.memory
    assert (memory.failures_in_row, memory.result, memory.alive_at_s) == (0, ResultClass.OK, BEGAN_S - 300)
    assert memory.probed_at_s == BEGAN_S


def test_memory_of_a_probe_is_kept_without_its_failure() -> None:
    report = report_of(discovery="timeout")
    report = replace(
        report,
        memory=report.memory.model_copy(
            update={"robots_read_at_s": BEGAN_S, "is_disallowed_by_robots": True}
        ),
    )
    memory = discounted(report).memory
    assert (memory.robots_read_at_s, memory.is_disallowed_by_robots) == (BEGAN_S, True)


def test_answered_layer_is_stored_with_an_inconclusive_one() -> None:
    report = report_of(discovery="ok", transport="timeout")
    result = discounted(report, layers=("transport",))
    assert result.memory == report.memory
    assert result.observation.is_liveness_signal
    assert result.observation.inconclusive_reason is None
    assert result.observation.transport is not None
    assert result.observation.transport.result is ResultClass.NOT_MEASURED


def test_remaining_failure_is_stored_in_the_memory() -> None:
    both = report_of(discovery="http_error", readiness="timeout")
    result = discounted(both, layers=("readiness",))
    assert (result.observation.result, result.memory) == (ResultClass.HTTP_ERROR, both.memory)
    # It may have a document and no card.
    no_card = report_of(discovery="not_an_agent", readiness="timeout")
    result = discounted(no_card, layers=("readiness",))
    assert (result.observation.result, result.memory.failures_in_row) == (ResultClass.NOT_MEASURED, 0)


def test_inconclusive_probe_counts_as_made_and_not_measured() -> None:
    report = inconclusive.without_result(
        slot_of(), ALIVE, CADENCE, BEGAN_S, reason=InconclusiveReason.PROBER_FAULT, why="a defect"
    )
    assert report.observation.result is ResultClass.NOT_MEASURED
    assert report.observation.inconclusive_reason is InconclusiveReason.PROBER_FAULT
    assert report.memory == ALIVE.model_copy(
        update={"probed_at_s": BEGAN_S, "alive_at_s": ALIVE.card_read_at_s}
    )


def test_complete_reports_leave_no_finding() -> None:
    assert missed(slot_of(), ALIVE, CADENCE, BEGAN_S, keeps_ticks=True) is None


def test_missed_ticks_are_reported_with_lost_results() -> None:
    memory = ALIVE.model_copy(update={"probed_at_s": BEGAN_S - 1200})
    slot = slot_of(memory)
    result = missed(slot, memory, CADENCE, BEGAN_S, keeps_ticks=True)
    assert result is not None
    assert result[0] == 3
    assert abs(result[1].observation.observed_at.timestamp() - (BEGAN_S - 300.1)) < 0.01
    slot.given_up = 1
    result = missed(slot, memory, CADENCE, BEGAN_S, keeps_ticks=True)
    assert result is not None
    count, report = result
    assert (count, report.memory) == (4, memory)
    assert report.observation.inconclusive_reason is InconclusiveReason.NOT_PROBED
    # After all that was reported meanwhile, before what is reported now.
    assert abs(report.observation.observed_at.timestamp() - (BEGAN_S - 0.001)) < 0.002
    assert report.observation.discovery is not None
    skipped, lost = report.observation.discovery.reason.split("; ")
    assert (skipped[:8], lost[:8]) == ("3 probes", "1 result")


def test_census_reports_no_missed_ticks() -> None:
    memory = ALIVE.model_copy(update={"probed_at_s": BEGAN_S - 90_000})
    assert missed(slot_of(memory), memory, CADENCE, BEGAN_S, keeps_ticks=False) is None
