import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.tasks.run_end import ReportAttempts, RunEnd, RunReport, Stop, decide_end
from lifesign.domain.tasks.task_states import ExitReason

CODES = st.integers(-64, 255)
STOPS = st.none() | st.sampled_from(list(Stop))


@pytest.mark.parametrize(
    ("stopped", "exit_code", "expected"),
    [
        (None, 0, ("completed", "complete")),
        (None, 1, ("crash", "release")),
        (None, -9, ("crash", "release")),
        (None, 77, ("auth", "release")),
        (Stop.LOST, -15, ("lease_expired", "nothing")),
        (Stop.EXPIRED, -15, ("lease_expired", "nothing")),
        (Stop.UNAUTHORIZED, -15, ("auth", "nothing")),
        (Stop.TIMEOUT, -15, ("timeout", "release")),
        (Stop.NO_PROGRESS, -15, ("no_progress", "release")),
        (Stop.BUDGET, -15, ("completed", "help")),
        (Stop.DRAIN, -15, ("killed", "release")),
        (Stop.SIGNALLED, -15, ("killed", "release")),
        (Stop.SIGNALLED, 143, ("killed", "release")),
        (Stop.DRAIN, 0, ("completed", "complete")),
        (Stop.TIMEOUT, 0, ("completed", "complete")),
    ],
)
def test_outcome_decides_the_release(stopped: Stop | None, exit_code: int, expected: tuple[str, str]) -> None:
    end = decide_end(stopped, exit_code, written=None, completes_on_exit=True)
    assert (end.exit_reason, end.report) == expected


@pytest.mark.parametrize("has_output", [False, True])
@pytest.mark.parametrize(
    ("stopped", "expected"),
    [
        (Stop.TIMEOUT, ("timeout", "release")),
        (Stop.NO_PROGRESS, ("no_progress", "release")),
        (Stop.BUDGET, ("completed", "help")),
        (Stop.DRAIN, ("killed", "release")),
        (Stop.SIGNALLED, ("killed", "release")),
    ],
)
def test_exit_code_0_after_a_signal_is_a_result_only_with_output_when_the_adapter_stops(
    *, stopped: Stop, expected: tuple[str, str], has_output: bool
) -> None:
    end = decide_end(
        stopped, 0, written=None, completes_on_exit=True, was_signalled=True, has_output=has_output
    )
    if stopped in {Stop.DRAIN, Stop.SIGNALLED} and has_output:
        expected = ("completed", "complete")
    assert (end.exit_reason, end.report) == expected


REPEATED = ("completed", "help", True)
CRASHED = ("crash", "release", False)


@pytest.mark.parametrize(
    ("stopped", "exit_code", "has_output", "was_refused", "expected"),
    [
        (None, 0, False, False, REPEATED),
        (None, 1, False, False, REPEATED),
        (Stop.SIGNALLED, -15, False, False, REPEATED),
        (Stop.DRAIN, 0, False, False, REPEATED),
        # The agent has written its result in the meantime.
        (None, 0, True, False, ("completed", "complete", False)),
        (None, 0, True, True, ("completed", "complete", False)),
        (None, 0, False, True, CRASHED),
        (None, 1, False, True, CRASHED),
        (Stop.TIMEOUT, 0, False, False, ("timeout", "release", False)),
        (Stop.LOST, 0, False, False, ("lease_expired", "nothing", False)),
    ],
)
def test_unconfirmed_end_is_reported_again_instead_of_an_empty_result(
    *,
    stopped: Stop | None,
    exit_code: int,
    has_output: bool,
    was_refused: bool,
    expected: tuple[str, str, bool],
) -> None:
    end = decide_end(
        stopped,
        exit_code,
        written=None,
        completes_on_exit=True,
        was_signalled=stopped is not None,
        has_output=has_output,
        requested=RunReport.HELP,
        was_refused=was_refused,
    )
    assert (end.exit_reason, end.report, end.repeats_request) == expected
    assert end.needs_help is end.repeats_request


@given(
    stopped=STOPS,
    exit_code=CODES,
    written=st.sampled_from([RunReport.COMPLETE, RunReport.HELP]),
    completes_on_exit=st.booleans(),
)
def test_run_reported_as_ended_is_done_for_any_stop_and_exit_code(
    *, stopped: Stop | None, exit_code: int, written: RunReport, completes_on_exit: bool
) -> None:
    end = decide_end(stopped, exit_code, written=written, completes_on_exit=completes_on_exit)
    needs_help = written is RunReport.HELP
    assert end == RunEnd(ExitReason.COMPLETED, RunReport.NOTHING, needs_help=needs_help)
    assert end.is_done
    assert end.has_result == (not needs_help)


@given(stopped=STOPS, exit_code=CODES, completes_on_exit=st.booleans())
def test_released_run_reports_its_exit_reason_and_a_lost_lease_reports_nothing(
    *, stopped: Stop | None, exit_code: int, completes_on_exit: bool
) -> None:
    end = decide_end(stopped, exit_code, written=None, completes_on_exit=completes_on_exit)
    if end.report is RunReport.RELEASE:
        assert end.exit_reason not in {ExitReason.COMPLETED, ExitReason.LEASE_EXPIRED}
    if stopped in {Stop.LOST, Stop.EXPIRED, Stop.UNAUTHORIZED, Stop.OVER}:
        assert end.report is RunReport.NOTHING
    assert end.has_result == (end.report is RunReport.COMPLETE)
    assert end.needs_help == (end.report is RunReport.HELP)


@given(STOPS)
def test_without_completion_on_exit_the_task_is_not_completed(stopped: Stop | None) -> None:
    end = decide_end(stopped, 0, written=None, completes_on_exit=False)
    assert not end.has_result


@pytest.mark.parametrize(
    ("deadlines_s", "is_hopeless"),
    [
        ([], False),
        # An outage: the lease is not renewed.
        ([10.0] * 100, False),
        # A renewal before the first attempt.
        ([20.0, 20.0, 30.0, 30.0, 40.0], False),
        ([10.0, 20.0, 20.0, 30.0, 40.0], True),
    ],
)
def test_reports_is_hopeless_if_they_fail_while_the_lease_is_renewed(
    *, deadlines_s: list[float], is_hopeless: bool
) -> None:
    attempts = ReportAttempts()
    for deadline_s in deadlines_s:
        attempts.note_failure(deadline_s)
    assert (attempts.failures, attempts.is_hopeless) == (len(deadlines_s), is_hopeless)
