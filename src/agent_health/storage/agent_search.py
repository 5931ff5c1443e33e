"""Which agents match, in which order, and how many are there?

Found by the narrow tables first; the records of one page are fetched only then. Every search begins
with a status, so that it costs nothing how many are dead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, any_, func, literal, select

from agent_health.storage.agents import StoredAgent, find_many
from agent_health.storage.database import Transaction
from agent_health.storage.tables import agents, beats, capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFilter:
    """Which agents are looked for; empty or None means any."""

    agent_id: str | None = None
    statuses: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    """Any of them."""
    role_id: str | None = None
    health: tuple[str, ...] = ()
    min_available_capacity: int | None = None
    """Who does not say how much it can do never matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTotals:
    """What the members of a pool add up to."""

    members: Mapping[str, int]
    """How many there are, per status."""
    max_concurrent_tasks: int
    current_load: int


@dataclass(frozen=True, slots=True)
class _Source:
    """What a search reads: tables, conditions, and the column that holds our number for an agent."""

    tables: FromClause
    number: ColumnElement[int]
    conditions: tuple[ColumnElement[bool], ...]


def listing(
    transaction: Transaction,
    wanted: AgentFilter,
    *,
    after: Sequence[int] | None,
    limit: int,
    by_load: bool = False,
) -> list[StoredAgent]:
    """Return agents in the order of their registration, or the least loaded first.

    `after` is what `place_of` gave for the last one of the page before.
    """
    # One capability leads through both tables in their order, and stops where the page is full.
    is_all_read = by_load or len(wanted.capabilities) > 1
    source = _source(wanted, with_load=by_load, is_by_array=transaction.is_postgresql and is_all_read)
    place = (beats.c.current_load, source.number) if by_load else (source.number,)
    statement = select(source.number).select_from(source.tables).where(*source.conditions)
    if after is not None:
        statement = statement.where(_is_behind(place, after))
    numbers = transaction.connection.scalars(statement.order_by(*place).limit(limit)).all()
    found = {agent.id: agent for agent in find_many(transaction, numbers)}
    return [found[number] for number in numbers if number in found]


def place_of(agent: StoredAgent, *, by_load: bool) -> list[int]:
    """Return where an agent stands in a listing, for `after`."""
    return [agent.current_load, agent.id] if by_load else [agent.id]


def count(transaction: Transaction, wanted: AgentFilter) -> int:
    """Return how many agents match."""
    source = _source(wanted, with_load=False, is_by_array=transaction.is_postgresql)
    statement = select(func.count()).select_from(source.tables).where(*source.conditions)
    return transaction.connection.scalar(statement) or 0


def members_of(transaction: Transaction, role_id: str) -> dict[str, int]:
    """Return how many members a pool has per status."""
    members = transaction.connection.execute(
        select(agents.c.status, func.count()).where(agents.c.role_id == role_id).group_by(agents.c.status)
    )
    return {str(status): int(number) for status, number in members}


def pool(transaction: Transaction, role_id: str, status: str) -> PoolTotals:
    """Return how many members a pool has per status, and the capacity of those of one status.

    Who does not say how much it can do adds no load either: the difference would lie.
    """
    counted = select(agents.c.id).where(agents.c.role_id == role_id, agents.c.status == status)
    capacity = transaction.connection.execute(
        select(
            func.coalesce(func.sum(beats.c.max_concurrent_tasks), literal(0)),
            func.coalesce(func.sum(beats.c.current_load), literal(0)),
        ).where(
            _in_array(beats.c.agent, counted) if transaction.is_postgresql else beats.c.agent.in_(counted),
            beats.c.max_concurrent_tasks.is_not(None),
        )
    ).one()
    return PoolTotals(
        members=members_of(transaction, role_id),
        max_concurrent_tasks=int(capacity[0]),
        current_load=int(capacity[1]),
    )


def _is_behind(place: Sequence[ColumnElement[Any]], after: Sequence[int]) -> ColumnElement[bool]:
    if len(place) == 1:
        return place[0] > after[0]
    load, number = place
    return (load > after[0]) | ((load == after[0]) & (number > after[1]))


def _source(wanted: AgentFilter, *, with_load: bool, is_by_array: bool = False) -> _Source:
    """Return the fewest tables that can tell who matches; `is_by_array`: see `_in_array`."""
    conditions: list[ColumnElement[bool]] = []
    needs_load = with_load or wanted.min_available_capacity is not None
    needs_record = wanted.role_id is not None or wanted.health or wanted.agent_id is not None
    tables: FromClause
    number: ColumnElement[int]
    if not wanted.capabilities:
        tables, number = agents, agents.c.id
        if wanted.statuses:
            conditions.append(_among(agents.c.status, wanted.statuses))
    elif needs_load and is_by_array:
        tables, number = beats, beats.c.agent
        conditions.append(_in_array(number, _able(wanted)))
    else:
        tables = _able(wanted).subquery("able")
        number = tables.c.agent
    if wanted.capabilities and needs_record:
        tables = tables.join(agents, agents.c.id == number)
    if needs_load and number is not beats.c.agent:
        tables = tables.join(beats, beats.c.agent == number)
    if wanted.agent_id is not None:
        conditions.append(agents.c.agent_id == wanted.agent_id)
    if wanted.role_id is not None:
        conditions.append(agents.c.role_id == wanted.role_id)
    if wanted.health:
        conditions.append(_among(agents.c.health, wanted.health))
    if wanted.min_available_capacity is not None:
        free = beats.c.max_concurrent_tasks - beats.c.current_load
        conditions.append(free >= wanted.min_available_capacity)
    return _Source(tables, number, tuple(conditions))


def _able(wanted: AgentFilter) -> Select[tuple[int]]:
    """Return the numbers of those who have one of the capabilities, each once."""
    able = select(capabilities.c.agent).where(_among(capabilities.c.capability, wanted.capabilities))
    if wanted.statuses:
        able = able.where(_among(capabilities.c.status, wanted.statuses))
    if len(wanted.capabilities) > 1:
        able = able.distinct()
    return able


def _in_array(number: ColumnElement[int], found: Select[tuple[int]]) -> ColumnElement[bool]:
    """Whether a number is among those found, which PostgreSQL looks up in their order, one after another.

    A join it would make by reading all beats there are, which takes three times as long for one agent in 20.
    """
    return number == any_(func.array(found.scalar_subquery()))


def _among(column: Any, values: Sequence[str]) -> ColumnElement[bool]:
    # With one value the index gives the rows in the order of their number.
    return column == values[0] if len(values) == 1 else column.in_(values)  # type: ignore[no-any-return]
