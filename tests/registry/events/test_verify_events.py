import asyncio

import pytest
from sqlalchemy import Executable, delete, insert, update
from tests.storage.events.test_event_log import appending, draft
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.events.chain import agent_of, payload_of
from lifesign.domain.events.event import EventDraft
from lifesign.registry.events.verify_events import LogReport, verify_log
from lifesign.storage.engine.table_definitions import (
    agents,
    events,
    keys,
    leases,
)
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log

LEASES = "/api/v1/leases"
KEYS = "/api/v1/keys"


async def live_a_little(api: RegistryApi) -> None:
    """Let agents register, hold leases, fall silent and return, so that the log has contents."""
    quick = {"interval_seconds": 1, "unhealthy_after_seconds": 2, "dead_after_seconds": 4}
    first = await api.register("agent-1", heartbeat_config=quick)
    second = await api.register("agent-2", heartbeat_config=quick, capabilities=["coordinator"])
    for number in range(3):
        taken = await api.ask("POST", LEASES, {"resource": f"r:{number}"}, key=first["agent_key"])
        assert taken.status == 201, taken.body
    await api.ask("POST", LEASES, {"resource": "r:9"}, key=second["agent_key"])
    await api.ask("PATCH", f"{AGENTS}/agent-1", {"name": "x"}, headers={"if-match": '"1"'})
    for second_s in range(12):
        api.clock.advance(1)
        await api.sweep()
        if second_s < 4:
            await api.send_heartbeat("agent-1", first["agent_key"])
    assert (await api.record("agent-1"))["status"] == "dead"
    await api.register("agent-2")
    await api.ask("DELETE", f"{AGENTS}/agent-2")


async def change_keys(api: RegistryApi) -> None:
    """Let keys come, be rotated and be revoked."""
    made = {}
    for name in ("gone", "turned"):
        made[name] = (await api.ask("POST", KEYS, {"role": "reader", "name": name})).json()["key_id"]
    await api.ask("POST", KEYS, {"role": "reader", "name": "brief", "expires_in_seconds": 1000})
    assert (await api.ask("DELETE", f"{KEYS}/{made['gone']}")).status == 204
    assert (await api.ask("POST", f"{KEYS}/{made['turned']}/rotate", {"overlap_seconds": 7})).status == 201


async def execute(api: RegistryApi, statement: Executable) -> None:
    """Change the database behind the registry's back."""

    def change(transaction: Transaction) -> None:
        transaction.connection.execute(statement)

    await api.database.write(change)


async def report(api: RegistryApi) -> LogReport:
    return await api.database.read(verify_log)


class _Undone(Exception):
    """Rolls a change back."""


async def report_after(api: RegistryApi, statement: Executable) -> LogReport:
    """Return the report on a database that was changed behind the registry's back; the change is undone."""
    reports = []

    def change(transaction: Transaction) -> None:
        transaction.connection.execute(statement)
        reports.append(verify_log(transaction))
        raise _Undone

    with pytest.raises(_Undone):
        await api.database.write(change)
    return reports[0]


async def test_unchanged_log_is_valid(api: RegistryApi) -> None:
    await live_a_little(api)
    found = await report(api)
    assert (found.fault, found.differences) == (None, ())
    assert found.is_good
    assert (found.agents, found.leases, found.erased) == (2, 4, 0)
    assert found.events == found.last.sequence == len(await api.events())


async def test_empty_log_is_valid(api: RegistryApi) -> None:
    assert (await report(api)).is_good


TAMPERED: list[tuple[Executable, str]] = [
    (update(events).where(events.c.sequence == 3).values(actor="somebody"), "event 3"),
    (update(events).where(events.c.sequence == 3).values(payload="{}"), "event 3"),
    (update(events).where(events.c.sequence == 3).values(payload="{"), "event 3"),
    (update(events).where(events.c.sequence == 3).values(type="nonsense"), "event 3"),
    (update(events).where(events.c.sequence == 3).values(hash="0" * 64), "event 3"),
    (update(events).where(events.c.sequence == 3).values(agent_id="agent-9"), "event 3"),
    (update(events).where(events.c.sequence == 3).values(agent_id=None), "event 3"),
    (update(events).where(events.c.sequence == 3).values(intent_id="x"), "event 3"),
    (
        update(events).where(events.c.sequence == 3).values(created_at="2025-11-20T12:00:00.001Z"),
        "event 3",
    ),
    (delete(events).where(events.c.sequence == 3), "event 3"),
    (delete(events).where(events.c.sequence > 3), "event 4"),
]
"""What changes the log, and where that is found."""


@pytest.mark.both_databases
async def test_changed_event_is_found(api: RegistryApi) -> None:
    await live_a_little(api)
    for tampering, fault in TAMPERED:
        found = await report_after(api, tampering)
        assert found.fault is not None, tampering
        assert fault in found.fault, tampering
        assert not found.is_good, tampering
    assert (await report(api)).is_good


async def test_impossible_event_is_detected(api: RegistryApi) -> None:
    await live_a_little(api)
    (first,) = await api.database.read(lambda transaction: event_log.after(transaction, 0, limit=1))
    twice = EventDraft(type=first.type, actor="x", payload=payload_of(first), agent_id=agent_of(first))
    await api.database.write(appending(twice))
    found = await report(api)
    assert found.fault is not None
    assert "cannot have happened" in found.fault


CONTRADICTED: list[tuple[Executable, str]] = [
    (
        update(agents).where(agents.c.agent_id == "agent-1").values(status="active"),
        "agent agent-1: status",
    ),
    (delete(agents).where(agents.c.agent_id == "agent-2"), "agent agent-2: in the log, not in the store"),
    (update(leases).where(leases.c.resource == "r:1").values(token=99), "lease of r:1: token"),
    (delete(leases).where(leases.c.resource == "r:1"), "lease of r:1: in the log"),
    (update(keys).where(keys.c.agent_id == "agent-1").values(role="admin"), "key key_"),
    (update(keys).where(keys.c.agent_id == "agent-1").values(agent_id="agent-2"), "key key_"),
    (update(keys).where(keys.c.name == "gone").values(revoked_at_s=None), "key key_"),
    (update(keys).where(keys.c.name == "brief").values(revoked_at_s=1.0), "key key_"),
    (update(keys).where(keys.c.name == "brief").values(expires_at_s=None), "key key_"),
    (update(keys).where(keys.c.name == "brief").values(digest="0" * 64), "key key_"),
    (update(keys).where(keys.c.name == "brief").values(name="other"), "key key_"),
    (delete(keys).where(keys.c.name == "gone"), "key key_"),
    (update(keys).where(keys.c.name == "brief").values(digest="none"), "the stored state cannot be read: "),
    (
        update(agents).where(agents.c.agent_id == "agent-1").values(status="odd"),
        "the stored state cannot be read: 'odd' is not a valid Status",
    ),
    (
        insert(keys).values(
            key_id="key_ghost", name="ghost", role="admin", digest="0" * 64, created_at_s=1.0
        ),
        "key key_ghost: in the store, not in the log",
    ),
]
"""What changes a stored state, and the difference to the log."""


@pytest.mark.both_databases
async def test_stored_state_that_contradicts_the_log_is_detected(api: RegistryApi) -> None:
    await live_a_little(api)
    await change_keys(api)
    for change, difference in CONTRADICTED:
        found = await report_after(api, change)
        assert found.fault is None, change
        assert len(found.differences) == 1, change
        assert [one for one in found.differences if one.startswith(difference)], change
    assert (await report(api)).is_good


@pytest.mark.both_databases
async def test_registry_may_write_while_it_is_verified(api: RegistryApi) -> None:
    async def go_on() -> None:
        for number in range(8):
            await api.register(f"other-{number}")
            await api.ask("DELETE", f"{AGENTS}/other-{number}")

    going_on = asyncio.create_task(go_on())
    reports = []
    while not going_on.done():
        reports.append(await report(api))
    await going_on
    assert all(found.is_good for found in reports), reports
    assert len({found.last.sequence for found in reports}) > 1


async def test_a_long_log_is_read_in_pages(api: RegistryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "PAGE", 7)
    await live_a_little(api)
    await api.database.write(appending(*(draft(n) for n in range(50))))
    assert (await report(api)).is_good
