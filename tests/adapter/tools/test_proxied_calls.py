import asyncio
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from tests.support.mcp_tools import text_of
from tests.support.registry_server import RegistryServer
from tests.support.servers import until
from tests.support.task_tools import failed
from tests.support.tool_proxies import proxied, read
from tests.support.upstream_tools import HttpUpstream

from lifesign.client.registry_errors import Unreachable
from lifesign.client.registry_tasks import RegistryTasks

TASK_TOOLS = ["report_progress", "mark_complete", "request_human_help", "delegate_subtask"]
FREE = {"usd_per_call": 0}


async def test_task_tools_are_offered_without_a_tools_file(registry: RegistryServer) -> None:
    async with proxied(registry, "plain") as work:
        assert work.model is not None
        listed = (await work.model.list_tools()).tools
        assert [tool.name for tool in listed] == TASK_TOOLS
        # The proxy may take long to load, and a server to start.
        assert work.progress == ["begun", "ended"] * 2
        for tool in listed:
            assert not {"taskId", "runId", "fencingToken"} & set(tool.input_schema["properties"])
        answer = await work.call("report_progress", {"summary": "begun", "nextStep": "go on"})
        assert answer.structured_content == {"taskId": work.holder.task_id, "status": "running", "report": 1}
        assert work.progress == ["begun", "ended"] * 3


async def test_unlisted_tool_is_not_offered(registry: RegistryServer, upstream: HttpUpstream) -> None:
    tools = {"fetch": {"usd_per_call": 0.01, "tokens_per_call": 5}, "absent": FREE}
    upstreams = read(upstreams={"acme": {"url": upstream.url, "tools": tools}})
    async with proxied(registry, "few", upstreams) as work:
        assert work.model is not None
        listed = (await work.model.list_tools()).tools
        assert [tool.name for tool in listed] == [*TASK_TOOLS, "fetch"]
        assert listed[-1].description == (
            "Does fetch.\n\nA call costs 0.01 USD and 5 tokens of the task's budget."
        )
        with pytest.raises(MCPError, match=r"'die'.*report_progress, ") as unknown:
            await work.call("die")
        assert unknown.value.code == INVALID_PARAMS
        # The file names it, and the server does not have it.
        code, words = failed(await work.call("absent"))
        assert code == "tool_missing"
        assert words.startswith(
            "tool_missing: acme has no tool 'absent', although the tools file names it; it"
        )
        assert (await work.task()).budget.reserved.usd == 0


async def test_offer_all_offers_each_tool_and_prefixes_duplicate_names(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    acme = {"url": upstream.url, "offer_all": True, "price": FREE, "tools": {"costly": FREE}}
    upstreams = read(
        upstreams={
            "acme": acme,
            "other": {**acme, "prefix": "o."},
            "third": {**acme, "tools": {"fetch": FREE}},
        }
    )
    async with proxied(registry, "many", upstreams) as work:
        assert work.model is not None
        names = {tool.name for tool in (await work.model.list_tools()).tools}
        assert {"costly", "o.costly", "third_costly", "fetch", "acme_fetch", "o.fetch"} <= names
        assert {"acme_report_progress", "o.report_progress", "third_report_progress"} <= names
        assert "third_fetch" not in names
        # Without a prefix, the name means the tool of the task.
        assert (await work.call("report_progress", {"summary": "s"})).structured_content is not None
        assert text_of(await work.call("acme_report_progress")) == "report_progress"


async def test_tool_that_its_server_adds_later_is_offered(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    named = {"url": upstream.url, "tools": {"grow": FREE, "grown": FREE}}
    whole = {"url": upstream.url, "prefix": "o.", "offer_all": True, "price": FREE}
    async with proxied(registry, "later", read(upstreams={"acme": named, "other": whole})) as work:
        assert work.model is not None
        before = {tool.name for tool in (await work.model.list_tools()).tools}
        await work.call("grow")
        assert [text_of(await work.call(name)) for name in ("grown", "o.grown")] == ["grown", "grown"]
        after = {tool.name for tool in (await work.model.list_tools()).tools}
    assert after - before == {"grown", "o.grown"}


@pytest.mark.parametrize("name", ["n" * 257, "a\nb"])
async def test_tool_whose_call_the_registry_would_refuse_is_not_offered(
    registry: RegistryServer, upstream: HttpUpstream, name: str
) -> None:
    acme = {"url": upstream.url, "offer_all": True, "price": FREE}
    async with proxied(registry, f"named-{len(name)}", read(upstreams={"acme": acme})) as work:
        assert work.model is not None
        await work.call("grow", {"name": name})
        listed = [tool.name for tool in (await work.model.list_tools()).tools]
        assert "fetch" in listed
        assert name not in listed
        with pytest.raises(MCPError) as unknown:
            await work.call(name)
        assert unknown.value.code == INVALID_PARAMS


async def test_secret_in_the_name_of_a_tool_is_not_logged(
    registry: RegistryServer, upstream: HttpUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text("of-the-server")
    (tmp_path / "key").chmod(0o600)
    headers = {"X-Key": {"file": str(tmp_path / "key")}}
    acme = {"url": upstream.url, "offer_all": True, "price": FREE, "headers": headers}
    async with proxied(registry, "quoted", read(upstreams={"acme": acme})) as work:
        assert work.model is not None
        await work.call("grow", {"name": "of-the-server\n"})
        await work.model.list_tools()
    assert "REMOVED-SECRE" in caplog.text
    assert "of-the-server" not in caplog.text


async def test_unreachable_server_leaves_the_tools_of_others(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    upstreams = read(
        upstreams={
            "gone": {"url": "http://127.0.0.1:9/mcp", "tools": {"search": FREE}},
            "acme": {"url": upstream.url, "tools": {"fetch": FREE}},
        }
    )
    async with proxied(registry, "half", upstreams) as work:
        assert work.model is not None
        assert [tool.name for tool in (await work.model.list_tools()).tools] == [*TASK_TOOLS, "fetch"]
        assert text_of(await work.call("fetch")) == "fetch"
        code, words = failed(await work.call("search"))
        assert code == "upstream_unavailable"
        assert words.startswith("upstream_unavailable: gone is not running: ")


async def test_number_of_concurrent_tool_calls_of_a_run_is_limited(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    before = upstream.carried_out().count("wait")
    upstreams = read(
        limits={"calls_at_once": 1}, upstreams={"acme": {"url": upstream.url, "tools": {"wait": FREE}}}
    )
    async with proxied(registry, "busy", upstreams) as work:
        calling = asyncio.create_task(work.call("wait"))
        await asyncio.to_thread(until, "begun", lambda: upstream.carried_out().count("wait") > before)
        # It counts as progress of the agent for as long as it goes on.
        assert work.progress == ["begun", "ended", "begun"]
        refused = failed(await work.call("wait"))
        assert refused[0] == "busy"
        assert "1 calls" in refused[1]
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)


@pytest.mark.parametrize(
    ("tool", "arguments", "status"),
    [
        ("mark_complete", {"output": {"page": 1}}, "review"),
        ("request_human_help", {"reason": "which logo?"}, "handoff"),
    ],
)
async def test_case_9_repeated_end_of_a_run_has_one_effect(
    registry: RegistryServer, tool: str, arguments: dict[str, object], status: str
) -> None:
    async with proxied(registry, f"ends-{tool}") as work:
        first = await work.call(tool, arguments)
        # The lease keeper has released it by now.
        work.is_held = False
        again = await work.call(tool, arguments)
        assert first.structured_content == again.structured_content
        assert (first.structured_content or {})["status"] == status
        others: list[tuple[str, dict[str, object]]] = [
            ("report_progress", {"summary": "late"}),
            ("fetch", {}),
            # The same tool, with another result.
            (
                tool,
                {
                    key: value
                    for key, value in {"output": {"page": 2}, "reason": "and?"}.items()
                    if key in arguments
                },
            ),
        ]
        for late, given in others:
            code, words = failed(await work.call(late, given))
            assert code == "run_ended"
            assert words.startswith(f"run_ended: this run has ended by {tool}: no call")
        assert work.heard == [tool]


@pytest.mark.parametrize(
    ("tool", "arguments", "output"),
    [
        ("mark_complete", {"output": {"page": 1}, "report": {"summary": "done"}}, {"page": 1}),
        ("request_human_help", {"reason": "which logo?", "report": {"summary": "done"}}, None),
    ],
)
async def test_unconfirmed_end_of_a_run_can_be_repeated_by_its_holder(
    registry: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    arguments: dict[str, object],
    output: dict[str, object] | None,
) -> None:
    async def break_off(*_: object, **__: object) -> object:
        raise Unreachable("broken", was_sent=True)

    async with proxied(registry, f"unsure-{tool}") as work:
        monkeypatch.setattr(RegistryTasks, tool, break_off)
        assert failed(await work.call(tool, arguments))[0] == "orchestrator_unavailable"
        monkeypatch.undo()
        (request,) = work.requests
        assert (request.tool, request.output) == (tool, output)
        assert (request.report or {})["summary"] == "done"
        assert (request.reason, request.refusal) == ("" if output else "which logo?", "")
        # The call of the agent itself has the same key.
        await work.call(tool, arguments)
        assert work.requests == [request, request]
        assert work.heard == [tool]


async def test_refused_end_of_a_run_is_reported_with_the_reason(registry: RegistryServer) -> None:
    async with proxied(registry, "refused") as work:
        for wrong in ({"result": 1}, {"output": {"page": "x" * 70_000}}):
            _, text = failed(await work.call("mark_complete", wrong))
            assert work.requests[-1].refusal == text
        await work.call("mark_complete", {"output": {"page": 1}})
        assert work.requests[-1].refusal == ""
        assert work.heard == ["mark_complete"]


async def test_case_11_child_is_delegated_by_tool_and_its_parent_continues(registry: RegistryServer) -> None:
    async with proxied(registry, "divides", budget={"usd": 1.0}) as work:
        part = {"title": "A part", "agentId": "nobody", "budget": {"usd": 0.75}}
        made = await work.call("delegate_subtask", part)
        child = await work.holder.admin.tasks.get((made.structured_content or {})["childId"])
        assert (child.parent_id, child.budget.envelope.usd) == (work.holder.task_id, 0.75)
        beyond = await work.call("delegate_subtask", {**part, "title": "Another"})
        assert failed(beyond)[0] == "budget_exceeded"
        # A child that ends leaves its parent alone, and what it has left comes back.
        await work.holder.admin.tasks.cancel(child.task_id)
        parent = await work.task()
        assert (parent.status, parent.holder, parent.budget.available.usd) == ("assigned", "divides", 1.0)
        assert work.heard == []
