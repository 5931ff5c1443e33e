from typing import Any

import pytest
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role

LEASES = "/api/v1/leases"


async def _some(api: RegistryApi) -> tuple[str, str]:
    keys = [str((await api.register(f"agent-{number}"))["agent_key"]) for number in (1, 2)]
    for number in range(4):
        body = {"resource": f"task:{number}", "ttl_seconds": 10 * (number + 1)}
        assert (await api.ask("POST", LEASES, body, key=keys[number % 2])).status == 201
    return keys[0], keys[1]


async def _list(api: RegistryApi, query: str = "", key: str | Role = Role.READER) -> dict[str, Any]:
    answer = await api.ask("GET", f"{LEASES}?{query}", key=key)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def _resources(listed: dict[str, Any]) -> list[str]:
    return [lease["resource"] for lease in listed["leases"]]


async def test_running_leases_are_found_by_resource_and_holder(api: RegistryApi) -> None:
    await _some(api)
    assert _resources(await _list(api)) == ["task:0", "task:1", "task:2", "task:3"]
    assert _resources(await _list(api, "holder=agent-2")) == ["task:1", "task:3"]
    assert _resources(await _list(api, "resource=task:2")) == ["task:2"]
    assert await _list(api, "resource=task:2&holder=agent-2") == {"leases": [], "total": 0}


async def test_ended_leases_are_listed_on_request(api: RegistryApi) -> None:
    first, _ = await _some(api)
    (lease,) = (await _list(api, "resource=task:2"))["leases"]
    await api.ask("DELETE", f"{LEASES}/{lease['lease_id']}", key=first)
    api.clock.advance(20)
    assert _resources(await _list(api)) == ["task:3"]
    everything = (await _list(api, "include_ended=true"))["leases"]
    assert [(lease.get("end_reason"), lease.get("ended_at")) for lease in everything] == [
        ("expired", "2025-11-20T12:00:10.000Z"),
        ("expired", "2025-11-20T12:00:20.000Z"),
        ("released", "2025-11-20T12:00:00.000Z"),
        (None, None),
    ]


async def test_pages_follow_each_other_without_gap(api: RegistryApi) -> None:
    await _some(api)
    first = await _list(api, "limit=2")
    last = await _list(api, f"limit=2&cursor={first['cursor']}")
    assert (_resources(first), first["total"]) == (["task:0", "task:1"], 4)
    assert (_resources(last), last["total"]) == (["task:2", "task:3"], 4)
    assert "cursor" not in last


async def test_agent_key_lists_only_its_own_leases(api: RegistryApi) -> None:
    first, _ = await _some(api)
    assert _resources(await _list(api, key=first)) == ["task:0", "task:2"]
    assert (await api.ask("GET", f"{LEASES}?holder=agent-2", key=first)).status == 403
    assert (await api.ask("GET", LEASES, key=Role.ENROLL)).status == 403


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "cursor=x",
        "cursor=-1",
        "cursor=999999999999999999",
        "resource=",
        "resource=a/../b",
        "intent_id=.",
        "intent_id=..",
        "holder=%00",
        "unknown=1",
        "limit=1&limit=2",
    ],
)
async def test_contradictory_query_is_refused(api: RegistryApi, query: str) -> None:
    assert (await api.ask("GET", f"{LEASES}?{query}")).status == 422
