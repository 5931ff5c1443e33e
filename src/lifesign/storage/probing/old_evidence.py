"""Living agents with old evidence: how many, and what the last result of each was."""

from collections import Counter

from sqlalchemy import func, select

from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.observation.evidence_age import Evidence, UnknownReason, unknown_reason
from lifesign.storage.engine.tables import agents, observed, targets
from lifesign.storage.engine.transaction import Transaction

_LIVING = (Status.ACTIVE, Status.UNHEALTHY, Status.DRAINING)


def count(transaction: Transaction) -> dict[UnknownReason, int]:
    """Return how many living agents that are probed have old evidence, by the reason."""
    now_s = transaction.now_s
    old = (
        select((observed.c.results_until_s < now_s).label("is_late"), observed.c.inconclusive_reason)
        .join(agents, agents.c.id == observed.c.agent)
        .join(targets, targets.c.subject_id == agents.c.agent_id)
        .where(
            observed.c.evidence_until_s < now_s, agents.c.status.in_(_LIVING), targets.c.gone_at_s.is_(None)
        )
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
