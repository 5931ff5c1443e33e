"""Reviews of a result, and the task that fixes a rejected one."""

from typing import Any

import pytest
from tests.registry.events.test_verify_events import report as log_report
from tests.support.registry_api import RegistryApi
from tests.support.task_api import (
    TASKS,
    UNKNOWN,
    Worker,
    comments_of,
    create,
    status_and_code,
    steer,
    steps,
    task,
    worker,
)

from lifesign.domain.access.permissions import Role


async def _reviewed(api: RegistryApi, **members: Any) -> tuple[Worker, str]:
    """Return a worker, and a task whose result waits for a review."""
    made = await create(api, **members)
    one = await worker(api)
    await one.write(await one.granted(), "complete")
    return one, made["task_id"]


async def test_rejected_result_finishes_the_task_and_creates_a_fix_task(api: RegistryApi) -> None:
    one, task_id = await _reviewed(api, input={"brief": "b"}, budget={"tokens": 10, "usd": 1})
    answer = await steer(api, task_id, "review", verdict="reject", comment="old logo")
    assert (answer.json()["task"]["status"], answer.json()["fix"]["status"]) == ("done", "queued")
    fix = await task(api, answer.json()["fix"]["task_id"])
    assert (fix["fix_of"], fix["input"]) == (task_id, {"brief": "b"})
    assert fix["budget"]["envelope"] == {"tokens": 10, "usd": 1.0}
    assert (await one.granted())["task"]["task_id"] == fix["task_id"]
    assert (await steps(api, task_id))[-1] == "done"
    assert (await log_report(api)).is_good


async def test_reviewer_may_describe_the_fix_task(api: RegistryApi) -> None:
    _, task_id = await _reviewed(api)
    fix = {"title": "Replace the logo", "role_id": "designers", "budget": {"usd": 0.5}}
    answer = await steer(api, task_id, "review", verdict="reject", fix=fix)
    assert answer.json()["fix"]["title"] == "Replace the logo"
    refused = await steer(api, task_id, "review", verdict="accept", fix=fix)
    assert status_and_code(refused) == (422, "invalid_request")


@pytest.mark.both_databases
async def test_fix_of_a_child_task_is_charged_to_the_parents_remaining_budget(api: RegistryApi) -> None:
    parent = await create(api, budget={"tokens": 100})
    one = await worker(api)
    grant = await one.granted()
    members = {"title": "child", "budget": {"tokens": 60}}
    child_id = (await one.write(grant, "delegate", task=members)).json()["child_id"]
    child = await one.granted()
    await one.reserve(child, "c", tokens=60)
    await one.write(child, "calls/c/settle", cost={"tokens": 60})
    await one.write(child, "complete")
    large = {"title": "fix", "budget": {"tokens": 41}}
    answer = await steer(api, child_id, "review", verdict="reject", fix=large)
    assert status_and_code(answer) == (402, "budget_exceeded")
    assert (await task(api, child_id))["status"] == "review"
    fix = (await steer(api, child_id, "review", verdict="reject")).json()["fix"]
    assert fix["parent_id"] == parent["task_id"]
    assert (await task(api, fix["task_id"]))["budget"]["envelope"]["tokens"] == 40
    assert (await task(api, parent["task_id"]))["budget"]["available"]["tokens"] == 0
    assert (await log_report(api)).is_good


@pytest.mark.both_databases
async def test_holder_of_a_fix_sees_the_review_of_the_earlier_work(api: RegistryApi) -> None:
    one, task_id = await _reviewed(api)
    answer = await steer(api, task_id, "review", verdict="reject", comment="not nice")
    grant = await one.granted()
    assert grant["task"]["task_id"] == answer.json()["fix"]["task_id"]
    assert [comment[:2] for comment in comments_of(grant)] == [("rejected", "not nice")]
    await one.write(grant, "complete")
    await steer(api, grant["task"]["task_id"], "review", verdict="reject", comment="nicer, too dear")
    assert [comment[1] for comment in comments_of(await one.granted())] == ["nicer, too dear", "not nice"]
    assert [comment[1] for comment in comments_of(await task(api, task_id))] == ["not nice"]


async def test_a_task_without_a_result_is_not_reviewed(api: RegistryApi) -> None:
    made = await create(api)
    answer = await steer(api, made["task_id"], "review", verdict="accept")
    assert status_and_code(answer) == (409, "invalid_task_transition")
    unknown = await steer(api, UNKNOWN, "review", verdict="accept")
    assert status_and_code(unknown) == (404, "task_not_found")


async def test_key_without_permission_to_create_tasks_cannot_review_them(api: RegistryApi) -> None:
    one, task_id = await _reviewed(api)
    functions = {
        "cancel": {},
        "review": {"verdict": "accept"},
        "resolve": {"resolution": "done"},
        "budget": {"add": {"tokens": 1}},
    }
    for key in (one.key, Role.READER, Role.PROBER, Role.ENROLL):
        assert status_and_code(await api.ask("POST", TASKS, {"title": "t"}, key=key)) == (403, "not_allowed")
        for function, body in functions.items():
            for named in (task_id, "nonsense"):
                answer = await api.ask("POST", f"{TASKS}/{named}/{function}", body, key=key)
                assert status_and_code(answer) == (403, "not_allowed"), function
                assert "tasks" in answer.json()["message"], function
    assert (await task(api, task_id))["status"] == "review"


@pytest.mark.both_databases
async def test_review_without_the_parent_is_refused_for_each_task(
    api: RegistryApi,
) -> None:
    await create(api)
    one = await worker(api)
    grant = await one.granted()
    child_id = (await one.write(grant, "delegate", task={"title": "child"})).json()["child_id"]
    other = await worker(api, "agent-2")
    shown = {"run_id": grant["run_id"], "fencing_token": grant["lease"]["fencing_token"]}
    for members in ({}, shown, {**shown, "fencing_token": 9}):
        refusals = set()
        for task_id in (UNKNOWN, child_id, grant["task"]["task_id"]):
            body = {"verdict": "accept", **members}
            answer = await api.ask("POST", f"{TASKS}/{task_id}/review", body, key=other.key)
            refusals.add((answer.status, answer.body))
        ((status, _),) = refusals
        assert status == 403
    missing = await api.ask("POST", f"{TASKS}/{child_id}/review", {"verdict": "accept"}, key=one.key)
    assert missing.status == 428
