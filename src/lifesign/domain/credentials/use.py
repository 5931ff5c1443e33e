"""Use of credentials: whether a credential works, by the answers to the requests that carried it."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from lifesign.domain.base.fast_dataclass import fast_dataclass

MAX_PLACES: Final = 1_000
"""Number of places for which a fault of one credential is remembered."""
MIN_KEPT_SECONDS: Final = 900.0
KEPT_INTERVALS: Final = 3
"""An answer counts for this many intervals of the crawl."""


class CredentialState(StrEnum):
    """State of a prober's credential. The faults have the names of the result classes of a layer."""

    WORKS = "works"
    CREDENTIALS_REJECTED = "credentials_rejected"
    TOKEN_ERROR = "token_error"  # noqa: S105 - a state


FAULTS: Final = frozenset({CredentialState.CREDENTIALS_REJECTED, CredentialState.TOKEN_ERROR})


@fast_dataclass()
class _Fault:
    state: CredentialState
    at_s: float


class CredentialUse:
    """The known state of one credential at the places of its targets.

    One target may accept a credential that another one refuses. So the credential works again once every
    place that refused it has accepted it, or was not probed for three intervals.
    """

    def __init__(self, clock: Callable[[], float], interval_s: float) -> None:
        """`clock`: monotonic seconds; `interval_s`: of the crawl."""
        self._clock = clock
        self._kept_s = max(MIN_KEPT_SECONDS, KEPT_INTERVALS * interval_s)
        self._faults: dict[str, _Fault] = {}
        """By URL, the newest last."""
        self._worked_at_s: float | None = None

    def note(self, url: str, state: CredentialState) -> None:
        """Note the answer of a place."""
        now_s = self._clock()
        self._faults.pop(url, None)
        if state is CredentialState.WORKS:
            self._worked_at_s = now_s
            return
        self._faults[url] = _Fault(state, now_s)
        if len(self._faults) > MAX_PLACES:
            del self._faults[next(iter(self._faults))]

    def forget(self) -> None:
        """Forget all answers: the secret has changed."""
        self._faults.clear()
        self._worked_at_s = None

    @property
    def state(self) -> CredentialState | None:
        """The state now; None if no answer counts."""
        oldest_s = self._clock() - self._kept_s
        for url, fault in list(self._faults.items()):
            if fault.at_s >= oldest_s:
                break
            del self._faults[url]
        if self._faults:
            return next(reversed(self._faults.values())).state
        has_worked = self._worked_at_s is not None and self._worked_at_s >= oldest_s
        return CredentialState.WORKS if has_worked else None
