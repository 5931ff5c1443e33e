"""Targets as CSV, for any number of them."""

import csv
from collections.abc import AsyncIterable
from typing import Final, TextIO

from lifesign.census.result_groups import Group, group_of
from lifesign.census.text_formats import cell
from lifesign.domain.models.targets import TargetList, TargetSummary
from lifesign.domain.text.times import utc_text

HEADS: Final = ("url", "is", "result", "reported_health", "result_since", "observed_at", "why")
"""Columns, named as in `GET /api/v1/targets`; `is` follows from the result."""


def alive_group(target: TargetSummary, *, is_continuous: bool) -> Group:
    """Return whether a target is alive, not alive or unknown.

    `is_continuous`: the target is probed continuously, so that a result which is too old no longer counts.
    """
    is_old = is_continuous and target.unknown_reason is not None
    return Group.UNKNOWN if is_old else group_of(target.result)


async def write_targets(stream: TextIO, pages: AsyncIterable[TargetList], *, is_continuous: bool) -> None:
    """Write one target per row, each page before the next one is requested (RFC 4180)."""
    writer = csv.writer(stream)
    writer.writerow(HEADS)
    async for page in pages:
        writer.writerows(_row(target, is_continuous=is_continuous) for target in page.targets)


def _row(target: TargetSummary, *, is_continuous: bool) -> tuple[str, ...]:
    times = (target.result_since, target.observed_at)
    return (
        cell(target.url),
        alive_group(target, is_continuous=is_continuous),
        Group.NEVER_PROBED if target.result is None else target.result,
        target.reported_health or "",
        *("" if at is None else utc_text(at, "seconds") for at in times),
        cell(target.why or ""),
    )
