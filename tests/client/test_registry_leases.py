from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.hostile_server import as_json, serving
from tests.support.registry_server import RegistryServer

from lifesign import boot_clock
from lifesign.client import RegistryClient
from lifesign.client.registry_errors import Conflict, Gone, NotFound, Stale, Unprocessable
from lifesign.errors import InvalidValue


@pytest.fixture
async def holder(client: RegistryClient, registry: RegistryServer) -> AsyncIterator[RegistryClient]:
    """A client with the key of the agent `holder`."""
    key = (await client.agents.register("holder")).agent_key
    async with RegistryClient(registry.url, key=key) as own:
        yield own


async def test_lease_is_acquired_renewed_and_released(holder: RegistryClient, client: RegistryClient) -> None:
    taken = await holder.leases.acquire("task:1", ttl_seconds=60)
    assert (taken.resource, taken.holder) == ("task:1", "holder")
    with pytest.raises(Conflict) as conflict:
        await holder.leases.acquire("task:1")
    assert conflict.value.existing_lease is not None
    assert conflict.value.existing_lease["lease_id"] == taken.lease_id

    renewed = await holder.leases.renew(taken.lease_id, fencing_token=taken.fencing_token, ttl_seconds=120)
    assert (renewed.fencing_token, renewed.lease_id) == (taken.fencing_token, taken.lease_id)
    assert renewed.expires_at > taken.expires_at
    listed = await client.leases.list(holder="holder")
    assert [lease.resource for lease in listed.leases] == ["task:1"]

    await holder.leases.release(taken.lease_id)
    await holder.leases.release(taken.lease_id)
    assert (await client.leases.list(resource="task:1")).leases == []
    ended = await client.leases.list(resource="task:1", include_ended=True)
    assert [lease.end_reason for lease in ended.leases] == ["released"]
    with pytest.raises(Stale):
        await holder.leases.renew(taken.lease_id, fencing_token=taken.fencing_token)
    assert (await holder.leases.acquire("task:1")).fencing_token > taken.fencing_token


async def test_lease_deadline_counts_from_the_time_of_the_request(holder: RegistryClient) -> None:
    before_s = boot_clock.now_s()
    lease = await holder.leases.acquire("task:1", ttl_seconds=60)
    assert before_s + 60 <= lease.deadline_s <= boot_clock.now_s() + 60


async def test_leases_are_listed_a_page_at_a_time(holder: RegistryClient) -> None:
    for number in range(3):
        await holder.leases.acquire(f"task:{number}")
    first = await holder.leases.list(limit=2)
    second = await holder.leases.list(limit=2, cursor=first.cursor)
    assert [lease.resource for lease in first.leases + second.leases] == ["task:0", "task:1", "task:2"]
    assert (first.total, second.cursor) == (3, None)


async def test_former_incarnation_gets_no_lease(holder: RegistryClient) -> None:
    with pytest.raises(Gone):
        await holder.leases.acquire("task:1", incarnation=7)
    lease = await holder.leases.acquire("task:1", incarnation=1)
    with pytest.raises(Gone):
        await holder.leases.renew(lease.lease_id, fencing_token=lease.fencing_token, incarnation=7)
    with pytest.raises(Gone):
        await holder.leases.release(lease.lease_id, incarnation=7)


@pytest.mark.parametrize("ttl_seconds", [0, 0.5, 86_401, float("nan"), float("inf")])
async def test_lease_duration_out_of_range_is_not_requested(ttl_seconds: float) -> None:
    async with serving({}) as server, RegistryClient(server.url) as client:
        with pytest.raises(InvalidValue, match="ttl_seconds"):
            await client.leases.acquire("task:1", ttl_seconds=ttl_seconds)
    assert server.heads == []


async def test_a_name_that_is_no_resource_is_refused(holder: RegistryClient) -> None:
    with pytest.raises(Unprocessable):
        await holder.leases.acquire("shard:none")


async def test_only_the_holder_of_a_scope_writes_its_state(
    holder: RegistryClient, client: RegistryClient
) -> None:
    with pytest.raises(NotFound):
        await client.states.read("i", "a/b")
    lease = await holder.leases.acquire("intent:i/a/b")
    written = await holder.states.write("i", "a/b", {"step": 1}, fencing_token=lease.fencing_token)
    assert (written.version, written.resource, written.holder) == (1, "intent:i/a/b", "holder")
    assert (await client.states.read("i", "a/b")).state == {"step": 1}
    with pytest.raises(Stale):
        await holder.states.write("i", "a/b", {"step": 2}, fencing_token=lease.fencing_token + 1)
    assert (await client.states.read("i", "a/b")).state == {"step": 1}


@pytest.mark.parametrize("state", [{"x": float("nan")}, {"x": object()}])
async def test_a_state_that_is_not_json_is_not_sent(state: dict[str, Any]) -> None:
    async with serving({"/": as_json({})}) as server, RegistryClient(server.url) as client:
        with pytest.raises(InvalidValue, match="state"):
            await client.states.write("i", "s", state, fencing_token=1)
    assert server.heads == []
