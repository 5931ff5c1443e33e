"""Liveness of targets: last answer, its address, and whether probes have failed since.

Only targets that once answered have a row. Rows of dead and removed targets are deleted: the remaining
targets are those that a prober may expect to answer.
"""

from collections.abc import Collection, Sequence
from math import inf
from typing import NamedTuple

from pydantic_core import from_json, to_json
from sqlalchemy import Integer, bindparam, func, select, text, true, update

from lifesign.domain.lifecycle.network_silence import ClassCounts
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.observation.results import InconclusiveReason
from lifesign.storage.engine.table_definitions import (
    agents,
    links,
    liveness,
    probe_results,
    targets,
)
from lifesign.storage.engine.transaction import Transaction


class LiveTarget(NamedTuple):
    """A target that answered; class and address are None if the prober did not name them."""

    target: int
    network_class: str | None
    address: str | None
    at_s: float
    prober_key: str = ""
    """Key of the prober that reported it."""


class SilentTarget(NamedTuple):
    """A target that failed, whether or not a witness confirmed that the network works."""

    target: int
    network_class: str | None
    address: str | None
    at_s: float
    prober_key: str = ""
    """Key of the prober that reported it."""


class Candidate(NamedTuple):
    """A target that may be handed out as a witness: its answer would prove that a network works."""

    target: int
    url: str
    host: str
    memory: str | None
    """Memory after its last probe, as JSON."""


_NAMED = agents.alias()
# Created once: it is run for each worker that claims shards.
_RESULTS_DUE = (
    select(probe_results.c.results_until_s)
    .select_from(targets)
    .outerjoin(links, links.c.target == targets.c.id)
    .outerjoin(_NAMED, links.c.target.is_(None) & (_NAMED.c.agent_id == targets.c.subject_id))
    .join(agents, agents.c.id == func.coalesce(links.c.agent, _NAMED.c.id))
    .outerjoin(probe_results, probe_results.c.target == targets.c.id)
    .where(
        targets.c.shard.in_(bindparam("shards", expanding=True)),
        targets.c.gone_at_s.is_(None),
        agents.c.status.in_((Status.ACTIVE, Status.UNHEALTHY)),
        probe_results.c.inconclusive_reason.is_distinct_from(InconclusiveReason.ASKED_TO_WAIT),
    )
    .limit(bindparam("most", type_=Integer))
)
_ANSWERED_TAIL = """
    ON CONFLICT (target) DO UPDATE SET
        network_class = excluded.network_class, address = excluded.address,
        answered_at_s = excluded.answered_at_s, silent_since_s = NULL, prober_key = excluded.prober_key
"""
_ANSWERED_SQLITE = text(f"""
    INSERT INTO liveness (target, network_class, address, answered_at_s, prober_key)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(:rows) WHERE true
    {_ANSWERED_TAIL}
""")  # noqa: S608 - constants only
_ANSWERED_POSTGRESQL = text(f"""
    INSERT INTO liveness (target, network_class, address, answered_at_s, prober_key)
    SELECT CAST(given ->> 0 AS bigint), given ->> 1, given ->> 2, CAST(given ->> 3 AS double precision),
        given ->> 4
    FROM json_array_elements(CAST(:rows AS json)) AS given
    {_ANSWERED_TAIL}
""")  # noqa: S608 - constants only
_SILENT_SQLITE = text("""
    UPDATE liveness SET
        network_class = coalesce(given.value ->> 1, network_class),
        address = coalesce(given.value ->> 2, address),
        silent_since_s = coalesce(silent_since_s, given.value ->> 3), prober_key = given.value ->> 4
    FROM json_each(:rows) AS given WHERE liveness.target = given.value ->> 0
""")
_SILENT_POSTGRESQL = text("""
    UPDATE liveness SET
        network_class = coalesce(given.value ->> 1, network_class),
        address = coalesce(given.value ->> 2, address),
        silent_since_s = coalesce(silent_since_s, CAST(given.value ->> 3 AS double precision)),
        prober_key = given.value ->> 4
    FROM json_array_elements(CAST(:rows AS json)) AS given
    WHERE liveness.target = CAST(given.value ->> 0 AS bigint)
""")
# An address is silent if all of its targets are; it counts once for each key that reported it.
_BY_ADDRESS = """
    SELECT network_class, coalesce(prober_key, '') AS prober_key, max(answered_at_s) AS answered_at_s,
        count(*) = count(silent_since_s) AS is_silent
    FROM liveness WHERE answered_at_s >= :since_s GROUP BY 1, 2, address
"""
_COUNTS_SQLITE = text(f"""
    SELECT network_class, prober_key, count(*),
        json_group_array(json(printf('%!.17g', answered_at_s))) FILTER (WHERE is_silent)
    FROM ({_BY_ADDRESS}) GROUP BY 1, 2
""")  # noqa: S608 - constants only
_COUNTS_POSTGRESQL = text(f"""
    SELECT network_class, prober_key, count(*),
        CAST(coalesce(json_agg(answered_at_s) FILTER (WHERE is_silent), '[]') AS text)
    FROM ({_BY_ADDRESS}) AS by_address GROUP BY 1, 2
""")  # noqa: S608 - constants only


def note(transaction: Transaction, answered: Sequence[LiveTarget], silent: Sequence[SilentTarget]) -> None:
    """Store the targets that answered and those that fell silent, each once."""
    postgresql = transaction.is_postgresql
    known = [row for row in answered if row.network_class is not None and row.address is not None]
    if known:
        statement = _ANSWERED_POSTGRESQL if postgresql else _ANSWERED_SQLITE
        transaction.connection.execute(statement, {"rows": to_json(sorted(known)).decode()})
    if silent:
        statement = _SILENT_POSTGRESQL if postgresql else _SILENT_SQLITE
        transaction.connection.execute(statement, {"rows": to_json(silent).decode()})


def note_reporter(transaction: Transaction, numbers: Collection[int], prober_key: str) -> None:
    """Store the prober key that last reported these targets, and thus wrote their memory."""
    if numbers:
        changed = update(liveness).where(
            liveness.c.target.in_(sorted(numbers)), liveness.c.prober_key.is_distinct_from(prober_key)
        )
        transaction.connection.execute(changed.values(prober_key=prober_key))


def is_any_silent(transaction: Transaction, at_least: int) -> bool:
    """Return whether at least `at_least` targets fail now; with fewer, no count is needed."""
    wanted = select(liveness.c.target).where(liveness.c.silent_since_s.is_not(None)).limit(at_least)
    return len(transaction.connection.execute(wanted).all()) == at_least


def counts(transaction: Transaction, since_s: float) -> dict[str, dict[str, ClassCounts]]:
    """Return the number of addresses that answered since a time, and of those that are silent now.

    By network class, then by the prober's key that last reported of their targets.
    """
    statement = _COUNTS_POSTGRESQL if transaction.is_postgresql else _COUNTS_SQLITE
    found: dict[str, dict[str, ClassCounts]] = {}
    rows = transaction.connection.execute(statement, {"since_s": since_s})
    for network_class, prober_key, addresses, silent in rows:
        counted = ClassCounts(addresses=int(addresses), silent_s=tuple(from_json(silent or "[]")))
        found.setdefault(network_class, {})[prober_key] = counted
    return found


def classes(transaction: Transaction) -> set[str]:
    """Return the network classes of all targets that are expected to answer."""
    return set(transaction.connection.scalars(select(liveness.c.network_class).distinct()))


def candidates(
    transaction: Transaction,
    network_class: str,
    *,
    answered_since_s: float,
    handed_out_before_s: float,
    not_in_shards: Collection[int] = (),
    of_key: str | None = None,
    not_of_keys: Collection[str] = (),
    limit: int,
) -> list[Candidate]:
    """Return targets that answered recently and were not handed out lately, the latest answer first.

    `of_key`: only those whose last answer this prober key reported; `not_of_keys`: none of these keys did.
    """
    reported_by = func.coalesce(liveness.c.prober_key, "")
    was_not_handed_out = liveness.c.handed_out_at_s.is_(None) | (
        liveness.c.handed_out_at_s <= handed_out_before_s
    )
    wanted = (
        select(targets.c.id, targets.c.url, targets.c.host, probe_results.c.memory)
        .select_from(liveness)
        .join(targets, targets.c.id == liveness.c.target)
        .outerjoin(probe_results, probe_results.c.target == liveness.c.target)
        .where(
            liveness.c.network_class == network_class,
            liveness.c.silent_since_s.is_(None),
            liveness.c.answered_at_s >= answered_since_s,
            was_not_handed_out,
            targets.c.gone_at_s.is_(None),
            targets.c.shard.not_in(sorted(not_in_shards)),
            reported_by.not_in(sorted(not_of_keys)),
            true() if of_key is None else reported_by == of_key,
        )
        .order_by(liveness.c.answered_at_s.desc())
        .limit(limit)
    )
    return [Candidate(*row) for row in transaction.connection.execute(wanted)]


def hand_out(transaction: Transaction, numbers: Collection[int]) -> None:
    """Store that these targets are handed out as witnesses now."""
    if numbers:
        changed = update(liveness).where(liveness.c.target.in_(sorted(numbers)))
        transaction.connection.execute(changed.values(handed_out_at_s=transaction.now_s))


def forget_agents(transaction: Transaction, agent_ids: Collection[str]) -> None:
    """Stop expecting answers of these agents, and of the targets that are linked to them."""
    if agent_ids:
        named = sorted(agent_ids)
        own = select(targets.c.id).where(targets.c.subject_id.in_(named))
        linked = (
            select(links.c.target)
            .join(agents, agents.c.id == links.c.agent)
            .where(agents.c.agent_id.in_(named))
        )
        theirs = liveness.c.target.in_(own) | liveness.c.target.in_(linked)
        transaction.connection.execute(liveness.delete().where(theirs))


def results_due_s(transaction: Transaction, shards: Collection[int], pivot: int, limit: int) -> list[float]:
    """Return the times until which results were due, for targets in these shards whose agents live.

    The times are in no order; -inf without any result. Targets that asked their prober to wait are left out.
    At most `limit` targets are read, from the shard `pivot` on.
    """
    first = [shard for shard in shards if shard >= pivot]
    found = _results_due_s(transaction, first, limit)
    rest = [shard for shard in shards if shard < pivot]
    return found + _results_due_s(transaction, rest, limit - len(found))


def _results_due_s(transaction: Transaction, shards: Collection[int], limit: int) -> list[float]:
    if not shards or limit < 1:
        return []
    found = transaction.connection.scalars(_RESULTS_DUE, {"shards": sorted(shards), "most": limit})
    return [-inf if until_s is None else until_s for until_s in found]
