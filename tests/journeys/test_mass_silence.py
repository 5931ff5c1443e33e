"""A fleet of which one half falls silent at once."""

import asyncio

import pytest
from tests.support.databases import WoundClock
from tests.support.fleet import add_agents, count_by_status
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.storage.engine.transaction import Database

FLEET = 100
SILENT = FLEET // 2
RETURNING = SILENT // 2
"""So many silent agents answer again during the suspension."""
BEAT_S = 60


class Fleet:
    """Hundreds of agents, some of which send heartbeats."""

    def __init__(self, api: RegistryApi, names: list[str]) -> None:
        self.api = api
        self.names = names

    async def live(self, seconds: int, beating: list[str]) -> None:
        """Let time pass, with a sweep every 10 s and a heartbeat every minute."""
        key = self.api.keys[Role.ADMIN]
        for second in range(0, seconds, 10):
            if second % BEAT_S == 0:
                answers = await asyncio.gather(*(self.api.send_heartbeat(name, key) for name in beating))
                assert {answer.status for answer in answers} == {200}
            self.api.clock.advance(10)
            await self.api.registry.sweeper.sweep_once()

    async def state(self) -> str:
        answer = await self.api.ask("GET", "/api/v1/monitor", key=Role.READER)
        return str(answer.json()["state"])

    async def turns(self) -> list[tuple[str, str]]:
        types = "monitor.suspended,monitor.resuming,monitor.normal,monitor.downtime,monitor.clock_jump"
        events = await self.api.events(type=types)
        return [(event["type"], event["payload"]["cause"]) for event in events]


@pytest.fixture
async def fleet(database: Database, clock: WoundClock) -> Fleet:
    api = RegistryApi(database, clock, sweep_seconds=10)
    await api.add_keys()
    return Fleet(api, await add_agents(database, FLEET))


async def test_silence_of_half_a_fleet_is_suspended_and_dead_agents_are_found_later(
    fleet: Fleet,
) -> None:
    steady, returning = fleet.names[SILENT:], fleet.names[:RETURNING]
    await fleet.live(120, steady)
    assert await fleet.state() == "suspended"
    assert await count_by_status(fleet.api.database) == {"active": FLEET}
    await fleet.live(780, [*steady, *returning])
    assert await fleet.state() == "suspended"
    assert await count_by_status(fleet.api.database) == {"active": FLEET}
    await fleet.live(600, [*steady, *returning])
    dead = SILENT - RETURNING
    assert await count_by_status(fleet.api.database) == {"active": FLEET - dead, "dead": dead}
    assert await fleet.state() == "normal"
    assert await fleet.turns() == [
        ("monitor.suspended", "mass_exit"),
        ("monitor.resuming", "max_suspension"),
        ("monitor.normal", "cohort_passed"),
    ]
    gone = set(fleet.names[RETURNING:SILENT])
    steps = await fleet.api.events(type="agent.lifecycle")
    assert len(steps) == 2 * dead
    assert {event["payload"]["agent_id"] for event in steps} == gone, "an agent that returned has an event"


async def test_suspension_of_mass_silence_ends_when_agents_answer_again(fleet: Fleet) -> None:
    await fleet.live(120, fleet.names[SILENT:])
    assert await fleet.state() == "suspended"
    await fleet.live(300, fleet.names)
    assert await fleet.state() in {"resuming", "normal"}
    assert (await fleet.turns())[:2] == [
        ("monitor.suspended", "mass_exit"),
        ("monitor.resuming", "mass_exit_over"),
    ]
    assert await count_by_status(fleet.api.database) == {"active": FLEET}
    assert await fleet.api.events(type="agent.lifecycle") == []
