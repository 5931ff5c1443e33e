"""End of a run: its reason, and the report for its task (lease protocol, "What happens on failure".

Protocol 6.10).
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from lifesign.domain.tasks.task_states import ExitReason

AUTH_EXIT_CODE: Final = 77
"""Exit code of an agent that was refused access (EX_NOPERM of sysexits.h)."""
MAX_RENEWALS_WITHOUT_REPORT: Final = 3
"""Number of renewals of a lease after which its holder stops repeating a report that fails each time."""


class Stop(StrEnum):
    """Reason why the adapter stopped an agent's process."""

    LOST = "lost"
    """The registry reports that the lease is over: it expired, an operator ended it, or the agent's
    incarnation ended.
    """
    EXPIRED = "expired"
    """The holder's own deadline passed; the state in the registry is unknown."""
    UNAUTHORIZED = "unauthorized"
    """The registry no longer accepts the holder's key."""
    TIMEOUT = "timeout"
    NO_PROGRESS = "no_progress"
    """The agent's process showed no sign of progress for too long: it counts as hung."""
    BUDGET = "budget"
    """The budget for its calls is used up."""
    DRAIN = "drain"
    """The holder leaves, and the time for that is up."""
    SIGNALLED = "signalled"
    """The agent got a signal to end that the adapter did not send."""
    OVER = "over"
    """The agent has ended the run itself, and went on."""


class RunReport(StrEnum):
    """How a run is reported to the registry at its end: as complete, with a call for help, or released."""

    COMPLETE = "complete"
    HELP = "help"
    RELEASE = "release"
    NOTHING = "nothing"
    """The run is over already, or its holder may no longer write."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended: the reason, and how it is reported to the registry."""

    exit_reason: ExitReason
    report: RunReport
    needs_help: bool = False
    """Whether the task is now with people, who have to look at the workspace."""
    repeats_request: bool = False
    """Whether the report repeats a call of the agent that the registry has not confirmed."""

    @property
    def is_done(self) -> bool:
        """Whether the run succeeded: it submitted a result, or handed the task to people."""
        return self.exit_reason is ExitReason.COMPLETED

    @property
    def has_result(self) -> bool:
        """Whether a result was submitted; if not, its workspace is kept for inspection."""
        return self.is_done and not self.needs_help


class ReportAttempts:
    """Failed attempts to report the end of a run whose lease is still renewed.

    A registry that renews the lease again and again is reachable: a proxy, or the registry, does not accept
    the report.
    """

    def __init__(self) -> None:
        self._deadline_s = inf
        self._renewals = 0
        self.failures = 0

    def note_failure(self, deadline_s: float) -> None:
        """Count a failed attempt; `deadline_s` is the present deadline of the lease."""
        if deadline_s > self._deadline_s:
            self._renewals += 1
        self._deadline_s = deadline_s
        self.failures += 1

    @property
    def is_hopeless(self) -> bool:
        """Whether the same report is not sent again."""
        return self._renewals >= MAX_RENEWALS_WITHOUT_REPORT


_STOPPED: Final = {
    Stop.LOST:         RunEnd(ExitReason.LEASE_EXPIRED, RunReport.NOTHING),
    Stop.EXPIRED:      RunEnd(ExitReason.LEASE_EXPIRED, RunReport.NOTHING),
    # After an unknown end the lease is not kept, and may get another holder.
    Stop.OVER:         RunEnd(ExitReason.LEASE_EXPIRED, RunReport.NOTHING),
    Stop.UNAUTHORIZED: RunEnd(ExitReason.AUTH, RunReport.NOTHING),
    Stop.TIMEOUT:      RunEnd(ExitReason.TIMEOUT, RunReport.RELEASE),
    Stop.NO_PROGRESS:  RunEnd(ExitReason.NO_PROGRESS, RunReport.RELEASE),
    # Another holder could not spend more either: people decide whether to top up. To the registry, a run that
    # has asked for help is complete.
    Stop.BUDGET:       RunEnd(ExitReason.COMPLETED, RunReport.HELP, needs_help=True),
    Stop.DRAIN:        RunEnd(ExitReason.KILLED, RunReport.RELEASE),
    # Its machine or service is stopped: no fault of the task.
    Stop.SIGNALLED:    RunEnd(ExitReason.KILLED, RunReport.RELEASE),
}  # fmt: skip


def decide_end(
    stopped: Stop | None,
    exit_code: int,
    *,
    written: RunReport | None,
    completes_on_exit: bool,
    was_signalled: bool = False,
    has_output: bool = False,
    requested: RunReport | None = None,
    was_refused: bool = False,
) -> RunEnd:
    """Decide how a run ended, by the reason of the stop, the exit code and what the run has written.

    `exit_code` is that of the agent's process, negative for a signal. `written` is the call by which the
    agent ended the run itself, COMPLETE or HELP. `completes_on_exit`: exit code 0 counts as COMPLETE.
    `was_signalled`: the agent was asked to end, so that it did not end by itself. `has_output`: it left an
    output file. `requested` is its last call that should have ended the run, without a confirmation of the
    registry; with `was_refused`, the call was refused for good.
    """
    if written is not None:
        # Later actions of the process, and its exit, do not change a finished task.
        return RunEnd(ExitReason.COMPLETED, RunReport.NOTHING, needs_help=written is RunReport.HELP)
    if stopped is not None and _STOPPED[stopped].report is RunReport.NOTHING:
        return _STOPPED[stopped]
    # Many programs exit with 0 on SIGTERM, also hung ones. Only one that has to leave in time may have
    # finished its work for that: then there is an output.
    is_leaving = stopped in {Stop.DRAIN, Stop.SIGNALLED}
    is_finished = not was_signalled or (is_leaving and has_output)
    if exit_code == 0 and completes_on_exit and is_finished and (has_output or requested is None):
        return RunEnd(ExitReason.COMPLETED, RunReport.COMPLETE)
    if requested is not None and not was_refused and (stopped is None or is_leaving):
        # The registry may have executed the call. If so, no other report is accepted.
        needs_help = requested is RunReport.HELP
        return RunEnd(ExitReason.COMPLETED, requested, needs_help=needs_help, repeats_request=True)
    if stopped is not None:
        return _STOPPED[stopped]
    reason = ExitReason.AUTH if exit_code == AUTH_EXIT_CODE else ExitReason.CRASH
    return RunEnd(reason, RunReport.RELEASE)
