from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.page_tables import DOCS, pages

from lifesign.domain.errors import InvalidTransition
from lifesign.domain.lifecycle.status_table import (
    ALIVE,
    TRANSITIONS,
    Reason,
    Signal,
    Status,
    begins_incarnation,
    reason_of,
    status_after,
)

PAGE = "lifecycle.md"
WAYS_BACK = {Signal.RE_REGISTERED, Signal.PROBE_REDISCOVERED}


def test_the_page_of_the_lifecycle_is_that_of_the_table() -> None:
    assert (DOCS / PAGE).read_text() == pages()[PAGE], "run: make schemas"


@pytest.mark.parametrize(
    ("status", "signal", "following"),
    [
        ("registering", "registered", "active"),
        ("active", "drain_initiated", "draining"),
        ("active", "heartbeat_timeout", "unhealthy"),
        ("unhealthy", "heartbeat_resumed", "active"),
        ("unhealthy", "heartbeat_timeout", "dead"),
        ("unhealthy", "drain_initiated", "draining"),
        ("draining", "drain_completed", "deregistered"),
        ("draining", "drain_timeout", "dead"),
        ("dead", "re_registered", "active"),
    ],
)
def test_every_transition_of_the_rfc_is_there(status: str, signal: str, following: str) -> None:
    assert status_after(Status(status), Signal(signal)) is Status(following)


def test_transition_outside_of_the_table_is_refused() -> None:
    for status, signal in product(Status, Signal):
        if (status, signal) not in TRANSITIONS:
            with pytest.raises(InvalidTransition) as refused:
                status_after(status, signal)
            assert (refused.value.status, refused.value.signal) == (status, signal)


def test_each_signal_and_each_status_has_a_transition() -> None:
    assert {signal for _, signal in TRANSITIONS} == set(Signal)
    assert {status for status, _ in TRANSITIONS} == set(Status)


def test_no_status_leads_back_to_registering() -> None:
    assert set(TRANSITIONS.values()) == set(Status) - {Status.REGISTERING}


@pytest.mark.parametrize("status", [Status.DEAD, Status.DEREGISTERED])
def test_only_a_new_incarnation_ends_death_or_deregistration(status: Status) -> None:
    ways = {
        signal
        for signal in Signal
        if (status, signal) in TRANSITIONS and status_after(status, signal) is not Status.DEREGISTERED
    }
    assert ways <= WAYS_BACK
    assert all(begins_incarnation(signal) for signal in ways)


def test_no_other_transition_begins_an_incarnation() -> None:
    assert {signal for signal in Signal if begins_incarnation(signal)} == WAYS_BACK
    assert {status for status, signal in TRANSITIONS if signal in WAYS_BACK} == {
        Status.DEAD,
        Status.DEREGISTERED,
    }


def test_draining_agent_never_becomes_active() -> None:
    following = {after for (status, _), after in TRANSITIONS.items() if status is Status.DRAINING}
    assert following == {Status.DEREGISTERED, Status.DEAD}


@pytest.mark.parametrize("status", sorted(ALIVE))
def test_each_alive_status_can_be_deregistered_and_superseded(status: Status) -> None:
    assert status_after(status, Signal.DEREGISTERED) is Status.DEREGISTERED
    assert status_after(status, Signal.SUPERSEDED) is Status.DEREGISTERED


def test_death_requires_unhealthy_or_draining_before_it() -> None:
    before = {status for (status, _), after in TRANSITIONS.items() if after is Status.DEAD}
    assert before == {Status.UNHEALTHY, Status.DRAINING}


def test_every_signal_has_a_reason_and_every_reason_a_signal() -> None:
    assert {reason_of(signal) for signal in Signal} == set(Reason)
    for declared in (Signal.DECLARED_ACTIVE, Signal.DECLARED_UNHEALTHY):
        assert reason_of(declared) is Reason.OPERATOR_OVERRIDE


@given(st.lists(st.sampled_from(list(Signal))))
def test_state_machine_registers_once_and_loses_no_incarnation(signals: list[Signal]) -> None:
    status, lives = Status.REGISTERING, 0
    for signal in signals:
        if (status, signal) in TRANSITIONS:
            was_alive = status in ALIVE
            status = status_after(status, signal)
            lives += status in ALIVE and not was_alive
            assert begins_incarnation(signal) is (status in ALIVE and not was_alive and lives > 1)
    assert (lives == 0) is (status is Status.REGISTERING)
