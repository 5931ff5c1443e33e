"""How are targets written as CSV, a million of them too?"""

import csv
from collections.abc import AsyncIterable
from typing import Final, TextIO

from agent_health.cli.agent_page import time_text
from agent_health.prober.census_group import Group, life_of
from agent_health.prober.census_text import cell
from agent_health.target_record import TargetList, TargetSummary

HEADS: Final = ("url", "is", "result", "result_since", "observed_at", "why")
"""As `GET /api/v1/targets` calls them; `is` follows from the result."""


async def write_targets(stream: TextIO, pages: AsyncIterable[TargetList]) -> None:
    """Write one target per row as they come, each page before the next is asked for (RFC 4180)."""
    writer = csv.writer(stream)
    writer.writerow(HEADS)
    async for page in pages:
        writer.writerows(map(_row, page.targets))


def _row(target: TargetSummary) -> tuple[str, ...]:
    times = (target.result_since, target.observed_at)
    return (
        cell(target.url),
        life_of(target.result),
        Group.NEVER_MEASURED if target.result is None else target.result,
        *("" if at is None else time_text(at) for at in times),
        cell(target.why or ""),
    )
