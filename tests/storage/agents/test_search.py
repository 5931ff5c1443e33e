from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any, NamedTuple

import pytest
from sqlalchemy import update
from tests.support.fleet import add_agents

from lifesign.storage.agents import search
from lifesign.storage.agents.agent_rows import set_maintenance, set_observed
from lifesign.storage.agents.search import AgentFilter, place_of
from lifesign.storage.engine.table_definitions import heartbeats
from lifesign.storage.engine.transaction import Database, Transaction


class Known(NamedTuple):
    """An agent of these tests, named by its index."""

    status: str
    capabilities: tuple[str, ...]
    role_id: str | None
    health: str
    max_concurrent_tasks: int | None
    load: int


FLEET = [
    Known("active", ("a",), "r", "healthy", 5, 1),
    Known("active", ("a", "b"), None, "healthy", 5, 5),
    Known("dead", ("a", "b"), "r", "unknown", 5, 0),
    Known("active", (), "r", "degraded", 3, 2),
    Known("active", ("b",), "r", "unknown", None, 7),
    Known("draining", ("a", "c"), "r", "healthy", 9, 1),
    Known("active", ("c", "a", "b"), "r", "unknown", 9, 0),
    Known("dead", ("b",), None, "degraded", 2, 0),
    Known("active", ("a", "b"), "r", "degraded", 2, 0),
]
FILTERS = [
    AgentFilter(
        statuses=statuses, capabilities=able, role_id=role, health=health, min_available_capacity=free
    )
    for statuses, able, role, health, free in product(
        ((), ("active",), ("active", "dead")),
        ((), ("a",), ("a", "b"), ("nobody's", "b", "c")),
        (None, "r"),
        ((), ("unknown",), ("unknown", "degraded")),
        (None, 2),
    )
][::5]
"""Every fifth: of what is asked about together, each goes with each of the others somewhere."""


def expected(wanted: AgentFilter, *, by_load: bool = False) -> list[str]:
    """Return the names of those who match, in their order."""
    found = [
        (known.load if by_load else 0, place)
        for place, known in enumerate(FLEET)
        if (not wanted.statuses or known.status in wanted.statuses)
        and (not wanted.capabilities or not set(wanted.capabilities).isdisjoint(known.capabilities))
        and wanted.role_id in {None, known.role_id}
        and (not wanted.health or known.health in wanted.health)
        and (
            wanted.min_available_capacity is None
            or (
                known.max_concurrent_tasks is not None
                and known.max_concurrent_tasks - known.load >= wanted.min_available_capacity
            )
        )
    ]
    return [f"agent-{place}-0" for _load, place in sorted(found)]


@pytest.fixture
async def fleet(database: Database) -> Database:
    """All of FLEET, stored in its order."""
    for place, known in enumerate(FLEET):
        columns = known._asdict()
        del columns["load"]
        await add_agents(database, 1, prefix=f"agent-{place}", **columns)

    def load(transaction: Transaction) -> None:
        for number, known in enumerate(FLEET, start=1):
            transaction.connection.execute(
                update(heartbeats).where(heartbeats.c.agent == number).values(current_load=known.load)
            )

    await database.write(load)
    return database


def pages(transaction: Transaction, wanted: AgentFilter, size: int, *, by_load: bool) -> list[list[str]]:
    """Return the names on all pages."""
    named: list[list[str]] = []
    after: Sequence[int] | None = None
    while not named or len(named[-1]) == size:
        page = search.listing(transaction, wanted, after=after, limit=size, by_load=by_load)
        named.append([agent.agent_id for agent in page])
        after = place_of(page[-1], by_load=by_load) if page else None
    return named


async def test_all_matches_are_found_in_order_and_counted(fleet: Database) -> None:
    def check(transaction: Transaction) -> None:
        for wanted, by_load in product(FILTERS, (False, True)):
            found = pages(transaction, wanted, 4, by_load=by_load)
            assert list(chain(*found)) == expected(wanted, by_load=by_load), wanted
            assert search.count(transaction, wanted) == len(expected(wanted)), wanted

    await fleet.read(check)


async def test_agents_key_searches_only_for_this_agent(fleet: Database) -> None:
    wanted = AgentFilter(agent_id="agent-1-0", statuses=("active",), capabilities=("a",))
    found = await fleet.read(lambda transaction: search.listing(transaction, wanted, after=None, limit=9))
    assert [agent.agent_id for agent in found] == ["agent-1-0"]
    assert await fleet.read(lambda transaction: search.count(transaction, wanted)) == 1


async def test_agents_that_probers_found_can_be_left_out(fleet: Database) -> None:
    await add_agents(fleet, 2, "found", target_url="https://a.example/", capabilities=("a", "b"), role_id="r")
    for able, role_id in product(((), ("a",), ("a", "b")), (None, "r")):
        wanted = AgentFilter(statuses=("active",), capabilities=able, role_id=role_id, is_registered=True)

        def check(transaction: Transaction, wanted: AgentFilter = wanted) -> None:
            names = expected(wanted)
            found = search.listing(transaction, wanted, after=None, limit=99)
            assert [agent.agent_id for agent in found] == names
            assert search.count(transaction, wanted) == len(names)
            everyone = replace(wanted, is_registered=False)
            assert search.count(transaction, everyone) == len(names) + 2

        await fleet.read(check)


async def test_old_evidence_is_unknown_health_and_may_be_left_out(fleet: Database) -> None:
    """Agents 1, 2 and 6 are stored as healthy: measured 10 s, 100 s and 1,000 s ago."""

    def check(transaction: Transaction) -> None:
        now_s = transaction.now_s
        set_observed(
            transaction,
            [
                (1, "{}", now_s - 10, now_s + 890, now_s + 890, now_s + 890, None),
                (2, "{}", now_s - 100, now_s + 800, now_s + 800, now_s - 1, None),
                (6, "{}", now_s - 1_000, now_s - 100, now_s - 100, now_s - 100, None),
            ],
        )

        def found(**wanted: Any) -> list[str]:
            page = search.listing(transaction, AgentFilter(**wanted), after=None, limit=99)
            assert search.count(transaction, AgentFilter(**wanted)) == len(page)
            return [agent.agent_id for agent in page]

        assert found(health=("healthy",)) == ["agent-0-0"]
        unknown = ["agent-1-0", "agent-2-0", "agent-4-0", "agent-5-0", "agent-6-0"]
        assert found(health=("unknown",)) == unknown
        assert found(health=("healthy", "unknown")) == ["agent-0-0", *unknown]
        assert found(max_evidence_age_s=10.0) == ["agent-0-0"]
        assert found(max_evidence_age_s=100.0) == ["agent-0-0", "agent-1-0"]
        assert found(max_evidence_age_s=5.0) == []
        assert found(max_evidence_age_s=9e6, capabilities=("c",)) == ["agent-5-0"]

    await fleet.write(check)


async def test_agents_are_grouped_by_the_end_of_their_maintenance(fleet: Database) -> None:
    def function(transaction: Transaction) -> None:
        now_s = transaction.now_s
        for number, left_s in {1: 60, 2: 99, 3: 9, 4: 60, 5: 0, 6: 60}.items():
            set_maintenance(transaction, [number], now_s + left_s)
        found = search.maintained_together(transaction, ["active"], role_id=None, limit=9)
        assert [(group.role_id, group.until_s - now_s, group.agents) for group in found] == [
            (None, 99, 1),
            ("r", 60, 2),
        ]
        of_pool = search.maintained_together(transaction, ["active", "dead"], role_id="r", limit=9)
        assert [(group.until_s - now_s, group.agents) for group in of_pool] == [(60, 2), (9, 1)]
        assert search.maintained_together(transaction, ["active"], role_id="r", limit=0) == []

    await fleet.write(function)
