"""Does the registry trust its own eyes? Asked from outside."""

import pytest
from tests.support.registry_server import KEYS, RegistryServer

from agent_health.access import Role
from agent_health.client import RegistryClient
from agent_health.client.registry_errors import NotPermitted
from agent_health.errors import InvalidSetting
from agent_health.monitor_health import MAX_WHY_CHARACTERS, MonitorState


async def test_the_monitor_tells_its_state(client: RegistryClient, registry: RegistryServer) -> None:
    seen = await client.monitor.get()
    assert (seen.state, seen.held_because, seen.illnesses) == (MonitorState.NORMAL, None, [])
    assert seen.limit >= 20
    assert (await client.monitor.release()).state is MonitorState.NORMAL
    async with RegistryClient(registry.url, key=KEYS[Role.READER]) as reader:
        assert (await reader.monitor.get()).state is MonitorState.NORMAL
        with pytest.raises(NotPermitted):
            await reader.monitor.release()


async def test_a_prober_calls_itself_ill_and_well_again(registry: RegistryServer) -> None:
    async with RegistryClient(registry.url, key=KEYS[Role.PROBER]) as prober:
        await prober.monitor.report_illness("a", why="no names")
        ill = await prober.monitor.report_illness(why="no network", seconds=30)
        assert {(illness.prober, illness.why) for illness in ill.illnesses} == {
            ("key:key_prober/a", "no names"),
            ("key:key_prober", "no network"),
        }
        await prober.monitor.report_wellness("a")
        assert [said.prober for said in (await prober.monitor.report_wellness("b")).illnesses] == [
            "key:key_prober"
        ]
        with pytest.raises(InvalidSetting, match="why"):
            await prober.monitor.report_illness(why="x" * (MAX_WHY_CHARACTERS + 1))
