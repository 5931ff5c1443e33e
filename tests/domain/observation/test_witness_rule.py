"""The witness rule."""

from dataclasses import fields, replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.net.network_class import PUBLIC_IPV4, PUBLIC_IPV6, THIS_MACHINE
from lifesign.domain.observation.witness_rule import (
    Canary,
    FailureFacts,
    WitnessAnswer,
    WitnessNeed,
    WitnessPolicy,
    bears_out,
    is_canary_quorum,
    is_second_request_in_time,
    witness_need,
)
from lifesign.errors import InvalidValue

CLASSES = st.sampled_from([PUBLIC_IPV4, PUBLIC_IPV6, "10.1.0.0/16", THIS_MACHINE])
TIMES = st.floats(0, 1e6)
FACTS = st.builds(
    FailureFacts,
    network_class=CLASSES,
    alive_at_s=st.one_of(st.none(), TIMES),
    has_answered_itself=st.booleans(),
    confirmed_at_s=st.one_of(st.none(), TIMES),
    has_canaries=st.booleans(),
    is_without_witness=st.booleans(),
)
ANSWERS = st.builds(
    WitnessAnswer,
    network_class=CLASSES,
    sent_at_s=TIMES,
    is_looked_up=st.booleans(),
    confirms_clock=st.booleans(),
    is_over_tls=st.booleans(),
)
ORDINARY = FailureFacts(network_class=PUBLIC_IPV4, alive_at_s=100.0, has_answered_itself=False)


@given(FACTS)
def test_failure_needs_a_witness_unless_it_is_certainly_of_the_target(facts: FailureFacts) -> None:
    is_confirmed = None not in {facts.alive_at_s, facts.confirmed_at_s} and (
        (facts.alive_at_s or 0.0) < (facts.confirmed_at_s or 0.0)
    )
    has_answered = facts.has_answered_itself and not facts.has_canaries
    is_own = facts.alive_at_s is None or has_answered or facts.network_class == THIS_MACHINE
    assert (witness_need(facts) is WitnessNeed.COUNTS) == (is_own or is_confirmed)


@given(FACTS)
def test_canaries_are_the_only_witnesses_of_their_network_class(facts: FailureFacts) -> None:
    with_canaries = witness_need(replace(facts, has_canaries=True))
    assert with_canaries in {WitnessNeed.COUNTS, WitnessNeed.ASK_CANARIES}
    assert witness_need(replace(facts, has_canaries=False)) is not WitnessNeed.ASK_CANARIES


@given(FACTS)
def test_in_a_silent_class_without_canaries_no_target_is_a_witness(facts: FailureFacts) -> None:
    found = witness_need(replace(facts, has_canaries=False, is_without_witness=True))
    assert found in {WitnessNeed.COUNTS, WitnessNeed.NO_WITNESS}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, WitnessNeed.ASK_TARGETS),
        ({"has_canaries": True}, WitnessNeed.ASK_CANARIES),
        ({"is_without_witness": True}, WitnessNeed.NO_WITNESS),
        ({"is_without_witness": True, "has_canaries": True}, WitnessNeed.ASK_CANARIES),
        ({"alive_at_s": None}, WitnessNeed.COUNTS),
        ({"has_answered_itself": True}, WitnessNeed.COUNTS),
        ({"has_answered_itself": True, "is_without_witness": True}, WitnessNeed.COUNTS),
        # A gateway, or a proxy that inspects TLS, may answer for all hosts.
        ({"has_answered_itself": True, "has_canaries": True}, WitnessNeed.ASK_CANARIES),
        ({"network_class": THIS_MACHINE}, WitnessNeed.COUNTS),
        ({"confirmed_at_s": 101.0}, WitnessNeed.COUNTS),
        # An answer that is newer than what was confirmed: nothing has to be undone.
        ({"confirmed_at_s": 100.0}, WitnessNeed.ASK_TARGETS),
        ({"confirmed_at_s": 101.0, "is_without_witness": True}, WitnessNeed.COUNTS),
    ],
)
def test_witness_need_of_a_failure(changes: dict[str, object], expected: WitnessNeed) -> None:
    assert witness_need(replace(ORDINARY, **changes)) is expected  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("is_date", [False, True])
@pytest.mark.parametrize("is_name", [False, True])
def test_a_witness_answers_a_request_of_the_same_class_that_was_sent_after_the_failure(
    *, is_name: bool, is_date: bool, is_tls: bool
) -> None:
    @given(ANSWERS, CLASSES, TIMES)
    def check(answer: WitnessAnswer, network_class: str, failed_at_s: float) -> None:
        is_witness = answer.network_class == network_class and answer.sent_at_s >= failed_at_s
        # A name that did not resolve needs a witness that was looked up, a wrong date one with the same time.
        is_proved = (answer.is_looked_up or not is_name) and (answer.confirms_clock or not is_date)
        is_proved = is_proved and (answer.is_over_tls or not is_tls)
        found = bears_out(
            answer,
            network_class,
            failed_at_s,
            is_name_failure=is_name,
            is_date_failure=is_date,
            is_tls_failure=is_tls,
        )
        assert found == (is_witness and is_proved)

    check()


@pytest.mark.parametrize(("expected", "answers"), [(None, {200, 204, 301, 399}), (401, {401}), (204, {204})])
def test_canary_must_answer_with_its_defined_status(expected: int | None, answers: set[int]) -> None:
    canary = Canary(url="https://canary.example/", status=expected)
    statuses = [None, 100, 199, 200, 204, 301, 399, 400, 401, 503, 599]
    assert {status for status in statuses if canary.is_answer(status)} == answers


@given(st.integers(0, 100), st.integers(0, 100))
def test_at_least_half_of_the_canaries_configured_must_answer(answered: int, configured: int) -> None:
    assert is_canary_quorum(answered, configured) == (configured > 0 and 2 * answered >= configured)


def test_second_request_is_too_late_after_its_time_limit() -> None:
    policy = WitnessPolicy(second_request_s=60.0)
    assert is_second_request_in_time(1_000.0, 1_060.0, policy)
    assert not is_second_request_in_time(1_000.0, 1_060.1, policy)


@pytest.mark.parametrize("name", [each.name for each in fields(WitnessPolicy)])
@pytest.mark.parametrize("value_s", [-0.1, inf, nan])
def test_policy_refuses_invalid_times(name: str, value_s: float) -> None:
    with pytest.raises(InvalidValue) as caught:
        WitnessPolicy(**{name: value_s})
    assert caught.value.name == f"{name.removesuffix('_s')}_seconds"
