from typing import Any

import pytest
from tests.support.mcp_tools import text_of
from tests.support.registry_server import KEYS, RegistryServer
from tests.support.task_tools import call, failed, holding, server_of

from lifesign.client import RegistryClient
from lifesign.client.registry_tasks import HeldRun
from lifesign.domain.access.permissions import Role

REPORT = {
    "summary": "hero section drafted",
    "beliefs": ["brand color #3ecf8e"],
    "attempted": [{"action": "fetch brand assets", "outcome": "success"}],
    "nextStep": "Write three variants",
    "blockers": [],
}
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("report_progress", REPORT, "running"),
    ("delegate_subtask", {"title": "A part", "agentId": "nobody"}, "assigned"),
    ("mark_complete", {"output": {"page": "index.html"}}, "review"),
    ("request_human_help", {"reason": "which logo?"}, "handoff"),
]
NAMES = [name for name, _, _ in CALLS]


@pytest.mark.parametrize("is_bound", [True, False], ids=["bound", "shown"])
@pytest.mark.parametrize(("tool", "arguments", "status"), CALLS, ids=NAMES)
async def test_repeated_write_counts_once(
    registry: RegistryServer, tool: str, arguments: dict[str, Any], status: str, *, is_bound: bool
) -> None:
    async with holding(registry, f"{tool}-{is_bound}") as holder:
        server = server_of(holder.own, holder.run if is_bound else None)
        shown = {} if is_bound else holder.shown()
        answers = [await call(server, tool, {**shown, **arguments}) for _ in range(3)]
        task = await holder.admin.tasks.get(holder.task_id)
        reports = await holder.admin.tasks.reports(holder.task_id)
    assert [answer.is_error for answer in answers] == [False] * 3
    assert task.status == status
    assert answers[0].structured_content == answers[2].structured_content
    assert (answers[0].structured_content or {})["taskId"] == holder.task_id
    assert len(reports.reports) == (tool == "report_progress")
    assert len(task.children) == (tool == "delegate_subtask")


async def test_progress_report_is_stored_with_the_members_of_the_rfc(registry: RegistryServer) -> None:
    async with holding(registry, "reporter") as holder:
        answer = await call(server_of(holder.own, holder.run), "report_progress", REPORT)
        kept = await holder.admin.tasks.reports(holder.task_id)
    assert kept.reports[0].report == REPORT
    assert answer.structured_content == {"taskId": holder.task_id, "status": "running", "report": 1}
    assert text_of(answer).startswith("report 1 ")


async def test_completion_may_include_a_last_report(registry: RegistryServer) -> None:
    async with holding(registry, "finisher") as holder:
        arguments = {"output": {"page": "index.html"}, "report": REPORT}
        answer = await call(server_of(holder.own, holder.run), "mark_complete", arguments)
        task = await holder.admin.tasks.get(holder.task_id)
    assert (answer.structured_content or {})["report"] == 1
    assert task.output == {"page": "index.html"}
    assert task.latest_report is not None
    assert task.latest_report.report == REPORT


async def test_intended_repeats_have_idempotency_keys(registry: RegistryServer) -> None:
    async with holding(registry, "splitter") as holder:
        server = server_of(holder.own, holder.run)
        part = {"title": "A part", "agentId": "nobody"}
        await call(server, "delegate_subtask", {**part, "idempotencyKey": "1"})
        await call(server, "delegate_subtask", {**part, "idempotencyKey": "2"})
        again = await call(server, "delegate_subtask", {**part, "title": "B", "idempotencyKey": "1"})
        task = await holder.admin.tasks.get(holder.task_id)
    assert [child.title for child in task.children] == ["A part", "A part"]
    assert failed(again)[0] == "idempotency_key_reused"


# ── the cases of the lease protocol, by tool ──


@pytest.mark.parametrize(("tool", "arguments", "status"), CALLS, ids=NAMES)
async def test_case_5_run_credentials_are_invalid_for_another_task_or_agent(
    registry: RegistryServer, tool: str, arguments: dict[str, Any], status: str
) -> None:
    async with holding(registry, f"a-{tool}") as one, holding(registry, f"b-{tool}") as other:
        server = server_of(other.own)
        mixed = {**one.shown(), "taskId": other.task_id}
        answers = [
            await call(server, tool, {**mixed, **arguments}),
            await call(server, tool, {**one.shown(), **arguments}),
        ]
        statuses = [await one.status(), await other.status()]
    assert [failed(answer)[0] for answer in answers] == ["stale_token", "task_not_found"]
    assert statuses == ["assigned", "assigned"]


@pytest.mark.parametrize(("tool", "arguments", "status"), CALLS, ids=NAMES)
async def test_cases_6_and_7_refused_write_changes_nothing_and_forged_token_is_refused(
    registry: RegistryServer, tool: str, arguments: dict[str, Any], status: str
) -> None:
    budget = {"tokens": 10, "usd": 1.0}
    async with holding(registry, f"c-{tool}", budget=budget) as holder:
        before = await holder.admin.tasks.get(holder.task_id)
        later = {**holder.shown(), "fencingToken": holder.run.fencing_token + 1, **arguments}
        answer = await call(server_of(holder.own), tool, later)
        after = await holder.admin.tasks.get(holder.task_id)
    assert failed(answer)[0] == "stale_token"
    found = {"no_progress_seconds"}
    assert after.model_dump(exclude=found) == before.model_dump(exclude=found)


async def test_case_9_repeated_completion_gets_the_first_answer_and_a_different_one_is_refused(
    registry: RegistryServer,
) -> None:
    async with holding(registry, "retrier") as holder:
        server = server_of(holder.own, holder.run)
        first = await call(server, "mark_complete", {"output": {"page": 1}})
        again = await call(server, "mark_complete", {"output": {"page": 1}})
        other = await call(server, "mark_complete", {"output": {"page": 2}})
        await holder.admin.tasks.review(holder.task_id, "accept")
        afterwards = await call(server, "mark_complete", {"output": {"page": 1}})
        task = await holder.admin.tasks.get(holder.task_id)
    assert first.structured_content == again.structured_content == afterwards.structured_content
    assert failed(other)[0] == "stale_token"
    assert (task.status, task.output) == ("done", {"page": 1})


async def test_case_11_child_budget_is_carved_out_and_the_parent_keeps_its_lease(
    registry: RegistryServer,
) -> None:
    async with holding(registry, "parent", budget={"tokens": 100, "usd": 1.0}) as holder:
        server = server_of(holder.own, holder.run)
        part: dict[str, Any] = {"title": "A part", "agentId": "nobody", "budget": {"tokens": 60}}
        made = await call(server, "delegate_subtask", part)
        beyond = await call(server, "delegate_subtask", {**part, "title": "Another"})
        task = await holder.admin.tasks.get(holder.task_id)
        child = await holder.admin.tasks.get((made.structured_content or {})["childId"])
        reported = await call(server, "report_progress", REPORT)
    assert (child.parent_id, child.budget.envelope.tokens) == (holder.task_id, 60)
    assert (task.holder, task.budget.available.tokens, task.budget.delegated.tokens) == ("parent", 40, 60)
    code, words = failed(beyond)
    assert code == "budget_exceeded"
    assert "nothing was spent" in words
    assert len(task.children) == 1
    assert not reported.is_error


async def test_unreachable_registry_is_reported(registry: RegistryServer) -> None:
    run = HeldRun(task_id=f"task_{'0' * 26}", run_id=f"run_{'0' * 26}", fencing_token=1)
    async with RegistryClient("http://127.0.0.1:9", key=KEYS[Role.ADMIN], timeout_seconds=0.3) as away:
        answers = [await call(server_of(away, run), tool, arguments) for tool, arguments, _ in CALLS]
    for answer in answers:
        code, words = failed(answer)
        assert code == "orchestrator_unavailable"
        assert "make the same call once more" in words


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("report_progress", {}, "summary: expected"),
        ("report_progress", {"summary": "x", "next": "y"}, "next: expected no member"),
        ("report_progress", {"summary": "x" * 65_000, "beliefs": ["y" * 600]}, "report"),
        ("mark_complete", {"output": "done"}, "output: expected"),
        ("mark_complete", {"output": {"page": "x" * 65_536}}, "output: expected at most 65536"),
        ("request_human_help", {"reason": ""}, "reason: expected at least 1"),
        ("delegate_subtask", {"title": "x", "budget": {"usd": -1}}, "budget.usd: expected at least 0"),
    ],
)
async def test_invalid_arguments_are_reported_and_not_sent(
    registry: RegistryServer, tool: str, arguments: dict[str, Any], words: str
) -> None:
    run = HeldRun(task_id=f"task_{'0' * 26}", run_id=f"run_{'0' * 26}", fencing_token=1)
    async with RegistryClient("http://127.0.0.1:9", timeout_seconds=0.3) as away:
        answer = await call(server_of(away, run), tool, arguments)
    assert answer.is_error
    code, result = failed(answer)
    assert (code, result[: len(words) + 18]) == ("invalid_argument", f"invalid_argument: {words}")
