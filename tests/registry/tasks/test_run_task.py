import asyncio
from datetime import datetime
from typing import Any

import pytest
from tests.registry.events.test_verify_events import report as log_report
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.task_api import REPORT, TASKS, UNKNOWN, create, status_and_code, steer, steps, task, worker

from lifesign.domain.access.permissions import Role
from lifesign.registry.tasks import run_guard

LEASES = "/api/v1/leases"


async def _rejected(api: RegistryApi) -> list[str]:
    events = await api.events(type="fenced_write_rejected")
    return [event["payload"]["reason"] for event in events]


async def _is_free(api: RegistryApi, task_id: str) -> bool:
    held = await api.ask("GET", f"{LEASES}?resource=task:{task_id}")
    return not held.json()["leases"]


async def test_a_task_goes_from_the_queue_to_review_and_is_accepted(api: RegistryApi) -> None:
    made = await create(api, input={"brief": "b"}, budget={"tokens": 100, "usd": 1.5})
    one = await worker(api)
    grant = await one.granted()
    assert grant["task"]["task_id"] == made["task_id"]
    assert (grant["task"]["status"], grant["input"]) == ("assigned", {"brief": "b"})
    assert grant["lease"]["resource"] == f"task:{made['task_id']}"
    assert grant["lease"]["expires_at"] == "2025-11-20T12:05:00.000Z"
    assert (await one.report(grant)).json() == {
        "task_id": made["task_id"],
        "run_id": grant["run_id"],
        "status": "running",
        "report": 1,
    }
    answer = await one.write(grant, "complete", output={"page": "index.html"}, report=REPORT)
    assert (answer.json()["status"], answer.json()["report"]) == ("review", 2)
    assert (await steer(api, made["task_id"], "review", verdict="accept", comment="fine")).status == 200
    shown = await task(api, made["task_id"])
    assert (shown["status"], shown["explanation"], shown["output"]) == (
        "done",
        "fine",
        {"page": "index.html"},
    )
    (run,) = shown["runs"]
    assert (run["holder"], run["exit_reason"]) == ("agent-1", "completed")
    assert await steps(api, made["task_id"]) == ["assigned", "running", "review", "done"]
    assert (await log_report(api)).is_good


@pytest.mark.both_databases
async def test_first_report_marks_the_task_running_and_reports_keep_their_order(
    api: RegistryApi,
) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted()
    for number in (1, 2, 3):
        members = {"summary": f"step {number}"}
        answer = await one.report(grant, idempotency_key=f"report-{number}", report=members)
        assert (answer.json()["status"], answer.json()["report"]) == ("running", number)
    path = f"{TASKS}/{made['task_id']}/progress"
    page = (await api.ask("GET", f"{path}?limit=2", key=one.key)).json()
    assert [report["report"]["summary"] for report in page["reports"]] == ["step 3", "step 2"]
    rest = (await api.ask("GET", f"{path}?limit=2&cursor={page['cursor']}", key=one.key)).json()
    assert [report["number"] for report in rest["reports"]] == [1]
    assert "cursor" not in rest
    assert (await task(api, made["task_id"]))["latest_report"]["number"] == 3


async def test_case_3_renewal_never_revives_an_ended_run(api: RegistryApi) -> None:
    await create(api)
    one = await worker(api)
    grant = await one.granted(ttl_seconds=60)
    lease = grant["lease"]
    api.clock.advance(60)
    body = {"fencing_token": lease["fencing_token"], "ttl_seconds": 60}
    answer = await api.ask("POST", f"{LEASES}/{lease['lease_id']}/renew", body, key=one.key)
    assert status_and_code(answer) == (412, "lease_ended")
    assert status_and_code(await one.report(grant)) == (412, "lease_ended")


@pytest.mark.both_databases
async def test_a_renewal_keeps_a_task_and_its_token(api: RegistryApi) -> None:
    await create(api)
    one = await worker(api)
    grant = await one.granted(ttl_seconds=60)
    api.clock.advance(59)
    body = {"fencing_token": grant["lease"]["fencing_token"], "ttl_seconds": 60}
    path = f"{LEASES}/{grant['lease']['lease_id']}/renew"
    assert (await api.ask("POST", path, body, key=one.key)).status == 200
    api.clock.advance(59)
    assert (await one.report(grant)).status == 200


async def test_case_4_write_at_the_deadline_is_refused_even_without_a_new_holder(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted(ttl_seconds=60)
    api.clock.advance(59.999)
    assert (await one.report(grant)).status == 200
    api.clock.advance(0.001)
    assert status_and_code(await one.write(grant, "complete")) == (412, "lease_ended")
    assert (await task(api, made["task_id"]))["status"] == "running"
    assert await _rejected(api) == ["lease_ended"]


@pytest.mark.both_databases
async def test_case_5_grant_is_invalid_for_another_task_or_key(
    api: RegistryApi,
) -> None:
    await create(api, "first")
    second = await create(api, "second")
    one, other = await worker(api), await worker(api, "agent-2")
    grant, grant_2 = await one.granted(), await one.granted()
    # The first grant of each resource: their tokens are equal.
    assert grant["lease"]["fencing_token"] == grant_2["lease"]["fencing_token"]
    assert status_and_code(await one.report(grant, task_id=second["task_id"])) == (412, "wrong_run")
    assert status_and_code(await other.report(grant)) == (404, "task_not_found")
    assert (
        status_and_code(await api.ask("POST", f"{TASKS}/{second['task_id']}/help", {}, key=Role.READER))[0]
        == 403
    )
    assert await _rejected(api) == ["wrong_run"]
    assert [(await task(api, second["task_id"]))["status"]] == ["assigned"]


async def test_case_6_a_refused_write_changes_nothing(api: RegistryApi) -> None:
    made = await create(api, budget={"tokens": 10})
    one, other = await worker(api), await worker(api, "agent-2")
    late = await one.granted(ttl_seconds=60)
    await one.report(late)
    api.clock.advance(61)
    await api.sweep()
    grant = await other.granted()
    before = await task(api, made["task_id"])
    for function, members in (
        ("progress", {"report": REPORT}),
        ("complete", {}),
        ("help", {"reason": "?"}),
        ("delegate", {"task": {"title": "child", "budget": {"tokens": 1}}}),
        ("release", {"exit_reason": "crash"}),
        ("calls", {"call_id": "c", "tool": "t", "most": {"tokens": 1}}),
    ):
        key = {} if function == "calls" else {"idempotency_key": f"late-{function}"}
        answer = await one.write(late, function, **{**key, **members})  # type: ignore[arg-type]
        assert status_and_code(answer) == (412, "stale_token"), function
    assert await task(api, made["task_id"]) == before
    assert await _rejected(api) == ["stale_token"] * 6
    assert (await other.report(grant)).status == 200
    assert (await log_report(api)).is_good


async def test_case_7_a_token_that_was_never_granted_is_refused(api: RegistryApi) -> None:
    await create(api)
    one = await worker(api)
    grant = await one.granted()
    grant["lease"]["fencing_token"] += 1
    assert status_and_code(await one.report(grant)) == (412, "token_not_issued")


@pytest.mark.parametrize(
    ("function", "members", "status", "exit_reason"),
    [
        ("complete", {}, "review", "completed"),
        ("help", {"reason": "which logo?"}, "handoff", "completed"),
        ("release", {"exit_reason": "killed"}, "queued", "killed"),
        ("release", {"exit_reason": "auth"}, "handoff", "auth"),
    ],
)
async def test_case_8_write_that_ends_the_run_ends_its_lease(
    api: RegistryApi, function: str, members: dict[str, Any], status: str, exit_reason: str
) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted()
    assert (await one.write(grant, function, **members)).json()["status"] == status
    assert await _is_free(api, made["task_id"])
    shown = await task(api, made["task_id"])
    assert (shown["status"], shown["runs"][0]["exit_reason"]) == (status, exit_reason)
    # Nothing more in the name of that run.
    assert status_and_code(await one.report(grant)) == (412, "lease_ended")
    assert (await log_report(api)).is_good


async def test_case_9_a_finished_task_is_never_changed(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted()
    await one.write(grant, "complete")
    await steer(api, made["task_id"], "review", verdict="accept")
    before = await task(api, made["task_id"])
    for function, members in (
        ("cancel", {}),
        ("review", {"verdict": "reject"}),
        ("resolve", {"resolution": "requeue"}),
        ("budget", {"add": {"tokens": 1}}),
    ):
        assert status_and_code(await steer(api, made["task_id"], function, **members)) == (
            409,
            "invalid_task_transition",
        )
    assert status_and_code(await one.report(grant)) == (412, "lease_ended")
    assert await task(api, made["task_id"]) == before


async def test_case_9_repeated_write_gets_the_first_answer(api: RegistryApi) -> None:
    await create(api)
    one = await worker(api)
    grant = await one.granted()
    answers = [await one.report(grant) for _ in range(3)]
    assert {answer.body for answer in answers} == {answers[0].body}
    delegated = [await one.write(grant, "delegate", task={"title": "child"}) for _ in range(2)]
    assert [answer.status for answer in delegated] == [201, 201]
    assert delegated[0].body == delegated[1].body
    completed = [await one.write(grant, "complete", output={"a": 1}) for _ in range(2)]
    assert completed[0].body == completed[1].body
    # Also after the lease has ended and the review is over.
    api.clock.advance(10_000)
    await api.sweep()
    assert (await one.write(grant, "complete", output={"a": 1})).body == completed[0].body
    assert len(await api.events(type="task.reported")) == 1
    assert (await api.ask("GET", TASKS)).json()["total"] == 2


@pytest.mark.both_databases
async def test_one_of_equal_concurrent_writes_is_executed(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted()
    answers = await asyncio.gather(*(one.report(grant) for _ in range(8)))
    assert {answer.body for answer in answers} == {answers[0].body}
    assert (await task(api, made["task_id"]))["latest_report"]["number"] == 1


async def test_idempotency_key_is_valid_for_one_write_of_a_run(api: RegistryApi) -> None:
    await create(api)
    one = await worker(api)
    grant = await one.granted()
    assert (await one.report(grant)).status == 200
    other = await one.report(grant, report={"summary": "another"})
    assert status_and_code(other) == (422, "idempotency_key_reused")
    function = await one.write(grant, "complete", idempotency_key="progress")
    assert status_and_code(function) == (422, "idempotency_key_reused")
    await one.write(grant, "release", exit_reason="killed")
    # Another run restarts the count.
    assert (await one.report(await one.granted())).status == 200


async def test_repeated_answer_is_only_for_its_writer(api: RegistryApi) -> None:
    await create(api)
    one, other = await worker(api), await worker(api, "agent-2")
    grant = await one.granted()
    await one.write(grant, "complete", output={"secret": 1})
    assert status_and_code(await other.write(grant, "complete", output={"secret": 1})) == (
        404,
        "task_not_found",
    )
    # Nor for one that had the task before.
    await create(api)
    await one.write(await one.granted(), "release", exit_reason="killed")
    grant = await other.granted()
    await other.write(grant, "complete", output={"secret": 1})
    assert status_and_code(await one.write(grant, "complete", output={"secret": 1})) == (412, "stale_token")


async def test_only_writes_that_end_a_run_are_accepted_above_the_limit(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_guard, "MAX_WRITES", 1)
    await create(api)
    one = await worker(api)
    grant = await one.granted()
    first = await one.report(grant)
    assert first.status == 200
    assert status_and_code(await one.report(grant, idempotency_key="second")) == (409, "too_many")
    assert (await one.report(grant)).body == first.body
    assert (await one.write(grant, "complete")).status == 200


async def test_write_of_a_former_holder_reports_the_end_of_its_run(
    api: RegistryApi,
) -> None:
    made = await create(api)
    one, other = await worker(api), await worker(api, "agent-2")
    late = await one.granted(ttl_seconds=60)
    api.clock.advance(61)
    await api.sweep()
    grant = await other.granted()
    assert status_and_code(await one.report(grant)) == (412, "stale_token")
    assert status_and_code(await one.report(late)) == (412, "stale_token")
    shown = {**grant, "run_id": late["run_id"]}
    assert status_and_code(await other.report(shown)) == (412, "wrong_run")
    assert await _rejected(api) == ["stale_token", "stale_token", "wrong_run"]
    assert (await task(api, made["task_id"]))["status"] == "assigned"


WRITES: dict[str, dict[str, Any]] = {
    "progress": {"report": REPORT},
    "complete": {},
    "help": {"reason": "?"},
    "delegate": {"task": {"title": "child", "budget": {"tokens": 1}}},
    "release": {"exit_reason": "crash"},
    "calls": {"call_id": "c", "tool": "t", "most": {"tokens": 1}},
    "calls/c/settle": {"cost": {"tokens": 1}},
    "calls/c/release": {},
}


@pytest.mark.parametrize("incarnation", [None, "7", "x"])
async def test_task_of_another_agent_looks_absent(api: RegistryApi, incarnation: str | None) -> None:
    made, queued = await create(api), await create(api, agent_id="agent-3")
    one, other = await worker(api), await worker(api, "agent-2")
    grant = await one.granted()
    await one.report(grant)
    headers = {} if incarnation is None else {"X-Agent-Incarnation": incarnation}
    bodies: list[dict[str, Any]] = [{}, {"run_id": f"run_{'0' * 26}"}, {"fencing_token": 9}, {"unknown": 1}]
    for function, members in WRITES.items():
        for more in bodies:
            distinct_answers = set()
            for task_id in (UNKNOWN, made["task_id"], queued["task_id"]):
                given: Any = {**members, **more}
                answer = await other.write(grant, function, task_id=task_id, headers=headers, **given)
                distinct_answers.add((answer.status, answer.body.decode().replace(task_id, "ID")))
            ((status, text),) = distinct_answers
            assert status == (422 if "unknown" in more else 404), text
    assert await _rejected(api) == []


@pytest.mark.both_databases
async def test_case_11_a_delegated_task_is_paid_out_of_its_parents_envelope(api: RegistryApi) -> None:
    parent = await create(api, budget={"tokens": 100, "usd": 2})
    one, other = await worker(api), await worker(api, "agent-2", role_id="croppers")
    grant = await one.granted()
    members = {"title": "crop", "role_id": "croppers", "budget": {"tokens": 40, "usd": 0.5}}
    child_id = (await one.write(grant, "delegate", task=members)).json()["child_id"]
    shown = await task(api, parent["task_id"])
    assert (shown["status"], shown["holder"]) == ("assigned", "agent-1")
    assert shown["budget"]["delegated"] == {"tokens": 40, "usd": 0.5}
    assert [child["task_id"] for child in shown["children"]] == [child_id]
    too_much = {"title": "more", "budget": {"tokens": 61}}
    refused = await one.write(grant, "delegate", task=too_much, idempotency_key="more")
    assert status_and_code(refused) == (402, "budget_exceeded")
    assert (await task(api, parent["task_id"]))["budget"] == shown["budget"]
    # The child spends a part of it and is accepted by the agent that holds the parent.
    grant_2 = await other.granted()
    await other.reserve(grant_2, "c", tokens=15)
    await other.write(grant_2, "calls/c/settle", cost={"tokens": 15})
    await other.write(grant_2, "complete")
    credentials = {"run_id": grant["run_id"], "fencing_token": grant["lease"]["fencing_token"]}
    review = {"verdict": "accept", **credentials}
    path = f"{TASKS}/{child_id}/review"
    assert status_and_code(await api.ask("POST", path, {"verdict": "accept"}, key=one.key)) == (
        428,
        "token_required",
    )
    assert status_and_code(await api.ask("POST", path, review, key=other.key)) == (403, "not_allowed")
    assert (await api.ask("POST", path, review, key=one.key)).status == 200
    budget = (await task(api, parent["task_id"]))["budget"]
    assert budget["settled"] == {"tokens": 15, "usd": 0.0}
    assert budget["available"] == {"tokens": 85, "usd": 2.0}
    assert (await log_report(api)).is_good


@pytest.mark.both_databases
async def test_unfinished_grandchild_stays_charged_to_the_task_that_pays_for_it(api: RegistryApi) -> None:
    one = await worker(api, capacity={"max_concurrent_tasks": 3})
    made = await create(api, budget={"tokens": 100}, agent_id="agent-1")
    grant = await one.granted()
    members = {"title": "part", "budget": {"tokens": 100}, "agent_id": "agent-1"}
    child_id = (await one.write(grant, "delegate", task=members)).json()["child_id"]
    child = await one.granted(task_id=child_id)
    grandchild_id = (await one.write(child, "delegate", task=members)).json()["child_id"]
    grandchild = await one.granted(task_id=grandchild_id)
    await one.write(child, "complete")
    assert (await steer(api, child_id, "review", verdict="accept")).status == 200
    budget = (await task(api, made["task_id"]))["budget"]
    assert (budget["delegated"]["tokens"], budget["available"]["tokens"]) == (100, 0)
    await one.reserve(grandchild, "c", tokens=30)
    await one.write(grandchild, "calls/c/settle", cost={"tokens": 30})
    await one.write(grandchild, "complete")
    assert (await steer(api, grandchild_id, "review", verdict="accept")).status == 200
    for task_id in (made["task_id"], child_id):
        budget = (await task(api, task_id))["budget"]
        assert (budget["settled"]["tokens"], budget["available"]["tokens"]) == (30, 70)


async def test_case_11_death_of_a_childs_holder_does_not_affect_the_parent(api: RegistryApi) -> None:
    parent = await create(api)
    one, other = await worker(api), await worker(api, "agent-2", role_id="croppers")
    grant = await one.granted()
    child_id = (await one.write(grant, "delegate", task={"title": "c", "role_id": "croppers"})).json()[
        "child_id"
    ]
    await other.granted()
    await api.ask("DELETE", f"{AGENTS}/agent-2")
    assert (await task(api, child_id))["status"] == "queued"
    shown = await task(api, parent["task_id"])
    assert (shown["status"], shown["holder"]) == ("assigned", "agent-1")
    assert (await one.report(grant)).status == 200


async def test_case_21_credentials_of_a_former_incarnation_are_refused(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted()
    answer = await api.ask("POST", AGENTS, {"agent_id": "agent-1", "supersede": True}, key=one.key)
    assert answer.json()["incarnation"] == 2
    assert status_and_code(await one.report(grant)) == (412, "lease_ended")
    assert (await task(api, made["task_id"]))["status"] == "queued"
    renewed = await one.granted()
    headers = {"x-agent-incarnation": "1"}
    assert status_and_code(await one.report(renewed, headers=headers)) == (410, "agent_gone")
    assert (await one.report(renewed, headers={"x-agent-incarnation": "2"})).status == 200


async def test_case_23_the_next_holder_gets_the_latest_report_and_a_new_token(api: RegistryApi) -> None:
    await create(api)
    one, other = await worker(api), await worker(api, "agent-2")
    grant = await one.granted(ttl_seconds=60)
    assert "latest_report" not in grant
    await one.report(grant)
    await one.report(grant, idempotency_key="2", report={"summary": "the latest"})
    api.clock.advance(61)
    await api.sweep()
    after = await other.granted()
    assert after["latest_report"]["report"]["summary"] == "the latest"
    assert after["lease"]["fencing_token"] > grant["lease"]["fencing_token"]
    assert after["run_id"] != grant["run_id"]
    # The run before was lost, which is no fault of the task.
    assert (after["task"]["attempts"], after["task"]["lost_runs"]) == (1, 1)


async def test_lease_of_a_task_is_limited_by_its_longest_run_time(api: RegistryApi) -> None:
    await create(api, lease_seconds=60)
    one = await worker(api)
    lease = (await one.granted(ttl_seconds=86_400))["lease"]
    assert seconds_between(lease["acquired_at"], lease["expires_at"]) == 60
    path, shown = f"/api/v1/leases/{lease['lease_id']}/renew", {"fencing_token": lease["fencing_token"]}

    async def renewed(**members: float) -> Any:
        return (await api.ask("POST", path, {**shown, **members}, key=one.key)).json()

    refused = await renewed(ttl_seconds=61)
    (fault,) = refused["error"]["details"]["faults"]
    assert (fault["name"], fault["pointer"]) == ("longer_than_its_task", "/ttl_seconds")
    api.clock.advance(20)
    # A window of 60 s may be given as 60.001 s; by default it is the task's.
    for members in ({"ttl_seconds": 60.001}, {}):
        ends = (await renewed(**members))["expires_at"]
        assert 80 <= seconds_between(lease["acquired_at"], ends) < 80.01
    ends = (await renewed(ttl_seconds=5))["expires_at"]
    assert seconds_between(lease["acquired_at"], ends) == 25


def seconds_between(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


async def test_case_24_holder_without_progress_is_reported_and_kept(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted(ttl_seconds=86_400)
    api.clock.advance(50)
    await api.send_heartbeat("agent-1", one.key)
    assert (await task(api, made["task_id"]))["no_progress_seconds"] == 50
    await one.report(grant)
    api.clock.advance(80)
    await api.sweep()
    shown = await task(api, made["task_id"])
    assert (shown["status"], shown["no_progress_seconds"]) == ("running", 80)
    await one.write(grant, "complete")
    assert "no_progress_seconds" not in await task(api, made["task_id"])


async def test_failed_runs_are_retried_with_longer_waits_and_then_escalated(api: RegistryApi) -> None:
    made = await create(api, max_attempts=3, backoff_seconds=10)
    one = await worker(api)
    for attempt, wait_s in ((1, 10), (2, 20)):
        grant = await one.granted()
        answer = await one.write(grant, "release", exit_reason="crash", exit_code=-9)
        assert answer.json()["status"] == "queued"
        shown = await task(api, made["task_id"])
        assert shown["explanation"] == f"run {attempt}, attempt {attempt} of 3: crash (exit code -9)"
        assert shown["runs"][0]["exit_code"] == -9
        assert (await one.claim()).status == 204
        api.clock.advance(wait_s - 0.001)
        assert (await one.claim()).status == 204
        api.clock.advance(0.001)
    grant = await one.granted()
    assert (await one.write(grant, "release", exit_reason="timeout")).json()["status"] == "handoff"
    assert (await one.claim()).status == 204
    assert await steps(api, made["task_id"]) == ["assigned", "failed", "queued"] * 2 + [
        "assigned",
        "failed",
        "handoff",
    ]
    # A human has helped: it is tried as often as a new one.
    assert (await steer(api, made["task_id"], "resolve", resolution="requeue")).json()["attempts"] == 0
    assert (await one.granted())["task"]["attempts"] == 1
    assert (await log_report(api)).is_good


async def test_failure_detail_is_shown_with_control_characters_replaced(api: RegistryApi) -> None:
    made = await create(api, max_attempts=1)
    one = await worker(api)
    grant = await one.granted()
    what = "ValueError: the invoice\thas \x1b[31mno\x00 number"
    answer = await one.write(grant, "release", exit_reason="crash", detail=what)
    assert answer.json()["status"] == "handoff"
    shown = (await task(api, made["task_id"]))["explanation"]
    assert shown == "run 1, attempt 1 of 1: crash: ValueError: the invoice\ufffdhas \ufffd[31mno\ufffd number"
    assert (await one.write(grant, "release", exit_reason="crash", detail="x" * 501)).status == 422


async def test_draining_holder_finishes_its_task_and_is_deregistered(api: RegistryApi) -> None:
    await create(api)
    one = await worker(api)
    grant = await one.granted()
    headers = {"if-match": (await api.record("agent-1"))["etag"]}
    await api.ask("PATCH", f"{AGENTS}/agent-1/status", {"status": "draining"}, key=one.key, headers=headers)
    assert status_and_code(await one.claim()) == (409, "agent_draining")
    assert (await one.report(grant)).status == 200
    assert (await one.write(grant, "complete")).status == 200
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "deregistered"


async def test_write_without_a_required_member_is_refused(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    grant = await one.granted()
    shown = {"run_id": grant["run_id"], "fencing_token": 1, "idempotency_key": "k", "report": REPORT}
    path = f"{TASKS}/{made['task_id']}/progress"
    for missing in shown:
        body = {name: value for name, value in shown.items() if name != missing}
        assert (await api.ask("POST", path, body, key=one.key)).status == 422, missing
    large = {**shown, "report": {"summary": "x" * 70_000}}
    assert (await api.ask("POST", path, large, key=one.key)).status == 422
    assert status_and_code(await api.ask("POST", path.replace("task_0", "task_1"), shown, key=one.key)) == (
        404,
        "task_not_found",
    )
    for role in (Role.READER, Role.PROBER, Role.COORDINATOR, Role.ENROLL):
        assert status_and_code(await api.ask("POST", path, shown, key=role)) == (403, "not_allowed")
    assert (await task(api, made["task_id"]))["status"] == "assigned"
