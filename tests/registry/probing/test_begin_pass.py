import asyncio
from datetime import datetime
from typing import Any

import pytest
from tests.support.databases import WoundClock
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.registry.probing.begin_pass import RESUMED_SECONDS, may_resume


async def begin(api: RegistryApi, run_id: str, name: str = "weekly", **members: Any) -> str:
    """Begin a pass; return the id of the one that is under way then."""
    path = f"/api/v1/census/runs/{run_id}"
    answer = await api.ask("PUT", path, {"name": name, **members}, key=Role.PROBER)
    assert answer.status == 200, answer.body
    assert datetime.fromisoformat(answer.json()["began_at"]).timestamp() <= api.clock.at_s
    return str(answer.json()["run_id"])


@pytest.mark.both_databases
async def test_simultaneously_started_passes_are_merged(api: RegistryApi) -> None:
    begun = await asyncio.gather(*(begin(api, f"run-{number}") for number in range(8)))
    assert len(set(begun)) == 1
    # Told again, as after an answer that was lost.
    assert await begin(api, begun[0]) == begun[0]


async def test_finished_old_or_other_pass_is_not_joined(api: RegistryApi, clock: WoundClock) -> None:
    assert await begin(api, "one") == "one"
    assert await begin(api, "other", "daily") == "other"
    assert await begin(api, "one", is_over=True) == "one"
    assert await begin(api, "two") == "two"
    clock.advance(RESUMED_SECONDS)
    assert await begin(api, "three") == "two"
    clock.advance(1)
    assert await begin(api, "four") == "four"


def test_pass_that_begins_in_the_future_is_not_continued() -> None:
    assert may_resume(1_000.0, None, 1_000.0)
    assert not may_resume(1_000.0 + 3_600.0, None, 1_000.0)


async def test_late_report_of_an_ended_pass_ends_no_other(api: RegistryApi) -> None:
    assert await begin(api, "one") == "one"
    assert await begin(api, "late", is_over=True) == "late"
    assert await begin(api, "two") == "one"
