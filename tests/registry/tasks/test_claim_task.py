"""Claims of tasks. The numbers are those of the cases in docs/registry.md."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.registry.events.test_verify_events import report as log_report
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.registry_server import ADMIN_KEY, RegistryServer
from tests.support.servers import PATIENCE_SECONDS
from tests.support.task_api import TASKS, create, status_and_code, task, worker

from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role
from lifesign.domain.health.outcome import Outcome
from lifesign.domain.tasks.task_states import task_resource
from lifesign.registry.tasks import claim_endpoint
from lifesign.registry.tasks.claim_task import TaskClaimant, seconds_until_task
from lifesign.storage.engine.transaction import Transaction

LEASES = "/api/v1/leases"


@asynccontextmanager
async def followed(api: RegistryApi) -> AsyncIterator[None]:
    """Run the server's own loops that notify waiting claims of tasks."""
    loops = [asyncio.create_task(loop) for loop in (api.registry.feed.run(), api.registry.task_news.run())]
    try:
        yield
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def _waiting(api: RegistryApi) -> None:
    """Return once a claim waits."""
    while not api.registry.claims._waiting:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)


async def test_the_longest_queued_task_comes_first(api: RegistryApi) -> None:
    made = [(await create(api, f"task {number}"))["task_id"] for number in range(3)]
    one = await worker(api)
    assert [(await one.granted())["task"]["task_id"] for _ in range(3)] == made
    answer = await one.claim()
    assert (answer.status, answer.body) == (204, b"")


@pytest.mark.parametrize("wanted", [
    {"agent_id": "agent-2"}, {"role_id": "writers"}, {"capabilities": ["copy", "layout"]},
])  # fmt: skip
async def test_task_goes_to_its_named_agent(api: RegistryApi, wanted: dict[str, Any]) -> None:
    one = await worker(api, role_id="readers", capabilities=["copy"])
    other = await worker(api, "agent-2", role_id="writers", capabilities=["layout", "copy", "more"])
    made = await create(api, **wanted)
    assert (await one.claim()).status == 204
    assert (await other.granted())["task"]["task_id"] == made["task_id"]


async def test_claim_may_request_fewer_capabilities_than_registered_and_no_others(api: RegistryApi) -> None:
    one = await worker(api, role_id="writers", capabilities=["copy", "layout"])
    of_all = (await create(api, "of all"))["task_id"]
    layout = (await create(api, "layout", capabilities=["layout"]))["task_id"]
    of_pool = (await create(api, "of the pool", role_id="writers"))["task_id"]
    assert (await one.granted(role_id="writers"))["task"]["task_id"] == of_pool
    assert (await one.granted(capabilities=["copy"]))["task"]["task_id"] == of_all
    assert (await one.claim(capabilities=["copy"])).status == 204
    assert (await one.granted(capabilities=["layout"]))["task"]["task_id"] == layout
    for asked in ({"role_id": "readers"}, {"capabilities": ["copy", "flying"]}):
        assert status_and_code(await one.claim(**asked)) == (422, "invalid_request")


async def test_claim_by_task_id_gets_that_task_or_none(api: RegistryApi) -> None:
    one = await worker(api, role_id="writers", capabilities=["copy"])
    first, second = [(await create(api, f"task {number}"))["task_id"] for number in range(2)]
    assert (await one.granted(task_id=second))["task"]["task_id"] == second
    # It is held, and may come back.
    assert (await one.claim(task_id=second)).status == 204
    assert (await one.granted())["task"]["task_id"] == first


@pytest.mark.both_databases
async def test_claim_of_a_task_that_is_never_claimable_is_refused_with_the_reason(api: RegistryApi) -> None:
    one = await worker(api, role_id="writers", capabilities=["copy"])
    nowhere = "task_00000000000000000000000000"
    assert status_and_code(await one.claim(task_id=nowhere)) == (404, "task_not_found")
    assert status_and_code(await one.claim(task_id="task-1")) == (422, "invalid_request")
    for foreign in ({"agent_id": "another"}, {"role_id": "readers"}, {"capabilities": ["flying"]}):
        made = (await create(api, **foreign))["task_id"]
        assert status_and_code(await one.claim(task_id=made)) == (404, "task_not_found")
        assert (await api.ask("POST", f"{TASKS}/{made}/cancel", {}, key=Role.COORDINATOR)).status == 200
        # The cancellation is hidden as well.
        assert status_and_code(await one.claim(task_id=made)) == (404, "task_not_found")
    made = (await create(api))["task_id"]
    grant = await one.granted(task_id=made)
    assert (await one.write(grant, "complete")).status == 200
    assert status_and_code(await one.claim(task_id=made)) == (409, "invalid_task_transition")


async def test_agent_gets_no_task_above_its_capacity(api: RegistryApi) -> None:
    await create(api, "first")
    await create(api, "second")
    one = await worker(api, capacity={"max_concurrent_tasks": 1})
    grant = await one.granted()
    answer = await one.claim()
    assert status_and_code(answer) == (409, "too_many")
    assert "capacity" in answer.json()["message"]
    await one.write(grant, "complete")
    assert (await one.granted())["task"]["title"] == "second"


@pytest.mark.both_databases
async def test_case_1_concurrent_claims_get_different_tasks(api: RegistryApi) -> None:
    made = {(await create(api, f"task {number}"))["task_id"] for number in range(5)}
    workers = [await worker(api, f"agent-{number}") for number in range(8)]
    answers = await asyncio.gather(*(one.claim() for one in workers))
    granted = [answer.json()["task"]["task_id"] for answer in answers if answer.status == 200]
    # A slower claim may return without a task and retries.
    for one in workers:
        if len(granted) < len(made) and (answer := await one.claim()).status == 200:
            granted.append(answer.json()["task"]["task_id"])
    assert sorted(granted) == sorted(made)
    assert (await log_report(api)).is_good


async def test_case_2_tokens_rise_over_release_expiry_death_and_hand_off(api: RegistryApi) -> None:
    made = await create(api, max_attempts=50, backoff_seconds=0.0)
    quick = {"interval_seconds": 1, "unhealthy_after_seconds": 100, "dead_after_seconds": 200}
    one = await worker(api, heartbeat_config=quick)
    other = await worker(api, "agent-2")
    grants = [await one.granted()]
    await one.write(grants[-1], "release", exit_reason="crash")
    grants.append(await other.granted(ttl_seconds=10))
    api.clock.advance(11)
    await api.sweep()
    grants.append(await one.granted(ttl_seconds=3_600))
    await api.send_heartbeat("agent-2", other.key)
    api.clock.advance(201)
    await api.send_heartbeat("agent-2", other.key)
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "dead"
    grants.append(await other.granted())
    await other.write(grants[-1], "help", reason="?")
    await api.ask("POST", f"{TASKS}/{made['task_id']}/resolve", {"resolution": "requeue"})
    grants.append(await other.granted())
    tokens = [grant["lease"]["fencing_token"] for grant in grants]
    assert tokens == sorted(set(tokens))
    assert len({grant["run_id"] for grant in grants}) == len(grants)
    assert (await log_report(api)).is_good


async def test_task_lease_begins_only_with_a_claim(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    body = {"resource": task_resource(made["task_id"])}
    answer = await api.ask("POST", LEASES, body, key=one.key)
    assert status_and_code(answer) == (422, "invalid_resource")
    assert "/api/v1/tasks/claim" in answer.json()["message"]
    # Users of other task systems lease them as before.
    assert (await api.ask("POST", LEASES, {"resource": "task:1"}, key=one.key)).status == 201


async def test_releasing_the_lease_requeues_the_task(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    for key in (one.key, Role.COORDINATOR):
        grant = await one.granted()
        path = f"{LEASES}/{grant['lease']['lease_id']}"
        assert (await api.ask("DELETE", path, key=key)).status == 204
        shown = await task(api, made["task_id"])
        assert (shown["status"], shown["runs"][0]["exit_reason"]) == ("queued", "killed")
    assert (await log_report(api)).is_good


@pytest.mark.parametrize("seconds", [0, -1, 1e9, 31])
async def test_case_22_wait_out_of_range_is_refused(api: RegistryApi, seconds: float) -> None:
    one = await worker(api)
    if seconds:
        assert status_and_code(await one.claim(wait_seconds=seconds)) == (422, "invalid_request")
    assert status_and_code(await one.claim(ttl_seconds=seconds if seconds != 31 else 86_401)) == (
        422,
        "invalid_request",
    )
    path = f"{TASKS}/claim"
    for raw in (b'{"wait_seconds": NaN}', b'{"ttl_seconds": 1e999}', b'{"ttl_seconds": "5"}'):
        assert (await api.ask("POST", path, raw=raw, key=one.key)).status in {400, 422}


async def test_claim_requires_the_key_of_a_registered_agent(api: RegistryApi) -> None:
    await create(api)
    one = await worker(api)
    assert status_and_code(await api.ask("POST", f"{TASKS}/claim", {}, key=None)) == (401, "unknown_key")
    for role in (Role.READER, Role.COORDINATOR, Role.ADMIN):
        assert status_and_code(await api.ask("POST", f"{TASKS}/claim", {}, key=role)) == (403, "not_allowed")
    assert status_and_code(await api.ask("POST", f"{TASKS}/claim", {"x": 1}, key=Role.READER)) == (
        403,
        "not_allowed",
    )
    headers = {"x-agent-incarnation": "7"}
    answer = await api.ask("POST", f"{TASKS}/claim", {}, key=one.key, headers=headers)
    assert status_and_code(answer) == (410, "agent_gone")
    await api.ask("DELETE", f"{AGENTS}/agent-1")
    assert status_and_code(await one.claim()) == (410, "agent_gone")


@pytest.mark.both_databases
async def test_waiting_claim_gets_a_new_task_at_once(api: RegistryApi) -> None:
    one = await worker(api)
    async with followed(api):
        claiming = asyncio.create_task(one.granted(wait_seconds=30))
        await _waiting(api)
        made = await create(api)
        grant = await asyncio.wait_for(claiming, PATIENCE_SECONDS)
    assert grant["task"]["task_id"] == made["task_id"]


@pytest.mark.both_databases
async def test_waiting_claim_gets_a_released_task(api: RegistryApi) -> None:
    await create(api)
    one, other = await worker(api), await worker(api, "agent-2")
    grant = await one.granted()
    async with followed(api):
        claiming = asyncio.create_task(other.granted(wait_seconds=30))
        await _waiting(api)
        await one.write(grant, "release", exit_reason="killed")
        assert (await asyncio.wait_for(claiming, PATIENCE_SECONDS))["task"]["lost_runs"] == 1


async def test_waiting_claim_makes_no_database_query(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def counting(transaction: Transaction, seeker: TaskClaimant) -> float | None:
        nonlocal looks
        looks += 1
        return seconds_until_task(transaction, seeker)

    monkeypatch.setattr(claim_endpoint, "seconds_until_task", counting)
    one = await worker(api)
    async with followed(api):
        for _ in range(2):
            assert (await one.claim(wait_seconds=0.3)).status == 204
    # At the beginning and at the end of each, and once as soon as the log is followed. On a slow machine a
    # claim may be over before that, and begin and end with one look.
    assert 2 <= looks <= 5


@pytest.mark.both_databases
async def test_without_waiting_claims_the_log_is_not_read(api: RegistryApi) -> None:
    one = await worker(api)
    async with followed(api):
        assert (await one.claim(wait_seconds=0.1)).status == 204
        number = api.registry.task_news.number
        for turn in range(20):
            await create(api, f"task {turn} of another agent", agent_id="agent-9")
            await asyncio.sleep(0.05)
        # The cause of the last notification was reported; nothing came after it.
        assert api.registry.task_news.number <= number + 1
        claiming = asyncio.create_task(one.granted(wait_seconds=30))
        await _waiting(api)
        made = await create(api, "of interest")
        assert (await asyncio.wait_for(claiming, PATIENCE_SECONDS))["task"]["task_id"] == made["task_id"]


async def test_claim_of_a_disconnected_caller_is_not_granted(api: RegistryApi) -> None:
    one = await worker(api)
    async with followed(api):
        claiming = asyncio.create_task(one.claim(wait_seconds=30))
        await _waiting(api)
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        made = await create(api)
    assert (await task(api, made["task_id"]))["status"] == "queued"
    assert api.registry.claims._waiting == 0


async def test_stopping_server_answers_waiting_claims_without_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_waiting, wait = threading.Event(), claim_endpoint.ClaimEndpoint._wait

    async def wait_and_signal(*arguments: Any) -> None:
        is_waiting.set()
        await wait(*arguments)

    monkeypatch.setattr(claim_endpoint.ClaimEndpoint, "_wait", wait_and_signal)
    server = RegistryServer(tmp_path, {"sweep_seconds": 60})
    server.start()
    async with RegistryClient(server.url, key=ADMIN_KEY) as client:
        key = (await client.agents.register("agent-1")).agent_key
    async with RegistryClient(server.url, key=key) as agent:
        claiming = asyncio.create_task(agent.tasks.claim(wait_seconds=30))
        await asyncio.to_thread(is_waiting.wait, 30)
        await asyncio.to_thread(server.stop)
        assert await claiming is None
    assert "Traceback" not in caplog.text


@pytest.mark.both_databases
async def test_number_of_waiting_claims_is_bounded(api: RegistryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_endpoint, "MAX_WAITING", 0)
    one = await worker(api)
    answer = await one.claim(wait_seconds=30)
    assert status_and_code(answer) == (503, "too_many_claims")
    assert answer.header("retry-after") is not None


async def test_waiting_claim_is_excluded_from_the_servers_own_health(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await worker(api)
    counted: list[Outcome] = []
    monkeypatch.setattr(api.app, "count", lambda outcome, *_details: counted.append(outcome))
    assert (await one.claim()).status == 204
    assert counted == [Outcome.EXCLUDED]


@pytest.mark.both_databases
async def test_claim_path_is_not_read_as_a_task_id(api: RegistryApi) -> None:
    for method in ("GET", "DELETE"):
        answer = await api.ask(method, f"{TASKS}/claim")
        assert status_and_code(answer) == (405, "method_not_allowed")
        assert answer.header("allow") == "POST"
