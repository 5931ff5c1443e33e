from typing import Any

import pytest
from sqlalchemy import event, insert, select, update
from tests.support.databases import WoundClock
from tests.support.registry_api import RegistryApi

from lifesign.storage.agents import dashboard_table
from lifesign.storage.agents.dashboard_table import Order, TableFilter, place_of
from lifesign.storage.engine.table_definitions import agents, observed
from lifesign.storage.engine.transaction import Transaction

NAMES = {"b-1": "Anna's agent", "a-2": "50%_sure", "c-3": None, "a-4": "ANNABEL", "d-5": "Ben"}


@pytest.fixture
async def filled(api: RegistryApi, clock: WoundClock) -> RegistryApi:
    """Five agents, of whom one is dead; a-2 changed last."""
    for agent_id, name in NAMES.items():
        named = {} if name is None else {"name": name}
        await api.register(agent_id, role_id=agent_id[0], capabilities=["any", agent_id], **named)
        clock.advance(1)
    await api.ask("DELETE", "/api/v1/agents/a-2")
    return api


async def found(
    api: RegistryApi,
    wanted: dict[str, Any],
    order: Order = Order.OLDEST,
    *,
    is_common: bool = False,
    size: int = 10,
) -> list[str]:
    """All agents that match, read in pages of this size."""
    names: list[str] = []
    after = None
    while True:
        page = await api.database.read(
            lambda transaction, after=after: dashboard_table.listing(  # type: ignore[misc]
                transaction, TableFilter(**wanted), order, after=after, limit=size, is_common=is_common
            )
        )
        names += [agent.agent_id for agent in page]
        if len(page) < size:
            return names
        after = place_of(page[-1], order)


ORDERS = {
    Order.OLDEST: ["b-1", "a-2", "c-3", "a-4", "d-5"],
    Order.NEWEST: ["d-5", "a-4", "c-3", "a-2", "b-1"],
    Order.NAME: ["a-2", "a-4", "b-1", "c-3", "d-5"],
    Order.CHANGED: ["a-2", "d-5", "a-4", "c-3", "b-1"],
}


@pytest.mark.parametrize("size", [1, 2, 10])
async def test_every_order_continues_where_a_page_ended(filled: RegistryApi, size: int) -> None:
    for is_common in (False, True):
        pages = {order: await found(filled, {}, order, size=size, is_common=is_common) for order in ORDERS}
        assert pages == ORDERS


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"text": "ann"}, ["b-1", "a-4"]),
    ({"text": "A-"}, ["a-2", "a-4"]),
    ({"text": "%"}, ["a-2"]),
    ({"text": "0%_s"}, ["a-2"]),
    ({"text": "'"}, ["b-1"]),
    ({"text": "\\"}, []),
    ({"status": "deregistered"}, ["a-2"]),
    ({"status": "active", "role_id": "a"}, ["a-4"]),
    ({"role_id": "a"}, ["a-2", "a-4"]),
    ({"health": "unknown", "text": "e"}, ["b-1", "a-2", "a-4", "d-5"]),
    ({"health": "healthy"}, []),
    ({"capability": "any", "status": "active"}, ["b-1", "c-3", "a-4", "d-5"]),
    ({"capability": "c-3"}, ["c-3"]),
    ({"host": "nowhere.example"}, []),
]


async def test_dashboard_filters_give_the_same_agents_in_each_order_and_page_size(
    filled: RegistryApi,
) -> None:
    for wanted, expected in FILTERS:
        assert await found(filled, wanted) == expected, wanted
        assert await found(filled, wanted, size=1) == expected, wanted
        by_name = await found(filled, wanted, Order.NAME, is_common=True)
        assert by_name == sorted(expected), wanted
        assert sorted(await found(filled, wanted, Order.CHANGED, size=1)) == sorted(expected), wanted


async def test_sqlite_runs_one_like_query_for_a_part_of_a_name(
    filled: RegistryApi, database_kind: str
) -> None:
    if database_kind == "postgresql":
        pytest.skip(
            "NOT RUN on PostgreSQL, which finds those whose status changed last before it looks at all names"
        )
    looks: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        looks.extend(["LIKE"] if "LIKE" in statement else [])

    def look(transaction: Transaction) -> None:
        event.listen(transaction.connection, "before_cursor_execute", note)
        dashboard_table.listing(transaction, TableFilter(text="a"), Order.CHANGED, after=None, limit=5)

    await filled.database.read(look)
    assert looks == ["LIKE"]


async def test_agents_are_counted_by_status_and_health(filled: RegistryApi) -> None:
    counts = await filled.database.read(dashboard_table.counts)
    assert counts == {("active", "unknown"): 4, ("deregistered", "unknown"): 1}


async def test_targets_are_found_by_host_and_path(filled: RegistryApi) -> None:
    for agent_id, url in (("p-1", "https://probed.example/one"), ("p-2", "http://probed.example:8080/two")):
        await filled.register(agent_id, monitoring="probe", card_url=url)
    assert await found(filled, {"text": "Probed.Example"}) == ["p-1", "p-2"]
    assert await found(filled, {"text": "probed.example/one"}) == ["p-1"]
    assert await found(filled, {"text": "http://probed.example:8080"}) == ["p-2"]
    assert await found(filled, {"text": "probed.example", "status": "dead"}) == []
    assert await found(filled, {"text": "robed.example"}) == []
    assert await found(filled, {"text": "probed.example/%"}) == []


async def test_old_evidence_is_unknown_health_in_filters_and_counts(
    filled: RegistryApi, clock: WoundClock
) -> None:
    now_s = clock.now_s()
    # Until when the evidence and the health document count, and when it was measured.
    ends = {"b-1": (10.0, 10.0, -50.0), "c-3": (-10.0, -10.0, -900.0), "a-4": (10.0, -1.0, -50.0)}

    def store(transaction: Transaction) -> None:
        for agent_id, (until_s, health_until_s, at_s) in ends.items():
            named = agents.c.agent_id == agent_id
            transaction.connection.execute(update(agents).where(named).values(health="healthy"))
            values = {
                "agent": select(agents.c.id).where(named).scalar_subquery(), "facts": "{}",
                "evidence_at_s": now_s + at_s, "evidence_until_s": now_s + until_s,
                "results_until_s": now_s + until_s, "health_until_s": now_s + health_until_s,
            }  # fmt: skip
            transaction.connection.execute(insert(observed).values(values))

    await filled.database.write(store)
    assert await found(filled, {"health": "healthy"}) == ["b-1"]
    assert await found(filled, {"health": "unknown"}) == ["a-2", "c-3", "a-4", "d-5"]
    assert await found(filled, {"health": "unknown", "status": "active"}, Order.NAME, is_common=True) == [
        "a-4", "c-3", "d-5",
    ]  # fmt: skip
    assert await found(filled, {"max_evidence_age_s": 60.0}) == ["b-1", "a-4"]
    assert await found(filled, {"max_evidence_age_s": 1000.0}) == ["b-1", "c-3", "a-4"]
    counts = await filled.database.read(dashboard_table.counts)
    assert counts["active", "healthy"] == 1
    assert counts["active", "unknown"] == 3
