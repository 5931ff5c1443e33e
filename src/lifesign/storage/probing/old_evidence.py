"""Living agents with old evidence: their number, and the last result of each."""

from collections import Counter

from sqlalchemy import Text, cast, exists, func, literal, or_, select

from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.observation.evidence_age import Evidence, UnknownReason, unknown_reason
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.tasks.lease import ResourceKind
from lifesign.storage.engine.table_definitions import (
    agents,
    leases,
    links,
    liveness,
    observed,
    probe_results,
    targets,
)
from lifesign.storage.engine.transaction import Transaction

_LIVING = (Status.ACTIVE, Status.UNHEALTHY, Status.DRAINING)


def count_not_allowed(transaction: Transaction) -> dict[tuple[str, str], int]:
    """Return the number of targets with old evidence that their last probe was not allowed to contact.

    By the holder of their shard and the network class in which they answered. A target that keeps out probers
    itself, by robots.txt or an opt-out, has the result `not_measured`.
    """
    shard = literal(f"{ResourceKind.SHARD}:").concat(cast(targets.c.shard, Text))
    wanted = (
        select(leases.c.holder, liveness.c.network_class, func.count())
        .select_from(probe_results)
        .join(liveness, liveness.c.target == probe_results.c.target)
        .join(targets, targets.c.id == probe_results.c.target)
        .join(leases, leases.c.resource == shard)
        .where(
            probe_results.c.inconclusive_reason == UnknownReason.NOT_ALLOWED,
            probe_results.c.result != ResultClass.NOT_MEASURED,
            probe_results.c.evidence_until_s < transaction.now_s,
            targets.c.gone_at_s.is_(None),
            leases.c.ended_at_s.is_(None),
            leases.c.expires_at_s > transaction.now_s,
        )
        .group_by(leases.c.holder, liveness.c.network_class)
    )
    found = transaction.connection.execute(wanted)
    return {(str(holder), str(network_class)): int(number) for holder, network_class, number in found}


def count(transaction: Transaction) -> dict[UnknownReason, int]:
    """Return the number of living probed agents with old evidence, by reason."""
    now_s = transaction.now_s
    is_there = targets.c.gone_at_s.is_(None)
    own = exists().where(targets.c.subject_id == agents.c.agent_id, is_there)
    linked = exists().where(links.c.agent == agents.c.id, links.c.target == targets.c.id, is_there)
    old = (
        select((observed.c.results_until_s < now_s).label("is_late"), observed.c.inconclusive_reason)
        .join(agents, agents.c.id == observed.c.agent)
        .where(observed.c.evidence_until_s < now_s, agents.c.status.in_(_LIVING), or_(own, linked))
    ).subquery()
    wanted = select(old.c.is_late, old.c.inconclusive_reason, func.count()).group_by(
        old.c.is_late, old.c.inconclusive_reason
    )
    found: Counter[UnknownReason] = Counter()
    for late, inconclusive_reason, number in transaction.connection.execute(wanted):
        results_until_s = now_s - 1 if late else now_s
        evidence = Evidence(
            until_s=now_s - 1, results_until_s=results_until_s, inconclusive_reason=inconclusive_reason
        )
        if (reason := unknown_reason(evidence, now_s)) is not None:
            found[reason] += number
    return dict(found)
