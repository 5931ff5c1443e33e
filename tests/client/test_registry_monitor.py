"""The monitor of a registry, from outside."""

import pytest
from tests.support.registry_server import KEYS, RegistryServer

from lifesign.client import RegistryClient
from lifesign.client.registry_errors import NotFound, NotPermitted
from lifesign.domain.access.permissions import Role
from lifesign.domain.lifecycle.verdict_suspension import MonitorState, Track


async def test_monitor_returns_its_state(client: RegistryClient, registry: RegistryServer) -> None:
    seen = await client.monitor.get()
    assert seen.state is MonitorState.NORMAL
    assert {track.limit for track in seen.tracks.values()} == {20}
    for track in (None, *Track):
        assert (await client.monitor.release(track)).state is MonitorState.NORMAL
    async with RegistryClient(registry.url, key=KEYS[Role.READER]) as reader:
        assert (await reader.monitor.get()).state is MonitorState.NORMAL
        with pytest.raises(NotPermitted):
            await reader.monitor.release()


async def test_an_agent_is_confirmed_by_an_admin(client: RegistryClient, registry: RegistryServer) -> None:
    card = "https://agent.example/.well-known/agent-card.json"
    await client.agents.register("a", monitoring="probe", card_url=card)
    confirmed = await client.monitor.confirm_agent("a")
    assert (confirmed.agent_id, confirmed.network_class) == ("a", None)
    with pytest.raises(NotFound):
        await client.monitor.confirm_class("public_ipv4")
    async with RegistryClient(registry.url, key=KEYS[Role.COORDINATOR]) as coordinator:
        with pytest.raises(NotPermitted):
            await coordinator.monitor.confirm_agent("a")
