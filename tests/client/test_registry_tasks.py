import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from tests.support.registry_server import ADMIN_KEY, RegistryServer
from tests.support.servers import PATIENCE_SECONDS

from lifesign import boot_clock
from lifesign.client import RegistryClient
from lifesign.client.registry_errors import (
    Conflict,
    InvalidAnswer,
    NotFound,
    RegistryRefusal,
    Stale,
    Unprocessable,
)
from lifesign.client.registry_tasks import HeldRun
from lifesign.domain.models.progress_report import ProgressReport
from lifesign.domain.tasks.budget import BudgetRecord, RequestedAmount
from lifesign.errors import InvalidValue


@pytest.fixture
async def agent(client: RegistryClient, registry: RegistryServer) -> AsyncIterator[RegistryClient]:
    """A client with the key of the agent `worker`."""
    key = (await client.agents.register("worker")).agent_key
    async with RegistryClient(registry.url, key=key) as own:
        yield own


async def test_a_task_goes_from_the_queue_to_done(client: RegistryClient, agent: RegistryClient) -> None:
    made = await client.tasks.create("Write it", input={"brief": "b"}, budget={"tokens": 100, "usd": 1.5})
    assert made.status == "queued"
    before_s = boot_clock.now_s()
    grant = await agent.tasks.claim(ttl_seconds=60)
    assert grant is not None
    assert (grant.task.task_id, grant.input) == (made.task_id, {"brief": "b"})
    assert before_s + 60 <= grant.deadline_s <= boot_clock.now_s() + 60
    run = HeldRun.of(grant)
    report = ProgressReport(summary="begun", next_step="go on")
    first = await agent.tasks.report_progress(run, report, idempotency_key="1")
    assert (first.status, first.report) == ("running", 1)
    assert await agent.tasks.report_progress(run, report, idempotency_key="1") == first

    await agent.tasks.reserve_call(run, "call-1", "fetch", RequestedAmount(usd=1.0))
    with pytest.raises(RegistryRefusal) as exceeded:
        await agent.tasks.reserve_call(run, "call-2", "fetch", RequestedAmount(usd=1.0))
    assert (exceeded.value.status, exceeded.value.code) == (402, "budget_exceeded")
    left = await agent.tasks.settle_call(run, "call-1", RequestedAmount(usd=0.25))
    assert left.available.usd == 1.25
    await agent.tasks.reserve_call(run, "call-3", "fetch", RequestedAmount(tokens=1))
    assert (await agent.tasks.release_call(run, "call-3")).state == "released"

    child = await agent.tasks.delegate_subtask(run, {"title": "A part"}, idempotency_key="2")
    assert (await client.tasks.get(made.task_id)).children[0].task_id == child.child_id
    await agent.leases.renew(grant.lease.lease_id, fencing_token=run.fencing_token)
    await agent.tasks.mark_complete(run, {"page": "index.html"}, report={"summary": "done"})
    with pytest.raises(Stale):
        await agent.tasks.report_progress(run, report, idempotency_key="late")
    reviewed = await client.tasks.review(made.task_id, "reject", comment="again")
    assert (reviewed.task.status, reviewed.fix is not None) == ("done", True)
    reports = await client.tasks.reports(made.task_id, limit=1)
    assert [one.report["summary"] for one in reports.reports] == ["done"]
    assert len((await client.tasks.reports(made.task_id, cursor=reports.cursor)).reports) == 1


async def test_a_task_whose_answer_was_lost_is_created_once(
    client: RegistryClient, registry: RegistryServer
) -> None:
    asked: list[bytes] = []

    async def relay(request: web.Request) -> web.Response:
        asked.append(await request.read())
        async with (
            ClientSession() as session,
            session.post(f"{registry.url}{request.path}", data=asked[-1], headers=request.headers) as answer,
        ):
            body = await answer.read()
        if len(asked) == 1:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(body=body, status=answer.status, content_type="application/json")

    app = web.Application()
    app.router.add_post("/{path:.*}", relay)
    async with (
        TestServer(app, host="127.0.0.1") as server,
        RegistryClient(str(server.make_url("")), key=ADMIN_KEY) as through,
    ):
        made = await through.tasks.create("once")
    assert asked == [asked[0]] * 2
    assert [task.task_id for task in (await client.tasks.list()).tasks] == [made.task_id]
    assert (await client.tasks.create("own key", idempotency_key="k")).task_id == (
        await client.tasks.create("own key", idempotency_key="k")
    ).task_id


@pytest.mark.parametrize(
    ("nonsense", "message"),
    [
        ({"expires_at": "9999-12-31T23:59:59.999Z"}, "expected expires_at 1 to 86400 s after acquired_at"),
        ({"expires_at": "2000-01-01T00:00:00.000Z"}, "expected expires_at 1 to 86400 s after acquired_at"),
        ({"fencing_token": 0}, "expected a fencing_token of 1 to "),
        ({"fencing_token": 2**60}, "expected a fencing_token of 1 to "),
        ({"lease_id": ".."}, "expected a lease_id"),
    ],
)
async def test_implausible_lease_in_an_answer_is_invalid(nonsense: dict[str, Any], message: str) -> None:
    grant: dict[str, Any] = {
        "task": {
            **dict.fromkeys(("created_at", "status_since"), "2026-11-22T07:34:33.703Z"),
            "task_id": f"task_{'0' * 26}",
            "title": "Write it",
            "status": "assigned",
            "capabilities": [],
            "attempts": 1,
        },
        "input": {},
        "run_id": f"run_{'0' * 26}",
        "lease": {
            "lease_id": "lease_1",
            "resource": "task:1",
            "holder": "worker",
            "fencing_token": 1,
            "acquired_at": "2026-11-22T07:34:33.703Z",
            "expires_at": "2026-11-22T07:39:33.703Z",
        },
        "budget": {key: {"tokens": 0, "usd": 0} for key in BudgetRecord.model_fields},
    }

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(grant)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with (
        TestServer(app, host="127.0.0.1") as server,
        RegistryClient(str(server.make_url(""))) as client,
    ):
        granted = await client.tasks.claim()
        assert granted is not None
        assert granted.window_s == 300
        grant["lease"].update(nonsense)
        with pytest.raises(InvalidAnswer, match=f"/lease: {message}"):
            await client.tasks.claim()


async def test_holder_of_the_parent_reviews_the_child(client: RegistryClient, agent: RegistryClient) -> None:
    await client.tasks.create("parent")
    grant = await agent.tasks.claim()
    assert grant is not None
    parent = HeldRun.of(grant)
    await agent.tasks.delegate_subtask(parent, {"title": "child"}, idempotency_key="1")
    child = await agent.tasks.claim()
    assert child is not None
    await agent.tasks.mark_complete(HeldRun.of(child), {})
    reviewed = await agent.tasks.review(child.task.task_id, "accept", parent=parent)
    assert reviewed.task.status == "done"


async def test_a_claim_may_wait_longer_than_other_calls_may_take(
    client: RegistryClient, registry: RegistryServer
) -> None:
    key = (await client.agents.register("worker")).agent_key
    async with RegistryClient(registry.url, key=key, timeout_seconds=0.5) as own:
        claiming = asyncio.create_task(own.tasks.claim(wait_seconds=30))
        await asyncio.sleep(0.7)
        made = await client.tasks.create("late")
        grant = await asyncio.wait_for(claiming, PATIENCE_SECONDS)
        assert grant is not None
        assert grant.task.task_id == made.task_id
        assert await own.tasks.claim(wait_seconds=0.05) is None


async def test_handed_off_task_is_resolved(client: RegistryClient, agent: RegistryClient) -> None:
    made = await client.tasks.create("hard", max_attempts=1)
    grant = await agent.tasks.claim()
    assert grant is not None
    await agent.tasks.request_human_help(HeldRun.of(grant), "which logo?")
    listed = await client.tasks.list(status=["handoff"])
    assert ([task.task_id for task in listed.tasks], listed.total) == ([made.task_id], 1)
    assert listed.tasks[0].explanation == "which logo?"
    assert (await client.tasks.resolve(made.task_id, "requeue", comment="this one")).status == "queued"
    assert (await client.tasks.top_up(made.task_id, tokens=5)).budget.envelope.tokens == 5
    again = await agent.tasks.claim()
    assert again is not None
    released = await agent.tasks.release(HeldRun.of(again), "crash", exit_code=-9)
    assert released.status == "handoff"
    assert (await client.tasks.cancel(made.task_id, reason="enough")).status == "cancelled"
    with pytest.raises(Conflict):
        await client.tasks.cancel(made.task_id)
    with pytest.raises(NotFound):
        await client.tasks.get("task_00000000000000000000000000")


async def test_invalid_values_are_not_sent(agent: RegistryClient) -> None:
    with pytest.raises(InvalidValue, match="title"):
        await agent.tasks.create("")
    with pytest.raises(InvalidValue, match="wait_seconds"):
        await agent.tasks.claim(wait_seconds=31)
    run = HeldRun(task_id="task_1", run_id="nonsense", fencing_token=1)
    with pytest.raises(InvalidValue, match="run_id"):
        await agent.tasks.release_call(run, "c")
    with pytest.raises(Unprocessable):
        await agent.tasks.claim(role_id="another")
