"""Credential watch: which credentials of probers have a fault, and when an event reports it or its end.

A fault is known at once. If it returns soon after its end, only its event is delayed. One event covers all
targets and all workers of a prober's key. Times are seconds since the epoch by the registry's clock.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.acceptance import FAULTS, CredentialState
from lifesign.domain.credentials.request_scope import MAX_CREDENTIALS

QUIET_SECONDS: Final = 900.0
"""A fault that returns sooner after a reported end has no event until this long after that end: a state that
alternates fills no log. A credential that no living worker reports any more is forgotten after this time."""
MAX_FAULTS: Final = 200
"""Watched credentials of all keys."""
MAX_FAULTS_OF_KEY: Final = MAX_CREDENTIALS

CredentialId = tuple[str, str]
"""Id of the prober's key, and name of the credential."""


class FaultEnd(StrEnum):
    """Reason why a credential's fault has ended."""

    WORKS = "works"
    NOT_REPORTED = "not_reported"
    """No living worker of the key has the credential any more, or knows its state."""


@fast_dataclass(kw_only=True)
class WorkerCredentialReport:
    """State of one credential as one living worker of a prober reports it."""

    key: str
    name: str
    origin: str
    path: str
    state: CredentialState | None
    """None: the worker does not know the state."""
    since_s: float | None = None
    """Begin of the fault, if the worker knows it."""
    detail: str | None = None
    """What the worker knows of the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCredential:
    """A credential that has a fault, or had one a short time ago."""

    key: str
    name: str
    origin: str
    path: str
    state: CredentialState
    """The fault."""
    detail: str | None = None
    """What the last worker that reported the fault knows of it."""
    since_s: float
    seen_at_s: float
    """Last time at which a worker knew the state."""
    is_lasting: bool = True
    quiet_from_s: float | None = None
    """End of the last fault that an event reported; None: an event reported the present fault."""


@fast_dataclass(kw_only=True)
class CredentialChange:
    """Begin or end of a credential's fault, to be logged as an event."""

    credential: WatchedCredential
    end: FaultEnd | None = None
    """None: the fault began."""


def credentials_after(
    before: Sequence[WatchedCredential], reports: Iterable[WorkerCredentialReport], now_s: float
) -> tuple[tuple[WatchedCredential, ...], list[CredentialChange]]:
    """Return the credentials to watch after these reports, and the changes to log as events."""
    states = _states(reports)
    after: list[WatchedCredential] = []
    changes: list[CredentialChange] = []
    for watched in before:
        kept, change = _next(watched, states.pop((watched.key, watched.name), None), now_s)
        after += [] if kept is None else [kept]
        changes += [] if change is None else [change]
    of_key = Counter(watched.key for watched in after)
    for (key, _), report in sorted(states.items()):
        if report.state is None or report.state not in FAULTS:
            continue
        if of_key[key] >= MAX_FAULTS_OF_KEY or len(after) >= MAX_FAULTS:
            continue
        of_key[key] += 1
        new = WatchedCredential(
            key=key,
            name=report.name,
            origin=report.origin,
            path=report.path,
            state=report.state,
            detail=report.detail,
            since_s=_begin_s(report, now_s),
            seen_at_s=now_s,
        )
        after.append(new)
        changes.append(CredentialChange(credential=new))
    return tuple(after), changes


def _next(
    watched: WatchedCredential, report: WorkerCredentialReport | None, now_s: float
) -> tuple[WatchedCredential | None, CredentialChange | None]:
    state = None if report is None else report.state
    if report is not None and state is not None and state in FAULTS:
        return _with_fault(watched, report, state, now_s)
    is_quiet = watched.quiet_from_s is not None and _is_recent(watched.quiet_from_s, now_s)
    if not watched.is_lasting:
        return watched if is_quiet else None, None
    if state is not CredentialState.WORKS and _is_recent(watched.seen_at_s, now_s):
        return watched, None
    if watched.quiet_from_s is not None:
        # No event reported that it began.
        return replace(watched, is_lasting=False) if is_quiet else None, None
    end = FaultEnd.WORKS if state is CredentialState.WORKS else FaultEnd.NOT_REPORTED
    over = replace(watched, is_lasting=False, quiet_from_s=now_s)
    return over, CredentialChange(credential=over, end=end)


def _with_fault(
    watched: WatchedCredential, report: WorkerCredentialReport, state: CredentialState, now_s: float
) -> tuple[WatchedCredential, CredentialChange | None]:
    since_s = watched.since_s if watched.is_lasting else _begin_s(report, now_s)
    lasting = replace(
        watched, state=state, detail=report.detail, since_s=since_s, seen_at_s=now_s, is_lasting=True
    )
    if watched.quiet_from_s is None or _is_recent(watched.quiet_from_s, now_s):
        return lasting, None
    reported = replace(lasting, quiet_from_s=None)
    return reported, CredentialChange(credential=reported)


def _begin_s(report: WorkerCredentialReport, now_s: float) -> float:
    """Return the begin of a fault; a time in the future is from before the clock was set back."""
    return now_s if report.since_s is None else min(now_s, report.since_s)


def _is_recent(at_s: float, now_s: float) -> bool:
    """Return whether a time is recent. A time in the future was written before the clock was set back."""
    return 0 <= now_s - at_s < QUIET_SECONDS


def _states(reports: Iterable[WorkerCredentialReport]) -> dict[CredentialId, WorkerCredentialReport]:
    """Return one report for each credential: a fault of any worker, else that it works, else unknown."""
    found: dict[CredentialId, WorkerCredentialReport] = {}
    for report in reports:
        known = found.get((report.key, report.name))
        if known is None or _RANKS[known.state] < _RANKS[report.state]:
            found[report.key, report.name] = report
    return found


_RANKS: Final[Mapping[CredentialState | None, int]] = {
    None: 0,
    CredentialState.WORKS: 1,
    CredentialState.TOKEN_ERROR: 2,
    CredentialState.CREDENTIALS_REJECTED: 3,
}
