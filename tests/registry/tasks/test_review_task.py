"""What do people, and parents, decide about a task?"""

from typing import Any

import pytest
from tests.registry.events.test_verify_events import report as log_report
from tests.support.registry_api import RegistryApi
from tests.support.task_api import TASKS, Worker, create, steer, steps, task, told, worker

from lifesign.domain.access.permissions import Role
from lifesign.domain.tasks.task_states import task_resource
from lifesign.registry.transitions.task_transitions import MAX_COMMENTS


async def _reviewed(api: RegistryApi, **members: Any) -> tuple[Worker, str]:
    """Return a worker, and a task whose result waits for a review."""
    made = await create(api, **members)
    one = await worker(api)
    await one.write(await one.granted(), "complete")
    return one, made["task_id"]


async def test_a_task_is_cancelled_while_it_is_queued(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    answer = await steer(api, made["task_id"], "cancel", reason="no longer needed")
    assert (answer.json()["status"], answer.json()["explanation"]) == ("cancelled", "no longer needed")
    assert (await one.claim()).status == 204
    assert (await log_report(api)).is_good


async def test_case_8_a_task_that_is_cancelled_while_it_is_held_leaves_no_lease(api: RegistryApi) -> None:
    made = await create(api, budget={"tokens": 10})
    one = await worker(api)
    grant = await one.granted()
    await one.reserve(grant, "c", tokens=5)
    answer = await steer(api, made["task_id"], "cancel")
    (run,) = answer.json()["runs"]
    assert (answer.json()["status"], run["exit_reason"]) == ("cancelled", "killed")
    assert answer.json()["budget"]["available"]["tokens"] == 10
    leases = await api.ask("GET", f"/api/v1/leases?resource={task_resource(made['task_id'])}")
    assert leases.json()["leases"] == []
    assert told(await one.report(grant)) == (412, "lease_ended")
    assert (await log_report(api)).is_good


async def test_a_rejected_result_is_done_and_a_new_task_is_for_the_fix(api: RegistryApi) -> None:
    one, task_id = await _reviewed(api, input={"brief": "b"}, budget={"tokens": 10, "usd": 1})
    answer = await steer(api, task_id, "review", verdict="reject", comment="the logo is last year's")
    assert (answer.json()["task"]["status"], answer.json()["fix"]["status"]) == ("done", "queued")
    fix = await task(api, answer.json()["fix"]["task_id"])
    assert (fix["fix_of"], fix["input"]) == (task_id, {"brief": "b"})
    assert fix["budget"]["envelope"] == {"tokens": 10, "usd": 1.0}
    assert (await one.granted())["task"]["task_id"] == fix["task_id"]
    assert (await steps(api, task_id))[-1] == "done"
    assert (await log_report(api)).is_good


async def test_the_reviewer_may_say_what_the_fix_is(api: RegistryApi) -> None:
    _, task_id = await _reviewed(api)
    fix = {"title": "Replace the logo", "role_id": "designers", "budget": {"usd": 0.5}}
    answer = await steer(api, task_id, "review", verdict="reject", fix=fix)
    assert answer.json()["fix"]["title"] == "Replace the logo"
    refused = await steer(api, task_id, "review", verdict="accept", fix=fix)
    assert told(refused) == (422, "invalid_request")


async def test_the_fix_of_a_child_is_paid_by_the_parent_as_far_as_it_can(api: RegistryApi) -> None:
    parent = await create(api, budget={"tokens": 100})
    one = await worker(api)
    grant = await one.granted()
    said = {"title": "child", "budget": {"tokens": 60}}
    child_id = (await one.write(grant, "delegate", task=said)).json()["child_id"]
    child = await one.granted()
    await one.reserve(child, "c", tokens=60)
    await one.write(child, "calls/c/settle", cost={"tokens": 60})
    await one.write(child, "complete")
    large = {"title": "fix", "budget": {"tokens": 41}}
    answer = await steer(api, child_id, "review", verdict="reject", fix=large)
    assert told(answer) == (402, "budget_exceeded")
    assert (await task(api, child_id))["status"] == "review"
    fix = (await steer(api, child_id, "review", verdict="reject")).json()["fix"]
    assert fix["parent_id"] == parent["task_id"]
    assert (await task(api, fix["task_id"]))["budget"]["envelope"]["tokens"] == 40
    assert (await task(api, parent["task_id"]))["budget"]["available"]["tokens"] == 0
    assert (await log_report(api)).is_good


async def test_people_resolve_what_was_handed_to_them(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted()
    await one.write(grant, "help", reason="which logo?")
    shown = await task(api, made["task_id"])
    assert (shown["status"], shown["explanation"]) == ("handoff", "which logo?")
    too_soon = await steer(api, made["task_id"], "resolve", resolution="requeue", output={})
    assert told(too_soon) == (422, "invalid_request")
    answer = await steer(api, made["task_id"], "resolve", resolution="done", output={"by": "hand"})
    assert (answer.json()["status"], answer.json()["output"]) == ("done", {"by": "hand"})


def _said(record: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    return [(said["signal"], said["comment"], said.get("written_by")) for said in record["comments"]]


async def test_what_people_answer_reaches_the_next_holder_with_what_was_asked(api: RegistryApi) -> None:
    made = await create(api)
    assert made["comments"] == []
    one, other = await worker(api), await worker(api, "agent-2")
    grant = await one.granted()
    assert grant["comments"] == []
    await one.write(grant, "help", reason="which logo?")
    assert _said(await task(api, made["task_id"])) == [("help_asked", "which logo?", "agent-1")]
    resolved = await steer(api, made["task_id"], "resolve", resolution="requeue", comment="use logo-2026")
    after = await other.granted()
    assert after["comments"] == resolved.json()["comments"]
    # Who decides is told at once, as who reads it later.
    assert resolved.json()["names"] == (await task(api, made["task_id"]))["names"]
    answer, question = after["comments"]
    assert (answer["signal"], answer["comment"]) == ("requeued", "use logo-2026")
    assert answer["written_by"].startswith("key:")
    # People read names; an agent is told none but those of agents.
    assert set((await task(api, made["task_id"]))["names"]) == {answer["written_by"]}
    asked = await api.ask("GET", f"{TASKS}/{made['task_id']}", key=other.key)
    assert asked.json()["comments"][0]["written_by"] == answer["written_by"]
    assert asked.json().get("names", {}) == {}
    assert (question["signal"], question["comment"]) == ("help_asked", "which logo?")
    assert question["written_by"] == "agent-1"
    await other.write(after, "complete")
    # Who is erased has said it no more; what was said stays.
    assert (await api.ask("DELETE", "/api/v1/agents/agent-1/record")).status == 200
    assert _said(await task(api, made["task_id"]))[1] == ("help_asked", "which logo?", None)


async def test_the_holder_of_a_fix_is_told_what_was_said_of_the_work_before(api: RegistryApi) -> None:
    one, task_id = await _reviewed(api)
    answer = await steer(api, task_id, "review", verdict="reject", comment="not nice")
    grant = await one.granted()
    assert grant["task"]["task_id"] == answer.json()["fix"]["task_id"]
    assert [said[:2] for said in _said(grant)] == [("rejected", "not nice")]
    await one.write(grant, "complete")
    await steer(api, grant["task"]["task_id"], "review", verdict="reject", comment="nicer, too dear")
    assert [said[1] for said in _said(await one.granted())] == ["nicer, too dear", "not nice"]
    assert [said[1] for said in _said(await task(api, task_id))] == ["not nice"]


async def test_the_latest_comments_are_kept(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    for number in range(MAX_COMMENTS):
        await one.write(await one.granted(), "help", reason=f"question {number}")
        await steer(api, made["task_id"], "resolve", resolution="requeue", comment=f"answer {number}")
    kept = _said(await one.granted())
    assert len(kept) == MAX_COMMENTS
    assert (kept[0][1], kept[-1][1]) == ("answer 19", "question 10")


@pytest.mark.parametrize(("function", "members"), [
    ("review", {"verdict": "accept"}), ("resolve", {"resolution": "done"}),
])  # fmt: skip
async def test_what_is_not_there_to_be_decided_is_refused(
    api: RegistryApi, function: str, members: dict[str, Any]
) -> None:
    made = await create(api)
    answer = await steer(api, made["task_id"], function, **members)
    assert told(answer) == (409, "invalid_task_transition")
    unknown = await steer(api, "task_00000000000000000000000000", function, **members)
    assert told(unknown) == (404, "task_not_found")


async def test_who_may_not_create_tasks_decides_nothing_about_them(api: RegistryApi) -> None:
    one, task_id = await _reviewed(api)
    functions = {
        "cancel": {},
        "review": {"verdict": "accept"},
        "resolve": {"resolution": "done"},
        "budget": {"add": {"tokens": 1}},
    }
    for key in (one.key, Role.READER, Role.PROBER, Role.ENROLL):
        assert told(await api.ask("POST", TASKS, {"title": "t"}, key=key)) == (403, "not_allowed")
        for function, body in functions.items():
            for named in (task_id, "nonsense"):
                answer = await api.ask("POST", f"{TASKS}/{named}/{function}", body, key=key)
                assert told(answer) == (403, "not_allowed"), function
                if key == one.key and named == task_id:
                    assert "this agent key may not create or steer tasks" in str(answer.json()), function
    assert (await task(api, task_id))["status"] == "review"


async def test_tasks_are_listed_by_what_is_known_of_them(api: RegistryApi) -> None:
    ids = [
        (await create(api, f"task {n}", role_id="writers" if n % 2 else "readers"))["task_id"]
        for n in range(5)
    ]
    one = await worker(api, role_id="writers")
    await one.granted()

    async def listed(query: str, key: str | Role = Role.READER) -> list[str]:
        answer = await api.ask("GET", f"{TASKS}?{query}", key=key)
        assert answer.status == 200, answer.body
        return [shown["task_id"] for shown in answer.json()["tasks"]]

    assert await listed("") == ids[::-1]
    assert await listed("status=assigned,running") == [ids[1]]
    assert await listed("role_id=readers") == [ids[4], ids[2], ids[0]]
    assert await listed("holder=agent-1") == await listed("", key=one.key) == [ids[1]]
    page = (await api.ask("GET", f"{TASKS}?limit=3")).json()
    assert (len(page["tasks"]), page["total"]) == (3, 5)
    assert await listed(f"limit=3&cursor={page['cursor']}") == [ids[1], ids[0]]
    assert told(await api.ask("GET", f"{TASKS}?holder=agent-2", key=one.key)) == (403, "not_allowed")
    assert told(await api.ask("GET", f"{TASKS}?status=lost")) == (422, "invalid_request")
    missing = "task_00000000000000000000000000"
    assert told(await api.ask("GET", f"{TASKS}?parent_id={missing}")) == (404, "task_not_found")


async def test_an_agent_reads_what_it_works_at_and_what_was_delegated_from_that(api: RegistryApi) -> None:
    made = await create(api, agent_id="agent-1")
    one, other = await worker(api), await worker(api, "agent-2")
    path = f"{TASKS}/{made['task_id']}"
    assert told(await api.ask("GET", path, key=one.key)) == (403, "not_allowed")
    grant = await one.granted()
    child_id = (await one.write(grant, "delegate", task={"title": "child"})).json()["child_id"]
    for allowed in (path, f"{path}/progress", f"{TASKS}/{child_id}"):
        assert (await api.ask("GET", allowed, key=one.key)).status == 200
        assert told(await api.ask("GET", allowed, key=other.key)) == (403, "not_allowed")
    assert told(await api.ask("GET", f"{TASKS}/nonsense", key=Role.READER)) == (404, "task_not_found")
    for path in (f"{TASKS}/nonsense", f"{TASKS}/nonsense/progress"):
        assert told(await api.ask("GET", path, key=one.key)) == (403, "not_allowed")


@pytest.mark.parametrize("given", [
    {"title": ""}, {}, {"title": "t", "lease_seconds": 0}, {"title": "t", "lease_seconds": 86_401},
    {"title": "t", "max_attempts": 0}, {"title": "t", "backoff_seconds": -1}, {"title": "t", "extra": 1},
    {"title": "t", "capabilities": ["c"] * 17}, {"title": "t", "input": []},
    {"title": "t", "input": {"x": "y" * 65_536}},
    {"title": "t", "budget": {"tokens": 1.5}}, {"title": "t", "agent_id": "a b"},
])  # fmt: skip
async def test_case_22_what_is_no_task_is_refused(api: RegistryApi, given: dict[str, Any]) -> None:
    assert told(await api.ask("POST", TASKS, given, key=Role.COORDINATOR)) == (422, "invalid_request")
    assert (await api.ask("GET", TASKS)).json()["total"] == 0
