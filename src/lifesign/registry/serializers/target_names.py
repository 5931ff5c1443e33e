"""URLs of the targets in events."""

from collections.abc import Iterable

from lifesign.domain.access.permissions import Permission, Principal, may
from lifesign.domain.events.chain import Event, agent_of
from lifesign.domain.targets.display_name import display_name, has_readable_id
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.transaction import Transaction


def visible_target_names(
    transaction: Transaction, caller: Principal, events: Iterable[Event]
) -> dict[str, str]:
    """Return the names of targets in events, if the caller may read all events; otherwise nothing."""
    return names_of_targets(transaction, events) if may(caller, Permission.READ_EVENTS) else {}


def names_of_targets(transaction: Transaction, events: Iterable[Event]) -> dict[str, str]:
    """Return the names of the targets in events whose ids are not readable, by these ids."""
    ids = {agent_id for event in events if (agent_id := agent_of(event)) and not has_readable_id(agent_id)}
    found = agent_rows.names_of(transaction, sorted(ids)) if ids else []
    return {agent_id: display_name(agent_id, name, target_url) for agent_id, name, target_url in found}
