"""Events that a test replays, and the replay of them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from lifesign.domain.errors import ImpossibleEvent
from lifesign.domain.events.agent_payloads import AgentLifecycle
from lifesign.domain.events.chain import GENESIS, Event, chain
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import PAYLOADS, EventType
from lifesign.domain.events.payload_fields import Payload
from lifesign.domain.events.replay import Replay
from lifesign.domain.events.replayed_states import AgentState
from lifesign.domain.lifecycle.status_table import TRANSITIONS, Reason, Signal, Status, reason_of

AT = datetime(2027, 1, 15, 8, tzinfo=UTC)
AT_S = AT.timestamp()
# One type for each payload; of those that share one, the last.
TYPES = {model: event_type for event_type, model in PAYLOADS.items()}


def event_of(replay: Replay, payload: Payload, event_type: EventType | None = None) -> Event:
    """Return the next event for a replay; its hashes are not part of a chain."""
    draft = EventDraft(type=event_type or TYPES[type(payload)], actor="test", payload=payload)
    return chain(replace(GENESIS, sequence=replay.sequence), "event_1", draft, AT_S)


def replayed(*payloads: Payload) -> Replay:
    """Return a replay of these events."""
    replay = Replay()
    for payload in payloads:
        replay.apply(event_of(replay, payload))
    return replay


def refusal(replay: Replay, payload: Payload) -> str:
    """Apply what must be refused, see that it changed nothing, and return why."""
    before = replay.to_json()
    event = event_of(replay, payload)
    with pytest.raises(ImpossibleEvent) as caught:
        replay.apply(event)
    assert replay.to_json() == before
    assert caught.value.sequence == event.sequence
    return caught.value.what


def lifecycle(
    signal: Signal, previous: Status, incarnation: int, version: int, agent_id: str = "a", **other: Any
) -> AgentLifecycle:
    """Return the payload of a transition of an agent."""
    members = {
        "agent_id": agent_id,
        "previous_status": previous,
        "new_status": TRANSITIONS.get((previous, signal), Status.ACTIVE),
        "reason": reason_of(signal),
        "timestamp": AT,
        "incarnation": incarnation,
        "version": version,
        "explanation": "",
    }
    return AgentLifecycle.model_validate(members | other)


REGISTERED = lifecycle(Signal.REGISTERED, Status.REGISTERING, 1, 1)
TIMED_OUT = lifecycle(Signal.HEARTBEAT_TIMEOUT, Status.ACTIVE, 1, 2)
DIED = lifecycle(Signal.HEARTBEAT_TIMEOUT, Status.UNHEALTHY, 1, 3)
A = AgentState(agent_id="a", status=Status.ACTIVE, reason=Reason.REGISTERED, incarnation=1, version=1)
