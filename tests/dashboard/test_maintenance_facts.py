from lifesign.dashboard.maintenance_facts import last_override
from lifesign.domain.access.event_actor import OwnActor
from lifesign.domain.events.agent_payloads import MaintenanceChanged
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.models.base import moment
from lifesign.storage.engine.transaction import Database
from lifesign.storage.events import event_log


async def test_operator_and_reason_stay_after_the_registry_moved_the_end(database: Database) -> None:
    kind = EventType.AGENT_MAINTENANCE_CHANGED
    drafts = [
        EventDraft(
            type=kind,
            actor=actor,
            payload=MaintenanceChanged(agent_id="agent-1", until=moment(until_s), reason=reason),
            agent_id="agent-1",
        )
        for actor, until_s, reason in (
            (OwnActor.COMMAND_LINE.value, 100.0, "new disks"),
            (OwnActor.MONITOR.value, 200.0, "the clock was set"),
            (OwnActor.MONITOR.value, 100.0, "the clock was set"),
        )
    ]
    await database.write(lambda transaction: event_log.append(transaction, drafts))
    shown = await database.read(lambda transaction: last_override(transaction, "agent-1", kind))
    assert (shown.reason, shown.by) == ("new disks", OwnActor.COMMAND_LINE.value)
