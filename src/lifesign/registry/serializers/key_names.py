"""Names of the keys in events, and the callers that may see them."""

from collections.abc import Iterable

from lifesign.domain.access.event_actor import KEY_ACTOR_PREFIX, key_behind, keys_acting
from lifesign.domain.access.permissions import Permission, Principal, may
from lifesign.domain.events.chain import Event
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys import key_rows


def visible_key_names(
    transaction: Transaction, caller: Principal, actors: Iterable[str | None]
) -> dict[str, str]:
    """Return names of keys for callers that may read all events; otherwise nothing."""
    return names_of_keys(transaction, actors) if may(caller, Permission.READ_EVENTS) else {}


def names_of_keys(transaction: Transaction, actors: Iterable[str | None]) -> dict[str, str]:
    """Return the names of the keys among `actors`, by their actor names: `key:` and their ids."""
    acting = {key for actor in actors if actor is not None and (key := key_behind(actor)) is not None}
    names = key_rows.names_of(transaction, {key.removeprefix(KEY_ACTOR_PREFIX) for key in acting})
    return {f"{KEY_ACTOR_PREFIX}{key_id}": name for key_id, name in names.items()}


def keys_in(events: Iterable[Event]) -> set[str]:
    """Return the holder names of keys that some events contain."""
    return {key for event in events for key in keys_acting(event.actor, event.payload)}
