import asyncio
import json
from pathlib import Path

import pytest
from sqlalchemy import select, text
from tests.registry.events.test_archive_events import archive_everything
from tests.registry.events.test_verify_events import live_a_little, report
from tests.support.asgi_client import Answer
from tests.support.databases import WoundClock
from tests.support.directory_api import put
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import PATIENCE_SECONDS
from tests.support.task_api import TASKS, create, steer, task, worker

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import target_id
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.postgresql import PostgresqlDatabase
from lifesign.storage.engine.table_definitions import metadata
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log

RECORD = f"{AGENTS}/agent-1/record"
STATE = "/api/v1/intents/i1/state/s1"
_WAITING = text("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")


def _words(transaction: Transaction) -> dict[str, str]:
    """All that is stored, as text, by table."""
    return {
        table.name: json.dumps(
            [[str(value) for value in row] for row in transaction.connection.execute(select(table))]
        )
        for table in metadata.sorted_tables
    }


async def test_erased_agent_leaves_only_its_id_in_the_log(api: RegistryApi) -> None:
    record = await api.register(
        "agent-1", name="Mrs Secret", metadata={"x": "Mrs Secret"}, capabilities=["c1"]
    )
    key = record["agent_key"]
    await api.ask("POST", "/api/v1/leases", {"resource": "r:1"}, key=key)
    await api.ask("POST", f"{AGENTS}/agent-1/commands", {"command": "drain", "reason": "Mrs Secret"})
    await api.send_heartbeat("agent-1", key, client_timestamp="2020-01-01T00:00:00Z")
    await write_state(api, key)
    await api.register("agent-2")
    answer = await api.ask("DELETE", RECORD)
    assert answer.status == 200, answer.body
    words = await api.database.read(_words)
    assert {name for name, text in words.items() if "Mrs Secret" in text} == set()
    assert {name for name, text in words.items() if "agent-1" in text} == {"archive_erasures", "events"}
    assert (await api.ask("GET", f"{AGENTS}/agent-1")).status == 404
    assert (await api.send_heartbeat("agent-1", key)).status == 401
    assert (await api.record("agent-2"))["status"] == "active"


@pytest.mark.both_databases
async def test_an_agent_that_never_registered_is_erased(api: RegistryApi) -> None:
    key = await api.add_agent_key("agent-1")
    assert (await write_state(api, key, step=7)).status == 200
    assert (await api.ask("DELETE", RECORD, headers={"if-match": '"9"'})).status == 404
    answer = await api.ask("DELETE", RECORD)
    assert answer.status == 200, answer.body
    words = await api.database.read(_words)
    assert {name for name, text in words.items() if "agent-1" in text} == {"archive_erasures", "events"}
    assert (await api.ask("POST", "/api/v1/leases", {"resource": "r:1"}, key=key)).status == 401
    assert (await report(api)).is_good
    assert (await api.ask("DELETE", RECORD)).status == 404


@pytest.mark.postgresql_only
@pytest.mark.parametrize("request_of_the_agent", ["lease", "register", "write"])
async def test_request_that_waits_for_an_erasure_is_refused(
    api: RegistryApi, request_of_the_agent: str
) -> None:
    # On SQLite no caller waits inside a transaction: there is one writer.
    assert isinstance(api.database, PostgresqlDatabase)
    key = (await api.register("agent-1"))["agent_key"]
    url = api.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    other = open_database(url, clock=api.clock.now_s)
    is_held, does_erasure_wait = asyncio.Event(), asyncio.Event()

    def hold(transaction: Transaction) -> None:
        event_log.lock(transaction)
        is_held.set()
        while not (waiting := transaction.connection.scalar(_WAITING)):
            pass
        does_erasure_wait.set()
        while transaction.connection.scalar(_WAITING) <= waiting:
            pass

    async def ask() -> Answer:
        if request_of_the_agent == "lease":
            return await api.ask("POST", "/api/v1/leases", {"resource": "r:1"}, key=key)
        if request_of_the_agent == "register":
            return await api.ask("POST", AGENTS, {"agent_id": "agent-1", "supersede": True}, key=key)
        return await api.ask("PUT", STATE, {}, key=key, headers={"x-fencing-token": "1"})

    async with asyncio.timeout(PATIENCE_SECONDS):
        holding = asyncio.create_task(other.write(hold))
        await is_held.wait()
        erasing = asyncio.create_task(api.ask("DELETE", RECORD))
        await does_erasure_wait.wait()
        assert (await ask()).status == 401
        assert (await erasing).status == 200
        await holding
    await other.close()
    words = await api.database.read(_words)
    assert {name for name, text in words.items() if "agent-1" in text} == {"archive_erasures", "events"}
    events = (await api.ask("GET", "/api/v1/events")).json()["events"]
    naming = [event["type"] for event in events if "agent-1" in json.dumps(event.get("payload"))]
    assert naming == ["agent.erased"]


async def write_state(api: RegistryApi, key: str, **state: int) -> Answer:
    held = await api.ask("POST", "/api/v1/leases", {"resource": "intent:i1/s1"}, key=key)
    token = str(held.json()["fencing_token"])
    return await api.ask("PUT", STATE, state, key=key, headers={"x-fencing-token": token})


async def test_intent_state_stays_without_its_erased_writer(api: RegistryApi) -> None:
    record, other = await api.register("agent-1"), await api.register("agent-2")
    written = (await write_state(api, record["agent_key"], step=7)).json()
    assert written["holder"] == "agent-1"
    assert (await api.ask("DELETE", RECORD)).status == 200
    kept = (await api.ask("GET", STATE)).json()
    assert kept == {name: value for name, value in written.items() if name != "holder"}
    again = (await write_state(api, other["agent_key"], step=8)).json()
    assert (again["version"], again["holder"]) == (2, "agent-2")
    assert again["fencing_token"] > kept["fencing_token"]


async def test_erasure_of_a_target_leaves_no_data(api: RegistryApi, clock: WoundClock) -> None:
    url = "https://mrs-secret.example/"
    await put(api, "dir", "one", [url, "https://other.example/"])
    for result in ("ok", "timeout", "ok"):
        clock.advance(1)
        seen = {
            "target_url": url,
            "observed_at": moment(clock.at_s).isoformat(),
            "transport": {"result": result},
        }
        await api.report(seen, memories=[{"card_url": url}])
    path = f"{AGENTS}/{target_id(url)}"
    assert (await api.ask("DELETE", f"{path}/record")).status == 200
    words = await api.database.read(_words)
    # A directory may list the URL again, as a new target without any history.
    assert {name for name, text in words.items() if "mrs-secret" in text} == set()
    assert {name for name, text in words.items() if target_id(url) in text} == {"archive_erasures", "events"}
    assert words["result_changes"] == words["probe_results"] == "[]"
    assert (await report(api)).is_good


async def test_hash_chain_and_replay_are_valid_after_an_erasure(api: RegistryApi) -> None:
    await live_a_little(api)
    of_agent = len(await api.events(agent_id="agent-1"))
    answer = (await api.ask("DELETE", RECORD)).json()
    assert answer["events"] >= of_agent
    (event,) = await api.events(agent_id="agent-1")
    assert event["type"] == "agent.erased"
    assert event["payload"] == {"agent_id": "agent-1", "events": answer["events"]}
    found = await report(api)
    assert found.is_good, found
    assert (found.agents, found.erased) == (1, answer["events"])


async def test_lease_of_an_erased_agent_is_free_and_its_next_token_is_higher(api: RegistryApi) -> None:
    first = await api.register("agent-1")
    second = await api.register("agent-2")
    body = {"resource": "r:1"}
    lost = (await api.ask("POST", "/api/v1/leases", body, key=first["agent_key"])).json()
    await api.ask("DELETE", RECORD)
    taken = await api.ask("POST", "/api/v1/leases", body, key=second["agent_key"])
    assert taken.status == 201, taken.body
    assert taken.json()["fencing_token"] > lost["fencing_token"]
    found = await report(api)
    assert found.is_good, found


async def test_erased_id_may_be_used_and_erased_again(api: RegistryApi) -> None:
    for _ in range(2):
        record = await api.register("agent-1")
        assert record["incarnation"] == 1
        own = (await api.ask("GET", "/api/v1/events?type=agent.lifecycle", key=record["agent_key"])).json()
        assert len(own["events"]) == 1
        assert (await api.ask("DELETE", RECORD)).status == 200
    found = await report(api)
    assert found.is_good, found


async def test_archived_events_of_the_agent_are_erased(api: RegistryApi, tmp_path: Path) -> None:
    await live_a_little(api)
    archived = await archive_everything(api, tmp_path)
    assert archived is not None
    answer = (await api.ask("DELETE", RECORD)).json()
    assert answer["archived_sequence"] == archived.last_sequence
    found = await report(api)
    assert found.is_good, found
    words = await api.database.read(_words)
    assert "agent-1" not in words["event_log"]


async def test_only_an_operator_erases(api: RegistryApi) -> None:
    record = await api.register("agent-1")
    for key in (record["agent_key"], Role.COORDINATOR, Role.READER):
        assert (await api.ask("DELETE", RECORD, key=key)).status == 403
    assert (await api.ask("DELETE", RECORD, headers={"if-match": '"9"'})).status == 412
    assert (await api.ask("DELETE", f"{AGENTS}/nobody/record")).status == 404
    assert (await api.record("agent-1"))["status"] == "active"


async def test_tasks_stay_without_the_id_of_an_erased_agent(api: RegistryApi) -> None:
    one, other = await worker(api, "agent-1"), await worker(api, "agent-2")
    made = await create(api, agent_id="agent-1")
    waiting = await create(api, agent_id="agent-1")
    grant = await one.granted(task_id=made["task_id"])
    await one.report(grant)
    child_id = (await one.write(grant, "delegate", task={"title": "child"})).json()["child_id"]
    assert (await task(api, child_id))["created_by"] == "agent-1"
    assert (await one.write(grant, "complete")).status == 200
    assert (await steer(api, made["task_id"], "review", verdict="accept")).status == 200
    new = {"role": "coordinator", "name": "plans", "agent_id": "agent-1"}
    key = (await api.ask("POST", "/api/v1/keys", new)).json()["key"]
    planned = await api.ask("POST", TASKS, {"title": "planned", "idempotency_key": "k"}, key=key)
    assert planned.json()["created_by"] == "agent-1"
    assert (await api.ask("DELETE", RECORD)).status == 200
    assert "created_by" not in await task(api, child_id)
    assert "created_by" not in await task(api, planned.json()["task_id"])
    assert "agent_id" not in await task(api, made["task_id"])
    # No other agent gets its private resource.
    assert (await task(api, waiting["task_id"]))["agent_id"] == "agent-1"
    assert (await other.claim(task_id=waiting["task_id"])).status == 404
    await steer(api, waiting["task_id"], "cancel")
    # An agent of this name that came later is another one.
    await api.register("agent-1")
    assert (await api.ask("DELETE", RECORD)).status == 200
    words = await api.database.read(_words)
    assert {name for name, text in words.items() if "agent-1" in text} == {"archive_erasures", "events"}
    assert (await report(api)).is_good
