"""Rows of agents, found by id or number."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

from pydantic_core import to_json
from sqlalchemy import ColumnElement, Integer, Row, bindparam, delete, func, insert, select, text, update

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.lifecycle.observed_facts import Observed, evidence_of, last_interface
from lifesign.domain.observation.evidence_age import Evidence, LastInterface
from lifesign.storage.engine.array_params import given, is_given
from lifesign.storage.engine.table_definitions import (
    agents,
    capabilities,
    heartbeats,
    observed,
)
from lifesign.storage.engine.transaction import Transaction


class EvidenceRow(Protocol):
    """A row with the columns EVIDENCE_COLUMNS."""

    @property
    def evidence_at_s(self) -> float | None: ...  # noqa: D102 - as `Evidence.at_s`
    @property
    def evidence_until_s(self) -> float | None: ...  # noqa: D102
    @property
    def results_until_s(self) -> float | None: ...  # noqa: D102
    @property
    def health_until_s(self) -> float | None: ...  # noqa: D102
    @property
    def inconclusive_reason(self) -> str | None: ...  # noqa: D102


def evidence_in(row: EvidenceRow) -> Evidence:
    """Return when there was evidence about an agent last, and why there is no newer one."""
    return Evidence(
        at_s=row.evidence_at_s,
        until_s=row.evidence_until_s,
        results_until_s=row.results_until_s,
        inconclusive_reason=row.inconclusive_reason,
        health_until_s=row.health_until_s,
    )


@fast_dataclass(kw_only=True)
class StoredAgent:
    """The complete stored record of one agent: the columns of `agents`, `heartbeats` and `observed`."""

    id: int
    agent_id: str
    role_id: str | None
    name: str | None
    endpoint: str | None
    card_url: str | None
    capabilities: tuple[str, ...]
    metadata: Mapping[str, Any]
    monitoring: str
    interval_s: float
    unhealthy_after_s: float
    dead_after_s: float
    drain_timeout_s: float
    status: str
    reason: str
    status_since_s: float
    explanation: str
    health: str
    incarnation: int
    version: int
    registered_at_s: float
    assess_at_s: float | None
    drain_deadline_s: float | None
    maintenance_until_s: float | None
    override_status: str | None
    override_until_s: float | None
    recoveries_s: tuple[float, ...]
    target_url: str | None
    last_heartbeat_at_s: float
    extended_interval_s: float | None
    """This one and the following two: as `ExtendedThresholds`; all None if they are not extended."""
    extended_unhealthy_after_s: float | None
    extended_dead_after_s: float | None
    current_load: int
    max_concurrent_tasks: int | None
    tasks: str | None
    observed: str | None
    evidence_at_s: float | None = None
    """This one and the following: as `evidence_age.Evidence`; all None if it is not probed."""
    evidence_until_s: float | None = None
    results_until_s: float | None = None
    health_until_s: float | None = None
    inconclusive_reason: str | None = None

    @property
    def evidence(self) -> Evidence:
        """The stored evidence about the agent."""
        return evidence_in(self)

    @property
    def failures_in_row(self) -> int:
        """Number of the agent's latest probes in a row that were measured failures."""
        return 0 if self.observed is None else Observed.from_json(self.observed).failures_in_row

    @property
    def kind(self) -> str | None:
        """`mcp` if it was last probed as an MCP server; None: it was not, or never probed."""
        return None if self.observed is None else Observed.from_json(self.observed).kind

    @property
    def last_interface(self) -> LastInterface | None:
        """The last measured result of the agent's declared interface."""
        return None if self.observed is None else last_interface(Observed.from_json(self.observed))


_OWN_COLUMNS = tuple(column.name for column in agents.columns)
EVIDENCE_COLUMNS = (
    "evidence_at_s",
    "evidence_until_s",
    "results_until_s",
    "health_until_s",
    "inconclusive_reason",
)
EXTENDED_COLUMNS = ("extended_interval_s", "extended_unhealthy_after_s", "extended_dead_after_s")
_NOT_EXTENDED = dict.fromkeys(EXTENDED_COLUMNS)
_COLUMNS = (
    *agents.columns,
    heartbeats.c.last_heartbeat_at_s,
    *(heartbeats.c[name] for name in EXTENDED_COLUMNS),
    heartbeats.c.current_load,
    heartbeats.c.max_concurrent_tasks,
    heartbeats.c.tasks,
    observed.c.facts.label("observed"),
    *(observed.c[name] for name in EVIDENCE_COLUMNS),
)
_CAPACITY = "max_concurrent_tasks"
"""Stored in `heartbeats`, with the load: a search for free capacity then reads only narrow rows."""
_STORED_WITH_HEARTBEATS = frozenset({_CAPACITY, *EXTENDED_COLUMNS})
_NAMES = tuple(member.name for member in fields(StoredAgent))
_ALL = select(*_COLUMNS).select_from(
    agents.join(heartbeats, heartbeats.c.agent == agents.c.id).outerjoin(
        observed, observed.c.agent == agents.c.id
    )
)
# Created once: for each new one, SQLAlchemy walks through all columns to see whether it knows the text.
_NAMED = _ALL.where(agents.c.agent_id == bindparam("agent_id"))
_DUE = (
    _ALL.where(agents.c.assess_at_s <= bindparam("at_s"))
    .order_by(agents.c.assess_at_s)
    .limit(bindparam("most", type_=Integer))
)
_ALL_NUMBERED, _ALL_NAMED = (
    {
        is_postgresql: _ALL.where(is_given(known_by, is_postgresql=is_postgresql)).order_by(agents.c.id)
        for is_postgresql in (False, True)
    }
    for known_by in (agents.c.id, agents.c.agent_id)
)
_GIVEN_COLUMNS = tuple(name for name in _OWN_COLUMNS if name != "id")
_ADD_SQLITE = text(f"""
    INSERT INTO agents ({", ".join(_GIVEN_COLUMNS)})
    SELECT {", ".join(f"value ->> {place}" for place in range(len(_GIVEN_COLUMNS)))} FROM json_each(:rows)
    RETURNING agent_id, id
""")  # noqa: S608 - constants only
_ADD_POSTGRESQL = insert(agents).returning(agents.c.agent_id, agents.c.id)
_ADD_HEARTBEATS_SQLITE = text("""
    INSERT INTO heartbeats (agent, last_heartbeat_at_s, max_concurrent_tasks)
    SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows)
""")
_ADD_HEARTBEATS_POSTGRESQL = text("""
    INSERT INTO heartbeats (agent, last_heartbeat_at_s, max_concurrent_tasks)
    SELECT CAST(given ->> 0 AS bigint), CAST(given ->> 1 AS double precision), CAST(given ->> 2 AS integer)
    FROM json_array_elements(CAST(:rows AS json)) AS given
""")


def find(transaction: Transaction, agent_id: str, *, to_change: bool = False) -> StoredAgent | None:
    """Return an agent; `to_change` keeps others from changing it until the transaction ends."""
    wanted = _NAMED.with_for_update(of=(agents, heartbeats)) if to_change else _NAMED
    row = transaction.connection.execute(wanted, {"agent_id": agent_id}).one_or_none()
    return None if row is None else _stored(row)


def find_many(
    transaction: Transaction, ids: Sequence[int], *, to_change: bool = False, skip_locked: bool = False
) -> list[StoredAgent]:
    """Return agents by row numbers, ascending; `skip_locked` omits agents that others change now."""
    wanted = _ALL_NUMBERED[transaction.is_postgresql]
    if to_change:
        wanted = wanted.with_for_update(of=(agents, heartbeats), skip_locked=skip_locked)
    return [_stored(row) for row in transaction.connection.execute(wanted, given(transaction, ids))]


def find_named(
    transaction: Transaction, agent_ids: Sequence[str], *, to_change: bool = False
) -> list[StoredAgent]:
    """Return agents by their ids, in the order of their row numbers; unknown ids are omitted."""
    wanted = _ALL_NAMED[transaction.is_postgresql]
    if to_change:
        wanted = wanted.with_for_update(of=(agents, heartbeats))
    return [_stored(row) for row in transaction.connection.execute(wanted, given(transaction, agent_ids))]


def count(transaction: Transaction) -> int:
    """Return the number of agents."""
    return transaction.connection.scalar(select(func.count()).select_from(agents)) or 0


def names_of(transaction: Transaction, agent_ids: Sequence[str]) -> list[tuple[str, str | None, str | None]]:
    """Return id, name and listed URL of these agents; unknown agents are absent."""
    wanted = select(agents.c.agent_id, agents.c.name, agents.c.target_url)
    rows = transaction.connection.execute(wanted.where(agents.c.agent_id.in_(agent_ids)))
    return [(str(agent_id), name, target_url) for agent_id, name, target_url in rows]


def of_pool(transaction: Transaction, role_id: str, statuses: Sequence[str], limit: int) -> list[StoredAgent]:
    """Return and lock at most `limit` members of a pool that have one of these statuses."""
    return _members(transaction, role_id, agents.c.status.in_(statuses), limit)


def maintained_of_pool(transaction: Transaction, role_id: str, limit: int) -> list[StoredAgent]:
    """Return and lock at most `limit` members of a pool that are in maintenance now, in any status."""
    return _members(transaction, role_id, agents.c.maintenance_until_s > transaction.now_s, limit)


def _members(
    transaction: Transaction, role_id: str, which: ColumnElement[bool], limit: int
) -> list[StoredAgent]:
    wanted = (
        _ALL.where(agents.c.role_id == role_id, which)
        .order_by(agents.c.id)
        .limit(limit)
        .with_for_update(of=(agents, heartbeats))
    )
    return [_stored(row) for row in transaction.connection.execute(wanted)]


def set_maintenance(transaction: Transaction, numbers: Sequence[int], until_s: float | None) -> None:
    """Store until when these agents are in maintenance; None ends the maintenance."""
    statement = update(agents).where(agents.c.id.in_(numbers)).values(maintenance_until_s=until_s)
    transaction.connection.execute(statement)


def due(transaction: Transaction, at_s: float, limit: int) -> list[StoredAgent]:
    """Return agents whose verdict may have changed, earliest first, without a lock."""
    found = transaction.connection.execute(_DUE, {"at_s": at_s, "most": limit})
    return [_stored(row) for row in found]


def add(transaction: Transaction, agent: Mapping[str, Any], last_heartbeat_at_s: float) -> int:
    """Store a new agent, given as columns, and return its row number."""
    return add_many(transaction, [agent], last_heartbeat_at_s)[0]


def add_many(
    transaction: Transaction, added: Sequence[Mapping[str, Any]], last_heartbeat_at_s: float
) -> list[int]:
    """Store new agents, given as columns, and return their row numbers in the same order."""
    connection = transaction.connection
    if transaction.is_postgresql:
        found = connection.execute(_ADD_POSTGRESQL, [_own_columns(agent) for agent in added])
    else:
        rows = [[agent.get(name) for name in _GIVEN_COLUMNS] for agent in added]
        found = connection.execute(_ADD_SQLITE, {"rows": to_json(rows).decode()})
    number_of = {row.agent_id: row.id for row in found}
    numbers = [number_of[agent["agent_id"]] for agent in added]
    beginnings = [
        (number, last_heartbeat_at_s, agent.get(_CAPACITY))
        for number, agent in zip(numbers, added, strict=True)
    ]
    statement = _ADD_HEARTBEATS_POSTGRESQL if transaction.is_postgresql else _ADD_HEARTBEATS_SQLITE
    connection.execute(statement, {"rows": to_json(beginnings).decode()})
    able = {
        number: (agent["status"], tuple(agent["capabilities"]))
        for number, agent in zip(numbers, added, strict=True)
    }
    _index(transaction, able)
    return numbers


def new_agent(number: int, agent: Mapping[str, Any], last_heartbeat_at_s: float) -> StoredAgent:
    """Return the StoredAgent of a new agent, given as columns and its row number; nothing is stored."""
    return StoredAgent(
        id=number,
        last_heartbeat_at_s=last_heartbeat_at_s,
        current_load=0,
        tasks=None,
        observed=None,
        extended_interval_s=None,
        extended_unhealthy_after_s=None,
        extended_dead_after_s=None,
        **agent,
    )


def change(transaction: Transaction, number: int, columns: Mapping[str, Any]) -> None:
    """Change some columns of one agent, wherever they are stored."""
    connection = transaction.connection
    connection.execute(update(agents).where(agents.c.id == number).values(**_own_columns(columns)))
    with_heartbeats = {name: value for name, value in columns.items() if name in _STORED_WITH_HEARTBEATS}
    if with_heartbeats:
        connection.execute(update(heartbeats).where(heartbeats.c.agent == number).values(**with_heartbeats))
    if "capabilities" in columns:
        transaction.connection.execute(delete(capabilities).where(capabilities.c.agent == number))
        status = transaction.connection.execute(
            select(agents.c.status).where(agents.c.id == number)
        ).scalar_one()
        _index(transaction, {number: (status, tuple(columns["capabilities"]))})


def reset_agent(
    transaction: Transaction, number: int, columns: Mapping[str, Any], last_heartbeat_at_s: float
) -> None:
    """Delete the reports and observations of an agent's former incarnation; store these columns instead."""
    change(transaction, number, {**columns, **_NOT_EXTENDED, "recoveries_s": ()})
    transaction.connection.execute(
        update(heartbeats)
        .where(heartbeats.c.agent == number)
        .values(
            last_heartbeat_at_s=last_heartbeat_at_s,
            current_load=0,
            tasks=None,
            is_drifting=False,
            has_lost_tasks=False,
        )
    )
    transaction.connection.execute(delete(observed).where(observed.c.agent == number))


# Columns that a verdict changes; one statement for any number of agents.
VERDICT_COLUMNS = (
    "status", "reason", "status_since_s", "explanation", "health", "incarnation", "version", "assess_at_s",
    "drain_deadline_s", "recoveries_s",
)  # fmt: skip
_KINDS = ("text", "text", "float8", "text", "text", "bigint", "bigint", "float8", "float8", "json")
_PLACES = tuple(enumerate(VERDICT_COLUMNS, start=1))
_SET_VERDICTS_SQLITE = text(f"""
    UPDATE agents SET {", ".join(f"{name} = given.value ->> {place}" for place, name in _PLACES)}
    FROM json_each(:given) given WHERE agents.id = given.value ->> 0
""")  # noqa: S608 - constants only
_SET_VERDICTS_POSTGRESQL = text(f"""
    UPDATE agents SET {", ".join(f"{name} = given.{name}" for name in VERDICT_COLUMNS)}
    FROM unnest(
        CAST(:id AS bigint[]),
        {", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in zip(VERDICT_COLUMNS, _KINDS, strict=True))}
    ) AS given (id, {", ".join(VERDICT_COLUMNS)})
    WHERE agents.id = given.id
""")  # noqa: S608 - constants only
_SET_INDEXED_STATUS_SQLITE = text("""
    UPDATE capabilities SET status = given.value ->> 1
    FROM json_each(:given) given WHERE capabilities.agent = given.value ->> 0
""")
_SET_INDEXED_STATUS_POSTGRESQL = text("""
    UPDATE capabilities SET status = given.status
    FROM unnest(CAST(:id AS bigint[]), CAST(:status AS text[])) AS given (id, status)
    WHERE capabilities.agent = given.id
""")
_OBSERVED_COLUMNS = ("agent", "facts", *EVIDENCE_COLUMNS)
_SET_OBSERVED_TAIL = f"""
    ON CONFLICT (agent) DO UPDATE
    SET {", ".join(f"{name} = excluded.{name}" for name in _OBSERVED_COLUMNS[1:])}
"""  # noqa: S608 - constants only
_SET_OBSERVED_SQLITE = text(f"""
    INSERT INTO observed ({", ".join(_OBSERVED_COLUMNS)})
    SELECT {", ".join(f"value ->> {place}" for place in range(len(_OBSERVED_COLUMNS)))}
    FROM json_each(:rows) WHERE true {_SET_OBSERVED_TAIL}
""")  # noqa: S608 - constants only
_SET_OBSERVED_POSTGRESQL = text(f"""
    INSERT INTO observed ({", ".join(_OBSERVED_COLUMNS)})
    SELECT CAST(given ->> 0 AS bigint), given ->> 1,
        {", ".join(f"CAST(given ->> {place} AS double precision)" for place in range(2, 6))}, given ->> 6
    FROM json_array_elements(CAST(:rows AS json)) AS given {_SET_OBSERVED_TAIL}
""")  # noqa: S608 - constants only
_SET_VERDICT_DUE_SQLITE = text("""
    UPDATE agents SET assess_at_s = given.value ->> 1
    FROM json_each(:given) given WHERE agents.id = given.value ->> 0
""")
_SET_VERDICT_DUE_POSTGRESQL = text("""
    UPDATE agents SET assess_at_s = given.assess_at_s
    FROM unnest(CAST(:id AS bigint[]), CAST(:assess_at_s AS float8[])) AS given (id, assess_at_s)
    WHERE agents.id = given.id
""")
# A verdict is dropped if another transaction assessed or changed the agent meanwhile.
_PUT_OFF_POSTGRESQL = text("""
    UPDATE agents SET assess_at_s = given.assess_at_s
    FROM unnest(CAST(:id AS bigint[]), CAST(:assess_at_s AS float8[])) AS given (id, assess_at_s),
         (SELECT id FROM agents WHERE id = ANY(CAST(:id AS bigint[])) AND assess_at_s <= :due_at_s
          ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) AS still_due
    WHERE agents.id = given.id AND still_due.id = given.id
""")


def set_verdicts(transaction: Transaction, changed: Sequence[StoredAgent]) -> None:
    """Store the columns of these agents that verdicts change (VERDICT_COLUMNS)."""
    if not changed:
        return
    connection = transaction.connection
    if transaction.is_postgresql:
        columns: dict[str, list[Any]] = {"id": [agent.id for agent in changed]}
        columns |= {name: [getattr(agent, name) for agent in changed] for name in VERDICT_COLUMNS}
        columns["recoveries_s"] = [json.dumps(moments_s) for moments_s in columns["recoveries_s"]]
        connection.execute(_SET_VERDICTS_POSTGRESQL, columns)
        connection.execute(_SET_INDEXED_STATUS_POSTGRESQL, {"id": columns["id"], "status": columns["status"]})
    else:
        rows = [(agent.id, *(getattr(agent, name) for name in VERDICT_COLUMNS)) for agent in changed]
        connection.execute(_SET_VERDICTS_SQLITE, {"given": to_json(rows).decode()})
        statuses = [(agent.id, agent.status) for agent in changed]
        connection.execute(_SET_INDEXED_STATUS_SQLITE, {"given": to_json(statuses).decode()})


def set_verdict_due(transaction: Transaction, deadlines: Mapping[int, float | None]) -> None:
    """Store when these agents are to be assessed next."""
    if not deadlines:
        return
    if transaction.is_postgresql:
        transaction.connection.execute(_SET_VERDICT_DUE_POSTGRESQL, _as_columns(deadlines))
    else:
        changed = to_json(list(deadlines.items())).decode()
        transaction.connection.execute(_SET_VERDICT_DUE_SQLITE, {"given": changed})


def reschedule(transaction: Transaction, deadlines: Mapping[int, float | None], due_at_s: float) -> None:
    """Store the next due times of those of these agents that are still due at `due_at_s`."""
    if not transaction.is_postgresql:
        # No other transaction writes between the read and this.
        set_verdict_due(transaction, deadlines)
    elif deadlines:
        columns = {**_as_columns(deadlines), "due_at_s": due_at_s}
        transaction.connection.execute(_PUT_OFF_POSTGRESQL, columns)


def reschedule_later(transaction: Transaction, due_at_s: float, until_s: float) -> None:
    """Reschedule agents that are due later, without reading their records."""
    first = (
        select(agents.c.id).where(agents.c.assess_at_s <= due_at_s).order_by(agents.c.assess_at_s).limit(1)
    )
    transaction.connection.execute(
        update(agents).where(agents.c.id == first.scalar_subquery()).values(assess_at_s=until_s)
    )


def compare_tasks(transaction: Transaction, numbers: Sequence[int]) -> None:
    """Have the next heartbeats of these agents compare their reported tasks with their leases."""
    transaction.connection.execute(
        update(heartbeats).where(heartbeats.c.agent.in_(numbers)).values(tasks=None)
    )


def make_verdicts_due(transaction: Transaction, agent_ids: Sequence[str], at_s: float) -> None:
    """Have the next sweep assess these agents, and compare their tasks at their next heartbeat."""
    wanted = select(agents.c.id).where(agents.c.agent_id.in_(agent_ids)).order_by(agents.c.id)
    numbers = transaction.connection.scalars(wanted.with_for_update(key_share=True)).all()
    if numbers:
        compare_tasks(transaction, numbers)
        set_verdict_due(transaction, dict.fromkeys(numbers, at_s))


def _as_columns(deadlines: Mapping[int, float | None]) -> dict[str, Any]:
    return {"id": list(deadlines.keys()), "assess_at_s": list(deadlines.values())}


ObservedRow = tuple[int, str, float | None, float | None, float | None, float | None, str | None]
"""Sums of the probes of one agent, as stored; `observed_row` creates it."""


def observed_row(number: int, seen: Observed) -> ObservedRow:
    """Return the row of observed facts to store for an agent, by its row number."""
    evidence = evidence_of(seen)
    return (
        number, seen.to_json(), evidence.at_s, evidence.until_s, evidence.results_until_s,
        evidence.health_until_s, evidence.inconclusive_reason,
    )  # fmt: skip


def set_observed(transaction: Transaction, rows: Sequence[ObservedRow]) -> None:
    """Store the observed facts of these agents, at most one row for each."""
    if not rows:
        return
    statement = _SET_OBSERVED_POSTGRESQL if transaction.is_postgresql else _SET_OBSERVED_SQLITE
    transaction.connection.execute(statement, {"rows": to_json(sorted(rows)).decode()})


def set_card_urls(transaction: Transaction, places: Mapping[int, str | None]) -> None:
    """Store the URLs at which probes last found the cards of these agents; None: they found none."""
    if places:
        statement = update(agents).where(agents.c.id == bindparam("number"))
        rows = [{"number": number, "card_url": url} for number, url in sorted(places.items())]
        transaction.connection.execute(statement, rows)


def insert_or_replace(transaction: Transaction, table: Any, *key: str) -> Any:
    """Return a statement that inserts a row, or replaces the one of the same key."""
    if transaction.is_postgresql:
        from sqlalchemy.dialects.postgresql import insert as dialect_insert  # noqa: PLC0415
    else:
        from sqlalchemy.dialects.sqlite import insert as dialect_insert  # type: ignore[assignment]  # noqa: PLC0415
    statement = dialect_insert(table)
    others = {
        column.name: statement.excluded[column.name] for column in table.columns if column.name not in key
    }
    return statement.on_conflict_do_update(index_elements=key, set_=others)


def _index(transaction: Transaction, able: Mapping[int, tuple[str, Iterable[str]]]) -> None:
    rows = [
        {"agent": number, "status": status, "capability": capability}
        for number, (status, names) in able.items()
        for capability in names
    ]
    if rows:
        transaction.connection.execute(insert(capabilities), rows)


def _own_columns(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the table `agents`, with lists in place of tuples."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if name not in _STORED_WITH_HEARTBEATS
    }


def _stored(row: Row[Any]) -> StoredAgent:
    members = dict(zip(_NAMES, row, strict=True))
    members["capabilities"] = tuple(members["capabilities"])
    members["recoveries_s"] = tuple(members["recoveries_s"])
    return StoredAgent(**members)


def tasks_of(agent: StoredAgent) -> list[str]:
    """Return the tasks that the agent last reported as its current work."""
    return list(json.loads(agent.tasks)) if agent.tasks else []
