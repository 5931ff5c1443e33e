"""Search of agents: filters, order and totals.

Narrow tables are searched first; only the records of one page are fetched. Every search begins with a status,
so that the number of dead agents does not matter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    JSON,
    BindParameter,
    ColumnElement,
    FromClause,
    Select,
    any_,
    bindparam,
    cast,
    false,
    func,
    literal,
    select,
    type_coerce,
)

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.evidence_age import Evidence, LastInterface
from lifesign.storage.agents.agent_rows import evidence_in
from lifesign.storage.engine.table_definitions import (
    agents,
    capabilities,
    heartbeats,
    observed,
)
from lifesign.storage.engine.transaction import Transaction

MAX_STATEMENTS = 256
"""Maximum of cached statements: one for each combination of filters, whatever their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFilter:
    """Filter of agents; empty or None matches any."""

    agent_id: str | None = None
    statuses: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    """Any of them."""
    role_id: str | None = None
    health: tuple[str, ...] = ()
    """Health as shown now: a stored one is `unknown` once its evidence is too old."""
    min_available_capacity: int | None = None
    """Agents that do not report their capacity never match."""
    max_evidence_age_s: float | None = None
    """Maximum age of the agents' last measured result; an agent without one never matches."""
    is_registered: bool = False
    """Excludes agents that probers found in directories."""


class ListedAgent(NamedTuple):
    """An agent in a list; the members are columns of `agents`, `heartbeats` and `observed`."""

    id: int
    agent_id: str
    role_id: str | None
    name: str | None
    capabilities: Sequence[str]
    status: str
    health: str
    monitoring: str
    endpoint: str | None
    card_url: str | None
    target_url: str | None
    last_heartbeat_at_s: float
    current_load: int
    max_concurrent_tasks: int | None
    evidence_at_s: float | None = None
    """This one and the following: as in `StoredAgent`."""
    evidence_until_s: float | None = None
    results_until_s: float | None = None
    health_until_s: float | None = None
    inconclusive_reason: str | None = None
    stored_failures: int | None = None
    """Measured failures in a row; None: none, or the agent is not probed."""
    interface_result: str | None = None
    """Last measured result of its declared interface."""
    interface_at_s: float | None = None
    kind: str | None = None
    """As in `StoredAgent`."""

    @property
    def failures_in_row(self) -> int:
        """Number of the agent's latest probes in a row that were measured failures."""
        return self.stored_failures or 0

    @property
    def last_interface(self) -> LastInterface | None:
        """The last measured result of the agent's declared interface."""
        if self.interface_result is None or self.interface_at_s is None:
            return None
        return LastInterface(result=self.interface_result, at_s=self.interface_at_s)

    @property
    def evidence(self) -> Evidence:
        """The stored evidence about the agent."""
        return evidence_in(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTotals:
    """Totals of the members of a pool."""

    members: Mapping[str, int]
    """Number of members per status."""
    max_concurrent_tasks: int
    current_load: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outline:
    """Filters of a search without their values, from which its statement is made."""

    statuses: int
    """None, one, or several, encoded as 2; the same holds for the next two."""
    capabilities: int
    health: int
    has_agent: bool
    has_role: bool
    has_capacity: bool
    has_age: bool
    is_registered: bool
    wants_unknown: bool
    """Whether `unknown` is among the wanted health values."""
    is_postgresql: bool


@dataclass(frozen=True, slots=True)
class _Source:
    """Source of a search: tables, conditions, and the column with the agent's number."""

    tables: FromClause
    number: ColumnElement[int]
    conditions: tuple[ColumnElement[bool], ...]


_LISTED = tuple(
    next(table for table in (agents, heartbeats, observed) if name in table.c).c[name]
    for name in ListedAgent._fields
    if name not in {"stored_failures", "interface_result", "interface_at_s", "kind"}
)


def listing(
    transaction: Transaction,
    wanted: AgentFilter,
    *,
    after: Sequence[int] | None,
    limit: int,
    by_load: bool = False,
) -> list[ListedAgent]:
    """Return agents in the order of their registration, or the least loaded first.

    `after` is the result of `place_of` for the last agent of the previous page.
    """
    statement = _listing_of(_outline(transaction, wanted), is_continued=after is not None, by_load=by_load)
    values = {**_values(wanted, transaction.now_s), "limit": limit}
    if after is not None:
        values |= {"after": after[-1], "load": after[0]} if by_load else {"after": after[0]}
    # All rows are fetched at once: one by one takes a tenth longer.
    return [ListedAgent._make(row) for row in transaction.connection.execute(statement, values).all()]


def place_of(agent: ListedAgent, *, by_load: bool) -> list[int]:
    """Return the position of an agent in a list, for `after` of `listing`."""
    return [agent.current_load, agent.id] if by_load else [agent.id]


def count(transaction: Transaction, wanted: AgentFilter) -> int:
    """Return the number of matching agents."""
    statement = _count_of(_outline(transaction, wanted))
    return transaction.connection.scalar(statement, _values(wanted, transaction.now_s)) or 0


class MaintainedTogether(NamedTuple):
    """Members of one pool, or of none, whose maintenance ends at the same time."""

    role_id: str | None
    until_s: float
    agents: int
    agent_id: str
    """Agents with one of these ids."""


def members_of(transaction: Transaction, role_id: str) -> dict[str, int]:
    """Return the number of a pool's members per status."""
    members = transaction.connection.execute(
        select(agents.c.status, func.count()).where(agents.c.role_id == role_id).group_by(agents.c.status)
    )
    return {str(status): int(number) for status, number in members}


def maintained_of(transaction: Transaction, role_id: str) -> dict[str, int]:
    """Return the number of a pool's members in maintenance now, per status."""
    members = transaction.connection.execute(
        select(agents.c.status, func.count())
        .where(agents.c.role_id == role_id, agents.c.maintenance_until_s > transaction.now_s)
        .group_by(agents.c.status)
    )
    return {str(status): int(number) for status, number in members}


def maintained_together(
    transaction: Transaction, statuses: Sequence[str], *, role_id: str | None, limit: int
) -> list[MaintainedTogether]:
    """Return agents in maintenance grouped by pool and end, the last to end first.

    Only agents with one of these statuses count.

    `role_id`: only of this pool. Without a pool, the query reads every agent.
    """
    wanted = agents.c.status.in_(statuses) & (agents.c.maintenance_until_s > transaction.now_s)
    if role_id is not None:
        wanted &= agents.c.role_id == role_id
    together = (agents.c.role_id, agents.c.maintenance_until_s)
    found = transaction.connection.execute(
        select(*together, func.count(), func.min(agents.c.agent_id))
        .where(wanted)
        .group_by(*together)
        .order_by(agents.c.maintenance_until_s.desc(), agents.c.role_id)
        .limit(limit)
    )
    return [MaintainedTogether(*row) for row in found]


def pool(transaction: Transaction, role_id: str, status: str) -> PoolTotals:
    """Return a pool's number of members by status, and the capacity and load of those in `status`.

    The load of agents that do not report their capacity is not counted either: the difference would be wrong.
    """
    counted = select(agents.c.id).where(agents.c.role_id == role_id, agents.c.status == status)
    capacity = transaction.connection.execute(
        select(
            func.coalesce(func.sum(heartbeats.c.max_concurrent_tasks), literal(0)),
            func.coalesce(func.sum(heartbeats.c.current_load), literal(0)),
        ).where(
            _is_found(heartbeats.c.agent, counted, is_postgresql=transaction.is_postgresql),
            heartbeats.c.max_concurrent_tasks.is_not(None),
        )
    ).one()
    return PoolTotals(
        members=members_of(transaction, role_id),
        max_concurrent_tasks=int(capacity[0]),
        current_load=int(capacity[1]),
    )


def _outline(transaction: Transaction, wanted: AgentFilter) -> _Outline:
    return _Outline(
        statuses=min(len(wanted.statuses), 2),
        capabilities=min(len(wanted.capabilities), 2),
        health=min(len(wanted.health), 2),
        has_agent=wanted.agent_id is not None,
        has_role=wanted.role_id is not None,
        has_capacity=wanted.min_available_capacity is not None,
        has_age=wanted.max_evidence_age_s is not None,
        is_registered=wanted.is_registered,
        wants_unknown=HealthStatus.UNKNOWN in wanted.health,
        is_postgresql=transaction.is_postgresql,
    )


def _values(wanted: AgentFilter, now_s: float) -> dict[str, Any]:
    """Return the parameters of a filter's statement."""
    age_s = wanted.max_evidence_age_s
    values: dict[str, Any] = {
        "now_s": now_s if wanted.health else None,
        "seen_from_s": None if age_s is None else now_s - age_s,
        "agent_id": wanted.agent_id,
        "role_id": wanted.role_id,
        "free": wanted.min_available_capacity,
    }
    for name in ("statuses", "capabilities", "health"):
        among: tuple[str, ...] = getattr(wanted, name)
        values[name] = among[0] if len(among) == 1 else list(among) or None
    return {name: value for name, value in values.items() if value is not None}


@lru_cache(MAX_STATEMENTS)
def _listing_of(outline: _Outline, *, is_continued: bool, by_load: bool) -> Select[Any]:
    # One capability leads through both tables in their order, and stops when the page is full.
    is_by_set = outline.capabilities > 1 or (by_load and outline.is_postgresql)
    source = _source(outline, with_load=by_load, is_by_set=is_by_set)
    place = (heartbeats.c.current_load, source.number) if by_load else (source.number,)
    numbers = select(source.number.label("number")).select_from(source.tables).where(*source.conditions)
    if is_continued:
        numbers = numbers.where(_is_behind(place))
    found = numbers.order_by(*place).limit(bindparam("limit", type_=agents.c.id.type)).subquery("found")
    order = (heartbeats.c.current_load, agents.c.id) if by_load else (agents.c.id,)
    records = (
        found.join(agents, agents.c.id == found.c.number)
        .join(heartbeats, heartbeats.c.agent == agents.c.id)
        .outerjoin(observed, observed.c.agent == agents.c.id)
    )
    # SQLite's functions read text as JSON; its CAST would make a number of it.
    facts = observed.c.facts
    members = cast(facts, JSON) if outline.is_postgresql else type_coerce(facts, JSON)
    failures = members["failures_in_row"].as_integer()
    interface = (
        members["transport", "layer", "result"].as_string(),
        members["transport", "observed_at_s"].as_float(),
    )
    kind = members["kind"].as_string()
    return select(*_LISTED, failures, *interface, kind).select_from(records).order_by(*order)


@lru_cache(MAX_STATEMENTS)
def _count_of(outline: _Outline) -> Select[Any]:
    is_by_set = outline.capabilities > 1 or outline.is_postgresql
    source = _source(outline, with_load=False, is_by_set=is_by_set)
    return select(func.count()).select_from(source.tables).where(*source.conditions)


def _is_behind(place: Sequence[ColumnElement[Any]]) -> ColumnElement[bool]:
    if len(place) == 1:
        return place[0] > bindparam("after")
    load, number = place
    return (load > bindparam("load")) | ((load == bindparam("load")) & (number > bindparam("after")))


def _source(outline: _Outline, *, with_load: bool, is_by_set: bool) -> _Source:
    """Return the fewest tables that decide which agents match; `is_by_set`: see `_is_found`."""
    conditions: list[ColumnElement[bool]] = []
    needs_load = with_load or outline.has_capacity
    needs_record = outline.has_role or outline.health or outline.has_agent or outline.is_registered
    tables: FromClause
    number: ColumnElement[int]
    if not outline.capabilities:
        tables, number = agents, agents.c.id
        if outline.statuses:
            conditions.append(_among(agents.c.status, "statuses", outline.statuses))
    elif needs_load and is_by_set:
        tables, number = heartbeats, heartbeats.c.agent
        conditions.append(_is_found(number, _able(outline), is_postgresql=outline.is_postgresql))
    else:
        able = _able(outline)
        tables = (able.distinct() if outline.capabilities > 1 else able).subquery("able")
        number = tables.c.agent
    if outline.capabilities and needs_record:
        tables = tables.join(agents, agents.c.id == number)
    if needs_load and number is not heartbeats.c.agent:
        tables = tables.join(heartbeats, heartbeats.c.agent == number)
    if outline.health or outline.has_age:
        tables = tables.outerjoin(observed, observed.c.agent == number)
    return _Source(tables, number, (*conditions, *_conditions(outline)))


def _conditions(outline: _Outline) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on each agent's own columns."""
    if outline.has_age:
        yield observed.c.evidence_at_s >= bindparam("seen_from_s")
    if outline.has_agent:
        yield agents.c.agent_id == bindparam("agent_id")
    if outline.has_role:
        yield agents.c.role_id == bindparam("role_id")
    if outline.is_registered:
        yield agents.c.target_url.is_(None)
    if outline.health:
        yield _has_health(outline)
    if outline.has_capacity:
        free = heartbeats.c.max_concurrent_tasks - heartbeats.c.current_load
        yield free >= bindparam("free")


def _has_health(outline: _Outline) -> ColumnElement[bool]:
    """Return whether the health to show now is a wanted one (`evidence_age.shown_health`)."""
    is_stored = _among(agents.c.health, "health", outline.health)
    now_s: BindParameter[float] = bindparam("now_s")
    is_old = func.coalesce(observed.c.evidence_until_s < now_s, false()) | func.coalesce(
        observed.c.health_until_s < now_s, false()
    )
    return is_stored | is_old if outline.wants_unknown else is_stored & ~is_old


def _able(outline: _Outline) -> Select[tuple[int]]:
    """Return the numbers of agents that have one of the capabilities, once for each match."""
    able = select(capabilities.c.agent).where(
        _among(capabilities.c.capability, "capabilities", outline.capabilities)
    )
    if outline.statuses:
        able = able.where(_among(capabilities.c.status, "statuses", outline.statuses))
    return able


def _is_found(
    number: ColumnElement[int], found: Select[tuple[int]], *, is_postgresql: bool
) -> ColumnElement[bool]:
    """Return the condition that a number is among the found ones, which are sorted and looked up in turn.

    For a join PostgreSQL would read all heartbeats, which takes three times as long for one agent in 20. For
    several capabilities SQLite would remove agents with two of them, and sort all again.
    """
    return number == any_(func.array(found.scalar_subquery())) if is_postgresql else number.in_(found)


def _among(column: Any, name: str, how_many: int) -> ColumnElement[bool]:
    # With one value the index gives the rows in the order of their number.
    return column == bindparam(name) if how_many == 1 else column.in_(bindparam(name, expanding=True))  # type: ignore[no-any-return]
