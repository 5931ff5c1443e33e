import gc

import pytest
from tests.support.databases import WoundClock
from tests.support.registry_api import RegistryApi

from lifesign.domain.events.event_type import EventType
from lifesign.storage.events import event_log

MOST_LEFT = 1_000
"""Objects left by five such queries; a statement built each time left 30,000."""


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["key.created", "agent.lifecycle", "key.created", "agent.lifecycle"]),
        ({"types": ["agent.lifecycle"]}, ["agent.lifecycle"] * 2),
        ({"types": ["agent.lifecycle", "task.created"]}, ["agent.lifecycle"] * 2),
        (
            {"types": ["agent.lifecycle", "key.created"], "limit": 3},
            ["key.created", "agent.lifecycle", "key.created"],
        ),
        ({"agent_id": "agent-1"}, ["key.created", "agent.lifecycle"]),
        ({"agent_id": "agent-1", "types": ["key.created", "agent.updated"]}, ["key.created"]),
        ({"before": 3}, ["key.created", "agent.lifecycle"]),
        ({"before": 3, "types": ["key.created", "task.created"]}, ["key.created"]),
        ({"before": 1}, []),
    ],
)
async def test_latest_events_come_first(
    api: RegistryApi, clock: WoundClock, wanted: dict[str, object], found: list[str]
) -> None:
    for number in (1, 2):
        await api.register(f"agent-{number}")
        clock.advance(1)
    asked = {"limit": 10, **wanted}
    latest = await api.database.read(
        lambda transaction: event_log.latest(transaction, **asked)  # type: ignore[arg-type]
    )
    assert sorted(event.type for event in latest) == sorted(found)
    sequences = [event.sequence for event in latest]
    assert sequences == sorted(sequences, reverse=True)


async def test_repeated_query_for_several_types_creates_few_cyclic_objects(
    api: RegistryApi,
) -> None:
    types = [kind.value for kind in EventType]

    async def ask() -> None:
        await api.database.read(lambda transaction: event_log.latest(transaction, limit=15, types=types))

    await ask()
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            await ask()
        assert gc.collect() < MOST_LEFT
    finally:
        gc.enable()
