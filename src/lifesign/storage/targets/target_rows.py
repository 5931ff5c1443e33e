"""Targets, and the changes that a prober needs.

A target is listed by directories, or is an agent that registered itself to be probed. Its version rises with
every change that does not come from its prober, by one counter for all targets: a prober that asks for
changes since a version misses none. The counter is locked before any target's row, and after those of agents.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from pydantic_core import to_json
from sqlalchemy import Row, delete, func, insert, select, text, update

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.lifecycle.status_table import ALIVE, Status
from lifesign.domain.targets.target import SHARDS, host_of, shard_of
from lifesign.storage.engine.array_params import given
from lifesign.storage.engine.table_definitions import (
    agents,
    links,
    listings,
    liveness,
    probe_results,
    target_log,
    targets,
)
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.targets import target_links


class GoneReason(StrEnum):
    """Reason why a URL is no longer a target."""

    LEFT = "left"
    """No directory lists it any more; it returns with the first one that does."""
    DEREGISTERED = "deregistered"
    """The agent ended or was deregistered; it returns only by a new registration."""
    OPTED_OUT = "opted_out"
    """The owner has opted out of probes."""
    LINKED = "linked"
    """The agent is one record with a crawled target, which is probed instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTarget:
    """A stored target; the members are columns of `targets`."""

    id: int
    subject_id: str
    url: str
    host: str
    shard: int
    version: int
    is_registered: bool
    added_at_s: float
    recheck_at_s: float | None
    gone_at_s: float | None
    gone_reason: str | None


@dataclass(frozen=True, slots=True)
class TargetCursor:
    """End of a page of a shard's targets: later ones have higher versions, or the same and higher ids."""

    version: int
    id: int


@fast_dataclass()
class FeedRow:
    """A target in the form in which its prober gets it."""

    place: TargetCursor
    subject_id: str
    url: str
    memory: str | None
    """JSON; None if it was never probed."""
    recheck_at_s: float | None
    is_gone: bool
    """True if it is no longer a target of this shard."""
    confirmed_at_s: float | None = None
    """When an operator last confirmed that the target may be down."""
    thresholds_s: tuple[float, float] | None = None
    """Silence after which a registered agent is unhealthy, and dead; None: the defaults of probing."""
    alive_at_s: float | None = None
    """When its agent was last measured, or got its status, if it is alive; None: no agent is alive."""
    active_since_s: float | None = None
    """Time since which its agent is active; None if it is not."""
    reported_by: str | None = None
    """Prober key that reported its last answer or failure; None if it never answered."""
    entered_at_s: float | None = None
    """When its URL or its agent changed, or its agent registered again; earlier results do not count."""
    kind: str | None = None
    """A value of `StatedKind`; None if no directory states one."""


_NAMES = tuple(member.name for member in fields(StoredTarget))
_ALL = select(*(targets.c[name] for name in _NAMES))

_NEXT_VERSION = text("""
    INSERT INTO target_log (id, version) VALUES (1, 1)
    ON CONFLICT (id) DO UPDATE SET version = target_log.version + 1 RETURNING version
""")
_ADD_SQLITE = text("""
    INSERT INTO targets (subject_id, url, host, shard, version, is_registered, added_at_s)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, :version, false, :now_s
    FROM json_each(:rows) WHERE true ON CONFLICT (subject_id) DO NOTHING
""")
# Others may add the same ones, in the order of their own page: the rows of one page are sorted, by all alike.
_ADD_POSTGRESQL = text("""
    INSERT INTO targets (subject_id, url, host, shard, version, is_registered, added_at_s)
    SELECT given ->> 0, given ->> 1, given ->> 2, CAST(given ->> 3 AS integer), :version, false, :now_s
    FROM json_array_elements(CAST(:rows AS json)) AS given ON CONFLICT (subject_id) DO NOTHING
""")
# The agent of a target: the one that it is linked to, else the one that has its id.
_OF_AGENTS = f"""
    CASE WHEN links.target IS NOT NULL OR is_registered THEN agents.unhealthy_after_s END,
    CASE WHEN links.target IS NOT NULL OR is_registered THEN agents.dead_after_s END,
    CASE
        WHEN agents.status IN ({", ".join(f"'{status.value}'" for status in sorted(ALIVE))})
        THEN coalesce(observed.evidence_at_s, agents.status_since_s)
    END,
    CASE WHEN agents.status = '{Status.ACTIVE.value}' THEN agents.status_since_s END,
    liveness.prober_key, targets.entered_at_s,
    -- The registered agent of a link may be an A2A agent that a list calls an MCP server.
    CASE WHEN links.target IS NOT NULL AND kind = 'mcp' THEN 'disputed' ELSE kind END
"""
_WITH_AGENTS = """
    LEFT JOIN probe_results ON probe_results.target = targets.id
    LEFT JOIN liveness ON liveness.target = targets.id
    LEFT JOIN links ON links.target = targets.id
    LEFT JOIN agents AS named ON links.target IS NULL AND named.agent_id = targets.subject_id
    LEFT JOIN agents ON agents.id = coalesce(links.agent, named.id)
    LEFT JOIN observed ON observed.agent = agents.id
"""
# Two queries, since each index is for one of them; the second one finds almost nothing.
_FEED = f"""
    SELECT targets.version, targets.id, subject_id, url, memory, recheck_at_s, {{is_gone}} AS is_gone,
        confirmed_at_s, {_OF_AGENTS}
    FROM targets {_WITH_AGENTS}
    WHERE {{column}} = :shard AND targets.version > :after AND targets.version <= :until
        AND (targets.version, targets.id) > (:place_version, :place_id) AND {{condition}}
"""  # noqa: S608 - constants only
_FULL_FEED = text(
    _FEED.format(is_gone="false", column="shard", condition="gone_at_s IS NULL")
    + " ORDER BY targets.version, targets.id LIMIT :limit"
)
_FEED_CHANGES = text(
    _FEED.format(is_gone="gone_at_s IS NOT NULL", column="shard", condition="true")
    + " UNION ALL "
    + _FEED.format(is_gone="true", column="left_shard", condition="shard <> :shard")
    + " ORDER BY 1, 2 LIMIT :limit"
)
_OF_SHARDS = f"""
    SELECT targets.shard, targets.version, targets.id, subject_id, url, memory, recheck_at_s, false,
        confirmed_at_s, {_OF_AGENTS}
    FROM targets {_WITH_AGENTS}
    WHERE {{is_given}} AND gone_at_s IS NULL ORDER BY targets.shard, targets.version, targets.id
"""  # noqa: S608 - constants only
_OF_SHARDS_SQLITE = text(_OF_SHARDS.format(is_given="targets.shard IN (SELECT value FROM json_each(:given))"))
_OF_SHARDS_POSTGRESQL = text(_OF_SHARDS.format(is_given="targets.shard = ANY(:given)"))
_NEWEST_SQLITE = text("""
    SELECT shard, max(version) FROM (
        SELECT value AS shard, (SELECT max(version) FROM targets WHERE shard = value) AS version
        FROM json_each(:shards)
        UNION ALL SELECT left_shard, version FROM targets WHERE left_shard IS NOT NULL
    ) WHERE version > :after GROUP BY shard
""")
_NEWEST_POSTGRESQL = text("""
    SELECT shard, max(version) FROM (
        SELECT asked.shard, (SELECT max(version) FROM targets WHERE targets.shard = asked.shard) AS version
        FROM json_array_elements_text(CAST(:shards AS json)) AS given,
            LATERAL (SELECT CAST(given.value AS integer) AS shard) AS asked
        UNION ALL SELECT left_shard, version FROM targets WHERE left_shard IS NOT NULL
    ) AS newest WHERE version > :after GROUP BY shard
""")
_ALL_SHARDS = to_json([*range(SHARDS)]).decode()


def next_version(transaction: Transaction) -> int:
    """Return a new version of the list of targets, and lock the list until the transaction ends."""
    return int(transaction.connection.execute(_NEXT_VERSION).scalar_one())


def last_version(transaction: Transaction) -> int:
    """Return the version of the last change of the list of targets; 0 before the first one."""
    return transaction.connection.scalar(select(target_log.c.version)) or 0


def find(transaction: Transaction, subject_id: str, *, to_change: bool = False) -> StoredTarget | None:
    """Return a target, also a former one; `to_change` locks it."""
    wanted = _ALL.where(targets.c.subject_id == subject_id)
    row = transaction.connection.execute(wanted.with_for_update() if to_change else wanted).one_or_none()
    return None if row is None else _stored(row)


def find_many(transaction: Transaction, numbers: Sequence[int]) -> list[StoredTarget]:
    """Return targets by row numbers, in their order."""
    wanted = _ALL.where(targets.c.id.in_(numbers)).order_by(targets.c.id)
    return [_stored(row) for row in transaction.connection.execute(wanted)]


def add(transaction: Transaction, urls: Mapping[str, str], version: int) -> None:
    """Store new targets, given as URLs by their ids; existing ones stay. URLs in `read_target`'s form."""
    rows = []
    for subject_id, url in urls.items():
        host = host_of(url)
        rows.append((subject_id, url, host, shard_of(host)))
    rows.sort(key=lambda row: (row[3], row[0]))
    statement = _ADD_POSTGRESQL if transaction.is_postgresql else _ADD_SQLITE
    values = {"rows": to_json(rows).decode(), "version": version, "now_s": transaction.now_s}
    transaction.connection.execute(statement, values)


def enter(transaction: Transaction, agent_id: str, url: str, version: int) -> None:
    """Add an agent that registered to be probed to the targets; `url` has the form of `read_target`.

    A target that gets another URL loses the memory of its last probe. In the shard of another host it is new,
    and the former prober gets its id as gone.
    """
    host = host_of(url)
    shard = shard_of(host)
    known = find(transaction, agent_id, to_change=True)
    columns: dict[str, Any] = {
        "url": url,
        "host": host,
        "shard": shard,
        "version": version,
        "is_registered": True,
        "gone_at_s": None,
        "gone_reason": None,
    }
    if known is None:
        added = {"subject_id": agent_id, "added_at_s": transaction.now_s, **columns}
        transaction.connection.execute(insert(targets).values(added))
        return
    if known.url != url:
        for table in (probe_results, liveness):
            transaction.connection.execute(delete(table).where(table.c.target == known.id))
        columns["entered_at_s"] = transaction.now_s
    if known.shard != shard:
        columns["left_shard"] = known.shard
    transaction.connection.execute(update(targets).where(targets.c.id == known.id).values(columns))


def on_host(transaction: Transaction, host: str) -> list[StoredTarget]:
    """Return all targets of a host, including former ones."""
    wanted = _ALL.where(targets.c.host == host)
    return [_stored(row) for row in transaction.connection.execute(wanted.order_by(targets.c.id))]


def restore_targets(transaction: Transaction, numbers: Sequence[int], version: int) -> int:
    """Restore targets whose opt-out has ended; return their number.

    Targets that no directory lists any more, and whose agents are deregistered, have left meanwhile.
    """
    opted_out = (targets.c.id.in_(numbers), targets.c.gone_reason == GoneReason.OPTED_OUT.value)
    is_listed = select(listings.c.target).where(listings.c.target == targets.c.id).exists()
    is_agent = (
        select(agents.c.id).where(
            agents.c.agent_id == targets.c.subject_id, agents.c.status != "deregistered"
        )
    ).exists()
    back = update(targets).where(*opted_out, is_listed | (targets.c.is_registered & is_agent))
    changed = {"gone_at_s": None, "gone_reason": None, "version": version}
    count = transaction.connection.execute(back.values(changed)).rowcount
    left = {"gone_reason": GoneReason.LEFT.value, "is_registered": False}
    transaction.connection.execute(update(targets).where(*opted_out).values(left))
    return count


def present(transaction: Transaction, subject_ids: Sequence[str]) -> list[int]:
    """Return the row numbers of those of these targets that are not retired."""
    wanted = select(targets.c.id).where(targets.c.subject_id.in_(subject_ids), targets.c.gone_at_s.is_(None))
    return list(transaction.connection.scalars(wanted.order_by(targets.c.id)))


def of_agent(transaction: Transaction, agent_id: str) -> list[int]:
    """Return the numbers of an agent's present targets: those linked to it, else its own."""
    return of_agents(transaction, [agent_id])


def of_agents(transaction: Transaction, agent_ids: Sequence[str]) -> list[int]:
    """Return the numbers of the targets that any of these agents is probed at now."""
    is_one = agents.c.agent_id.in_(agent_ids)
    linked = select(links.c.target).join(agents, agents.c.id == links.c.agent).where(is_one)
    is_theirs = targets.c.subject_id.in_(agent_ids) | targets.c.id.in_(linked)
    wanted = select(targets.c.id).where(is_theirs, targets.c.gone_at_s.is_(None))
    return list(transaction.connection.scalars(wanted.order_by(targets.c.id)))


def lock_present(transaction: Transaction, numbers: Sequence[int]) -> set[int]:
    """Return those of these numbers that are present targets; no other transaction retires them meanwhile."""
    if not numbers:
        return set()
    wanted = select(targets.c.id).where(targets.c.id.in_(numbers), targets.c.gone_at_s.is_(None))
    return set(transaction.connection.scalars(wanted.order_by(targets.c.id).with_for_update(read=True)))


def leave(transaction: Transaction, numbers: Sequence[int], reason: GoneReason, version: int) -> None:
    """Retire targets; agents that are deregistered are no longer marked as registered."""
    gone: dict[str, Any] = {
        "gone_at_s": transaction.now_s,
        "gone_reason": reason.value,
        "version": version,
    }
    if reason is GoneReason.DEREGISTERED:
        gone["is_registered"] = False
    transaction.connection.execute(
        update(targets).where(targets.c.id.in_(numbers), targets.c.gone_at_s.is_(None)).values(gone)
    )
    # They are no longer probed, so no answer is expected.
    transaction.connection.execute(delete(liveness).where(liveness.c.target.in_(numbers)))
    target_links.make_claims_due(transaction, numbers=numbers)


def retire_named(transaction: Transaction, subject_ids: Sequence[str], reason: GoneReason) -> None:
    """Retire those of these ids that are present targets."""
    numbers = present(transaction, subject_ids) if subject_ids else []
    if numbers:
        leave(transaction, numbers, reason, next_version(transaction))


def end_linked(transaction: Transaction, subject_id: str) -> None:
    """Mark an agent's own target, which was not probed because of a link, as deregistered."""
    ended = {"gone_reason": GoneReason.DEREGISTERED.value, "is_registered": False}
    was_linked = targets.c.subject_id == subject_id, targets.c.gone_reason == GoneReason.LINKED.value
    transaction.connection.execute(update(targets).where(*was_linked).values(ended))


def touch_targets(transaction: Transaction, numbers: Sequence[int], version: int) -> None:
    """Mark these targets as changed, so that probers read them again."""
    if numbers:
        changed = update(targets).where(targets.c.id.in_(numbers))
        transaction.connection.execute(changed.values(version=version))


def reset_probing(transaction: Transaction, numbers: Sequence[int], version: int) -> None:
    """Store that these targets are of another agent or incarnation, so that no earlier result counts.

    A confirmation that they may be down was about the former one.
    """
    anew = {"entered_at_s": transaction.now_s, "confirmed_at_s": None}
    changed = update(targets).where(targets.c.id.in_(numbers))
    transaction.connection.execute(changed.values(version=version, **anew))


def request_rechecks(transaction: Transaction, numbers: Sequence[int], version: int, pause_s: float) -> None:
    """Request probes of these targets now, except those with a request in the last `pause_s`."""
    now_s = transaction.now_s
    asked_s = func.coalesce(targets.c.recheck_at_s, -pause_s)
    has_rested = (asked_s <= now_s - pause_s) | (asked_s > now_s)
    changed = update(targets).where(targets.c.id.in_(numbers), has_rested)
    transaction.connection.execute(changed.values(recheck_at_s=now_s, version=version))


def confirm(transaction: Transaction, numbers: Sequence[int], at_s: float, version: int) -> None:
    """Store an operator's confirmation, at this time, that these targets may be down."""
    confirmed = {"confirmed_at_s": at_s, "version": version}
    transaction.connection.execute(update(targets).where(targets.c.id.in_(numbers)).values(confirmed))


def remove(transaction: Transaction, subject_id: str) -> None:
    """Delete a target and all that depends on its row."""
    transaction.connection.execute(delete(targets).where(targets.c.subject_id == subject_id))


def delete_delisted(transaction: Transaction, before_s: float, limit: int) -> bool:
    """Delete some targets that left their directories before a time; return whether there may be more."""
    old = (
        select(targets.c.id)
        .where(targets.c.gone_reason == GoneReason.LEFT.value, targets.c.gone_at_s < before_s)
        .limit(limit)
    )
    forgotten = transaction.connection.execute(delete(targets).where(targets.c.id.in_(old)))
    return forgotten.rowcount == limit


def feed(
    transaction: Transaction,
    shard: int,
    *,
    after: int | None,
    until: int,
    place: TargetCursor | None,
    limit: int,
) -> list[FeedRow]:
    """Return the targets of a shard, or the changes after version `after`, up to version `until`.

    In the order of their positions, from behind `place`. Only changes contain removed targets.
    """
    place = place or TargetCursor(-1, 0)
    parameters = {
        "shard": shard,
        "after": -1 if after is None else after,
        "until": until,
        "place_version": place.version,
        "place_id": place.id,
        "limit": limit,
    }
    found = transaction.connection.execute(_FULL_FEED if after is None else _FEED_CHANGES, parameters)
    return [_feed_row(*row) for row in found]


def feed_shards(transaction: Transaction, shards: Sequence[int]) -> dict[int, list[FeedRow]]:
    """Return all targets of these shards, by shard."""
    rows_by_shard: dict[int, list[FeedRow]] = {shard: [] for shard in shards}
    wanted = _OF_SHARDS_POSTGRESQL if transaction.is_postgresql else _OF_SHARDS_SQLITE
    for shard, *row in transaction.connection.execute(wanted, given(transaction, shards)):
        rows_by_shard[shard].append(_feed_row(*row))
    return rows_by_shard


def _feed_row(version: int, number: int, *value: Any) -> FeedRow:
    subject_id, url, memory, recheck_at_s, is_gone, confirmed_at_s, *of_agent = value
    unhealthy_after_s, dead_after_s, *rest = of_agent
    return FeedRow(
        TargetCursor(version, number),
        subject_id,
        url,
        memory,
        recheck_at_s,
        bool(is_gone),
        confirmed_at_s,
        None if dead_after_s is None else (unhealthy_after_s, dead_after_s),
        *rest,
    )


def newest_versions(transaction: Transaction, after: int) -> dict[int, int]:
    """Return the shards whose targets changed after a version, each with the version of its last change."""
    if last_version(transaction) <= after:
        return {}
    statement = _NEWEST_POSTGRESQL if transaction.is_postgresql else _NEWEST_SQLITE
    rows = transaction.connection.execute(statement, {"shards": _ALL_SHARDS, "after": after})
    return {int(shard): int(version) for shard, version in rows}


def count_former(transaction: Transaction) -> Iterator[tuple[str, int]]:
    """Return the number of former targets, by reason."""
    statement = text("""
        SELECT gone_reason, count(*) FROM targets WHERE gone_at_s IS NOT NULL GROUP BY gone_reason
    """)
    for reason, number in transaction.connection.execute(statement):
        yield str(reason), int(number)


def _stored(row: Row[Any]) -> StoredTarget:
    return StoredTarget(**dict(zip(_NAMES, row, strict=True)))
