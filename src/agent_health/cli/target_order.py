"""In which order are targets told?

By host, then by URL, as people look for them. A registry has them in the order of its shards: a list that is
too long to be held here is told in that one, which stays the same from page to page and from day to day.
"""

from collections.abc import AsyncIterator
from typing import Final, Unpack

from agent_health.client.registry_targets import PagedTargets, TargetQuery, all_pages
from agent_health.target import host_of
from agent_health.target_record import TargetList, TargetSummary

MAX_SORTED: Final = 20_000
"""Targets; some kilobytes each."""


async def pages_in_order(
    source: PagedTargets, *, page: int = 1000, **wanted: Unpack[TargetQuery]
) -> AsyncIterator[TargetList]:
    """Yield all that match: up to MAX_SORTED as one page by host and URL, more in pages as they come."""
    held: list[TargetSummary] = []
    total, is_short = 0, True
    async for found in all_pages(source, page=page, **wanted):
        total = total or found.total
        held += found.targets
        is_short = is_short and max(total, len(held)) <= MAX_SORTED
        if not is_short:
            yield TargetList(targets=held, total=total)
            held = []
    if is_short:
        yield TargetList(targets=sorted(held, key=_place), total=total)


def _place(target: TargetSummary) -> tuple[str, str]:
    return host_of(target.url), target.url
