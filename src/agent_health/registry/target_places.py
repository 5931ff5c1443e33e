"""Where are the targets of which events tell?"""

from collections.abc import Iterable

from agent_health.access import Action, Principal, may
from agent_health.agent_naming import called, has_speaking_id
from agent_health.event_chain import Event, whose
from agent_health.storage import agents
from agent_health.storage.database import Transaction


def places_told(transaction: Transaction, caller: Principal, events: Iterable[Event]) -> dict[str, str]:
    """Return what targets are called to who may read all events; else nothing."""
    return places_in(transaction, events) if may(caller, Action.READ_EVENTS) else {}


def places_in(transaction: Transaction, events: Iterable[Event]) -> dict[str, str]:
    """Return what those are called whose ids tell nobody who they are, by their ids."""
    ids = {agent_id for event in events if (agent_id := whose(event)) and not has_speaking_id(agent_id)}
    found = agents.names_of(transaction, sorted(ids)) if ids else []
    return {agent_id: called(agent_id, name, target_url) for agent_id, name, target_url in found}
