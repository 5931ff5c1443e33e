"""Pages of the dashboard's table of agents.

The API's searches are `agent_search`. The dashboard searches for a part of a name, and offers several orders.
Indexes are searched first; only the records of one page are fetched.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select, union_all

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.targets.target import host_of, read_target
from lifesign.storage.agents.agent_rows import StoredAgent, find_many
from lifesign.storage.engine.table_definitions import (
    agents,
    capabilities,
    observed,
    targets,
)
from lifesign.storage.engine.transaction import Transaction


class Order(StrEnum):
    """Order of the agents in the dashboard's table."""

    NEWEST = "newest"
    """Registered last."""
    OLDEST = "oldest"
    NAME = "name"
    """Order by id, as the database sorts texts."""
    CHANGED = "changed"
    """Latest change of status first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFilter:
    """Filter of agents; empty or None matches any."""

    text: str = ""
    """A part of the id or of the name, whatever its case in ASCII; or a host, or a URL, that is probed."""
    status: str | None = None
    health: str | None = None
    """Health as shown now: a stored one is `unknown` once its evidence is too old."""
    role_id: str | None = None
    capability: str | None = None
    host: str | None = None
    """Host of its probes: its platform."""
    max_evidence_age_s: float | None = None
    """Maximum age of the agents' last measured probe; an agent without one never matches."""


Place = tuple[int] | tuple[str] | tuple[float, int]
"""Position of an agent in an order.

Its number; its id; or the time of its status and its number.
"""


def place_of(agent: StoredAgent, order: Order) -> Place:
    """Return the position of an agent in the table, for `after` of `listing`."""
    if order is Order.NAME:
        return (agent.agent_id,)
    return (agent.status_since_s, agent.id) if order is Order.CHANGED else (agent.id,)


def listing(
    transaction: Transaction,
    wanted: TableFilter,
    order: Order,
    *,
    after: Place | None,
    limit: int,
    is_common: bool = False,
) -> list[StoredAgent]:
    """Return the agents after a position, in this order.

    `is_common`: so many match that walking along the order is faster than sorting the matches.
    """
    # Within one status the indexes give every order except that of names; a page is merged from one page of
    # each status. With a part of a name, or a host, SQLite would search each index again.
    is_looked_up = bool(wanted.text) or wanted.host is not None
    is_split = (
        wanted.status is None
        and (order is Order.CHANGED or wanted.health is not None or wanted.role_id is not None)
        and (transaction.is_postgresql or not is_looked_up)
    )
    parts = [replace(wanted, status=status) for status in Status] if is_split else [wanted]
    found = [
        agent
        for part in parts
        for agent in _listing(transaction, part, order, after, limit, is_common=is_common)
    ]
    if is_split:
        is_descending = order in {Order.NEWEST, Order.CHANGED}
        found.sort(key=lambda agent: place_of(agent, order), reverse=is_descending)
    return found[:limit]


def _listing(
    transaction: Transaction,
    wanted: TableFilter,
    order: Order,
    after: Place | None,
    limit: int,
    *,
    is_common: bool,
) -> list[StoredAgent]:
    is_walk = is_common and order is Order.NAME and not transaction.is_postgresql
    statement = select(agents.c.id).where(*_conditions(transaction, wanted, is_walk=is_walk))
    if after is not None:
        statement = statement.where(_is_behind(order, after))
    match order:
        case Order.NEWEST:
            statement = statement.order_by(agents.c.id.desc())
        case Order.OLDEST:
            statement = statement.order_by(agents.c.id)
        case Order.NAME:
            statement = statement.order_by(agents.c.agent_id)
        case Order.CHANGED:
            statement = statement.order_by(agents.c.status_since_s.desc(), agents.c.id.desc())
    numbers: Sequence[int] = transaction.connection.scalars(statement.limit(limit)).all()
    found = {agent.id: agent for agent in find_many(transaction, numbers)}
    return [found[number] for number in numbers if number in found]


def counts(transaction: Transaction) -> dict[tuple[str, str], int]:
    """Return the number of agents by status, and by the health to show now."""
    # The index by health contains both: no row is read.
    kind = agents.c.status, agents.c.health
    counted = Counter[tuple[str, str]]()
    for status, health, count in transaction.connection.execute(select(*kind, func.count()).group_by(*kind)):
        counted[str(status), str(health)] += int(count)
    # The health of agents with old evidence or an old document is unknown by now.
    old = select(observed.c.agent).where(_is_over(transaction))
    # SQLite would use the index of a bare column, and look up each agent in `observed`.
    is_known = agents.c.health.concat("") != HealthStatus.UNKNOWN
    of_old = select(*kind, func.count()).where(agents.c.id.in_(old), is_known).group_by(*kind)
    for status, health, count in transaction.connection.execute(of_old):
        counted[str(status), str(health)] -= int(count)
        counted[str(status), HealthStatus.UNKNOWN.value] += int(count)
    return dict(counted)


def _is_behind(order: Order, after: Place) -> ColumnElement[bool]:
    first: Any = after[0]
    is_behind: ColumnElement[bool]
    match order:
        case Order.NEWEST:
            is_behind = agents.c.id < first
        case Order.OLDEST:
            is_behind = agents.c.id > first
        case Order.NAME:
            is_behind = agents.c.agent_id > first
        case Order.CHANGED:
            since, number = agents.c.status_since_s, agents.c.id
            is_behind = (since <= first) & ((since < first) | (number < after[-1]))
    return is_behind


def _conditions(transaction: Transaction, wanted: TableFilter, *, is_walk: bool) -> list[ColumnElement[bool]]:
    equal = (
        (agents.c.status, wanted.status),
        (agents.c.role_id, wanted.role_id),
    )
    # SQLite does not use an index for an expression.
    conditions = [
        (column.concat("") if is_walk else column) == value for column, value in equal if value is not None
    ]
    if wanted.health is not None:
        conditions.append(_has_health(transaction, wanted.health, is_walk=is_walk))
    if wanted.max_evidence_age_s is not None:
        seen_from_s = transaction.now_s - wanted.max_evidence_age_s
        is_fresh = (observed.c.agent == agents.c.id) & (observed.c.evidence_at_s >= seen_from_s)
        conditions.append(select(observed.c.agent).where(is_fresh).exists())
    if wanted.capability is not None:
        able = select(capabilities.c.agent).where(capabilities.c.capability == wanted.capability)
        if wanted.status is not None:
            able = able.where(capabilities.c.status == wanted.status)
        conditions.append(agents.c.id.in_(able))
    if wanted.host is not None:
        there = select(targets.c.subject_id).where(targets.c.host == wanted.host)
        conditions.append(agents.c.agent_id.in_(there))
    if wanted.text:
        named = agents.alias("named")
        parts = [_holds(transaction, named.c[name], wanted.text) for name in ("agent_id", "name")]
        found = [select(named.c.id).where(or_(*parts))]
        if (probed := _targets_at(wanted.text)) is not None:
            placed = agents.alias("placed")
            found.append(select(placed.c.id).where(placed.c.agent_id.in_(probed)))
        conditions.append(agents.c.id.in_(union_all(*found) if len(found) > 1 else found[0]))
    return conditions


def _has_health(transaction: Transaction, health: str, *, is_walk: bool) -> ColumnElement[bool]:
    """Return whether the health to show now is this one (`evidence_age.shown_health`)."""
    is_stored = (agents.c.health.concat("") if is_walk else agents.c.health) == health
    is_old = select(observed.c.agent).where(observed.c.agent == agents.c.id, _is_over(transaction)).exists()
    return or_(is_stored, is_old) if health == HealthStatus.UNKNOWN else and_(is_stored, ~is_old)


def _is_over(transaction: Transaction) -> ColumnElement[bool]:
    """Return whether the reported health of an agent is too old."""
    return or_(observed.c.evidence_until_s < transaction.now_s, observed.c.health_until_s < transaction.now_s)


def _targets_at(text: str) -> Select[tuple[str]] | None:
    """Return the ids of the targets at a host that is named whole, below a path if one is; None: none is."""
    url = read_target(text) if "." in text or ":" in text else None
    if not isinstance(url, str):
        return None
    host, place = host_of(url), url.partition("://")[2].removesuffix("/")
    return select(targets.c.subject_id).where(
        targets.c.host == host,
        targets.c.url.contains(f"://{place}", autoescape=True),
    )


def _holds(transaction: Transaction, column: ColumnElement[str], part: str) -> ColumnElement[bool]:
    """Return whether a text contains a part, ignoring case."""
    if transaction.is_postgresql:
        return column.icontains(part, autoescape=True)
    # SQLite's LIKE ignores case in ASCII; lower() as well would double the time.
    return column.contains(part, autoescape=True)
