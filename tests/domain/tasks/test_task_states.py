from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.page_tables import DOCS, pages

from lifesign.domain.errors import InvalidTaskTransition
from lifesign.domain.tasks.lease import EndReason, read_resource
from lifesign.domain.tasks.task_states import (
    FINISHED,
    HELD,
    MAX_BACKOFF_SECONDS,
    MOST_ATTEMPTS,
    TRANSITIONS,
    ExitReason,
    RetryPolicy,
    TaskSignal,
    TaskStatus,
    after_failure,
    exit_reason_of,
    is_lost,
    is_never_queued_again,
    is_task_id,
    most_lost_runs,
    status_after,
    task_in,
    task_resource,
)
from lifesign.errors import InvalidValue

PAGE = "task-lifecycle.md"
TASK_ID = "task_01jd8w3q5t6v7x9zabcdefghjk"


def test_task_lifecycle_page_matches_the_table() -> None:
    assert (DOCS / PAGE).read_text() == pages()[PAGE], "run: make schemas"


@pytest.mark.parametrize(
    ("status", "signal", "following"),
    [
        ("queued", "granted", "assigned"),
        ("assigned", "reported", "running"),
        ("running", "completed", "review"),
        ("review", "accepted", "done"),
        ("review", "rejected", "done"),
        ("running", "run_failed", "failed"),
        ("assigned", "run_failed", "failed"),
        ("running", "cancelled", "cancelled"),
        ("running", "help_asked", "handoff"),
        ("failed", "retried", "queued"),
        ("failed", "escalated", "handoff"),
        ("handoff", "requeued", "queued"),
        ("handoff", "cancelled", "cancelled"),
        ("handoff", "resolved", "done"),
    ],
)
def test_every_transition_of_the_protocol_is_there(status: str, signal: str, following: str) -> None:
    assert status_after(TaskStatus(status), TaskSignal(signal)) is TaskStatus(following)


def test_transition_outside_of_the_table_is_refused() -> None:
    for status, signal in product(TaskStatus, TaskSignal):
        if (status, signal) not in TRANSITIONS:
            with pytest.raises(InvalidTaskTransition) as refused:
                status_after(status, signal)
            assert (refused.value.status, refused.value.signal) == (status, signal)


def test_each_signal_and_each_unfinished_status_has_a_transition() -> None:
    assert {signal for _, signal in TRANSITIONS} == set(TaskSignal)
    assert {status for status, _ in TRANSITIONS} == set(TaskStatus) - FINISHED


def test_only_a_grant_gives_a_task_a_holder() -> None:
    into = {signal for (status, signal), after in TRANSITIONS.items() if after in HELD and status not in HELD}
    assert into == {TaskSignal.GRANTED}


def test_only_a_cancellation_removes_a_queued_task() -> None:
    ways = {signal for status, signal in TRANSITIONS if status is TaskStatus.QUEUED}
    assert ways == {TaskSignal.GRANTED, TaskSignal.CANCELLED}


def test_each_lease_end_ends_its_run() -> None:
    assert {exit_reason_of(reason) for reason in EndReason} == {ExitReason.KILLED, ExitReason.LEASE_EXPIRED}


def test_crashes_are_retried_with_doubled_waits_and_then_escalated() -> None:
    policy = RetryPolicy(max_attempts=4, backoff_seconds=10)
    followed = [after_failure(ExitReason.CRASH, attempts, policy) for attempts in range(1, 5)]
    assert [one.signal for one in followed] == [TaskSignal.RETRIED] * 3 + [TaskSignal.ESCALATED]
    assert [one.wait_s for one in followed] == [10, 20, 40, 0]


@pytest.mark.parametrize("reason", [ExitReason.LEASE_EXPIRED, ExitReason.KILLED])
@pytest.mark.parametrize(("max_attempts", "most"), [(1, 10), (3, 10), (40, 40)])
def test_lost_runs_are_no_attempts_and_many_lost_runs_are_escalated(
    reason: ExitReason, max_attempts: int, most: int
) -> None:
    policy = RetryPolicy(max_attempts=max_attempts)
    followed = [after_failure(reason, 0, policy, lost_runs=lost) for lost in range(1, most + 1)]
    assert [one.signal for one in followed] == [TaskSignal.RETRIED] * (most - 1) + [TaskSignal.ESCALATED]
    assert {one.wait_s for one in followed} == {0}
    assert is_lost(reason)


def test_crash_counts_as_an_attempt_despite_lost_runs() -> None:
    assert [reason for reason in ExitReason if is_lost(reason)] == [
        ExitReason.LEASE_EXPIRED,
        ExitReason.KILLED,
    ]
    policy = RetryPolicy(max_attempts=2)
    assert after_failure(ExitReason.CRASH, 1, policy, lost_runs=99).signal is TaskSignal.RETRIED
    assert after_failure(ExitReason.TIMEOUT, 2, policy, lost_runs=0).signal is TaskSignal.ESCALATED


def test_run_that_ended_by_auth_is_not_retried() -> None:
    assert after_failure(ExitReason.AUTH, 1, RetryPolicy()).signal is TaskSignal.ESCALATED


@given(
    st.sampled_from(ExitReason),
    st.integers(1, 10_000),
    st.integers(1, 10_000),
    st.integers(1, MOST_ATTEMPTS),
    st.floats(0, MAX_BACKOFF_SECONDS),
)
def test_attempts_and_waits_are_bounded(
    reason: ExitReason, attempts: int, lost_runs: int, most: int, backoff_s: float
) -> None:
    policy = RetryPolicy(max_attempts=most, backoff_seconds=backoff_s)
    followed = after_failure(reason, attempts, policy, lost_runs=lost_runs)
    goes_on = lost_runs < most_lost_runs(policy) if is_lost(reason) else attempts < most
    assert followed.signal is TaskSignal.ESCALATED or goes_on
    assert 0 <= followed.wait_s <= MAX_BACKOFF_SECONDS


@pytest.mark.parametrize("given", [
    {"max_attempts": 0}, {"max_attempts": 101}, {"backoff_seconds": -1.0},
    {"backoff_seconds": 3_601.0}, {"backoff_seconds": float("nan")}, {"backoff_seconds": float("inf")},
])  # fmt: skip
def test_retry_policy_out_of_range_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        RetryPolicy(**given)  # type: ignore[arg-type]


def test_only_a_task_resource_gives_a_task_id() -> None:
    assert task_in(task_resource(TASK_ID)) == TASK_ID
    read_resource(task_resource(TASK_ID))
    for other in ("task:1", f"intent:{TASK_ID}/x", f"task:{TASK_ID}/x", f"shard:{TASK_ID}", TASK_ID):
        assert task_in(other) is None
    assert not is_task_id(TASK_ID.upper())


def test_only_finished_tasks_and_tasks_in_review_are_never_queued_again() -> None:
    never = {status for status in TaskStatus if is_never_queued_again(status)}
    assert never == FINISHED | {TaskStatus.REVIEW}
