"""What are the keys called that act in events which come one by one?"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_health.actor import keys_acting

if TYPE_CHECKING:
    from agent_health.client import RegistryClient
    from agent_health.client.registry_events import LoggedEvent

MAX_KEYS = 1_000
"""Whose names are kept; once there are more, all are asked for again."""


class KeyNames:
    """Asks the list of events for what a stream does not tell, once for each key."""

    def __init__(self, client: "RegistryClient") -> None:
        self._client = client
        self._known: dict[str, str] = {}
        self._asked: set[str] = set()

    async def of(self, event: "LoggedEvent") -> Mapping[str, str]:
        """Return the names of keys that are known by now, those of an event too if they can be had."""
        from agent_health.client.registry_errors import RegistryError  # noqa: PLC0415 - it is loaded by now

        acting = keys_acting(event.actor, event.payload)
        if acting <= self._asked:
            return self._known
        if len(self._asked) >= MAX_KEYS:
            self._known, self._asked = {}, set()
        try:
            page = await self._client.events.list(after=event.sequence - 1, limit=1)
        except RegistryError:
            return self._known
        self._known |= page.names
        self._asked |= acting
        return self._known
