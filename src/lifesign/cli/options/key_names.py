"""Names of the keys and targets in a stream of events."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lifesign.domain.access.event_actor import keys_acting

if TYPE_CHECKING:
    from lifesign.client import RegistryClient
    from lifesign.client.registry_events import LoggedEvent

MAX_KEYS = 1_000
"""Maximum number of cached names. Above it, all are requested again."""
AHEAD = 100
"""Number of following events whose names are requested too: several events often arrive together."""


class KeyNames:
    """Requests the names of keys and targets that events mention, each at most once."""

    def __init__(self, client: "RegistryClient") -> None:
        self._client = client
        self._known: dict[str, str] = {}
        self._asked: set[str] = set()

    async def of(self, event: "LoggedEvent") -> Mapping[str, str]:
        """Return all names known so far, after a request for those that this event needs."""
        from lifesign.client.registry_errors import RegistryError  # noqa: PLC0415 - it is loaded by now

        acting = _nameless_in(event)
        if acting <= self._asked:
            return self._known
        if len(self._asked) >= MAX_KEYS:
            self._known, self._asked = {}, set()
        try:
            page = await self._client.events.list(after=event.sequence - 1, limit=AHEAD)
        except RegistryError:
            return self._known
        self._known |= page.names
        self._asked |= acting.union(*map(_nameless_in, page.events))
        return self._known


def _nameless_in(event: "LoggedEvent") -> set[str]:
    """Return the keys that act in an event, and its agent if the id is no name for people."""
    from lifesign.domain.targets.display_name import has_readable_id  # noqa: PLC0415 - `--help` need not load it

    found = set(keys_acting(event.actor, event.payload))
    agent_id = event.payload.get("agent_id")
    if isinstance(agent_id, str) and not has_readable_id(agent_id):
        found.add(agent_id)
    return found
