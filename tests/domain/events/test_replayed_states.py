"""States that the event log says of one agent, and their comparison with the store."""

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.support.replayed_events import (
    AT,
    AT_S,
    DIED,
    REGISTERED,
    TIMED_OUT,
    A,
    lifecycle,
    refusal,
    replayed,
)

from lifesign.domain.events.agent_payloads import (
    AgentHealthChanged,
    AgentUpdated,
    MaintenanceChanged,
    StatusOverrideChanged,
)
from lifesign.domain.events.payload_fields import Payload
from lifesign.domain.events.replayed_states import TIME_TOLERANCE_S, AgentState, differences
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Reason, Signal, Status


def test_replayed_agent_begins_with_its_registration() -> None:
    assert replayed(REGISTERED).agents == {"a": A}


def test_replayed_status_has_its_reason_and_version() -> None:
    assert replayed(REGISTERED, TIMED_OUT, DIED).agents["a"] == AgentState(
        agent_id="a", status=Status.DEAD, reason=Reason.HEARTBEAT_TIMEOUT, incarnation=1, version=3
    )


def test_new_incarnation_increments_the_counter_and_resets_the_version() -> None:
    again = lifecycle(Signal.RE_REGISTERED, Status.DEAD, 2, 1)
    agent = replayed(REGISTERED, TIMED_OUT, DIED, again).agents["a"]
    assert (agent.status, agent.incarnation, agent.version) == (Status.ACTIVE, 2, 1)


@pytest.mark.parametrize(
    ("signal", "is_kept"), [(Signal.RE_REGISTERED, False), (Signal.PROBE_REDISCOVERED, True)]
)
def test_new_registration_resets_fields_that_its_event_omits(signal: Signal, is_kept: bool) -> None:  # noqa: FBT001 - a table
    replay = replayed(
        REGISTERED,
        MaintenanceChanged(agent_id="a", until=AT),
        StatusOverrideChanged(agent_id="a", status=Status.UNHEALTHY, until=AT),
        TIMED_OUT,
        DIED,
        lifecycle(signal, Status.DEAD, 2, 1),
    )
    agent = replay.agents["a"]
    expected = (AT_S, Status.UNHEALTHY, AT_S) if is_kept else (None, None, None)
    assert (agent.maintenance_until_s, agent.override_status, agent.override_until_s) == expected


def test_registration_keeps_overrides_that_it_names() -> None:
    replay = replayed(
        REGISTERED,
        MaintenanceChanged(agent_id="a", until=AT),
        StatusOverrideChanged(agent_id="a", status=Status.UNHEALTHY, until=AT),
        TIMED_OUT,
        DIED,
        lifecycle(
            Signal.RE_REGISTERED,
            Status.DEAD,
            2,
            1,
            maintenance_until=AT,
            override_status=Status.UNHEALTHY,
            override_until=AT,
        ),
    )
    agent = replay.agents["a"]
    assert (agent.maintenance_until_s, agent.override_status, agent.override_until_s) == (
        AT_S,
        Status.UNHEALTHY,
        AT_S,
    )


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"maintenance_until": AT}, "maintenance"),
        ({"override_status": Status.ACTIVE, "override_until": AT}, "override"),
    ],
)
def test_registration_adds_no_override(named: dict[str, Any], why: str) -> None:
    replay = replayed(REGISTERED, TIMED_OUT, DIED)
    assert why in refusal(replay, lifecycle(Signal.RE_REGISTERED, Status.DEAD, 2, 1, **named)).split()


def test_overrides_can_be_withdrawn() -> None:
    replay = replayed(
        REGISTERED,
        MaintenanceChanged(agent_id="a", until=AT),
        StatusOverrideChanged(agent_id="a", status=Status.UNHEALTHY, until=AT),
        MaintenanceChanged(agent_id="a"),
        StatusOverrideChanged(agent_id="a"),
    )
    assert replay.agents["a"] == A


def test_update_raises_the_version_and_health_change_does_not() -> None:
    replay = replayed(
        REGISTERED,
        AgentUpdated(agent_id="a", incarnation=1, version=2, changed=["name"]),
        AgentHealthChanged(
            agent_id="a", previous_health=HealthStatus.UNKNOWN, new_health=HealthStatus.DEGRADED
        ),
    )
    assert replay.agents["a"] == replace(A, version=2, health=HealthStatus.DEGRADED)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (REGISTERED, r"agent a is active, .*\bregistering$"),
        (DIED, r"agent a is active, .*\bunhealthy$"),
        (
            lifecycle(Signal.HEARTBEAT_TIMEOUT, Status.ACTIVE, 1, 2, agent_id="b"),
            r"agent b .*registering",
        ),
        (lifecycle(Signal.REGISTERED, Status.REGISTERING, 2, 1, agent_id="b"), "comes to 1.1, not to 2.1"),
        (
            lifecycle(Signal.RE_REGISTERED, Status.ACTIVE, 2, 1),
            r"no way .*\bactive .*\bactive .*\bre_registered$",
        ),
        (lifecycle(Signal.HEARTBEAT_TIMEOUT, Status.ACTIVE, 1, 2, new_status=Status.DEAD), "no way from"),
        (
            lifecycle(Signal.HEARTBEAT_TIMEOUT, Status.ACTIVE, 1, 2, reason=Reason.DRAIN_TIMEOUT),
            "no way from",
        ),
        (lifecycle(Signal.HEARTBEAT_TIMEOUT, Status.ACTIVE, 1, 3), "comes to 1.2, not to 1.3"),
        (lifecycle(Signal.HEARTBEAT_TIMEOUT, Status.ACTIVE, 2, 1), "comes to 1.2, not to 2.1"),
        (AgentUpdated(agent_id="a", incarnation=1, version=1, changed=[]), "comes to 1.2"),
        (AgentUpdated(agent_id="a", incarnation=2, version=2, changed=[]), "comes to 1.2"),
        (AgentUpdated(agent_id="b", incarnation=1, version=2, changed=[]), r"agent b\b.* never"),
        (MaintenanceChanged(agent_id="b", until=AT), r"agent b\b.* never"),
        (StatusOverrideChanged(agent_id="b"), r"agent b\b.* never"),
        (
            AgentHealthChanged(
                agent_id="a", previous_health=HealthStatus.HEALTHY, new_health=HealthStatus.DEGRADED
            ),
            r"health .*\ba .*\bunknown$",
        ),
    ],
)
def test_event_that_contradicts_an_agent_is_refused(payload: Payload, why: str) -> None:
    assert re.search(why, refusal(replayed(REGISTERED), payload))


def test_new_registration_without_a_new_incarnation_is_refused() -> None:
    replay = replayed(REGISTERED, TIMED_OUT, DIED)
    assert "comes to 2.1, not to 1.4" in refusal(replay, lifecycle(Signal.RE_REGISTERED, Status.DEAD, 1, 4))


def test_times_within_a_millisecond_are_equal() -> None:
    logged = replace(A, maintenance_until_s=AT_S)
    near = replace(A, maintenance_until_s=AT_S + TIME_TOLERANCE_S / 2)
    far = replace(A, maintenance_until_s=AT_S + 2 * TIME_TOLERANCE_S)
    assert list(differences("agent a", logged, near)) == []
    assert len(list(differences("agent a", logged, far))) == 1
    (unexplained,) = differences("agent a", None, near)
    assert unexplained.endswith("not in the log")
