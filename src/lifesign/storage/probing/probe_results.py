"""Results of the last probe of each target, in rows that are written with every probe.

Members that are not reported stay unchanged: nothing is read just to be written again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Row, TextClause, func, select, text, update

from lifesign.domain.common.clock_skew import MAX_AHEAD_SECONDS
from lifesign.storage.engine.table_definitions import probe_results, targets
from lifesign.storage.engine.transaction import Transaction


@dataclass(slots=True)
class Subject:
    """Stored facts about the target or agent of an observation."""

    subject_id: str
    target: int | None
    """Our number of the target; None if it is none."""
    shard: int | None
    is_gone: bool
    directories: tuple[int, ...]
    """Directories that list the target."""
    agent: int | None
    """Row number of the agent record; None without one. A linked target has the registered agent's record."""
    observed_at_s: float | None
    """When the last result was observed; None before the first one."""
    token: int | None
    """The shard's token under which it was measured."""
    number: int | None
    """Number of the result under that token."""
    result: str | None
    """Last measured result."""
    layers: str | None
    """The last result of each layer; as `registry/target_results` writes it."""
    entered_at_s: float | None = None
    """When its URL or its agent changed, or its agent registered again: earlier results do not count."""
    is_linked: bool = False
    """Whether the target is linked with a registered agent."""
    is_first_linked: bool = True
    """Whether its results go into the agent's record: of several targets of one agent, those of one do."""


@dataclass(slots=True)
class ProbeResultRow:
    """New results of one target, in the order of the columns; None: the stored value stays."""

    target: int
    observed_at_s: float
    token: int
    number: int
    results_until_s: float
    evidence_at_s: float | None = None
    """Goes with `evidence_until_s`: None for a result that measured nothing."""
    evidence_until_s: float | None = None
    inconclusive_reason: str | None = None
    """Reason of the last result; None if it measured."""
    result: str | None = None
    result_since_s: float | None = None
    layers: str | None = None
    observed: str | None = None
    memory: str | None = None
    protocol_version: str | None = None
    """Belongs to `memory`: without a memory it stays unchanged, with one it is this value."""


_JOINS = """
    LEFT JOIN targets ON targets.subject_id = asked.value
    LEFT JOIN agents ON agents.agent_id = asked.value
    LEFT JOIN probe_results ON probe_results.target = targets.id
    LEFT JOIN links ON links.target = targets.id
"""
_FIRST = "(SELECT min(others.target) FROM links AS others WHERE others.agent = links.agent)"
_OF_SQLITE = text(f"""
    SELECT json_group_array(json_array(
        asked.value, targets.id, targets.shard, targets.gone_at_s IS NOT NULL,
        (SELECT json_group_array(directory) FROM listings WHERE listings.target = targets.id),
        coalesce(links.agent, agents.id),
        iif(probe_results.observed_at_s IS NULL, NULL, json(printf('%!.17g', probe_results.observed_at_s))),
        probe_results.token, probe_results.number, probe_results.result, probe_results.layers,
        iif(targets.entered_at_s IS NULL, NULL, json(printf('%!.17g', targets.entered_at_s))),
        links.agent IS NOT NULL, coalesce(links.target = {_FIRST}, true)
    ))
    FROM json_each(:subjects) AS asked {_JOINS}
""")  # noqa: S608 - constants only
_OF_POSTGRESQL = text(f"""
    SELECT CAST(json_agg(json_build_array(
        asked.value, targets.id, targets.shard, targets.gone_at_s IS NOT NULL,
        (SELECT json_agg(directory) FROM listings WHERE listings.target = targets.id),
        coalesce(links.agent, agents.id), probe_results.observed_at_s,
        probe_results.token, probe_results.number, probe_results.result,
        probe_results.layers, targets.entered_at_s,
        links.agent IS NOT NULL, coalesce(links.target = {_FIRST}, true)
    )) AS text)
    FROM unnest(CAST(:subjects AS text[])) AS asked (value) {_JOINS}
""")  # noqa: S608 - constants only

_STORED = tuple(ProbeResultRow.__dataclass_fields__)
_STORE_TAIL = """
    ON CONFLICT (target) DO UPDATE SET
        observed_at_s = excluded.observed_at_s,
        token = excluded.token,
        number = excluded.number,
        results_until_s = excluded.results_until_s,
        evidence_until_s = CASE
            WHEN excluded.evidence_at_s IS NULL THEN probe_results.evidence_until_s
            ELSE excluded.evidence_until_s
        END,
        evidence_at_s = coalesce(excluded.evidence_at_s, probe_results.evidence_at_s),
        inconclusive_reason = excluded.inconclusive_reason,
        result = coalesce(excluded.result, probe_results.result),
        result_since_s = coalesce(excluded.result_since_s, probe_results.result_since_s),
        layers = coalesce(excluded.layers, probe_results.layers),
        observed = coalesce(excluded.observed, probe_results.observed),
        memory = coalesce(excluded.memory, probe_results.memory),
        protocol_version = CASE
            WHEN excluded.memory IS NULL THEN probe_results.protocol_version ELSE excluded.protocol_version
        END
"""
# A target without any measured result has old evidence.
_PLACES = {name: f"given ->> {place}" for place, name in enumerate(_STORED)}
_CASTS = {
    "target": "bigint", "token": "bigint", "number": "bigint", "observed_at_s": "double precision",
    "results_until_s": "double precision", "evidence_at_s": "double precision",
    "evidence_until_s": "double precision", "result_since_s": "double precision",
}  # fmt: skip


def _store_from(source: str, read: Callable[[str], str]) -> TextClause:
    values = {name: read(name) for name in _STORED}
    values["evidence_until_s"] = f"coalesce({values['evidence_until_s']}, {values['observed_at_s']})"
    return text(f"""
        INSERT INTO probe_results ({", ".join(_STORED)}) SELECT {", ".join(values.values())} FROM {source}
        {_STORE_TAIL}
    """)  # noqa: S608 - constants only


_STORE_SQLITE = _store_from(
    "(SELECT value AS given FROM json_each(:rows)) WHERE true", lambda name: _PLACES[name]
)
_STORE_POSTGRESQL = _store_from(
    "json_array_elements(CAST(:rows AS json)) AS given",
    lambda name: f"CAST({_PLACES[name]} AS {_CASTS[name]})" if name in _CASTS else _PLACES[name],
)


_LAST: tuple[Any, ...] = (probe_results.c.result, probe_results.c.result_since_s, probe_results.c.observed)


def find(transaction: Transaction, subject_ids: Sequence[str]) -> dict[str, Subject]:
    """Return the stored facts for these ids of targets, including former ones, by id."""
    if transaction.is_postgresql:
        stored = transaction.connection.scalar(_OF_POSTGRESQL, {"subjects": subject_ids})
    else:
        stored = transaction.connection.scalar(_OF_SQLITE, {"subjects": to_json(subject_ids).decode()})
    return {row[0]: _subject(row) for row in from_json(stored or "[]")}


def memories_of(transaction: Transaction, numbers: Sequence[int]) -> dict[int, str]:
    """Return what probers remember for the next probe of these targets, as JSON; others are absent."""
    wanted = select(probe_results.c.target, probe_results.c.memory).where(
        probe_results.c.target.in_(numbers), probe_results.c.memory.is_not(None)
    )
    return {row.target: row.memory for row in transaction.connection.execute(wanted)}


def set_memories(transaction: Transaction, memories: Mapping[int, str | None]) -> None:
    """Replace what probers remember for the next probe of these targets."""
    for number, memory in memories.items():
        changed = update(probe_results).where(probe_results.c.target == number)
        transaction.connection.execute(changed.values(memory=memory))


def store(transaction: Transaction, changed: Sequence[ProbeResultRow]) -> None:
    """Store the results of these targets, at most one for each."""
    if not changed:
        return
    rows = [_as_row(left) for left in sorted(changed, key=lambda left: left.target)]
    statement = _STORE_POSTGRESQL if transaction.is_postgresql else _STORE_SQLITE
    transaction.connection.execute(statement, {"rows": to_json(rows).decode()})


def last_of(transaction: Transaction, subject_id: str) -> Row[Any] | None:
    """Return the columns `_LAST` of a target; None without such a target or without a result."""
    wanted = select(*_LAST).join(targets, targets.c.id == probe_results.c.target)
    is_it = (
        targets.c.subject_id == subject_id,
        targets.c.gone_at_s.is_(None),
        probe_results.c.result.is_not(None),
    )
    return transaction.connection.execute(wanted.where(*is_it)).one_or_none()


_as_row = attrgetter(*_STORED)


def count_unprobed(transaction: Transaction, since_s: float) -> int:
    """Return the number of targets without a result since a time; future results do not count."""
    statement = text("""
        SELECT count(*) FROM targets LEFT JOIN probe_results ON probe_results.target = targets.id
        WHERE gone_at_s IS NULL
            AND (observed_at_s IS NULL OR observed_at_s < :since_s OR observed_at_s > :ahead_s)
    """)
    parameters = {"since_s": since_s, "ahead_s": transaction.now_s + MAX_AHEAD_SECONDS}
    return transaction.connection.scalar(statement, parameters) or 0


def last_observed_at_s(transaction: Transaction) -> float | None:
    """Return when the latest of all results was observed; None: there was none."""
    at_s: float | None = transaction.connection.scalar(select(func.max(probe_results.c.observed_at_s)))
    return at_s


def _subject(row: Sequence[Any]) -> Subject:
    subject_id, target, shard, is_gone, directories, agent, observed_at_s, token, number, *known = row
    return Subject(
        subject_id, target, shard, bool(is_gone), tuple(directories or ()),
        agent, observed_at_s, token, number, *known,
    )  # fmt: skip
