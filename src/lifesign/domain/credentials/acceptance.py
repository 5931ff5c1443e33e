"""Use of credentials: whether a credential works, by the answers to the requests that carried it."""

import re
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.credentials.request_scope import CredentialScope

MAX_PLACES: Final = 1_000
"""Number of places for which a fault of one credential is remembered."""
MIN_KEPT_SECONDS: Final = 900.0
KEPT_INTERVALS: Final = 3
"""An answer counts for this many intervals of the crawl."""


MAX_DETAIL_CHARS: Final = 200

_NOT_SHOWN: Final = re.compile("[^ -~]")


class CredentialState(StrEnum):
    """Whether a prober's credential works, or the fault that it has."""

    WORKS = "works"
    CREDENTIALS_REJECTED = "credentials_rejected"
    TOKEN_ERROR = "token_error"  # noqa: S105 - a state


FAULTS: Final = frozenset({CredentialState.CREDENTIALS_REJECTED, CredentialState.TOKEN_ERROR})


@fast_dataclass(kw_only=True)
class CredentialStatus:
    """A credential of a prober, with its state and the details of a fault."""

    scope: CredentialScope
    state: CredentialState | None = None
    fault_s: float | None = None
    """For how many seconds it has had a fault."""
    detail: str | None = None
    """Answer that rejected it, or why there is no token: printable ASCII, at most MAX_DETAIL_CHARS."""
    worked_s: float | None = None
    """Seconds since the last answer that accepted it; None if none has since the secret's last change."""


@fast_dataclass()
class _Fault:
    state: CredentialState
    at_s: float
    detail: str | None


class CredentialUse:
    """Collects how servers accept one credential, to decide whether it works.

    One target may accept a credential that another one refuses. So the credential works again once every
    place that refused it has accepted it, was not probed for three intervals, or belongs to another prober.
    """

    def __init__(self, clock: Callable[[], float], interval_s: float) -> None:
        """`clock`: monotonic seconds; `interval_s`: of the crawl."""
        self._clock = clock
        self._kept_s = max(MIN_KEPT_SECONDS, KEPT_INTERVALS * interval_s)
        self._faults: dict[tuple[str, str | None], _Fault] = {}
        """By URL and probed target, the newest last."""
        self._worked_at_s: float | None = None
        self._fault_began_s = 0.0
        """Begin of the present fault; without a meaning if there is none."""

    @property
    def has_faults(self) -> bool:
        """Whether any fault is recorded, even one that is too old to count."""
        return bool(self._faults)

    def note_success(self) -> None:
        """Record that an answer accepted the credential. For use while no fault is recorded."""
        self._worked_at_s = self._clock()

    def note(
        self, url: str, state: CredentialState, detail: str | None = None, target: str | None = None
    ) -> None:
        """Record how a URL took the credential.

        `target` is the probed target, `detail` the reason of a fault.
        """
        now_s = self._clock()
        if self.state not in FAULTS:
            self._fault_began_s = now_s
        self._faults.pop((url, target), None)
        if state is CredentialState.WORKS:
            self._worked_at_s = now_s
            return
        shown = None if not detail else _NOT_SHOWN.sub("?", detail)[:MAX_DETAIL_CHARS]
        self._faults[url, target] = _Fault(state, now_s, shown)
        if len(self._faults) > MAX_PLACES:
            del self._faults[next(iter(self._faults))]

    def forget_targets(self, targets: Collection[str]) -> None:
        """Remove the faults that probes of these targets have shown."""
        for url, target in list(self._faults):
            if target in targets:
                del self._faults[url, target]

    def note_change(self) -> None:
        """Record that the secret has changed: each place that refused the former one must accept this one."""
        self._worked_at_s = None

    @property
    def state(self) -> CredentialState | None:
        """Present state of the credential; None if there was no answer lately."""
        oldest_s = self._clock() - self._kept_s
        for place, fault in list(self._faults.items()):
            if fault.at_s >= oldest_s:
                break
            del self._faults[place]
        if self._faults:
            return next(reversed(self._faults.values())).state
        has_worked = self._worked_at_s is not None and self._worked_at_s >= oldest_s
        return CredentialState.WORKS if has_worked else None

    def status(self, scope: CredentialScope) -> CredentialStatus:
        """Return the credential's present state with the details of a fault."""
        state, now_s = self.state, self._clock()
        worked_s = None if self._worked_at_s is None else now_s - self._worked_at_s
        if state not in FAULTS:
            return CredentialStatus(scope=scope, state=state, worked_s=worked_s)
        last = next(reversed(self._faults.values()))
        fault_s = now_s - self._fault_began_s
        return CredentialStatus(
            scope=scope, state=state, fault_s=fault_s, detail=last.detail, worked_s=worked_s
        )
