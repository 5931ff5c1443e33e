"""What is told of a probe that measured nothing?"""

from datetime import UTC, datetime

from agent_health.observation import LayerResult, Observation, ResultClass
from agent_health.probe_cadence import Cadence, after_probe
from agent_health.probe_memory import ProbeMemory
from agent_health.prober.ledger import ProbeReport, ShardClaim, TargetEntry
from agent_health.prober.self_check import Doubt
from agent_health.prober.shards import Shard, Slot
from agent_health.prober.unmeasured import doubted, missed, without_result
from agent_health.target import phase_of, target_id

CADENCE = Cadence()
A = "https://a.example/"
BEGAN_S = 1_763_640_000.1 + phase_of(target_id(A)) * 300
"""A tenth of a second after its tick."""
DOUBT = Doubt(why="no name can be looked up", since_s=0.0)
SLOW = Doubt(why="this process is overloaded", since_s=0.0, is_about_time=True)
ALIVE = ProbeMemory(probed_at_s=BEGAN_S - 300, result=ResultClass.OK, card_read_at_s=BEGAN_S - 300)


def slot_of(memory: ProbeMemory = ALIVE) -> Slot:
    shard = Shard(ShardClaim(shard=1, fencing_token=1, expires_at_s=1e9))
    return Slot(shard, TargetEntry(subject_id=target_id(A), url=A, memory=memory))


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


def test_a_failure_that_is_not_believed_is_not_remembered() -> None:
    report = report_of(discovery="timeout")
    assert (report.memory.failures_in_row, report.memory.confirm_at_s is None) == (1, False)
    told = doubted(ALIVE, report, CADENCE, BEGAN_S, DOUBT)
    assert told.observation.result is ResultClass.NOT_MEASURED
    memory = told.memory
    assert (memory.failures_in_row, memory.confirm_at_s, memory.result) == (0, None, ResultClass.OK)
    assert memory.probed_at_s == BEGAN_S


def test_what_answered_is_believed_and_remembered_though_something_else_failed() -> None:
    report = report_of(discovery="ok", transport="timeout")
    told = doubted(ALIVE, report, CADENCE, BEGAN_S, DOUBT)
    assert told.memory == report.memory
    assert told.observation.is_sign_of_life
    assert told.observation.transport == LayerResult(result=ResultClass.NOT_MEASURED, reason=DOUBT.why)


def test_of_a_slow_prober_timeouts_alone_are_not_believed() -> None:
    told = doubted(ALIVE, report_of(discovery="timeout"), CADENCE, BEGAN_S, SLOW)
    assert told.observation.result is ResultClass.NOT_MEASURED
    assert told.memory.failures_in_row == 0
    for result in ("refused", "dns_failure", "http_error"):
        report = report_of(discovery=result)
        assert doubted(ALIVE, report, CADENCE, BEGAN_S, SLOW) is report
    both = report_of(discovery="http_error", readiness="timeout")
    told = doubted(ALIVE, both, CADENCE, BEGAN_S, SLOW)
    assert (told.observation.result, told.memory) == (ResultClass.HTTP_ERROR, both.memory)
    # It may have a document and no card.
    no_card = report_of(discovery="not_an_agent", readiness="timeout")
    told = doubted(ALIVE, no_card, CADENCE, BEGAN_S, SLOW)
    assert (told.observation.result, told.memory.failures_in_row) == (ResultClass.NOT_MEASURED, 0)


def test_what_did_not_fail_is_reported_as_it_is() -> None:
    for layers in ({"discovery": "ok"}, {"discovery": "blocked_address"}, {"discovery": "rate_limited"}):
        report = report_of(**layers)
        assert doubted(ALIVE, report, CADENCE, BEGAN_S, DOUBT) is report


def test_a_probe_that_came_to_nothing_counts_as_made_and_measures_nothing() -> None:
    report = without_result(slot_of(), ALIVE, CADENCE, BEGAN_S, "a defect")
    assert report.observation.result is ResultClass.NOT_MEASURED
    assert report.memory == ALIVE.model_copy(update={"probed_at_s": BEGAN_S})


def test_nothing_is_told_of_probes_that_were_all_made_and_reported() -> None:
    assert missed(slot_of(), ALIVE, CADENCE, BEGAN_S, keeps_ticks=True) is None


def test_missed_ticks_are_dated_as_the_last_of_them_and_told_together_with_lost_results() -> None:
    memory = ALIVE.model_copy(update={"probed_at_s": BEGAN_S - 1200})
    slot = slot_of(memory)
    told = missed(slot, memory, CADENCE, BEGAN_S, keeps_ticks=True)
    assert told is not None
    assert told[0] == 3
    assert abs(told[1].observation.observed_at.timestamp() - (BEGAN_S - 300.1)) < 0.01
    slot.given_up = 1
    told = missed(slot, memory, CADENCE, BEGAN_S, keeps_ticks=True)
    assert told is not None
    count, report = told
    assert (count, report.memory) == (4, memory)
    # After all that was reported meanwhile, before what is reported now.
    assert abs(report.observation.observed_at.timestamp() - (BEGAN_S - 0.001)) < 0.002
    assert report.observation.discovery is not None
    assert report.observation.discovery.reason == (
        "3 probes were due and not made: no prober kept up; 1 result was lost: the ledger was away"
    )


def test_a_census_has_missed_no_ticks() -> None:
    memory = ALIVE.model_copy(update={"probed_at_s": BEGAN_S - 90_000})
    assert missed(slot_of(memory), memory, CADENCE, BEGAN_S, keeps_ticks=False) is None
