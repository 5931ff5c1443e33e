import asyncio
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.health.outcome import (
    SIDES,
    CountingProfile,
    Outcome,
    Samples,
    Side,
    count_samples,
    outcome_named,
    outcome_of_exception,
    outcome_of_rpc_code,
    outcome_of_status,
)
from lifesign.errors import InvalidValue

Sides = tuple[str | None, str | None, str | None]
R, E, N = "response", "error", None

# Written from protocol.md, not from the source: each outcome, and how each profile counts it.
NOT_SAMPLED: Sides = (N, N, N)
ANSWER: Sides = (R, R, R)
NEVER_REACHED: Sides = (E, N, N)
CALLERS_FAULT: Sides = (E, E, N)
AGENTS_FAULT: Sides = (E, E, E)

STATUSES: dict[int, Sides] = (
    dict.fromkeys(range(100, 400), ANSWER)
    | dict.fromkeys(range(400, 500), CALLERS_FAULT)
    | dict.fromkeys([401, 402, 403, 405, 406, 407], NEVER_REACHED)
    | dict.fromkeys(range(500, 600), AGENTS_FAULT)
)
RPC_CODES: dict[int, Sides] = {
    -32700: NEVER_REACHED,
    -32600: NEVER_REACHED,
    -32601: NEVER_REACHED,
    -32602: CALLERS_FAULT,
    -32001: CALLERS_FAULT,
    -32002: CALLERS_FAULT,
    -32003: CALLERS_FAULT,
    -32004: CALLERS_FAULT,
    -32005: CALLERS_FAULT,
    -32007: CALLERS_FAULT,
    -32008: CALLERS_FAULT,
    -32009: CALLERS_FAULT,
    -32603: AGENTS_FAULT,
    -32006: AGENTS_FAULT,
}
OUTCOMES = {
    Outcome.ANSWERED: ANSWER,
    Outcome.NOT_INSPECTED: NOT_SAMPLED,
    Outcome.CALLER_FAULT: CALLERS_FAULT,
    Outcome.RATE_LIMITED: CALLERS_FAULT,
    Outcome.NO_OPERATION: NEVER_REACHED,
    Outcome.NOT_ADMITTED: NEVER_REACHED,
    Outcome.SERVER_FAULT: AGENTS_FAULT,
    Outcome.TASK_FAILED: AGENTS_FAULT,
    Outcome.RAISED: AGENTS_FAULT,
    Outcome.UNFINISHED: AGENTS_FAULT,
    Outcome.TIMED_OUT: AGENTS_FAULT,
    Outcome.MALFORMED: AGENTS_FAULT,
    Outcome.ABANDONED: NOT_SAMPLED,
    Outcome.ABANDONED_LATE: AGENTS_FAULT,
    Outcome.EXCLUDED: NOT_SAMPLED,
    Outcome.TOOL_ERROR: CALLERS_FAULT,
}
COUNTS = st.lists(st.integers(0, 2**40), min_size=len(Outcome), max_size=len(Outcome))


def counted(outcome: Outcome) -> tuple[str | None, ...]:
    """Return how literal, interactions and server_faults count one request with this outcome."""

    def side(counting: CountingProfile) -> str | None:
        counts = [0] * len(Outcome)
        counts[outcome] = 1
        samples = count_samples(counts, counting)
        assert samples.total == samples.responses + samples.errors <= 1
        return R if samples.responses else E if samples.errors else N

    return tuple(
        side(counting)
        for counting in (CountingProfile.LITERAL, CountingProfile.INTERACTIONS, CountingProfile.SERVER_FAULTS)
    )


def test_every_status_counts_by_the_table() -> None:
    assert {status: counted(outcome_of_status(status, has_route=True)) for status in STATUSES} == STATUSES


def test_matched_route_matters_only_for_404() -> None:
    matters = [
        status
        for status in STATUSES
        if outcome_of_status(status, has_route=False) is not outcome_of_status(status, has_route=True)
    ]
    assert matters == [404]


def test_status_404_of_the_router_is_no_operation() -> None:
    assert counted(outcome_of_status(404, has_route=False)) == NEVER_REACHED


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.ANSWERED),
        (304, Outcome.ANSWERED),
        (400, Outcome.CALLER_FAULT),
        (401, Outcome.NOT_ADMITTED),
        (404, Outcome.CALLER_FAULT),
        (405, Outcome.NO_OPERATION),
        (406, Outcome.NO_OPERATION),
        (422, Outcome.CALLER_FAULT),
        (429, Outcome.RATE_LIMITED),
        (500, Outcome.SERVER_FAULT),
    ],
)
def test_each_http_status_class_has_its_own_outcome(status: int, outcome: Outcome) -> None:
    assert outcome_of_status(status, has_route=True) is outcome


@pytest.mark.parametrize("code", RPC_CODES)
def test_json_rpc_code_counts_by_the_table(code: int) -> None:
    assert counted(outcome_of_rpc_code(code)) == RPC_CODES[code]


@given(
    st.integers().filter(lambda code: code not in RPC_CODES)
    | st.none()
    | st.text()
    | st.floats()
    | st.lists(st.none())
)
def test_any_other_code_is_the_agents_fault(code: object) -> None:
    assert counted(outcome_of_rpc_code(code)) == AGENTS_FAULT


@pytest.mark.parametrize("outcome", Outcome)
def test_each_outcome_counts_by_the_table(outcome: Outcome) -> None:
    assert counted(outcome) == OUTCOMES[outcome]


def test_each_counting_profile_classifies_each_outcome() -> None:
    assert all(set(SIDES[counting]) == set(Outcome) for counting in CountingProfile)
    assert {side for sides in SIDES.values() for side in sides.values()} == {None, *Side}


def test_outcome_numbers_stored_in_window_files_are_fixed() -> None:
    assert [outcome.name for outcome in Outcome] == [
        "ANSWERED", "NOT_INSPECTED", "CALLER_FAULT", "RATE_LIMITED", "NO_OPERATION", "NOT_ADMITTED",
        "SERVER_FAULT", "TASK_FAILED", "RAISED", "UNFINISHED", "TIMED_OUT", "MALFORMED",
        "ABANDONED", "ABANDONED_LATE", "EXCLUDED", "TOOL_ERROR",
    ]  # fmt: skip
    assert list(Outcome) == list(range(len(Outcome)))


@pytest.mark.parametrize("outcome", Outcome)
def test_outcome_is_given_or_named_in_any_case(outcome: Outcome) -> None:
    assert outcome_named(outcome) is outcome
    assert outcome_named(outcome.name) is outcome
    assert outcome_named(outcome.name.lower()) is outcome


@pytest.mark.parametrize("given", ["", "unknown", 0, True, None, []])
def test_anything_else_is_no_outcome(given: object) -> None:
    with pytest.raises(InvalidValue, match=r"answered, not_inspected, .*tool_error"):
        outcome_named(given)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TimeoutError(), Outcome.TIMED_OUT),
        (asyncio.TimeoutError(), Outcome.TIMED_OUT),  # noqa: UP041 - the spelling of older code
        (socket.timeout(), Outcome.TIMED_OUT),  # noqa: UP041 - the spelling of older code
        (RuntimeError(), Outcome.RAISED),
        (OSError(), Outcome.RAISED),
        (ExceptionGroup("", [ValueError()]), Outcome.RAISED),
        (asyncio.CancelledError(), Outcome.RAISED),
        (SystemExit(), Outcome.RAISED),
        (BaseException(), Outcome.RAISED),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, BaseException) else str(case),
)
def test_an_exception_is_a_fault_unless_it_ends_the_request_from_outside(
    error: BaseException, outcome: Outcome
) -> None:
    assert outcome_of_exception(error, is_from_outside=False) is outcome
    assert outcome_of_exception(error, is_from_outside=True) is Outcome.ABANDONED


@given(COUNTS, st.sampled_from(CountingProfile))
def test_the_two_ratios_add_up_to_one_whenever_there_is_a_sample(
    counts: list[int], counting: CountingProfile
) -> None:
    samples = count_samples(counts, counting)
    assert samples.total == samples.responses + samples.errors
    if samples.total:
        ratio: Any = samples.response_ratio
        assert 0 <= ratio <= 1
        assert ratio + samples.errors / samples.total == pytest.approx(1, abs=1e-12)
    else:
        assert samples.response_ratio is None


@given(COUNTS)
def test_every_profile_samples_what_a_more_lenient_one_samples(counts: list[int]) -> None:
    literal, interactions, server_faults = (count_samples(counts, counting) for counting in CountingProfile)
    assert literal.responses == interactions.responses == server_faults.responses
    assert literal.errors >= interactions.errors >= server_faults.errors


@given(COUNTS, st.integers(1, 2**40))
def test_caller_errors_do_not_change_the_ratio_of_server_faults(counts: list[int], attack: int) -> None:
    before = count_samples(counts, CountingProfile.SERVER_FAULTS)
    moved_by_callers = [
        outcome_of_status(status, has_route=has_route)
        for status in range(400, 500)
        for has_route in (True, False)
    ] + [outcome_of_rpc_code(code) for code in RPC_CODES if code not in {-32603, -32006}]
    for outcome in moved_by_callers:
        counts[outcome] += attack
    assert count_samples(counts, CountingProfile.SERVER_FAULTS) == before


def test_ratio_without_samples_is_absent() -> None:
    assert Samples() == Samples(responses=0, errors=0)
    assert Samples().response_ratio is None
    assert Samples(errors=1).response_ratio == 0
    assert Samples(responses=1).response_ratio == 1
