"""How is a target probed now? (`POST /api/v1/targets/{target_id}/probe`)

Nobody here probes: its prober is told that somebody wants to know, and looks within seconds, or as soon as
the target has asked to be looked at again.
"""

from agent_health.access import Action, require
from agent_health.agent_record import moment
from agent_health.errors import TargetGone, TargetNotFound, TooManyRequests
from agent_health.probe_cadence import Cadence, asked_to_wait_until_s
from agent_health.registry.feed_targets import recalled
from agent_health.registry.list_targets import PATH
from agent_health.registry.operations import Call, Operation, Reply
from agent_health.storage import target_search, targets
from agent_health.storage.database import Transaction
from agent_health.target_record import RecheckRecord

RECHECK_SECONDS = Cadence().recheck_every_s
"""Between two of one target (protocol 3)."""


def recheck_target(transaction: Transaction, call: Call) -> Reply:
    """Have a target probed out of turn; TooManyRequests within a minute of the last time.

    TargetGone if it is not probed any more.
    """
    subject_id = call.path["target_id"]
    require(call.caller, Action.RECHECK, subject_id)
    if targets.find(transaction, subject_id) is None:
        raise TargetNotFound(subject_id)
    version = targets.next_version(transaction)
    target = targets.find(transaction, subject_id, to_change=True)
    if target is None:
        raise TargetNotFound(subject_id)
    if target.gone_reason is not None:
        raise TargetGone(subject_id, target.gone_reason)
    # Whoever has waited for the count, or the row, asks when that was over.
    transaction = transaction.after_waiting()
    if target.recheck_at_s is not None:
        wait_s = target.recheck_at_s + RECHECK_SECONDS - transaction.now_s
        # No longer than it can take, if the clock was set back.
        if 0 < wait_s <= RECHECK_SECONDS:
            raise TooManyRequests(wait_s)
    targets.ask_recheck(transaction, target.id, version)
    row = target_search.whole(transaction, subject_id)
    observed_at_s = None if row is None else row.observed_at_s
    memory = None if row is None else recalled(subject_id, row.memory)
    not_before_s = None if memory is None else asked_to_wait_until_s(memory, transaction.now_s)
    answer = RecheckRecord(
        target_id=subject_id,
        recheck_at=moment(transaction.now_s),
        observed_at=None if observed_at_s is None else moment(observed_at_s),
        not_before=None if not_before_s is None else moment(not_before_s),
    )
    return Reply(content=answer, status=202)


OPERATIONS = (
    Operation(
        method="POST",
        path=f"{PATH}/{{target_id}}/probe",
        summary="Have a target probed now",
        action=Action.RECHECK,
        deed=recheck_target,
        answer=RecheckRecord,
        status=202,
        errors=(404, 410),
    ),
)
