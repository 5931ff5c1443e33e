from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.credentials.acceptance import FAULTS, CredentialState
from lifesign.domain.credentials.credential_watch import (
    MAX_FAULTS,
    MAX_FAULTS_OF_KEY,
    QUIET_SECONDS,
    CredentialChange,
    WatchedCredential,
    WorkerCredentialReport,
    credentials_after,
)

WORKS, REJECTED = CredentialState.WORKS, CredentialState.CREDENTIALS_REJECTED
TOKEN_ERROR = CredentialState.TOKEN_ERROR


def report(
    state: CredentialState | None, *, key: str = "key_1", name: str = "acme"
) -> WorkerCredentialReport:
    return WorkerCredentialReport(key=key, name=name, origin="https://acme.example", path="/", state=state)


class Watch:
    """A sequence of counts, and the reports about them."""

    def __init__(self) -> None:
        self.watched: tuple[WatchedCredential, ...] = ()
        self.at_s = 1_000.0

    def count(self, *reports: WorkerCredentialReport, after_s: float = 15.0) -> list[str]:
        """Return the report: `failed`, or the end."""
        self.at_s += after_s
        self.watched, changes = credentials_after(self.watched, reports, self.at_s)
        return [_word(change) for change in changes]

    @property
    def lasting(self) -> list[WatchedCredential]:
        """The credentials that have a fault now."""
        return [each for each in self.watched if each.is_lasting]


def _word(change: CredentialChange) -> str:
    return "failed" if change.end is None else change.end.value


def test_credential_fault_and_its_end_are_each_reported_once() -> None:
    watch = Watch()
    assert watch.count(report(WORKS), report(None)) == []
    # One event, even if several workers report the fault.
    assert watch.count(report(WORKS), report(REJECTED), report(TOKEN_ERROR)) == ["failed"]
    assert watch.watched[0].state is REJECTED
    assert watch.count(report(TOKEN_ERROR)) == []
    assert watch.watched[0].state is TOKEN_ERROR
    assert watch.count(report(WORKS), report(None)) == ["works"]
    assert watch.count(report(WORKS)) == []
    assert watch.count(report(WORKS), after_s=QUIET_SECONDS) == []
    assert watch.watched == ()


def test_report_of_a_new_worker_does_not_end_a_credential_fault() -> None:
    watch = Watch()
    watch.count(report(REJECTED))
    assert watch.count(report(None)) == []
    assert watch.count() == []
    assert watch.count(report(REJECTED)) == []


def test_fault_ends_when_no_worker_reports_its_credential() -> None:
    watch = Watch()
    watch.count(report(REJECTED))
    assert watch.count(after_s=QUIET_SECONDS - 1) == []
    assert watch.count(after_s=1) == ["not_reported"]
    assert watch.count(after_s=QUIET_SECONDS) == []
    assert watch.watched == ()


def test_returning_fault_is_listed_at_once_and_reported_after_the_quiet_time() -> None:
    watch = Watch()
    watch.count(report(REJECTED))
    assert watch.count(report(WORKS)) == ["works"]
    assert watch.count(report(TOKEN_ERROR)) == []
    returned_at_s = watch.at_s
    assert [(each.state, each.since_s) for each in watch.lasting] == [(TOKEN_ERROR, returned_at_s)]
    assert watch.count(report(REJECTED), after_s=QUIET_SECONDS) == ["failed"]
    assert [(each.state, each.since_s) for each in watch.lasting] == [(REJECTED, returned_at_s)]


def test_a_fault_that_returns_and_ends_in_the_quiet_time_has_no_event() -> None:
    watch = Watch()
    watch.count(report(REJECTED))
    watch.count(report(WORKS))
    assert watch.count(report(REJECTED)) == []
    assert watch.count(report(WORKS)) == []
    assert not watch.lasting
    # The quiet time begins with the end that was reported.
    assert watch.count(report(REJECTED), after_s=QUIET_SECONDS - 45) == []
    assert watch.lasting
    assert watch.count(report(REJECTED)) == ["failed"]


def test_alternating_credential_states_cause_few_events() -> None:
    watch, result = Watch(), []
    for number in range(1_000):
        result += watch.count(report(WORKS if number % 2 else REJECTED))
    # Three counts are 45 s, and a pair of events comes once in the quiet time at most.
    assert len(result) <= 2 * (1_000 * 15 / QUIET_SECONDS + 1)


def test_the_number_of_watched_credentials_is_bounded_for_each_key_and_for_all() -> None:
    watch = Watch()

    def many(keys: Iterable[int], names: int) -> list[WorkerCredentialReport]:
        return [
            report(REJECTED, key=f"key_{key}", name=f"name-{name}") for key in keys for name in range(names)
        ]

    assert len(watch.count(*many([1], 10 * MAX_FAULTS_OF_KEY))) == MAX_FAULTS_OF_KEY
    assert len(watch.count(*many(range(1, 10), 100))) == MAX_FAULTS - MAX_FAULTS_OF_KEY
    assert len(watch.watched) == MAX_FAULTS
    # Names that change with every claim do not make more events.
    others = [report(REJECTED, name=f"other-{number}") for number in range(100)]
    assert watch.count(*others) == []


def test_clock_set_back_does_not_prevent_the_end_of_a_fault() -> None:
    watch = Watch()
    watch.count(report(REJECTED))
    assert watch.count(after_s=-500) == ["not_reported"]


STATES = st.sampled_from([None, *CredentialState])


@given(st.lists(st.lists(STATES, max_size=3), max_size=30), st.floats(1, 2 * QUIET_SECONDS))
def test_events_of_begin_and_end_of_a_fault_alternate(
    counts: list[list[CredentialState | None]], step_s: float
) -> None:
    watch = Watch()
    messages: list[str] = []
    for states in counts:
        messages += watch.count(*map(report, states), after_s=step_s)
        reported = [each for each in watch.lasting if each.quiet_from_s is None]
        assert len(reported) == len(messages) % 2
        assert {each.state for each in watch.lasting} <= FAULTS
        if FAULTS & set(states):
            assert watch.lasting
        elif WORKS in states:
            assert not watch.lasting
    assert all((word == "failed") is (place % 2 == 0) for place, word in enumerate(messages))
