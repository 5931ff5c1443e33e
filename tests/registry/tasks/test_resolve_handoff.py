"""Decisions of people about a task in review."""

from tests.support.registry_api import RegistryApi
from tests.support.task_api import TASKS, UNKNOWN, comments_of, create, status_and_code, steer, task, worker

from lifesign.registry.status_changes.task_status import MAX_COMMENTS


async def test_handed_off_task_can_be_resolved(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted()
    await one.write(grant, "help", reason="which logo?")
    shown = await task(api, made["task_id"])
    assert (shown["status"], shown["explanation"]) == ("handoff", "which logo?")
    too_soon = await steer(api, made["task_id"], "resolve", resolution="requeue", output={})
    assert status_and_code(too_soon) == (422, "invalid_request")
    answer = await steer(api, made["task_id"], "resolve", resolution="done", output={"by": "hand"})
    assert (answer.json()["status"], answer.json()["output"]) == ("done", {"by": "hand"})


async def test_comments_of_a_resolution_reach_the_next_holder(api: RegistryApi) -> None:
    made = await create(api)
    assert made["comments"] == []
    one, other = await worker(api), await worker(api, "agent-2")
    grant = await one.granted()
    assert grant["comments"] == []
    await one.write(grant, "help", reason="which logo?")
    assert comments_of(await task(api, made["task_id"])) == [("help_asked", "which logo?", "agent-1")]
    resolved = await steer(api, made["task_id"], "resolve", resolution="requeue", comment="use logo-2026")
    after = await other.granted()
    assert after["comments"] == resolved.json()["comments"]
    # The reviewer's name is in the answer at once, as later readers see it.
    assert resolved.json()["names"] == (await task(api, made["task_id"]))["names"]
    answer, question = after["comments"]
    assert (answer["signal"], answer["comment"]) == ("requeued", "use logo-2026")
    assert answer["written_by"].startswith("key:")
    # People see names; an agent sees only names of agents.
    assert set((await task(api, made["task_id"]))["names"]) == {answer["written_by"]}
    asked = await api.ask("GET", f"{TASKS}/{made['task_id']}", key=other.key)
    assert asked.json()["comments"][0]["written_by"] == answer["written_by"]
    assert asked.json().get("names", {}) == {}
    assert (question["signal"], question["comment"]) == ("help_asked", "which logo?")
    assert question["written_by"] == "agent-1"
    await other.write(after, "complete")
    # An erased author is no longer named; the text stays.
    assert (await api.ask("DELETE", "/api/v1/agents/agent-1/record")).status == 200
    assert comments_of(await task(api, made["task_id"]))[1] == ("help_asked", "which logo?", None)


async def test_the_latest_comments_are_kept(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    for number in range(MAX_COMMENTS):
        await one.write(await one.granted(), "help", reason=f"question {number}")
        await steer(api, made["task_id"], "resolve", resolution="requeue", comment=f"answer {number}")
    kept = comments_of(await one.granted())
    assert len(kept) == MAX_COMMENTS
    assert (kept[0][1], kept[-1][1]) == ("answer 19", "question 10")


async def test_a_task_that_was_not_handed_off_is_not_resolved(api: RegistryApi) -> None:
    made = await create(api)
    answer = await steer(api, made["task_id"], "resolve", resolution="done")
    assert status_and_code(answer) == (409, "invalid_task_transition")
    unknown = await steer(api, UNKNOWN, "resolve", resolution="done")
    assert status_and_code(unknown) == (404, "task_not_found")
