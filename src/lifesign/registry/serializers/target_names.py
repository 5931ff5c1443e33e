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
    """Return URLs of targets for callers that may read all events; otherwise nothing."""
    return places_in(transaction, events) if may(caller, Permission.READ_EVENTS) else {}


def places_in(transaction: Transaction, events: Iterable[Event]) -> dict[str, str]:
    """Return the URLs of targets whose ids do not show them."""
    ids = {agent_id for event in events if (agent_id := agent_of(event)) and not has_readable_id(agent_id)}
    found = agent_rows.names_of(transaction, sorted(ids)) if ids else []
    return {agent_id: display_name(agent_id, name, target_url) for agent_id, name, target_url in found}
