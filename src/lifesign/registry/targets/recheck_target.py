"""Recheck of a target (`POST /api/v1/targets/{target_id}/probe`).

The registry itself does not probe: it notifies the target's prober, which probes within seconds, or after the
wait that the target asked for.
"""

from lifesign.domain.access.permissions import Permission
from lifesign.domain.models.base import moment
from lifesign.domain.models.targets import RecheckRecord
from lifesign.domain.probing.cadence import retry_after_until_s
from lifesign.registry.errors import TargetGone, TargetNotFound, TooManyRequests
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.targets.feed_targets import recalled
from lifesign.registry.targets.list_targets import PATH, require_for_target
from lifesign.registry.targets.probed_agents import RECHECK_SECONDS
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.targets import target_links, target_rows, target_search


def recheck_target(transaction: Transaction, call: Call) -> OperationReply:
    """Request a probe of a target now. TooManyRequests within a minute of the last request.

    If the id is that of an agent which is linked to a crawled target, the crawled target is probed, and the
    answer names it. TargetGone if the target is no longer probed.
    """
    named = call.path["target_id"]
    require_for_target(transaction, call.caller, Permission.RECHECK, named)
    subject_id = target_links.probed_for(transaction, named) or named
    if target_rows.find(transaction, subject_id) is None:
        raise TargetNotFound(subject_id)
    version = target_rows.next_version(transaction)
    target = target_rows.find(transaction, subject_id, to_change=True)
    if target is None:
        raise TargetNotFound(subject_id)
    if target.gone_reason is not None:
        raise TargetGone(subject_id, target.gone_reason)
    # A caller that waited for the count or the row checks the time after that.
    transaction = transaction.after_waiting()
    if target.recheck_at_s is not None:
        wait_s = target.recheck_at_s + RECHECK_SECONDS - transaction.now_s
        # At most as long as it can take, if the clock was set back.
        if 0 < wait_s <= RECHECK_SECONDS:
            raise TooManyRequests(wait_s)
    target_rows.request_rechecks(transaction, [target.id], version, RECHECK_SECONDS)
    row = target_search.find_target(transaction, subject_id)
    observed_at_s = None if row is None else row.observed_at_s
    memory = None if row is None else recalled(subject_id, row.memory)
    not_before_s = None if memory is None else retry_after_until_s(memory, transaction.now_s)
    answer = RecheckRecord(
        target_id=subject_id,
        recheck_at=moment(transaction.now_s),
        observed_at=None if observed_at_s is None else moment(observed_at_s),
        not_before=None if not_before_s is None else moment(not_before_s),
    )
    return OperationReply(content=answer, status=202)


OPERATIONS = (
    Operation(
        method="POST",
        path=f"{PATH}/{{target_id}}/probe",
        summary="Request a probe of a target",
        action=Permission.RECHECK,
        function=recheck_target,
        answer=RecheckRecord,
        status=202,
        errors=(404, 410),
    ),
)
