"""Directory format of a lifesign registry.

`GET /api/v1/agents?limit=&cursor=` answers `{"agents": […], "total", "cursor"}` and needs a key that may list
agents. If an agent has both a card and an endpoint, the card is used: it contains more. A target that the
registry's own probers found is listed by its original URL, since the URL of its card may change. An agent
that was last probed as an MCP server has the `kind` `mcp`.
"""

from collections.abc import Iterator
from typing import Any, Final

from lifesign.domain.targets.target import TargetKind
from lifesign.prober.directories.format_parser import (
    DirectoryPage,
    Document,
    Entry,
    Kind,
    Listed,
    NotReadable,
    Skipped,
    count_in,
    first_text,
    is_object,
    most_fit,
    page_after,
)

PAGE_ITEMS: Final = 1_000
"""The largest page that the registry returns."""
_STATUSES: Final = "active,unhealthy,draining,dead"
"""Statuses to probe: dead agents may return; deregistered agents have left."""
_CARD_URLS: Final = ("target_url", "card_url")
_URLS: Final = (*_CARD_URLS, "endpoint")


class OurRegistry:
    """Format of another lifesign registry's list of agents."""

    name = "lifesign"
    place = f"/api/v1/agents?limit={PAGE_ITEMS}&status={_STATUSES}"

    def recognises(self, document: Document) -> bool:
        """Return whether a document is a list of agents with `agent_id`, or an empty list of this format."""
        value = document.value
        if not is_object(value) or not isinstance(agents := value.get("agents"), list):
            return False
        if agents:
            return most_fit(agents, lambda agent: is_object(agent) and {"agent_id", "status"} <= agent.keys())
        return value.keys() <= {"agents", "total", "cursor"} and value.get("total") == 0

    def read(self, document: Document) -> DirectoryPage:
        """Return the entries of one page, and where the next page begins."""
        value = document.value
        if not is_object(value) or not isinstance(agents := value.get("agents"), list):
            raise NotReadable("expected an object with `agents`")
        return DirectoryPage(
            entries=_entries(agents),
            items=len(agents),
            total=count_in(value, "total"),
            next_page=page_after(value.get("cursor"), "cursor"),
        )


def _entries(agents: list[Any]) -> Iterator[Entry]:
    for agent in agents:
        if not is_object(agent):
            yield Skipped("", "unreadable")
            continue
        name = first_text(agent, ("name", "agent_id"))
        if agent.get("kind") == TargetKind.MCP and (url := first_text(agent, _URLS)):
            yield Listed(url, name, Kind.MCP)
        elif card_url := first_text(agent, _CARD_URLS):
            yield Listed(card_url, name, Kind.A2A_CARD)
        elif endpoint := first_text(agent, ("endpoint",)):
            yield Listed(endpoint, name, Kind.A2A_ENDPOINT)
        else:
            yield Skipped(name or "", "no_url")
