"""Is it them, or is it us who cannot see?"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from agent_health.observation import ResultClass
from agent_health.prober.self_check import (
    EXPECTED,
    HAS_SPOKEN,
    MAX_BACK_SECONDS,
    MAX_DOUBT_SECONDS,
    MAX_LOST_RATIO,
    MIN_ILL_SECONDS,
    SILENT,
    SILENT_HOSTS,
    Facts,
    NetworkCounts,
    SelfCheck,
    judge,
)

OK, TIMEOUT, REFUSED = ResultClass.OK, ResultClass.TIMEOUT, ResultClass.REFUSED


def test_a_prober_of_which_nothing_is_known_is_well() -> None:
    assert judge(Facts()) is None


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (Facts(standstill_s=2.0), "this process stood still for 2.0 s"),
        (Facts(lag_p99_s=1.01), "this process is overloaded: its event loop is 1.01 s late"),
        (Facts(lookups=20, lookup_faults=10), "the resolver failed: 10 of 20 lookups came to nothing"),
        (
            Facts(connects=20, local_faults=18),
            "no way leads out: 18 of 20 connections failed right here",
        ),
        (Facts(canaries=5, canaries_lost=3), "3 of 5 canaries do not answer"),
        (Facts(silent_hosts=15), "nobody answers: 15 hosts or more fell silent one after another"),
        (Facts(expected=100, lost=61), "61 of 100 targets that had answered fell silent"),
    ],
)
def test_each_sign_alone_makes_it_ill(facts: Facts, why: str) -> None:
    assert judge(facts) == why


@pytest.mark.parametrize(
    "facts",
    [
        Facts(standstill_s=1.9, lag_p99_s=1.0),
        Facts(lookups=19, lookup_faults=19),
        Facts(lookups=100, lookup_faults=49),
        Facts(connects=19, local_faults=19),
        Facts(connects=100, local_faults=89),
        Facts(canaries=6, canaries_lost=3),
        Facts(silent_hosts=14),
        Facts(expected=99, lost=99),
        Facts(expected=100, lost=60),
    ],
)
def test_a_little_less_does_not(facts: Facts) -> None:
    assert judge(facts) is None


def test_canaries_that_answer_outweigh_the_silence_of_all_others() -> None:
    silence = Facts(silent_hosts=15, expected=100, lost=100)
    assert judge(silence) is not None
    assert judge(replace(silence, canaries=5, canaries_lost=2)) is None
    assert judge(replace(silence, canaries=5, canaries_lost=2, lag_p99_s=1.1)) is not None


def test_a_great_loss_is_believed_in_the_end_if_somebody_answers_all_the_while() -> None:
    loss = Facts(expected=100, lost=80)
    assert judge(replace(loss, lossy_for_s=MAX_DOUBT_SECONDS - 1)) is not None
    assert judge(replace(loss, lossy_for_s=MAX_DOUBT_SECONDS)) is None
    # But a silence of all is not.
    assert judge(replace(loss, lossy_for_s=1e6, silent_hosts=SILENT_HOSTS)) is not None


def test_every_class_is_a_voice_a_silence_or_says_nothing_of_the_network() -> None:
    assert not HAS_SPOKEN & SILENT
    assert set(ResultClass) - HAS_SPOKEN - SILENT == {
        ResultClass.BLOCKED_ADDRESS,
        ResultClass.INTERNAL,
        ResultClass.NOT_MEASURED,
    }


def silence(check: SelfCheck, hosts: int, now_s: float, *, before: ResultClass = OK) -> None:
    for number in range(hosts):
        check.note_probe(f"host {number}", before, TIMEOUT, now_s)


def test_hosts_that_fall_silent_one_after_another_make_it_ill_until_somebody_answers() -> None:
    check = SelfCheck(0.0)
    check.note_probe("alive", OK, OK, 50.0)
    silence(check, SILENT_HOSTS - 1, 100.0)
    assert check.look(100.0) is None
    check.note_probe("one more", OK, REFUSED, 101.0)
    doubt = check.look(101.0)
    assert doubt is not None
    assert doubt.since_s == 50.0
    assert not doubt.is_about_time
    # It lasts: an hour later nobody has answered yet.
    assert check.look(3_700.0) is not None
    check.note_probe("host 3", OK, ResultClass.NOT_AN_AGENT, 3_710.0)
    assert check.look(3_700.0 + MIN_ILL_SECONDS) is None


def test_the_same_host_over_and_over_is_one_silence() -> None:
    check = SelfCheck(0.0)
    for number in range(EXPECTED - 1):
        check.note_probe("platform.example", OK, TIMEOUT, float(number))
    assert check.look(100.0) is None


def test_those_who_were_silent_before_tell_nothing() -> None:
    check = SelfCheck(0.0)
    silence(check, 1000, 1.0, before=TIMEOUT)
    for number in range(1000):
        check.note_probe(f"new {number}", None, ResultClass.DNS_FAILURE, 2.0)
    assert check.facts(3.0) == Facts()


def test_what_was_not_asked_tells_nothing() -> None:
    check = SelfCheck(0.0)
    for number in range(100):
        check.note_probe(f"host {number}", OK, ResultClass.BLOCKED_ADDRESS, 1.0)
    assert check.facts(2.0) == Facts()


def test_no_further_back_than_some_minutes_is_doubted() -> None:
    check = SelfCheck(0.0)
    silence(check, SILENT_HOSTS, 10_000.0)
    doubt = check.look(10_000.0)
    assert doubt is not None
    assert doubt.since_s == 10_000.0 - MAX_BACK_SECONDS


def test_of_a_great_loss_the_first_that_were_lost_are_doubted_too() -> None:
    check = SelfCheck(0.0)
    for number in range(EXPECTED):
        answers = number % 4 == 0
        check.note_probe(f"host {number}", OK, OK if answers else TIMEOUT, 100.0 + number)
    doubt = check.look(200.0)
    assert doubt is not None
    assert doubt.since_s == 101.0


def test_a_loop_that_is_late_again_and_again_is_overload_and_one_hiccup_is_not() -> None:
    check = SelfCheck(0.0)
    for tenth in range(100):
        check.note_lag(1.5 if tenth == 50 else 0.001, tenth / 10)
    assert check.look(10.0) is None
    check.note_lag(1.2, 10.0)
    check.note_lag(1.2, 10.1)
    doubt = check.look(10.1)
    assert doubt is not None
    assert doubt.why == "this process is overloaded: its event loop is 1.20 s late"


def test_a_process_that_was_stopped_doubts_what_seemed_to_end_meanwhile() -> None:
    check = SelfCheck(0.0)
    check.note_probe("host", OK, OK, 99.0)
    check.note_lag(0.0, 100.0)
    check.note_lag(60.0, 160.0)
    doubt = check.look(160.0)
    assert doubt is not None
    assert doubt.why == "this process stood still for 60.0 s"
    assert doubt.since_s <= 99.0
    assert doubt.is_about_time
    # Later it trusts its eyes again.
    for second in range(161, 185):
        check.note_lag(0.0, float(second))
        check.look(float(second))
    assert check.doubt is None


def test_the_last_lookups_are_judged_however_many_there_were_before() -> None:
    check = SelfCheck(0.0)
    check.note_counts(NetworkCounts(lookups=1000, lookup_faults=900), 0.0)
    assert check.look(0.0) is None
    check.note_counts(NetworkCounts(lookups=1019, lookup_faults=919), 1.0)
    assert check.look(1.0) is None
    check.note_counts(NetworkCounts(lookups=9019, lookup_faults=919), 2.0)
    assert check.look(2.0) is None
    check.note_counts(NetworkCounts(lookups=9049, lookup_faults=949), 3.0)
    doubt = check.look(3.0)
    assert doubt is not None
    assert doubt.why == "the resolver failed: 30 of 30 lookups came to nothing"


def test_a_prober_that_asks_seldom_stays_ill_until_its_lookups_succeed() -> None:
    check = SelfCheck(0.0)
    verdicts = []
    for second in range(400):
        made = second // 5
        counts = NetworkCounts(lookups=made, lookup_faults=min(made, 40), connects=made, local_faults=made)
        check.note_counts(replace(counts, connects=0, local_faults=0), float(second))
        verdicts.append(check.look(float(second)) is not None)
    began, ended = verdicts.index(True), len(verdicts) - verdicts[::-1].index(True)
    assert (began, all(verdicts[began:ended])) == (100, True)
    assert 245 <= ended <= 275


def test_a_round_of_canaries_says_something_for_two_minutes_and_a_half() -> None:
    check = SelfCheck(0.0)
    check.note_canaries(5, 4, 0.0)
    assert check.look(150.0) is not None
    assert check.look(150.0 + MIN_ILL_SECONDS) is None


def test_a_suspicion_calls_for_the_canaries() -> None:
    check = SelfCheck(0.0)
    check.note_canaries(5, 0, 100.0)
    assert not check.is_suspicious
    silence(check, SILENT_HOSTS, 100.0)
    assert check.look(100.0) is None
    assert check.is_suspicious


def test_the_reason_may_change_while_it_is_ill_and_the_beginning_does_not() -> None:
    check = SelfCheck(0.0)
    silence(check, SILENT_HOSTS, 100.0)
    first = check.look(100.0)
    check.note_canaries(5, 5, 110.0)
    second = check.look(110.0)
    assert first is not None
    assert second is not None
    assert (second.since_s, second.why) == (first.since_s, "5 of 5 canaries do not answer")


@pytest.mark.parametrize("dying", [0.02, 0.1, 0.3])
def test_three_in_ten_that_really_die_are_believed(dying: float) -> None:
    check, chance = SelfCheck(0.0), random.Random(7)  # noqa: S311 - no secret
    for number in range(3_000):
        result = TIMEOUT if chance.random() < dying else OK
        check.note_probe(f"host {number}", OK, result, float(number))
        assert check.look(float(number)) is None


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.sampled_from(sorted(HAS_SPOKEN | SILENT)), st.integers(0, 30)), max_size=300))
def test_facts_are_of_bounded_size_and_consistent(probes: list[tuple[ResultClass, int]]) -> None:
    check = SelfCheck(0.0)
    for number, (result, host) in enumerate(probes):
        check.note_probe(f"host {host}", OK, result, float(number))
    facts = check.facts(float(len(probes)))
    assert 0 <= facts.lost <= facts.expected <= EXPECTED
    assert 0 <= facts.silent_hosts <= SILENT_HOSTS
    if facts.expected == EXPECTED and facts.lost > MAX_LOST_RATIO * EXPECTED:
        assert judge(facts) is not None
