import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.replayed_events import (
    AT,
    AT_S,
    DIED,
    REGISTERED,
    TIMED_OUT,
    TYPES,
    A,
    event_of,
    lifecycle,
    refusal,
    replayed,
)

from lifesign.domain.errors import ImpossibleEvent
from lifesign.domain.events.agent_payloads import (
    AgentErased,
    AgentHealthChanged,
    AgentLifecycle,
    AgentLinked,
    AgentUnlinked,
    AgentUpdated,
    MaintenanceChanged,
    StatusOverrideChanged,
)
from lifesign.domain.events.chain import GENESIS, Event, chain, erased, link, read_event
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import PAYLOADS, EventType
from lifesign.domain.events.lease_payloads import (
    EpochRaised,
    LeaseAcquired,
    LeaseEnded,
    ShardLease,
    ShardsEnded,
    ShardsGranted,
    StateWritten,
)
from lifesign.domain.events.payload_fields import Payload
from lifesign.domain.events.registry_payloads import KeyChanged
from lifesign.domain.events.replay import MAX_DIFFERENCES, Replay
from lifesign.domain.events.replayed_states import AgentState, LeaseState, TaskState
from lifesign.domain.events.task_payloads import TaskBudgetChanged, TaskCreated, TaskLifecycle, TaskReported
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import (
    ALIVE,
    TRANSITIONS,
    Reason,
    Signal,
    Status,
    begins_incarnation,
    reason_of,
)
from lifesign.domain.models.base import moment
from lifesign.domain.tasks.lease import EndReason
from lifesign.domain.tasks.task_states import TRANSITIONS as TASK_TRANSITIONS
from lifesign.domain.tasks.task_states import TaskSignal, TaskStatus, task_resource

EXAMPLES = sorted((Path(__file__).parents[3] / "schemas/examples/event/valid").glob("*.json"))


def acquired(token: int, lease_id: str = "l1", holder: str = "a", **other: Any) -> LeaseAcquired:
    members = {"resource": "r", "lease_id": lease_id, "holder": holder, "fencing_token": token}
    return LeaseAcquired.model_validate(members | {"expires_at": AT, "holder_incarnation": 1} | other)


def ended(token: int, lease_id: str = "l1", holder: str = "a", **other: Any) -> LeaseEnded:
    members = {"resource": "r", "lease_id": lease_id, "holder": holder, "fencing_token": token}
    return LeaseEnded.model_validate(members | {"reason": EndReason.RELEASED} | other)


def written(holder: str, token: int) -> StateWritten:
    return StateWritten(resource="r", holder=holder, fencing_token=token, version=1)


def shards(*numbers: int, token: int = 1) -> list[ShardLease]:
    return [ShardLease(shard=number, lease_id=f"l{number}", fencing_token=token) for number in numbers]


def granted(*numbers: int, token: int = 1) -> ShardsGranted:
    return ShardsGranted(holder="key:k/p", shards=shards(*numbers, token=token), expires_at=AT)


def shards_released(*numbers: int, holder: str = "key:k/p", token: int = 1) -> ShardsEnded:
    return ShardsEnded(holder=holder, shards=shards(*numbers, token=token), reason=EndReason.RELEASED)


def task_step(signal: TaskSignal, previous: TaskStatus, **other: Any) -> TaskLifecycle:
    members = {
        "task_id": "t",
        "previous_status": previous,
        "new_status": TASK_TRANSITIONS.get((previous, signal), TaskStatus.DONE),
        "signal": signal,
    }
    return TaskLifecycle.model_validate(members | other)


QUEUED = TaskCreated(task_id="t", tokens=100, micro_usd=5)
TAKEN = acquired(1, resource=task_resource("t"))
GIVEN_BACK = ended(1, resource=task_resource("t"))
GRANTED = task_step(TaskSignal.GRANTED, TaskStatus.QUEUED)
REPORTED = TaskReported(task_id="t", run_id="run_1", report=1)
DRAINED = lifecycle(Signal.DRAIN_INITIATED, Status.ACTIVE, 1, 2)
RAISED = EpochRaised(previous_epoch=0, new_epoch=2)
HELD = LeaseState(resource="r", lease_id="l1", holder="a", token=1)


# --- leases --------------------------------------------------------------------------------------


def test_a_lease_is_held_until_it_ends_and_its_token_stays() -> None:
    replay = replayed(REGISTERED, acquired(1))
    assert replay.leases == {"r": HELD}
    assert HELD.is_held
    replay.apply(event_of(replay, ended(1)))
    assert replay.leases == {"r": replace(HELD, end_reason=EndReason.RELEASED)}
    replay.apply(event_of(replay, acquired(2, "l2")))
    assert replay.leases == {"r": replace(HELD, lease_id="l2", token=2)}


def test_a_key_without_an_agent_may_hold_a_lease() -> None:
    assert replayed(acquired(7, holder="prober 1", holder_incarnation=0)).leases["r"].holder == "prober 1"


@pytest.mark.parametrize(
    ("before", "payload", "why"),
    [
        ([acquired(1)], acquired(2, "l2"), "a holds r"),
        ([acquired(2), ended(2)], acquired(2, "l2"), "token 2 is not above 2"),
        ([acquired(2), ended(2)], acquired(1, "l2"), "token 1 is not above 2"),
        ([], acquired(1, holder="b"), r"agent b\b.* never"),
        ([], acquired(1, holder_incarnation=2), r"a is active .*\b1$"),
        ([DRAINED], acquired(1), r"a is draining .*\b1$"),
        ([TIMED_OUT, DIED], acquired(1), r"a is dead .*\b1$"),
        ([], ended(1), r"\br has no holder$"),
        ([acquired(1), ended(1)], ended(1), r"\br has no holder$"),
        ([acquired(1)], ended(1, "l2"), r"lease .*\br .*\bl1$"),
        ([acquired(1)], ended(2), r"a holds r .*\b1$"),
        ([acquired(1)], ended(1, holder="b"), r"a holds r .*\b1$"),
        ([acquired(1)], ended(1, reason=EndReason.AGENT_DEAD), r"a is active, .*\bdead$"),
        ([acquired(1)], ended(1, reason=EndReason.AGENT_DEREGISTERED), r"a is active, .*\bderegistered$"),
        ([], written("a", 1), r"\br has no holder$"),
        ([acquired(1)], written("b", 1), "a holds r"),
        ([acquired(2)], written("a", 1), r"a holds r .*\b2$"),
        ([acquired(1), ended(1)], written("a", 1), r"\br has no holder$"),
        ([RAISED], RAISED, "epoch 2 is not above 2"),
    ],
)  # fmt: skip
def test_event_that_contradicts_a_lease_is_refused(before: list[Payload], payload: Payload, why: str) -> None:
    assert re.search(why, refusal(replayed(REGISTERED, *before), payload))


def test_an_unhealthy_agent_gets_leases_and_a_draining_one_keeps_them() -> None:
    assert replayed(REGISTERED, TIMED_OUT, acquired(1)).leases["r"].is_held
    assert replayed(REGISTERED, acquired(1), DRAINED).leases["r"].is_held


def test_leases_end_after_the_death_of_their_holder() -> None:
    replay = replayed(
        REGISTERED, acquired(1), TIMED_OUT, DIED, ended(1, reason=EndReason.AGENT_DEAD)
    )  # fmt: skip
    assert replay.leases["r"].end_reason is EndReason.AGENT_DEAD


def test_the_holder_of_the_current_token_may_write() -> None:
    assert replayed(REGISTERED, acquired(1), written("a", 1), written("a", 1)).leases == {"r": HELD}


def test_event_about_many_shards_equals_one_event_per_shard() -> None:
    replay = replayed(granted(3, 5, 7), shards_released(3, 7))
    assert {name: (lease.token, lease.end_reason) for name, lease in replay.leases.items()} == {
        "shard:3": (1, EndReason.RELEASED),
        "shard:5": (1, None),
        "shard:7": (1, EndReason.RELEASED),
    }
    one_by_one = replayed(
        granted(3),
        granted(5),
        acquired(1, "l7", "key:k/p", resource="shard:7", holder_incarnation=0),
        shards_released(3),
        ended(1, "l7", "key:k/p", resource="shard:7"),
    )
    assert one_by_one.leases == replay.leases


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (granted(4, 3, token=2), "holds shard:3"),
        (granted(9, token=1), r"token 1 is not above 1"),
        (granted(4, 4), "names a shard twice"),
        (shards_released(3, 4), "shard:4 has no holder"),
        (shards_released(3, token=2), "holds shard:3 with token 1"),
        (shards_released(3, holder="key:k/q"), "holds shard:3 with token 1"),
    ],
)
def test_event_with_one_impossible_shard_is_refused_as_a_whole(payload: Payload, why: str) -> None:
    replay = replayed(granted(3, 9), shards_released(9))
    assert re.search(why, refusal(replay, payload))


# --- the log as a whole --------------------------------------------------------------------------


def test_replay_of_the_example_log_gives_its_states() -> None:
    replay, checkpoint = Replay(), GENESIS
    for path in EXAMPLES:
        event = read_event(json.loads(path.read_text()))
        checkpoint = link(checkpoint, event)
        replay.apply(event)
    assert replay.sequence == checkpoint.sequence == len(EXAMPLES)
    assert (replay.erased_events, replay.epoch) == (2, 1)
    assert {agent.agent_id: agent.status for agent in replay.agents.values()} == {
        "agent_billing_01": Status.DEAD,
        "agent_lead": Status.DEAD,
    }
    assert {lease.resource: (lease.token, lease.end_reason) for lease in replay.leases.values()} == {
        "intent:i1/invoice": (2, EndReason.RELEASED),
        "shard:0": (2**32 + 1, None),
        "shard:1": (2**32 + 1, EndReason.RELEASED),
    }


@pytest.mark.parametrize("sequence", [0, 1, 3])
def test_a_gap_or_a_repetition_is_refused(sequence: int) -> None:
    replay = replayed(REGISTERED)
    with pytest.raises(ImpossibleEvent, match=r"\b1$") as refused:
        replay.apply(replace(event_of(replay, TIMED_OUT), sequence=sequence))
    assert refused.value.sequence == sequence
    assert replay.agents == {"a": A}


def test_payload_of_another_type_is_refused() -> None:
    replay = replayed(REGISTERED)
    damaged = replace(event_of(replay, TIMED_OUT), payload={"agent_id": "a"})
    with pytest.raises(ImpossibleEvent, match=r"payload of agent\.lifecycle") as refused:
        replay.apply(damaged)
    assert refused.value.sequence == 2


def test_replayed_task_has_the_state_of_its_last_event() -> None:
    replay = replayed(REGISTERED, QUEUED, TAKEN, GRANTED, REPORTED)
    for payload in (
        task_step(TaskSignal.REPORTED, TaskStatus.ASSIGNED),
        GIVEN_BACK,
        task_step(TaskSignal.HELP_REQUESTED, TaskStatus.RUNNING),
        task_step(TaskSignal.REQUEUED, TaskStatus.HANDOFF),
        TaskBudgetChanged(task_id="t", tokens=200, micro_usd=5),
    ):
        replay.apply(event_of(replay, payload))
    state = TaskState(
        task_id="t",
        status=TaskStatus.QUEUED,
        parent_id=None,
        fix_of=None,
        tokens=200,
        micro_usd=5,
        runs=1,
        reports=1,
    )
    assert replay.tasks == {"t": state}
    agents, leases = replay.agents.values(), replay.leases.values()
    assert replay.differences(agents, leases, [state]) == []
    (changed,) = replay.differences(agents, leases, [replace(state, runs=2)])
    assert re.search(r"task t: runs .*\b1\b.*\b2\b", changed)
    (absent,) = replay.differences(agents, leases)
    assert re.search(r"task t: .*not in the store$", absent)
    assert Replay.from_json(replay.to_json()).tasks == replay.tasks


@pytest.mark.parametrize(
    ("before", "payload", "why"),
    [
        ([], GRANTED, "never created"),
        ([QUEUED], QUEUED, "created before"),
        ([QUEUED], GRANTED, "lease"),
        ([QUEUED], task_step(TaskSignal.CANCELLED, TaskStatus.HANDOFF), r"\bqueued, .*\bhandoff$"),
        (
            [QUEUED],
            task_step(TaskSignal.COMPLETED, TaskStatus.QUEUED),
            r"queue .*\bcompleted$",
        ),
        (
            [QUEUED, TAKEN, GRANTED],
            task_step(TaskSignal.COMPLETED, TaskStatus.ASSIGNED),
            "lease",
        ),
        ([QUEUED, TAKEN, GRANTED, REPORTED], REPORTED, "with 1 report"),
        ([QUEUED], REPORTED, "is queued"),
        ([QUEUED], TaskBudgetChanged(task_id="t", tokens=99, micro_usd=5), "was larger"),
        (
            [QUEUED],
            task_step(TaskSignal.CANCELLED, TaskStatus.QUEUED, new_status=TaskStatus.DONE),
            "leads to cancelled",
        ),
    ],
)
def test_task_transitions_follow_the_table(before: list[Payload], payload: Payload, why: str) -> None:
    assert re.search(why, refusal(replayed(REGISTERED, *before), payload))


def test_holder_of_a_task_is_not_compared_after_an_erasure() -> None:
    replay = replayed(REGISTERED, QUEUED)
    replay.apply(erased(event_of(replay, TAKEN)))
    replay.apply(event_of(replay, GRANTED))
    assert replay.tasks["t"].status is TaskStatus.ASSIGNED


def test_events_that_change_no_state_change_none() -> None:
    stateful = {
        AgentLifecycle, AgentUpdated, AgentHealthChanged, MaintenanceChanged, StatusOverrideChanged,
        AgentErased, LeaseAcquired, LeaseEnded, ShardsGranted, ShardsEnded, StateWritten, EpochRaised,
        TaskCreated, TaskLifecycle, TaskReported, TaskBudgetChanged, AgentLinked, AgentUnlinked,
    }  # fmt: skip
    examples = [read_event(json.loads(path.read_text())) for path in EXAMPLES]
    others = [event for event in examples if PAYLOADS[event.type] not in stateful]
    assert len(others) > 20
    replay = replayed(REGISTERED, acquired(1))
    for event in others:
        replay.apply(replace(event, sequence=replay.sequence + 1))
    assert (replay.agents, replay.leases) == ({"a": A}, {"r": HELD})


def test_replay_restored_from_a_checkpoint_equals_the_original() -> None:
    replay = replayed(REGISTERED, acquired(1), RAISED)
    replay.apply(erased(event_of(replay, TIMED_OUT)))
    again = Replay.from_json(replay.to_json())
    assert vars(again) == vars(replay)
    assert (again.sequence, again.epoch, again.erased_events) == (4, 2, 1)


def test_invalid_checkpoint_text_is_refused() -> None:
    with pytest.raises(ValueError, match="sequence"):
        Replay.from_json("{}")


# --- erasure -------------------------------------------------------------------------------------


def test_erased_events_are_skipped_and_counted() -> None:
    replay = Replay()
    for payload in (REGISTERED, acquired(1), ended(1), TIMED_OUT):
        replay.apply(erased(event_of(replay, payload)))
    assert (replay.sequence, replay.erased_events) == (4, 4)
    assert (replay.agents, replay.leases) == ({}, {})


def test_resource_can_be_leased_after_its_holder_was_erased() -> None:
    replay = replayed(REGISTERED, acquired(1), ended(1))
    replay.apply(erased(event_of(replay, acquired(2, "l2", "b"))))
    replay.apply(erased(event_of(replay, ended(2, "l2", "b"))))
    replay.apply(event_of(replay, acquired(3, "l3")))
    assert replay.leases["r"].token == 3


def test_checkpoint_without_an_erased_agent_keeps_its_fencing_token() -> None:
    # The events after the checkpoint are erased as well, so that the end of the lease is not seen.
    archived = replayed(REGISTERED, acquired(5))
    archived.forget("a")
    replay = Replay.from_json(archived.to_json())
    assert "a" not in replay.agents
    assert replay.leases["r"] == LeaseState(resource="r", lease_id=None, holder=None, token=5)
    replay.apply(erased(event_of(replay, ended(5))))
    assert "token 5 is not above 5" in refusal(replay, acquired(5, "l2", "prober", holder_incarnation=0))
    replay.apply(event_of(replay, acquired(6, "l2", "prober", holder_incarnation=0)))


def test_erased_agent_may_register_like_a_new_one() -> None:
    replay = replayed(REGISTERED, TIMED_OUT, DIED, AgentErased(agent_id="a", events=3), REGISTERED)
    assert replay.agents == {"a": A}


# --- comparison with the stored state ------------------------------------------------------------


def test_equal_states_have_no_difference() -> None:
    replay = replayed(REGISTERED, acquired(1), MaintenanceChanged(agent_id="a", until=moment(AT_S + 0.0009)))
    # The store has microseconds, events have milliseconds.
    stored = replace(A, maintenance_until_s=AT_S + 0.0009)
    never_leased = LeaseState(resource="s", lease_id=None, holder=None, token=0)
    assert replay.differences([stored], [HELD, never_leased]) == []


@pytest.mark.parametrize(
    ("agents", "leases", "difference"),
    [
        ([replace(A, status=Status.DEAD)], [HELD], "agent a: status is active in the log, dead in the store"),
        ([replace(A, version=2)], [HELD], "agent a: version is 1 in the log, 2 in the store"),
        ([replace(A, maintenance_until_s=AT_S)], [HELD], "agent a: maintenance_until_s is None in the log"),
        ([A, replace(A, agent_id="b")], [HELD], "agent b: in the store, not in the log"),
        ([], [HELD], "agent a: in the log, not in the store"),
        ([A], [replace(HELD, token=2)], "lease of r: token is 1 in the log, 2 in the store"),
        ([A], [replace(HELD, end_reason=EndReason.EXPIRED)], "lease of r: end_reason is None in the log"),
        ([A], [HELD, replace(HELD, resource="s")], "lease of s: in the store, not in the log"),
        ([A], [replace(HELD, lease_id=None, holder=None)], "lease of r: lease_id is l1 in the log"),
        ([A], [], "lease of r: in the log, not in the store"),
    ],
)
def test_each_difference_is_reported(
    agents: list[AgentState], leases: list[LeaseState], difference: str
) -> None:
    found = replayed(REGISTERED, acquired(1)).differences(agents, leases)
    assert found[0].startswith(difference)


def test_keys_are_compared_until_their_agent_is_erased() -> None:
    message = KeyChanged(key_id="key_1", name="n", role="agent", agent_id="a", fingerprint="f" * 64)
    replay = replayed(REGISTERED)
    replay.apply(event_of(replay, message, EventType.KEY_CREATED))
    replay = Replay.from_json(replay.to_json())
    key = replay.keys["key_1"]
    ghost = replace(key, key_id="key_2")
    assert replay.differences([A], [], keys=[key]) == []
    (unexplained,) = replay.differences([A], [], keys=[key, ghost])
    assert re.search(r"key_2: .*not in the log$", unexplained)
    (absent,) = replay.differences([A], [])
    assert re.search(r"key_1: .*not in the store$", absent)
    replay.forget("a")
    assert replay.differences([], []) == []


@pytest.mark.parametrize(("token", "is_reported"), [(4, True), (5, False), (6, False)])
def test_a_lease_whose_holder_was_erased_is_compared_by_its_token(token: int, is_reported: bool) -> None:  # noqa: FBT001 - a table
    replay = replayed(REGISTERED, acquired(5), ended(5))
    replay.apply(erased(event_of(replay, acquired(6, "l2"))))
    replay.forget("a")
    stored = LeaseState(resource="r", lease_id=None, holder=None, token=token)
    assert bool(replay.differences([], [stored])) is is_reported


def test_unexplained_token_is_reported_unless_something_was_erased() -> None:
    stored = LeaseState(resource="r", lease_id=None, holder=None, token=1)
    (difference,) = Replay().differences([], [stored])
    assert re.search(r"lease of r: token .*\b0\b.*\b1\b", difference)


def test_number_of_reported_differences_is_bounded() -> None:
    stored = (replace(A, agent_id=f"a{number}") for number in range(MAX_DIFFERENCES + 1))
    assert len(Replay().differences(stored, [])) == MAX_DIFFERENCES
    assert len(list(stored)) == 1


# --- arbitrary histories -------------------------------------------------------------------------

AGENT_IDS = st.sampled_from(["a", "b"])
RESOURCES = st.sampled_from(["r", "s"])


def _moment_of(at_s: float | None) -> datetime | None:
    return None if at_s is None else moment(at_s)


class HistoryMachine(RuleBasedStateMachine):
    """A registry with its own states, which logs its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.agents: dict[str, AgentState] = {}
        self.leases: dict[str, LeaseState] = {}
        self.events: list[tuple[str | None, Event]] = []
        self.checkpoint = GENESIS
        self.replay = Replay()

    def log(self, event_type: EventType, payload: Payload, agent_id: str | None) -> None:
        draft = EventDraft(type=event_type, actor="test", payload=payload, agent_id=agent_id)
        event = chain(self.checkpoint, f"event_{self.checkpoint.sequence}", draft, AT_S)
        self.checkpoint = event.checkpoint
        self.events.append((agent_id, event))
        self.replay.apply(event)

    @rule(agent_id=AGENT_IDS, data=st.data())
    def change_status(self, agent_id: str, data: st.DataObject) -> None:
        agent = self.agents.get(agent_id)
        status = Status.REGISTERING if agent is None else agent.status
        signal = data.draw(st.sampled_from([signal for at, signal in TRANSITIONS if at is status]))
        after = TRANSITIONS[status, signal]
        is_new = agent is None or begins_incarnation(signal)
        incarnation = (0 if agent is None else agent.incarnation) + is_new
        version = 1 if agent is None or is_new else agent.version + 1
        kept = replace(A, agent_id=agent_id) if agent is None or signal is Signal.RE_REGISTERED else agent
        named: dict[str, Any] = {}
        if agent is not None and signal is Signal.RE_REGISTERED and data.draw(st.booleans()):
            kept = agent
            named = {
                "maintenance_until": _moment_of(agent.maintenance_until_s),
                "override_status": agent.override_status,
                "override_until": _moment_of(agent.override_until_s),
            }
        step = lifecycle(signal, status, incarnation, version, agent_id, **named)
        self.log(EventType.AGENT_LIFECYCLE, step, agent_id)
        self.agents[agent_id] = replace(
            kept,
            status=after,
            reason=reason_of(signal),
            incarnation=incarnation,
            version=version,
            health=HealthStatus.UNKNOWN if agent is None else agent.health,
        )
        if after not in ALIVE:
            reason = EndReason.AGENT_DEAD if after is Status.DEAD else EndReason.AGENT_DEREGISTERED
            for lease in [lease for lease in self.leases.values() if lease.is_held]:
                if lease.holder == agent_id:
                    self.end(lease, reason)

    def end(self, lease: LeaseState, reason: EndReason) -> None:
        payload = LeaseEnded(
            resource=lease.resource,
            lease_id=lease.lease_id or "",
            holder=lease.holder or "",
            fencing_token=lease.token,
            reason=reason,
        )
        self.log(EventType.LEASE_EXPIRED, payload, lease.holder)
        self.leases[lease.resource] = replace(lease, end_reason=reason)

    @precondition(lambda self: self.agents)
    @rule(data=st.data(), health=st.sampled_from(HealthStatus), until_s=st.none() | st.floats(0, 4e9))
    def change_an_agent(self, data: st.DataObject, health: HealthStatus, until_s: float | None) -> None:
        agent = data.draw(st.sampled_from(sorted(self.agents.values(), key=lambda agent: agent.agent_id)))
        until = None if until_s is None else moment(until_s)
        payload: Payload
        match data.draw(st.sampled_from(["health", "update", "maintenance", "override"])):
            case "health":
                payload = AgentHealthChanged(
                    agent_id=agent.agent_id, previous_health=agent.health, new_health=health
                )
                after = replace(agent, health=health)
            case "update":
                after = replace(agent, version=agent.version + 1)
                payload = AgentUpdated(
                    agent_id=agent.agent_id, incarnation=agent.incarnation, version=after.version, changed=[]
                )
            case "maintenance":
                payload = MaintenanceChanged(agent_id=agent.agent_id, until=until)
                after = replace(agent, maintenance_until_s=until_s)
            case _:
                status = None if until is None else Status.UNHEALTHY
                payload = StatusOverrideChanged(agent_id=agent.agent_id, status=status, until=until)
                after = replace(agent, override_status=status, override_until_s=until_s)
        self.log(TYPES[type(payload)], payload, agent.agent_id)
        self.agents[agent.agent_id] = after

    @rule(agent_id=AGENT_IDS, resource=RESOURCES)
    def acquire(self, agent_id: str, resource: str) -> None:
        agent, before = self.agents.get(agent_id), self.leases.get(resource)
        if agent is None or agent.status not in {Status.ACTIVE, Status.UNHEALTHY}:
            return
        if before is not None and before.is_held:
            self.end(before, EndReason.EXPIRED)
        token = 1 if before is None else before.token + 1
        lease = LeaseState(resource=resource, lease_id=f"l{token}", holder=agent_id, token=token)
        payload = acquired(
            token, f"l{token}", agent_id, resource=resource, holder_incarnation=agent.incarnation
        )
        self.log(EventType.LEASE_ACQUIRED, payload, agent_id)
        self.leases[resource] = lease

    @rule(agent_id=AGENT_IDS)
    def erase(self, agent_id: str) -> None:
        agent = self.agents.get(agent_id)
        if agent is None or agent.status in ALIVE:
            return
        del self.agents[agent_id]
        for lease in list(self.leases.values()):
            if lease.holder == agent_id:
                self.leases[lease.resource] = LeaseState(
                    resource=lease.resource, lease_id=None, holder=None, token=lease.token
                )
        self.events = [(None, erased(event)) if of == agent_id else (of, event) for of, event in self.events]
        payload = AgentErased(agent_id=agent_id, events=0)
        self.log(EventType.AGENT_ERASED, payload, None)

    @rule()
    def go_on_from_a_checkpoint(self) -> None:
        text = self.replay.to_json()
        self.replay = Replay.from_json(text)
        assert self.replay.to_json() == text

    @invariant()
    def the_log_leads_to_the_states_of_the_registry(self) -> None:
        agents, leases = self.agents.values(), self.leases.values()
        assert self.replay.differences(agents, leases) == []
        anew, checkpoint = Replay(), GENESIS
        for _, event in self.events:
            checkpoint = link(checkpoint, event)
            anew.apply(event)
        assert checkpoint == self.checkpoint
        assert anew.differences(agents, leases) == []


TestAnyHistory = HistoryMachine.TestCase


@given(
    st.sampled_from(Status),
    st.sampled_from(Reason),
    st.sampled_from(Status),
    st.sampled_from(
        [[REGISTERED], [REGISTERED, TIMED_OUT], [REGISTERED, TIMED_OUT, DIED], [REGISTERED, DRAINED]]
    ),
)
def test_transition_outside_the_lifecycle_table_is_not_replayed(
    previous: Status, reason: Reason, after: Status, before: list[Payload]
) -> None:
    replay = replayed(*before)
    is_known = any(
        (status, reason_of(signal), follows) == (previous, reason, after)
        for (status, signal), follows in TRANSITIONS.items()
    )
    is_expected = is_known and replay.agents["a"].status is previous
    is_new = reason in {Reason.RE_REGISTERED, Reason.PROBE_REDISCOVERED}
    step = AgentLifecycle(
        agent_id="a",
        previous_status=previous,
        new_status=after,
        reason=reason,
        timestamp=AT,
        incarnation=2 if is_new else 1,
        version=1 if is_new else len(before) + 1,
        explanation="",
    )
    if is_expected:
        replay.apply(event_of(replay, step))
        assert replay.agents["a"].status is after
    else:
        refusal(replay, step)
