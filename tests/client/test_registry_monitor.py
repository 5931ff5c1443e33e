"""Does the registry trust its own eyes? Asked from outside."""

import pytest
from tests.support.registry_server import KEYS, RegistryServer

from agent_health.access import Role
from agent_health.client import RegistryClient
from agent_health.client.registry_errors import NotPermitted
from agent_health.monitor_health import MonitorState


async def test_the_monitor_tells_its_state(client: RegistryClient, registry: RegistryServer) -> None:
    seen = await client.monitor.get()
    assert (seen.state, seen.held_because, seen.illnesses) == (MonitorState.NORMAL, None, [])
    assert seen.limit >= 20
    assert (await client.monitor.release()).state is MonitorState.NORMAL
    async with RegistryClient(registry.url, key=KEYS[Role.READER]) as reader:
        assert (await reader.monitor.get()).state is MonitorState.NORMAL
        with pytest.raises(NotPermitted):
            await reader.monitor.release()
