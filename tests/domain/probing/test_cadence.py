from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import pairwise
from math import inf, nan
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from lifesign.domain.common.clock_skew import MAX_AHEAD_SECONDS
from lifesign.domain.lifecycle.verdict import MAX_DAMPING, UNHEALTHY_AFTER_FAILURES
from lifesign.domain.observation.probe_memory import MAX_IN_ROW, MAX_MOMENT_S, ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.probing.cadence import (
    MAX_DOUBLINGS,
    MAX_RETRY_AFTER_S,
    ROBOTS_EVERY_S,
    Cadence,
    MissedTicks,
    after_probe,
    backs_off,
    believed,
    last_alive_s,
    missed_ticks,
    next_probe_at_s,
    wants_card,
    wants_robots,
    without_card_reading,
    without_result,
)
from lifesign.domain.targets.target import phase_of, target_id
from lifesign.errors import InvalidValue

START_S = 1_800_000_000.0
DAY_S = 86_400.0
CADENCE = Cadence()
INTERVAL_S = CADENCE.interval_s
SUBJECT = target_id("https://agent.example/")
TARGETS = 20_000

IDS = st.integers(0, 10**9).map(lambda number: f"tgt_{number}")
TIMES = st.floats(START_S, START_S + 10 * DAY_S)
CADENCES = st.builds(
    lambda interval_s, confirm_s, backoffs: Cadence(
        interval_s=interval_s, confirm_after_s=confirm_s, max_backoff_s=interval_s * backoffs
    ),
    interval_s=st.one_of(st.just(300.0), st.floats(0.05, 3600)),
    confirm_s=st.floats(0.01, 300),
    backoffs=st.floats(1, 1000),
)
MOMENTS = st.one_of(st.none(), TIMES)
MEMORIES = st.builds(
    ProbeMemory,
    probed_at_s=MOMENTS,
    result=st.one_of(st.none(), st.sampled_from(ResultClass)),
    failures_in_row=st.integers(0, 40),
    silence_s=st.one_of(st.floats(0, 60_000), st.floats(0, MAX_MOMENT_S)),
    doublings=st.integers(0, 40),
    confirm_at_s=MOMENTS,
    not_before_s=MOMENTS,
    slowdowns=st.one_of(st.just(0), st.integers(0, MAX_IN_ROW)),
    robots_read_at_s=MOMENTS,
    is_disallowed_by_robots=st.booleans(),
    disallowed_in_row=st.integers(0, MAX_IN_ROW),
    card_read_at_s=MOMENTS,
)

ANSWERS = LayerResult(result=ResultClass.OK, status_code=200)
SILENT = LayerResult(result=ResultClass.TIMEOUT)
BLOCKED = LayerResult(result=ResultClass.BLOCKED_ADDRESS)
SKIPPED = LayerResult(result=ResultClass.NOT_MEASURED)
TOO_OFTEN = LayerResult(result=ResultClass.RATE_LIMITED, status_code=429)
ASKS_MONEY = LayerResult(result=ResultClass.GATED, status_code=402)
UNAVAILABLE = LayerResult(result=ResultClass.HTTP_ERROR, status_code=503)


def observed(at_s: float, card: LayerResult | None, transport: LayerResult | None = None) -> Observation:
    return Observation(
        target_url="https://agent.example/",
        observed_at=datetime.fromtimestamp(at_s, UTC),
        discovery=card,
        transport=transport,
    )


def remembered(
    *cards: LayerResult, memory: ProbeMemory | None = None, began_s: float = START_S
) -> ProbeMemory:
    """Return the memory after probes with these cards, one interval apart, the last at `began_s`."""
    memory = memory or ProbeMemory()
    for number, card in enumerate(cards, 1 - len(cards)):
        at_s = began_s + number * INTERVAL_S
        memory = after_probe(memory, observed(at_s, card), CADENCE, at_s)
    return memory


def is_tick(at_s: float, subject_id: str, interval_s: float) -> bool:
    ticks = at_s / interval_s - phase_of(subject_id)
    return abs(ticks - round(ticks)) * interval_s < 1e-4


def disallowed(memory: ProbeMemory, at_s: float) -> ProbeMemory:
    """Return the memory after a probe at `at_s` whose robots.txt disallowed the target."""
    return memory.model_copy(
        update={
            "probed_at_s": at_s,
            "robots_read_at_s": at_s,
            "is_disallowed_by_robots": True,
            "disallowed_in_row": min(memory.disallowed_in_row + 1, MAX_IN_ROW),
        }
    )


def probes(
    answer: Callable[[float], LayerResult],
    *,
    since_s: float,
    until_s: float,
    subject_id: str = SUBJECT,
    cadence: Cadence = CADENCE,
    memory: ProbeMemory | None = None,
    lateness_s: Callable[[int], float] = lambda _: 0.01,
) -> list[tuple[float, ProbeMemory]]:
    """Return when a target is due and its memory after each probe of half a second."""
    done: list[tuple[float, ProbeMemory]] = []
    memory, now_s = memory or ProbeMemory(), since_s
    while (due_s := next_probe_at_s(subject_id, memory, cadence, now_s)) <= until_s:
        began_s = due_s + lateness_s(len(done))
        now_s = began_s + 0.5
        memory = after_probe(memory, observed(now_s, answer(began_s)), cadence, began_s)
        done.append((due_s, memory))
    return done


def waits(times_s: Iterable[float]) -> list[float]:
    return [after - before for before, after in pairwise(times_s)]


# Ticks


@given(IDS, MEMORIES, CADENCES, TIMES, MOMENTS)
def test_next_tick_is_in_the_future_within_the_longest_wait(
    subject_id: str, memory: ProbeMemory, cadence: Cadence, now_s: float, recheck_at_s: float | None
) -> None:
    due_s = next_probe_at_s(subject_id, memory, cadence, now_s)
    assert due_s >= now_s
    assert due_s > now_s or due_s in {memory.confirm_at_s, memory.not_before_s}
    longest_s = max(MAX_RETRY_AFTER_S, cadence.max_backoff_s, ROBOTS_EVERY_S)
    if memory.is_disallowed_by_robots:
        longest_s = max(longest_s, (memory.robots_read_at_s or 0) + ROBOTS_EVERY_S - now_s)
    assert due_s <= now_s + longest_s + cadence.max_backoff_s + cadence.interval_s
    assert now_s <= next_probe_at_s(subject_id, memory, cadence, now_s, recheck_at_s) <= due_s


@given(IDS, CADENCES, TIMES)
@example("tgt_0", Cadence(interval_s=1), phase_of("tgt_0") + START_S)
def test_a_target_that_was_never_probed_is_due_at_its_next_tick(
    subject_id: str, cadence: Cadence, now_s: float
) -> None:
    due_s = next_probe_at_s(subject_id, ProbeMemory(), cadence, now_s)
    assert now_s < due_s <= now_s + cadence.interval_s * (1 + 1e-6)
    assert is_tick(due_s, subject_id, cadence.interval_s)


@given(IDS, st.lists(st.floats(0, 60), min_size=30, max_size=30), TIMES)
def test_late_probes_and_slow_answers_do_not_move_the_ticks(
    subject_id: str, late_s: list[float], since_s: float
) -> None:
    done = probes(
        lambda _: ANSWERS,
        since_s=since_s,
        until_s=since_s + 30 * INTERVAL_S,
        subject_id=subject_id,
        lateness_s=late_s.__getitem__,
    )
    times_s = [due_s for due_s, _ in done]
    assert len(times_s) == 30
    assert waits(times_s) == pytest.approx([INTERVAL_S] * 29, abs=1e-4)
    assert is_tick(times_s[-1], subject_id, INTERVAL_S)


@given(IDS, TIMES, st.floats(0, DAY_S), st.integers(0, 30))
def test_ticks_do_not_depend_on_the_start_of_the_process(
    subject_id: str, one_start_s: float, earlier_s: float, failures: int
) -> None:
    memory = ProbeMemory(failures_in_row=failures, result=ResultClass.REFUSED)
    due_s = next_probe_at_s(subject_id, memory, CADENCE, one_start_s)
    # Another prober that started earlier and skipped the same ticks.
    other_s = next_probe_at_s(subject_id, memory, CADENCE, one_start_s - earlier_s)
    while other_s <= one_start_s:
        other_s = next_probe_at_s(subject_id, memory, CADENCE, other_s)
    assert other_s == pytest.approx(due_s, abs=1e-4)


@given(IDS, CADENCES, TIMES, st.lists(st.sampled_from([ANSWERS, SILENT, BLOCKED, SKIPPED]), min_size=1))
def test_ticks_are_never_closer_than_the_interval_for_any_results(
    subject_id: str, cadence: Cadence, since_s: float, answers: list[LayerResult]
) -> None:
    memory, now_s, last_tick_s = ProbeMemory(), since_s, -inf
    for card in answers:
        due_s = next_probe_at_s(subject_id, memory, cadence, now_s)
        if due_s != memory.confirm_at_s:
            assert is_tick(due_s, subject_id, cadence.interval_s)
            assert due_s - last_tick_s >= cadence.interval_s * (1 - 1e-4)
            last_tick_s = due_s
        memory, now_s = after_probe(memory, observed(due_s, card), cadence, due_s), due_s


def test_a_timer_that_wakes_early_does_not_probe_a_tick_twice() -> None:
    tick_s = next_probe_at_s(SUBJECT, ProbeMemory(), CADENCE, START_S)
    early_s = tick_s - 0.002
    memory = after_probe(ProbeMemory(), observed(early_s, ANSWERS), CADENCE, early_s)
    assert next_probe_at_s(SUBJECT, memory, CADENCE, early_s + 0.001) == pytest.approx(
        tick_s + INTERVAL_S, abs=1e-4
    )


def test_probe_late_by_more_than_half_an_interval_skips_the_next_tick() -> None:
    tick_s = next_probe_at_s(SUBJECT, ProbeMemory(), CADENCE, START_S)
    for late_s, skipped in ((INTERVAL_S * 0.49, 0), (INTERVAL_S * 0.51, 1)):
        memory = ProbeMemory(probed_at_s=tick_s + late_s, result=ResultClass.OK)
        due_s = next_probe_at_s(SUBJECT, memory, CADENCE, tick_s + late_s)
        assert due_s == pytest.approx(tick_s + (1 + skipped) * INTERVAL_S, abs=1e-4)


def test_clock_that_was_ahead_delays_targets_only_briefly() -> None:
    ahead_s = START_S + 30 * DAY_S
    memory = ProbeMemory(probed_at_s=ahead_s, not_before_s=ahead_s, slowdowns=2, confirm_at_s=ahead_s)
    due_s = next_probe_at_s(SUBJECT, memory, CADENCE, START_S)
    assert due_s <= START_S + MAX_RETRY_AFTER_S + INTERVAL_S
    memory = ProbeMemory(probed_at_s=ahead_s)
    assert next_probe_at_s(SUBJECT, memory, CADENCE, START_S) <= START_S + 2 * INTERVAL_S


def fullest_second(due_s: Iterable[float]) -> int:
    counts: dict[int, int] = {}
    for moment_s in due_s:
        counts[int(moment_s)] = counts.get(int(moment_s), 0) + 1
    return max(counts.values())


def test_probes_are_spread_evenly_at_start_restart_and_added_targets() -> None:
    ids = [f"tgt_{number}" for number in range(TARGETS)]
    share = TARGETS / INTERVAL_S
    # Six deviations: about 67 a second, and no burst of thousands.
    most = share + 6 * share**0.5
    at_start = {each: next_probe_at_s(each, ProbeMemory(), CADENCE, START_S) for each in ids}
    assert fullest_second(at_start.values()) < most

    long_ago = ProbeMemory(probed_at_s=START_S - DAY_S, result=ResultClass.OK, card_read_at_s=START_S - DAY_S)
    after_restart = [next_probe_at_s(each, long_ago, CADENCE, START_S) for each in ids]
    assert after_restart == list(at_start.values())

    added = [next_probe_at_s(f"tgt_new_{each}", ProbeMemory(), CADENCE, START_S) for each in ids]
    assert fullest_second([*at_start.values(), *added]) < 2 * share + 6 * (2 * share) ** 0.5


# Back-off


def test_never_alive_target_is_probed_half_as_often_after_each_failure() -> None:
    done = probes(lambda _: SILENT, since_s=START_S, until_s=START_S + 20 * DAY_S)
    intervals = [round(wait_s / INTERVAL_S) for wait_s in waits(due_s for due_s, _ in done)]
    longest = 1 << CADENCE.max_doublings
    assert longest == 256
    # A probe may be due after half of the wait or at its end, which spreads the probes.
    for number, wait in enumerate(intervals[:8], 1):
        assert wait in {(1 << number) // 2, 1 << number}
    assert intervals[9:] == [longest] * len(intervals[9:])
    assert len(intervals) > 25
    assert all(is_tick(due_s, SUBJECT, INTERVAL_S) for due_s, _ in done)


@given(IDS, CADENCES, MEMORIES, TIMES)
def test_backed_off_target_is_probed_less_often_than_every_interval(
    subject_id: str, cadence: Cadence, memory: ProbeMemory, now_s: float
) -> None:
    memory = memory.model_copy(
        update={
            "probed_at_s": now_s,
            "not_before_s": None,
            "confirm_at_s": None,
            "is_disallowed_by_robots": False,
        }
    )
    if not backs_off(memory, cadence):
        assert next_probe_at_s(subject_id, memory, cadence, now_s) - now_s <= 1.5 * cadence.interval_s * (
            1 + 1e-6
        )
        return
    # Not each wait is longer, but there are ticks that it is not asked at.
    until_s, calm = now_s + 100 * cadence.interval_s, ProbeMemory(probed_at_s=now_s)
    missed = missed_ticks(subject_id, memory, cadence, now_s, until_s)
    assert missed.count < missed_ticks(subject_id, calm, cadence, now_s, until_s).count


def test_back_off_doublings_stay_below_the_maximum() -> None:
    assert Cadence().max_doublings == 8
    assert Cadence(max_backoff_s=300).max_doublings == 0
    assert Cadence(max_backoff_s=599.9).max_doublings == 0
    assert Cadence(max_backoff_s=600).max_doublings == 1
    assert Cadence(interval_s=0.001, max_backoff_s=1e12).max_doublings == MAX_DOUBLINGS


def test_targets_that_died_together_are_probed_at_different_times() -> None:
    dead = ProbeMemory(
        probed_at_s=START_S, result=ResultClass.REFUSED, card_read_at_s=START_S,
        failures_in_row=90, silence_s=90 * INTERVAL_S, doublings=42,
    )  # fmt: skip
    longest_s = INTERVAL_S * (1 << CADENCE.max_doublings)
    due_s = [next_probe_at_s(f"tgt_{each}", dead, CADENCE, START_S + 1) for each in range(TARGETS)]
    hours = [0] * int(longest_s // 3600 + 1)
    for moment_s in due_s:
        hours[int((moment_s - START_S) // 3600)] += 1
    share = TARGETS * 3600 / longest_s
    # The last hour is not a whole one.
    assert max(hours) < share + 6 * share**0.5
    assert min(hours[:-1]) > share - 6 * share**0.5


def test_an_agent_that_once_answered_is_probed_in_every_interval_until_it_would_be_dead() -> None:
    alive = ProbeMemory(
        probed_at_s=START_S - 1,
        result=ResultClass.OK,
        card_read_at_s=START_S,
        card_url="https://agent.example/",
    )
    done = probes(lambda _: SILENT, since_s=START_S, until_s=START_S + 2 * DAY_S, memory=alive)
    ticks_s = [due_s for due_s, _ in done]
    assert all(is_tick(due_s, SUBJECT, INTERVAL_S) for due_s in ticks_s)
    intervals = [round(wait_s / INTERVAL_S) for wait_s in waits(ticks_s)]
    # Also if flap damping multiplies its thresholds.
    patient = MAX_DAMPING * 3600 // INTERVAL_S - 1
    assert intervals[: int(patient)] == [1] * int(patient)
    assert intervals[int(patient)] <= 2
    assert intervals[int(patient) + 2 :] == sorted(intervals[int(patient) + 2 :])
    assert intervals[-1] >= 32


def failed_until_decided(cadence: Cadence, memory: ProbeMemory) -> list[ProbeMemory]:
    """Return the memories after the failures from the start on, up to the first one with a back-off."""
    memories: list[ProbeMemory] = []
    at_s = START_S
    while not memories or not backs_off(memories[-1], cadence):
        at_s += cadence.interval_s
        memory = after_probe(memory, observed(at_s, SILENT), cadence, at_s)
        memories.append(memory)
    return memories


@pytest.mark.parametrize(
    ("interval_s", "dead_after_s", "failures"),
    [(300.0, 3600.0, 49), (60.0, 600.0, 41), (2.0, 30.0, 61), (300.0, 60.0, 4)],
)
def test_failures_before_back_off_depend_on_interval_and_dead_threshold(
    interval_s: float, dead_after_s: float, failures: int
) -> None:
    cadence = Cadence(interval_s=interval_s).with_thresholds(dead_after_s / 4, dead_after_s)
    memories = failed_until_decided(cadence, ProbeMemory(probed_at_s=START_S, alive_at_s=START_S))
    assert len(memories) == failures
    assert memories[-1].doublings == 1


def test_registered_agent_that_never_answered_is_probed_in_every_interval_until_it_is_dead() -> None:
    cadence = CADENCE.with_thresholds(900, 3600)
    assert len(failed_until_decided(cadence, ProbeMemory(probed_at_s=START_S))) == 49
    assert len(failed_until_decided(CADENCE, ProbeMemory(probed_at_s=START_S))) == 1


@given(
    IDS,
    st.floats(0.05, 3600),
    st.floats(0.05, 3600),
    st.tuples(st.floats(30, 86_400), st.floats(30, 86_400)),
    st.floats(0, 1),
)
@example(SUBJECT, 60.0, 300.0, (3600.0, 3600.0), 0.25)
@example(SUBJECT, 300.0, 300.0, (3600.0, 300.0), 0.25)
def test_failing_agent_is_found_dead_in_time_after_a_change_of_interval_or_thresholds(
    subject_id: str, interval_s: float, new_interval_s: float, dead_after_s: tuple[float, float], when: float
) -> None:
    """It begins to fail, and then a prober with another interval continues, or its thresholds change."""
    before, after = (
        Cadence(interval_s=each_s).with_thresholds(dead_s / 4, dead_s)
        for each_s, dead_s in zip((interval_s, new_interval_s), dead_after_s, strict=True)
    )
    failures = min(int(when * dead_after_s[0] / interval_s), 200)
    at_s = last_s = START_S
    memory, silence_s = ProbeMemory(probed_at_s=START_S, alive_at_s=START_S), 0.0
    for number in range(failures + 4 * 200):
        cadence = before if number < failures else after
        at_s = next_probe_at_s(subject_id, memory, cadence, at_s)
        # The registry counts in the same way.
        silence_s += min(at_s - last_s, 2 * cadence.interval_s)
        if number >= failures:
            assert at_s - last_s <= 1.5 * cadence.interval_s * (1 + 1e-6) + (number == failures) * interval_s
        memory = after_probe(memory, observed(at_s, SILENT), cadence, at_s)
        last_s = at_s
        if silence_s > MAX_DAMPING * dead_after_s[1] and number >= failures and memory.failures_in_row >= 4:
            return


@given(MEMORIES, TIMES)
def test_longer_threshold_ends_the_back_off_of_an_agent(memory: ProbeMemory, now_s: float) -> None:
    memory = memory.model_copy(update={"slowdowns": 0})
    cadence = CADENCE.with_thresholds(MAX_MOMENT_S / 4, MAX_MOMENT_S)
    assert not backs_off(memory, cadence)


def test_failure_before_the_limit_restarts_the_doublings() -> None:
    dead = ProbeMemory(alive_at_s=START_S, failures_in_row=60, silence_s=60 * INTERVAL_S, doublings=12)
    at_s = START_S + 60 * INTERVAL_S
    longer = CADENCE.with_thresholds(7200, 14_400)
    assert after_probe(dead, observed(at_s, SILENT), longer, at_s).doublings == 0
    assert after_probe(dead, observed(at_s, SILENT), CADENCE, at_s).doublings == 13


def test_recovered_target_is_probed_at_the_normal_cadence() -> None:
    back_s = START_S + 5 * DAY_S
    done = probes(
        lambda at_s: ANSWERS if at_s >= back_s else SILENT, since_s=START_S, until_s=back_s + 2 * DAY_S
    )
    returned = next(number for number, (_, memory) in enumerate(done) if memory.result is ResultClass.OK)
    assert done[returned - 1][1].failures_in_row > 8
    assert done[returned][1].failures_in_row == 0
    first_s, confirmed_s, *ticks_s = [due_s for due_s, _ in done[returned:]]
    assert confirmed_s - first_s == pytest.approx(30.51, abs=0.01)
    assert waits([first_s, *ticks_s])[:20] == pytest.approx([INTERVAL_S] * 20)


def test_failures_are_counted_up_to_a_bound() -> None:
    memory = ProbeMemory(failures_in_row=MAX_IN_ROW, slowdowns=MAX_IN_ROW, result=ResultClass.TIMEOUT)
    assert remembered(SILENT, memory=memory).failures_in_row == MAX_IN_ROW
    assert remembered(TOO_OFTEN, memory=memory).slowdowns == MAX_IN_ROW


@pytest.mark.parametrize("card", [BLOCKED, SKIPPED, LayerResult(result=ResultClass.REDIRECT_REFUSED)])
def test_inconclusive_probe_changes_neither_result_nor_failures(
    card: LayerResult,
) -> None:
    before = remembered(SILENT, SILENT, SILENT)
    after = remembered(card, memory=before, began_s=START_S + 1200)
    assert after.failures_in_row == 3
    assert after.result is ResultClass.TIMEOUT
    assert after.confirm_at_s is None
    assert after.probed_at_s == START_S + 1200


# Confirmations


@pytest.mark.parametrize(
    ("before", "now", "is_confirmed"),
    [
        # The witness rule asks once more at once.
        (ANSWERS, SILENT, False),
        (SILENT, ANSWERS, True),
        (ASKS_MONEY, SILENT, False),
        (ANSWERS, ANSWERS, False),
        (SILENT, SILENT, False),
        (SILENT, UNAVAILABLE, False),
        (ANSWERS, SKIPPED, False),
        (ANSWERS, BLOCKED, False),
        (ANSWERS, TOO_OFTEN, False),
        (SILENT, ASKS_MONEY, False),
    ],
)
def test_recovery_gets_a_confirming_probe_and_a_new_failure_does_not(
    before: LayerResult, now: LayerResult, *, is_confirmed: bool
) -> None:
    memory = remembered(before, now)
    assert memory.confirm_at_s == (START_S + CADENCE.confirm_after_s if is_confirmed else None)


def test_recovery_with_a_rate_limited_answer_gets_no_confirming_probe() -> None:
    memory = after_probe(
        remembered(SILENT), observed(START_S + 300, ANSWERS, ASKS_MONEY), CADENCE, START_S + 300
    )
    assert memory.failures_in_row == 0
    assert memory.confirm_at_s is None


def test_the_first_result_of_a_target_is_no_change() -> None:
    assert remembered(SILENT).confirm_at_s is None
    assert remembered(ANSWERS).confirm_at_s is None
    assert remembered(SKIPPED, SILENT).confirm_at_s is None


def test_confirming_probe_is_made_once_and_ticks_continue() -> None:
    up_s = START_S + 3000
    done = probes(
        lambda at_s: ANSWERS if at_s >= up_s else SILENT,
        since_s=START_S,
        until_s=START_S + 4500,
        memory=ProbeMemory(card_read_at_s=START_S),
    )
    extra = [due_s for due_s, _ in done if not is_tick(due_s, SUBJECT, INTERVAL_S)]
    ticks_s = [due_s for due_s, _ in done if is_tick(due_s, SUBJECT, INTERVAL_S)]
    assert len(extra) == 1
    assert waits(ticks_s) == pytest.approx([INTERVAL_S] * (len(ticks_s) - 1))
    # Half a minute after the probe that saw the change had ended.
    assert extra[0] - max(due_s for due_s in ticks_s if due_s < extra[0]) == pytest.approx(30.51, abs=0.01)


def test_flapping_target_is_probed_at_most_twice_per_interval() -> None:
    is_up = [False]

    def flapping(_: float) -> LayerResult:
        is_up[0] = not is_up[0]
        return ANSWERS if is_up[0] else SILENT

    alive = ProbeMemory(card_read_at_s=START_S)
    done = probes(flapping, since_s=START_S, until_s=START_S + 100 * INTERVAL_S, memory=alive)
    assert 100 <= len(done) <= 200


def test_confirmation_is_late_enough_to_revive_the_dead() -> None:
    # The first one is seen when its probe ends; the second not before its probe began.
    slow = after_probe(remembered(SILENT), observed(START_S + 308, ANSWERS), CADENCE, START_S + 300)
    assert slow.confirm_at_s == START_S + 308 + 30


def test_confirming_probe_of_a_fast_cadence_is_within_a_quarter_interval() -> None:
    fast = Cadence(interval_s=2.0)
    memory = after_probe(remembered(SILENT), observed(START_S + 2, ANSWERS), fast, START_S + 2)
    assert memory.confirm_at_s == START_S + 2.5


def test_missed_confirmation_is_not_repeated_later() -> None:
    memory = remembered(SILENT, ANSWERS)
    assert memory.confirm_at_s == START_S + 30
    assert next_probe_at_s(SUBJECT, memory, CADENCE, START_S + 30) == START_S + 30
    due_s = next_probe_at_s(SUBJECT, memory, CADENCE, START_S + 30.001)
    assert is_tick(due_s, SUBJECT, INTERVAL_S)


# Requests of the peer


def test_rate_limited_target_is_probed_half_as_often_each_time() -> None:
    answers = [ANSWERS] + [TOO_OFTEN] * 12
    done = probes(lambda _: answers.pop(0), since_s=START_S, until_s=START_S + 2 * DAY_S)
    intervals = [round(wait_s / INTERVAL_S) for wait_s in waits(due_s for due_s, _ in done)]
    assert intervals[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256][: len(intervals[:9])]
    assert all(is_tick(due_s, SUBJECT, INTERVAL_S) for due_s, _ in done)


def test_target_that_only_asks_for_money_is_probed_in_every_second_interval() -> None:
    done = probes(lambda _: ASKS_MONEY, since_s=START_S, until_s=START_S + DAY_S)
    assert {round(wait_s / INTERVAL_S) for wait_s in waits(due_s for due_s, _ in done)} == {2}


def test_repeated_payment_required_with_a_wait_slows_probing_each_time() -> None:
    memory = remembered(ANSWERS)
    for number in range(1, 4):
        memory = after_probe(memory, observed(START_S, ASKS_MONEY), CADENCE, START_S, DAY_S)
        assert memory.slowdowns == number


def test_payment_required_by_the_interface_slows_probing_despite_a_free_card() -> None:
    memory = after_probe(ProbeMemory(), observed(START_S, ANSWERS, ASKS_MONEY), CADENCE, START_S)
    assert memory.slowdowns == 1
    assert memory.result is ResultClass.OK
    assert memory.failures_in_row == 0


def test_target_without_retry_after_is_probed_normally_again() -> None:
    slowed = remembered(TOO_OFTEN, TOO_OFTEN, TOO_OFTEN)
    assert slowed.slowdowns == 3
    # Not being measured says nothing about what the peer wants.
    assert remembered(SKIPPED, memory=slowed).slowdowns == 3
    assert remembered(ANSWERS, memory=slowed).slowdowns == 0
    assert remembered(SILENT, memory=slowed).slowdowns == 0


@given(IDS, st.floats(0, 1e12), st.sampled_from([UNAVAILABLE, TOO_OFTEN]))
def test_retry_after_is_honoured_for_up_to_a_day(
    subject_id: str, retry_after_s: float, card: LayerResult
) -> None:
    observation = observed(START_S + 1, card)
    memory = after_probe(ProbeMemory(), observation, CADENCE, START_S, retry_after_s)
    bounded_s = min(retry_after_s, MAX_RETRY_AFTER_S)
    assert memory.not_before_s == START_S + 1 + bounded_s
    due_s = next_probe_at_s(subject_id, memory, CADENCE, START_S + 2)
    assert due_s >= memory.not_before_s
    assert due_s <= START_S + 2 + bounded_s + 3 * INTERVAL_S


@given(
    IDS,
    st.floats(3600, 1e12),
    st.sampled_from([(900.0, 3600.0), (600.0, 1200.0), (3600.0, 9000.0)]),
    st.integers(0, 200),
)
@example("tgt_147", 3600.0, (900.0, 3600.0), 0)
@example("tgt_147", 86_400.0, (900.0, 3600.0), 6)
def test_failing_agent_gets_no_long_wait_before_its_death(
    subject_id: str, retry_after_s: float, thresholds_s: tuple[float, float], asks_after: int
) -> None:
    """It is refused so many times, and then a maintenance page in its place asks for long waits."""
    unhealthy_after_s, dead_after_s = thresholds_s
    cadence = CADENCE.with_thresholds(unhealthy_after_s, dead_after_s)
    memory = remembered(ANSWERS, memory=ProbeMemory(card_read_at_s=START_S - 300))
    last_liveness_s = at_s = measured_s = START_S
    silence_s = 0.0
    failures = 0
    while not backs_off(memory, cadence):
        failures += 1
        at_s = next_probe_at_s(subject_id, memory, cadence, at_s)
        # The registry counts in the same way.
        silence_s += min(at_s - measured_s, 2 * INTERVAL_S)
        measured_s = at_s
        asks = failures > asks_after or silence_s > MAX_DAMPING * dead_after_s
        memory = after_probe(
            memory, observed(at_s, UNAVAILABLE), cadence, at_s, retry_after_s if asks else None
        )
        assert memory.failures_in_row == failures
        if failures == UNHEALTHY_AFTER_FAILURES:
            assert at_s - last_liveness_s <= max(900, unhealthy_after_s) + 2 * INTERVAL_S
    # Also if it had gone down and up so often that its thresholds are multiplied.
    assert silence_s > MAX_DAMPING * dead_after_s
    # Each wait ends with the next tick.
    longest_s = cadence.longest_wait_s(0) + INTERVAL_S
    assert failures <= MAX_DAMPING * dead_after_s / INTERVAL_S + 1
    assert at_s - last_liveness_s <= failures * longest_s + INTERVAL_S
    # After that the agent's Retry-After counts again.
    # An observation's time has microseconds, and `at_s` more.
    expected_s = at_s + min(retry_after_s, MAX_RETRY_AFTER_S)
    assert memory.not_before_s == pytest.approx(expected_s, rel=0, abs=0.000_01)


def test_failing_agent_with_a_very_long_threshold_gets_its_long_wait_in_the_end() -> None:
    cadence = CADENCE.with_thresholds(DAY_S, 30 * DAY_S)
    memory = ProbeMemory(failures_in_row=MAX_IN_ROW, silence_s=121 * DAY_S, alive_at_s=START_S)
    after = after_probe(memory, observed(START_S, UNAVAILABLE), cadence, START_S, DAY_S)
    assert after.not_before_s == START_S + DAY_S


@pytest.mark.parametrize("asks", [TOO_OFTEN, ASKS_MONEY])
def test_repeated_retry_after_of_an_agent_is_honoured_for_longer_each_time(asks: LayerResult) -> None:
    memory, at_s, waits_s = remembered(ANSWERS), START_S, []
    for _ in range(6):
        at_s = max(at_s, memory.not_before_s or 0)
        memory = after_probe(memory, observed(at_s, asks), CADENCE, at_s, 99_999_999)
        assert memory.not_before_s is not None
        waits_s.append(memory.not_before_s - at_s)
    assert waits_s == [600, 2_400, 9_600, 38_400, MAX_RETRY_AFTER_S, MAX_RETRY_AFTER_S]


@given(st.integers(1, 7 * 86_400), st.floats(0, 1))
def test_gateway_that_requests_long_waits_delays_probes_for_no_more_than_it_lasts_four_times(
    lasts_s: int, phase: float
) -> None:
    """It answers for all agents behind it. Formerly one answer stopped the monitoring for a day."""
    memory, at_s = remembered(ANSWERS), START_S + phase * INTERVAL_S
    while at_s < START_S + lasts_s:
        memory = after_probe(memory, observed(at_s, TOO_OFTEN), CADENCE, at_s, DAY_S)
        at_s = next_probe_at_s(SUBJECT, memory, CADENCE, at_s)
    delay_s = at_s - (START_S + lasts_s)
    assert delay_s <= 4 * lasts_s + 4 * INTERVAL_S


@pytest.mark.parametrize(
    "layers", [(ANSWERS, UNAVAILABLE), (LayerResult(result=ResultClass.GATED, status_code=403),)]
)
def test_long_wait_with_another_answer_of_a_living_agent_counts_for_two_intervals(
    layers: tuple[LayerResult, ...],
) -> None:
    memory = remembered(ANSWERS)
    for number in range(3):
        at_s = START_S + number * DAY_S
        memory = after_probe(memory, observed(at_s, *layers), CADENCE, at_s, DAY_S)
        assert (memory.not_before_s, memory.failures_in_row) == (at_s + 2 * INTERVAL_S, 0)


def test_short_retry_after_of_an_alive_target_is_followed() -> None:
    after = after_probe(remembered(ANSWERS), observed(START_S, TOO_OFTEN), CADENCE, START_S, 450)
    assert after.not_before_s == START_S + 450


def test_retry_after_of_a_successful_answer_is_ignored() -> None:
    memory = after_probe(ProbeMemory(), observed(START_S, ANSWERS), CADENCE, START_S, 3600)
    assert memory.not_before_s is None


def test_retry_after_ends_with_the_next_answer_without_one() -> None:
    resting = after_probe(ProbeMemory(), observed(START_S, UNAVAILABLE), CADENCE, START_S, 3600)
    assert resting.not_before_s == START_S + 3600
    later = START_S + 4000
    assert after_probe(resting, observed(later, SKIPPED), CADENCE, later).not_before_s == START_S + 3600
    assert after_probe(resting, observed(later, UNAVAILABLE), CADENCE, later).not_before_s is None
    assert after_probe(resting, observed(later, SILENT), CADENCE, later).not_before_s is None


def test_confirming_probe_waits_for_retry_after() -> None:
    back = observed(START_S + 300, ANSWERS, UNAVAILABLE)
    memory = after_probe(remembered(SILENT), back, CADENCE, START_S + 300, 100)
    assert memory.confirm_at_s == START_S + 330
    assert next_probe_at_s(SUBJECT, memory, CADENCE, START_S + 301) >= START_S + 400


# Effects of a result


def test_a_liveness_signal_and_its_place_are_remembered() -> None:
    six, four = ("public_ipv6", "2606:2800::/64"), ("public_ipv4", "93.184.216.34")
    answered, failed = (
        observed(at_s, layer).model_copy(update={"network_class": network_class, "address": address})
        for at_s, layer, (network_class, address) in (
            (START_S + 1, ANSWERS, six),
            (START_S + 301, SILENT, four),
        )
    )
    first = after_probe(ProbeMemory(), failed, CADENCE, START_S + 300)
    assert (first.alive_at_s, first.network_class, first.address) == (None, "public_ipv4", None)
    alive = after_probe(first, answered, CADENCE, START_S)
    assert (alive.alive_at_s, alive.network_class, alive.address) == (START_S + 1, *six)
    later = after_probe(alive, failed, CADENCE, START_S + 300)
    assert (later.alive_at_s, later.network_class, later.address) == (START_S + 1, *six)


def test_card_time_is_the_liveness_signal_of_a_memory_without_one() -> None:
    before = ProbeMemory(card_read_at_s=START_S, result=ResultClass.OK)
    assert last_alive_s(before) == START_S
    assert remembered(SILENT, memory=before).alive_at_s == START_S
    assert last_alive_s(ProbeMemory(health_url="https://agent.example/h")) is None


@given(MEMORIES, st.sampled_from([ANSWERS, SILENT, SKIPPED, TOO_OFTEN, UNAVAILABLE]))
def test_learned_facts_are_kept_when_the_result_is_removed(before: ProbeMemory, card: LayerResult) -> None:
    after = after_probe(
        before, observed(START_S, card), CADENCE, START_S, 60.0, learned={"card_digest": "0" * 64}
    )
    assert without_result(before, after) == before.model_copy(update={"card_digest": "0" * 64})


def test_target_disallowed_by_robots_txt_is_due_only_with_its_robots_txt() -> None:
    unwelcome = disallowed(ProbeMemory(), START_S)
    for number in range(200):
        subject_id = f"tgt_{number}"
        due_s = next_probe_at_s(subject_id, unwelcome, CADENCE, START_S + 1)
        assert wants_robots(subject_id, unwelcome, CADENCE, due_s)
        assert not wants_robots(subject_id, unwelcome, CADENCE, max(START_S, due_s - INTERVAL_S))
        assert due_s <= START_S + ROBOTS_EVERY_S + INTERVAL_S


@given(IDS, st.integers(1, 7 * 86_400), st.floats(0, 1))
@example("tgt_515", 3_940, 0.0)
def test_gateway_that_disallows_probes_delays_them_for_no_more_than_it_lasts_four_times(
    subject_id: str, lasts_s: int, phase: float
) -> None:
    """It answers for all agents behind it. Formerly one answer stopped the monitoring for a day."""
    memory, at_s = remembered(ANSWERS), START_S + phase * INTERVAL_S
    while at_s < START_S + lasts_s:
        memory = disallowed(memory, at_s)
        at_s = next_probe_at_s(subject_id, memory, CADENCE, at_s)
        assert wants_robots(subject_id, memory, CADENCE, at_s)
    assert at_s - (START_S + lasts_s) <= 4 * lasts_s + 4 * INTERVAL_S


@given(IDS)
def test_robots_txt_that_keeps_disallowing_an_agent_is_soon_read_once_a_day(subject_id: str) -> None:
    memory, at_s, times_s = remembered(ANSWERS), START_S, [START_S]
    while at_s < START_S + 10 * DAY_S:
        memory = disallowed(memory, at_s)
        at_s = next_probe_at_s(subject_id, memory, CADENCE, at_s)
        times_s.append(at_s)
    waits_s = waits(times_s)
    longest_s = [600, 2_400, 9_600, 38_400, *[ROBOTS_EVERY_S + INTERVAL_S] * len(waits_s)]
    # The first reading need not be at a tick.
    pairs = zip(waits_s, longest_s, strict=False)
    assert all(wait_s <= most_s + INTERVAL_S / 2 for wait_s, most_s in pairs)
    # In the first day it is read a few times more.
    assert all(wait_s >= ROBOTS_EVERY_S - INTERVAL_S for wait_s in waits_s[6:])


def test_robots_txt_without_rules_that_disallowed_a_target_is_read_again_soon() -> None:
    doubtful = disallowed(ProbeMemory(), START_S).model_copy(update={"disallowed_in_row": 0})
    for number in range(200):
        due_s = next_probe_at_s(f"tgt_{number}", doubtful, CADENCE, START_S + 1)
        assert due_s <= START_S + 2.5 * INTERVAL_S
        assert wants_robots(f"tgt_{number}", doubtful, CADENCE, due_s)


# Rechecks


@pytest.mark.parametrize("probed_before_s", [100, 20, 1.5])
def test_recheck_is_due_at_once_for_any_time_since_the_last_probe(probed_before_s: float) -> None:
    now_s = START_S + 100
    memory = remembered(ANSWERS).model_copy(update={"probed_at_s": now_s - probed_before_s})
    assert next_probe_at_s(SUBJECT, memory, CADENCE, now_s, now_s - 1) == now_s


def test_recheck_ends_with_a_later_probe() -> None:
    memory = remembered(ANSWERS)
    now_s = START_S + 100
    for asked_s in (START_S - 50, START_S):
        due_s = next_probe_at_s(SUBJECT, memory, CADENCE, now_s, asked_s)
        assert due_s == next_probe_at_s(SUBJECT, memory, CADENCE, now_s)


def test_recheck_overrides_back_off_and_not_retry_after() -> None:
    now_s = START_S + 100
    backed_off = ProbeMemory(probed_at_s=START_S, failures_in_row=20, slowdowns=5, result=ResultClass.REFUSED)
    assert next_probe_at_s(SUBJECT, backed_off, CADENCE, now_s, now_s) == now_s
    resting = backed_off.model_copy(update={"not_before_s": START_S + 500})
    assert next_probe_at_s(SUBJECT, resting, CADENCE, now_s, now_s) == START_S + 500


def test_a_target_that_was_never_probed_can_be_rechecked() -> None:
    assert next_probe_at_s(SUBJECT, ProbeMemory(), CADENCE, START_S, START_S - 5) == START_S


# Cards and robots.txt


INTERFACE = "https://agent-0.example/a2a"


def read(at_s: float, number: int = 0) -> ProbeMemory:
    return ProbeMemory(
        card_read_at_s=at_s,
        card_url=f"https://agent-{number}.example/.well-known/agent-card.json",
        card_etag='"1"',
        result=ResultClass.OK,
    )


def test_card_is_requested_if_it_is_unknown_or_nothing_else_is_requested() -> None:
    assert wants_card(ProbeMemory(), CADENCE, START_S, asks_else=[INTERFACE])
    assert wants_card(read(START_S), CADENCE, START_S, asks_else=[])
    assert not wants_card(read(START_S), CADENCE, START_S, asks_else=[INTERFACE])


@pytest.mark.parametrize(
    "changed", [{"failures_in_row": 1}, {"result": ResultClass.HTTP_ERROR}, {"result": None}], ids=str
)
def test_card_is_requested_after_a_failed_or_missing_result(changed: dict[str, object]) -> None:
    memory = read(START_S).model_copy(update=changed)
    assert wants_card(memory, CADENCE, START_S + 1, asks_else=[INTERFACE])


@pytest.mark.parametrize(
    "place", ["https://other.example/a2a", "http://agent-0.example/a2a", "https://agent-0.example:8443/a2a"]
)
def test_card_is_requested_if_its_urls_are_on_another_origin(place: str) -> None:
    assert wants_card(read(START_S), CADENCE, START_S, asks_else=[place])
    assert wants_card(read(START_S), CADENCE, START_S, asks_else=[INTERFACE, place])
    assert not wants_card(read(START_S), CADENCE, START_S, asks_else=["https://agent-0.example:443/a2a"])


def test_card_that_an_untrusted_prober_read_is_read_again_and_the_target_stays_alive() -> None:
    known = read(START_S).model_copy(update={"card_schemes": ("apiKey query k",)})
    memory = without_card_reading(known)
    assert memory.card_schemes is None
    assert wants_card(memory, CADENCE, START_S, asks_else=[INTERFACE])
    assert last_alive_s(memory) == START_S


def test_card_read_in_the_future_is_read_again() -> None:
    assert wants_card(read(START_S + 10), CADENCE, START_S, asks_else=[INTERFACE])


def test_cards_are_requested_daily_and_spread_over_the_hours() -> None:
    hours = [0] * 24
    for number in range(2400):
        hour = next(
            hour
            for hour in range(1, 25)
            if wants_card(
                read(START_S, number),
                CADENCE,
                START_S + hour * 3600,
                asks_else=[f"https://agent-{number}.example/a2a"],
            )
        )
        hours[hour - 1] += 1
    assert min(hours) > 40
    assert max(hours) < 160


@given(st.integers(0, 10**6), TIMES)
def test_a_card_is_due_again_a_day_after_it_was_due(number: int, read_s: float) -> None:
    memory = read(read_s, number)
    times_s: list[float] = []
    for tick in range(1, 3 * 288):
        now_s = read_s + tick * INTERVAL_S
        if wants_card(memory, CADENCE, now_s, asks_else=[f"https://agent-{number}.example/a2a"]):
            times_s.append(now_s)
            memory = read(now_s, number)
    assert 2 <= len(times_s) <= 3
    assert all(abs(wait_s - DAY_S) <= INTERVAL_S for wait_s in waits(times_s))


def test_a_robots_txt_is_never_used_for_more_than_a_day() -> None:
    assert wants_robots(SUBJECT, ProbeMemory(), CADENCE, START_S)
    memory = ProbeMemory(robots_read_at_s=START_S)
    assert not wants_robots(SUBJECT, memory, CADENCE, START_S)
    assert wants_robots(SUBJECT, memory, CADENCE, START_S + DAY_S - INTERVAL_S)
    assert wants_robots(SUBJECT, memory, CADENCE, START_S - 1)


# Ticks that were missed


def test_missed_ticks_are_counted_with_the_time_of_the_last() -> None:
    since_s = next_probe_at_s(SUBJECT, ProbeMemory(), CADENCE, START_S)
    memory = ProbeMemory(probed_at_s=since_s, result=ResultClass.OK)
    # A day later, and never a list of 288 entries.
    missed = missed_ticks(SUBJECT, memory, CADENCE, since_s, since_s + DAY_S)
    assert missed.count == 288
    assert missed.last_at_s == pytest.approx(since_s + DAY_S, abs=1e-4)
    assert missed_ticks(SUBJECT, memory, CADENCE, since_s, since_s + 299) == MissedTicks(0, None)
    assert missed_ticks(SUBJECT, memory, CADENCE, since_s, since_s - 1) == MissedTicks(0, None)


@given(IDS, MEMORIES, CADENCES, TIMES, st.floats(0, 50))
def test_missed_ticks_are_the_ticks_that_would_have_been_due(
    subject_id: str, memory: ProbeMemory, cadence: Cadence, since_s: float, intervals: float
) -> None:
    memory = memory.model_copy(update={"confirm_at_s": None})
    until_s = since_s + intervals * cadence.interval_s
    times_s: list[float] = []
    now_s = since_s
    while (now_s := next_probe_at_s(subject_id, memory, cadence, now_s)) <= until_s:
        times_s.append(now_s)
    # Times in the future of this clock are tested elsewhere.
    assume(all(at_s is None or at_s <= since_s for at_s in (memory.probed_at_s, memory.not_before_s)))
    missed = missed_ticks(subject_id, memory, cadence, since_s, until_s)
    assert missed.count == len(times_s)
    if times_s:
        assert missed.last_at_s == pytest.approx(times_s[-1], abs=1e-4)


def test_ticks_that_back_off_left_out_are_not_missed() -> None:
    dead = ProbeMemory(probed_at_s=START_S, failures_in_row=8, doublings=8, result=ResultClass.REFUSED)
    assert missed_ticks(SUBJECT, dead, CADENCE, START_S, START_S + 10 * DAY_S).count in {11, 12}


# Settings


@pytest.mark.parametrize("value", [0.0, -1.0, nan, inf])
@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("interval_s", "interval_seconds"),
        ("confirm_after_s", "confirm_after_seconds"),
        ("card_every_s", "card_every_seconds"),
        ("max_backoff_s", "max_backoff_seconds"),
        ("recheck_every_s", "recheck_every_seconds"),
        ("unhealthy_after_s", "unhealthy_after_seconds"),
        ("dead_after_s", "dead_after_seconds"),
    ],
)
def test_invalid_cadence_is_refused_with_the_name_of_its_setting(field: str, name: str, value: float) -> None:
    wrong: dict[str, Any] = {field: value}
    with pytest.raises(InvalidValue, match=name):
        Cadence(**wrong)


def test_a_back_off_shorter_than_the_interval_is_refused() -> None:
    with pytest.raises(InvalidValue, match="at least interval_seconds, 300"):
        Cadence(max_backoff_s=299)


# ── a clock that was set back ──


@given(IDS, MEMORIES, CADENCES, TIMES, st.floats(0, 400 * DAY_S))
def test_target_probed_in_the_future_is_due_as_if_unprobed(
    subject_id: str, memory: ProbeMemory, cadence: Cadence, now_s: float, back_s: float
) -> None:
    now_s -= back_s
    known = believed(memory, now_s)
    assert believed(known, now_s) == known
    assert known.probed_at_s is None or known.probed_at_s <= now_s + MAX_AHEAD_SECONDS
    latest_s = now_s + max(cadence.interval_s * (1 << cadence.max_doublings), MAX_RETRY_AFTER_S)
    is_known_to_stay_away = known.is_disallowed_by_robots and known.robots_read_at_s is not None
    if known.probed_at_s is None and not is_known_to_stay_away:
        due_s = next_probe_at_s(subject_id, known, cadence, now_s)
        assert due_s <= latest_s + cadence.interval_s * (1 << cadence.max_doublings) + MAX_AHEAD_SECONDS


@given(MEMORIES, TIMES)
def test_stored_time_in_the_past_is_used(memory: ProbeMemory, now_s: float) -> None:
    names = ("probed_at_s", "not_before_s", "robots_read_at_s", "card_read_at_s")
    moments = [at_s for name in names if (at_s := getattr(memory, name)) is not None]
    if max(moments, default=now_s) <= now_s:
        assert believed(memory, now_s) is memory


def test_requested_wait_starts_again_after_the_clock_was_set_back() -> None:
    ahead_s = START_S + 2 * DAY_S
    asked = ProbeMemory(probed_at_s=ahead_s, not_before_s=ahead_s + 3600, confirm_at_s=ahead_s + 30)
    assert believed(asked, START_S) == ProbeMemory(not_before_s=START_S + 3600)
    over = asked.model_copy(update={"not_before_s": ahead_s - 1})
    assert believed(over, START_S) == ProbeMemory()
    alone = ProbeMemory(not_before_s=ahead_s)
    assert believed(alone, START_S) == ProbeMemory()
    assert believed(alone, ahead_s - DAY_S) is alone


def test_a_robots_txt_or_a_card_read_in_the_future_was_not_read() -> None:
    ahead = ProbeMemory(
        robots_read_at_s=START_S + DAY_S, is_disallowed_by_robots=True, card_read_at_s=START_S + DAY_S
    )
    known = believed(ahead, START_S)
    assert (known.robots_read_at_s, known.card_read_at_s) == (None, None)
    # It ever gave a liveness signal: a failure needs a witness.
    assert last_alive_s(known) == START_S
    assert next_probe_at_s(SUBJECT, known, CADENCE, START_S) <= START_S + INTERVAL_S


def test_a_liveness_signal_from_the_future_was_given_now() -> None:
    known = believed(ProbeMemory(alive_at_s=MAX_MOMENT_S, probed_at_s=START_S), START_S)
    assert (known.alive_at_s, known.probed_at_s) == (START_S, START_S)


ANY_MOMENT = st.one_of(st.none(), st.floats(0, MAX_MOMENT_S), st.sampled_from([0.0, MAX_MOMENT_S]))


@given(
    IDS,
    st.builds(
        ProbeMemory,
        probed_at_s=ANY_MOMENT,
        failures_in_row=st.integers(0, MAX_IN_ROW),
        slowdowns=st.integers(0, MAX_IN_ROW),
        confirm_at_s=ANY_MOMENT,
        not_before_s=ANY_MOMENT,
        robots_read_at_s=ANY_MOMENT,
        is_disallowed_by_robots=st.booleans(),
        disallowed_in_row=st.integers(0, MAX_IN_ROW),
        card_read_at_s=ANY_MOMENT,
    ),
    CADENCES,
    TIMES,
)
def test_memory_of_another_prober_delays_a_target_by_two_longest_waits_at_most(
    subject_id: str, memory: ProbeMemory, cadence: Cadence, now_s: float
) -> None:
    due_s = next_probe_at_s(subject_id, believed(memory, now_s), cadence, now_s)
    longest_s = cadence.interval_s * (1 << cadence.max_doublings)
    # A confirmation may be due at this very moment.
    assert now_s <= due_s <= now_s + 2 * max(longest_s, MAX_RETRY_AFTER_S) + MAX_AHEAD_SECONDS + DAY_S


@given(IDS, st.floats(0, 2 * MAX_MOMENT_S), CADENCES)
def test_next_tick_is_later_than_any_given_time(subject_id: str, after_s: float, cadence: Cadence) -> None:
    assert next_probe_at_s(subject_id, ProbeMemory(), cadence, after_s) > after_s
