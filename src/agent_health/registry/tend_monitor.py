"""Does the registry trust its own eyes, and who may tell it otherwise?"""

from agent_health import monitor_health
from agent_health.access import Action
from agent_health.agent_record import moment
from agent_health.monitor_health import Monitor, baseline_exits, exit_limit
from agent_health.monitor_record import IllnessReport, MonitorRecord, ShownIllness, ShownSpan
from agent_health.registry.claim_shards import worker_holder
from agent_health.registry.monitor_row import (
    ExcusedTime,
    excused_in,
    monitor_in,
    monitor_turned,
    with_hold,
    with_monitor,
)
from agent_health.registry.operations import Call, Operation, Reply
from agent_health.silence import Span
from agent_health.storage import event_log, registry_row
from agent_health.storage.database import Transaction
from agent_health.storage.registry_row import RegistryRow

PATH = "/api/v1/monitor"


def show_monitor(transaction: Transaction, _call: Call) -> Reply:
    """Return whether silence is believed, and what speaks against it."""
    row = registry_row.find(transaction)
    if row is None:
        return Reply(content=_shown(monitor_health.new_monitor(transaction.now_s), None))
    return Reply(content=_shown(monitor_in(row, transaction.now_s), row))


def release_hold(transaction: Transaction, call: Call) -> Reply:
    """Believe silence again; nothing happens if the monitor is not held."""
    row = registry_row.lock(transaction)
    now_s = transaction.after_waiting().now_s
    look = monitor_health.release(monitor_in(row, now_s), now_s)
    row = with_hold(with_monitor(row, look.monitor), look.excused, now_s)
    registry_row.store(transaction, row)
    event_log.append(transaction, monitor_turned(look, call.actor))
    return Reply(content=_shown(look.monitor, row))


def report_illness(transaction: Transaction, call: Call) -> Reply:
    """Note that a prober calls itself ill, or well again; the next sweep holds while one is."""
    said = call.body_as(IllnessReport)
    prober = call.actor if said.worker is None else worker_holder(call.caller, said.worker)
    row = registry_row.lock(transaction)
    now_s = transaction.after_waiting().now_s
    monitor = monitor_in(row, now_s)
    if said.ill:
        until_s = now_s + said.seconds
        monitor = monitor_health.report_illness(monitor, prober, until_s, said.why, now_s)
    else:
        monitor = monitor_health.report_wellness(monitor, prober)
    row = with_monitor(row, monitor)
    registry_row.store(transaction, row)
    return Reply(content=_shown(monitor, row))


def _shown(monitor: Monitor, row: RegistryRow | None) -> MonitorRecord:
    excused = ExcusedTime() if row is None else excused_in(row)
    spans = [*excused.spans, *(Span(hold.begin_s, hold.end_s) for hold in excused.holds)]
    return MonitorRecord(
        state=monitor.state,
        since=moment(monitor.since_s),
        held_because=monitor.held_because,
        exits=monitor.exits_this_cadence,
        limit=exit_limit(monitor),
        baseline=baseline_exits(monitor),
        illnesses=[
            ShownIllness(prober=illness.prober, until=moment(illness.until_s), why=illness.why)
            for illness in monitor.illnesses
        ],
        excused=[ShownSpan(begin=moment(span.begin_s), end=moment(span.end_s)) for span in sorted(spans)],
        swept_at=None if row is None or row.swept_at_s is None else moment(row.swept_at_s),
    )


OPERATIONS = (
    Operation(
        method="GET",
        path=PATH,
        summary="Show whether the registry trusts its own eyes",
        action=Action.READ_MONITOR,
        deed=show_monitor,
        is_write=False,
        answer=MonitorRecord,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/release",
        summary="End a hold: silence is believed again",
        action=Action.RELEASE_HOLD,
        deed=release_hold,
        answer=MonitorRecord,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/illness",
        summary="Say that the calling prober is ill, or well again",
        action=Action.REPORT_OBSERVATIONS,
        deed=report_illness,
        body=IllnessReport,
        answer=MonitorRecord,
    ),
)
