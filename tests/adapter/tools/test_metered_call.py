import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from tests.support import upstream_tools
from tests.support.mcp_tools import text_of
from tests.support.misbehaving_tools import INSTEAD, http_misbehaving
from tests.support.registry_server import RegistryServer, registry_server
from tests.support.servers import PATIENCE_SECONDS, until
from tests.support.task_tools import failed
from tests.support.tool_proxies import Proxied, connected, proxied, read
from tests.support.upstream_tools import COST_KEY, HttpUpstream

from lifesign.adapter.tools import metered_call
from lifesign.adapter.tools.metered_call import Meter, reported_cost, without_own_members
from lifesign.adapter.tools.tool_proxy import open_tool_proxy
from lifesign.adapter.tools.tools_file import Price, Upstreams
from lifesign.client.registry_errors import Unavailable
from lifesign.domain.tasks.budget import RequestedAmount

COSTLY = {"cost_in": COST_KEY, "at_most": {"usd": 0.5, "tokens": 100}}


def offering(upstream: HttpUpstream, **limits: Any) -> Upstreams:
    tools = {
        "fetch": {"usd_per_call": 0.25},
        "costly": COSTLY,
        "fail": {"usd_per_call": 0.25},
        "refuse": {"usd_per_call": 0.25},
        "long": {"usd_per_call": 0.25},
        "wait": {"usd_per_call": 0.25},
    }
    return read(limits=limits, upstreams={"acme": {"url": upstream.url, "tools": tools}})


def meta_of(result: CallToolResult) -> dict[str, Any]:
    """Return the members that the proxy added, without its prefix."""
    members = {name: value for name, value in (result.meta or {}).items() if name.startswith("lifesign/")}
    return {name.partition("/")[2]: value for name, value in members.items()}


async def begun(upstream: HttpUpstream, times: int) -> None:
    """Wait until `wait` was begun so often."""
    await asyncio.to_thread(until, "it is begun", lambda: upstream.carried_out().count("wait") >= times)


async def budget_is(work: Proxied, **expected: float) -> None:
    found = await work.budget()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while found != expected:
            await asyncio.sleep(0.02)
            found = await work.budget()


async def test_call_is_charged_and_the_remaining_budget_reported(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    async with proxied(registry, "payer", offering(upstream), budget={"usd": 1.0}) as work:
        result = await work.call("fetch")
        assert text_of(result) == "fetch"
        assert meta_of(result) == {
            "cost": {"tokens": 0, "usd": 0.25},
            "available": {"tokens": 0, "usd": 0.75},
        }
        assert await work.budget() == {"settled": 0.25}
        assert work.heard == []


async def test_call_beyond_the_budget_is_refused_before_execution(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    async with proxied(registry, "poor", offering(upstream), budget={"usd": 0.3}) as work:
        await work.call("fetch")
        before = upstream.carried_out()
        code, words = failed(await work.call("fetch"))
        assert (code, "nothing was spent" in words) == ("budget_exceeded", True)
        assert upstream.carried_out() == before
        assert await work.budget() == {"settled": 0.25}
        assert work.heard == ["budget_gone"]
        # It can still say so, and cheaper ones still go.
        assert not (await work.call("report_progress", {"summary": "s", "blockers": ["money"]})).is_error


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("fail", {}, ""),
        ("refuse", {}, "upstream_refused"),
        ("costly", {"fails": True}, ""),
        ("long", {"bytes": 2_000, "fails": True}, "answer_too_large"),
    ],
)
async def test_call_that_the_server_reports_as_failed_costs_nothing(
    registry: RegistryServer, upstream: HttpUpstream, tool: str, arguments: dict[str, Any], code: str
) -> None:
    upstreams = offering(upstream, answer_bytes=1_024)
    async with proxied(registry, f"fails-{tool}", upstreams, budget={"usd": 0.5, "tokens": 100}) as work:
        result = await work.call(tool, arguments)
        assert failed(result)[0] == code
        assert await work.budget() == {}
        assert (await work.task()).budget.available.usd == 0.5


async def test_structured_content_of_a_failed_call_is_omitted(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    """It need not keep the promise of the tool's output schema, to which some clients hold it."""
    tools = {"typed": {"usd_per_call": 0.25}}
    upstreams = read(limits={}, upstreams={"acme": {"url": upstream.url, "tools": tools}})
    async with proxied(registry, "typed", upstreams, budget={"usd": 0.5}) as work:
        good = await work.call("typed", {"word": "hi"})
        bad = await work.call("typed", {"fails": True})
    assert good.structured_content == {"word": "hi"}
    assert (bad.is_error, bad.structured_content, text_of(bad)) == (True, None, "typed")


async def test_call_that_may_have_been_executed_is_charged(registry: RegistryServer, tmp_path: Path) -> None:
    command = [sys.executable, upstream_tools.__file__, str(tmp_path / "record")]
    tools = {name: {"usd_per_call": 0.25} for name in ("long", "wait", "die")} | {"costly": COSTLY}
    limits = {"answer_bytes": 1_024, "call_seconds": 2}
    upstreams = read(limits=limits, upstreams={"acme": {"command": command, "tools": tools}})
    paid = 0.0
    async with proxied(registry, "unsure", upstreams, budget={"usd": 1.0, "tokens": 100}) as work:
        for tool, arguments, code, usd in (
            ("long", {"bytes": 2_000}, "answer_too_large", 0.25),
            ("costly", {"cost": {"usd": 0.125}, "text": "x" * 2_000}, "answer_too_large", 0.125),
            ("wait", {}, "upstream_timeout", 0.25),
            ("die", {}, "upstream_unavailable", 0.25),
        ):
            result = await work.call(tool, arguments)
            paid += usd
            assert failed(result)[0] == code
            assert failed(result)[1].endswith("; the call is paid for")
            assert meta_of(result)["cost"]["usd"] == usd
            assert await work.budget() == {"settled": paid}
        assert failed(await work.call("long", {"bytes": 2_000}))[0] == "budget_exceeded"


async def test_other_answers_of_a_server_are_charged_unless_refusals(
    registry: RegistryServer,
) -> None:
    refusals = {"internal_error", "unauthorized", "forbidden"}
    with http_misbehaving() as url:
        tools = {tool: {"usd_per_call": 0.25} for tool in INSTEAD}
        upstreams = read(upstreams={"acme": {"url": url, "tools": tools}})
        async with proxied(registry, "instead", upstreams, budget={"usd": 2.0}) as work:
            codes = {tool: failed(await work.call(tool))[0] for tool in INSTEAD}
            paid = await work.budget()
    assert {tool for tool, code in codes.items() if code == "upstream_refused"} == refusals
    assert {tool for tool, code in codes.items() if code == "answer_invalid"} == set(INSTEAD) - refusals
    assert paid == {"settled": 0.25 * len(set(INSTEAD) - refusals)}


@pytest.mark.parametrize("how", ["200", "event"])
async def test_refusal_with_the_code_connection_closed_costs_nothing(
    registry: RegistryServer, how: str
) -> None:
    with http_misbehaving() as url:
        upstreams = read(upstreams={"acme": {"url": url, "tools": {"refuse": {"usd_per_call": 0.25}}}})
        async with proxied(registry, f"refused-{how}", upstreams, budget={"usd": 1.0}) as work:
            code, words = failed(await work.call("refuse", {"code": -32000, "how": how}))
            assert (code, await work.budget()) == ("upstream_refused", {})
            assert words.endswith(": not today")
            code, _ = failed(await work.call("refuse", {"code": -32000, "how": "no event"}))
            assert (code, await work.budget()) == ("upstream_unavailable", {"settled": 0.25})


async def test_timeout_of_a_call_is_reported(registry: RegistryServer) -> None:
    async with proxied(registry, "wordy", budget={"usd": 1.0}) as work:
        with pytest.raises(MCPError, match="262144 bytes"):
            await work.call("report_progress", {"summary": "x" * 300_000})
        assert not (await work.call("report_progress", {"summary": "x"})).is_error


async def test_unsent_call_costs_nothing(registry: RegistryServer) -> None:
    async with AsyncExitStack() as opened:
        with http_misbehaving() as url:
            upstreams = read(upstreams={"acme": {"url": url, "tools": {"run": {"usd_per_call": 0.25}}}})
            work = await opened.enter_async_context(
                proxied(registry, "unsent", upstreams, budget={"usd": 1.0})
            )
            assert text_of(await work.call("run")) == "run"
        for _ in range(2):
            code, words = failed(await work.call("run"))
            assert code == "upstream_unavailable"
            assert words.startswith(
                "upstream_unavailable: acme is not running: it cannot be reached: Connection refused; it "
            )
        assert await work.budget() == {"settled": 0.25}


@pytest.mark.parametrize(
    ("cost", "usd", "tokens"),
    [
        ({"usd": 0.2, "tokens": 7}, 0.2, 7),
        # A part of a micro-dollar is a whole one.
        ({"usd": 0.1234561}, 0.123457, 0),
        ({}, 0, 0),
        # An impossible cost is charged as reserved.
        ({"usd": -1}, 0.5, 100),
        ({"usd": "much"}, 0.5, 100),
        (None, 0.5, 100),
    ],
    ids=str,
)
async def test_reported_cost_is_settled_unchanged(
    registry: RegistryServer, upstream: HttpUpstream, cost: object, usd: float, tokens: int
) -> None:
    name = f"costs-{str(cost).encode().hex()[:40]}"
    async with proxied(registry, name, offering(upstream), budget={"usd": 1.0, "tokens": 200}) as work:
        result = await work.call("costly", {} if cost is None else {"cost": cost})
        settled = (await work.task()).budget.settled
        assert (settled.usd, settled.tokens) == (usd, tokens)
        assert meta_of(result)["cost"] == {"usd": usd, "tokens": tokens}
        assert "overReserved" not in meta_of(result)


async def test_cost_above_the_reservation_is_settled_and_reported(
    registry: RegistryServer, upstream: HttpUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(registry, "over", offering(upstream), budget={"usd": 0.6, "tokens": 100}) as work:
        result = await work.call("costly", {"cost": {"usd": 0.75}})
        assert meta_of(result)["overReserved"] is True
        assert await work.budget() == {"settled": 0.6, "overrun": 0.15}
        warnings = [record.args for record in caplog.records if record.name.startswith("lifesign")]
        assert [args[0] for args in warnings if isinstance(args, tuple) and args] == ["costly"]


async def test_cost_in_dollars_beyond_a_maximum_in_tokens_ends_further_calls(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    tools = {"costly": {"cost_in": COST_KEY, "at_most": {"tokens": 100}}, "fetch": {"usd_per_call": 0}}
    upstreams = read(upstreams={"acme": {"url": upstream.url, "tools": tools}})
    async with proxied(registry, "in-dollars", upstreams, budget={"usd": 1.0, "tokens": 1_000}) as work:
        cost = {"cost": {"usd": 0.6, "tokens": 10}}
        for _ in range(2):
            assert not (await work.call("costly", cost)).is_error
        assert meta_of(await work.call("costly", cost)) == {"error": "budget_exceeded"}
        assert not (await work.call("fetch")).is_error
        assert await work.budget() == {"settled": 1.0, "overrun": 0.2}


async def test_failed_call_with_a_reported_cost_is_charged(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    async with proxied(registry, "unlucky", offering(upstream), budget={"usd": 1.0, "tokens": 100}) as work:
        result = await work.call("costly", {"cost": {"usd": 0.5}, "fails": True})
        assert result.is_error
        assert await work.budget() == {"settled": 0.5}


async def test_case_12_a_hundred_calls_at_once_never_exceed_the_envelope(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    before = upstream.carried_out().count("fetch")
    async with proxied(
        registry, "crowd", offering(upstream, calls_at_once=100), timeout_seconds=30, budget={"usd": 2.5}
    ) as work:
        results = await asyncio.gather(*(work.call("fetch") for _ in range(100)))
        codes = [failed(result)[0] for result in results if result.is_error]
        assert codes == ["budget_exceeded"] * 90
        assert upstream.carried_out().count("fetch") - before == 10
        assert await work.budget() == {"settled": 2.5}


async def test_case_12_reservation_of_a_dead_holder_returns_to_the_budget(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    begun_before = upstream.carried_out().count("wait")
    async with proxied(registry, "dies", offering(upstream), budget={"usd": 1.0}) as work:
        calling = asyncio.create_task(work.call("wait"))
        await begun(upstream, begun_before + 1)
        assert await work.budget() == {"reserved": 0.25}
        # Its lease expired without renewal.
        await work.holder.own.leases.release(work.holder.grant.lease.lease_id)
        assert await work.budget() == {}
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)


async def test_abandoned_call_is_charged(
    registry: RegistryServer, upstream: HttpUpstream, tmp_path: Path
) -> None:
    begun_before = upstream.carried_out().count("wait")
    async with proxied(registry, "leaves", offering(upstream), budget={"usd": 1.0}) as work:
        assert work.open is not None
        async with connected(work.open) as other:
            calling = asyncio.create_task(other.call_tool("wait", {"until": str(tmp_path / "go")}))
            await begun(upstream, begun_before + 1)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        assert await work.budget() == {"reserved": 0.25}
        (tmp_path / "go").touch()
        await budget_is(work, settled=0.25)


@pytest.mark.parametrize(
    ("tool", "arguments"), [("mark_complete", {"output": {}}), ("request_human_help", {"reason": "which?"})]
)
async def test_unfinished_call_is_neither_submitted_nor_charged(
    registry: RegistryServer, upstream: HttpUpstream, tmp_path: Path, tool: str, arguments: dict[str, Any]
) -> None:
    begun_before = upstream.carried_out().count("wait")
    async with proxied(registry, f"hurries-{tool}", offering(upstream), budget={"usd": 1.0}) as work:
        calling = asyncio.create_task(work.call("wait", {"until": str(tmp_path / "go")}))
        await begun(upstream, begun_before + 1)
        code, words = failed(await work.call(tool, arguments))
        assert code == "busy"
        assert words.startswith("busy: 1 call of metered tools is running; nothing was submitted: ")
        assert (await work.task()).status == "assigned"
        (tmp_path / "go").touch()
        await calling
        assert not (await work.call(tool, arguments)).is_error
        assert await work.budget() == {"settled": 0.25}


async def test_no_charged_call_begins_while_a_run_is_being_submitted(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    before = upstream.carried_out()
    async with proxied(registry, "both", offering(upstream), budget={"usd": 1.0}) as work:
        # List the tools first, so that both calls start at once.
        assert work.model is not None
        await work.model.list_tools()
        ended, fetched = await asyncio.gather(work.call("mark_complete", {"output": {}}), work.call("fetch"))
        task = await work.task()
    if ended.is_error:
        assert (failed(ended)[0], task.status, text_of(fetched)) == ("busy", "assigned", "fetch")
        assert upstream.carried_out()[len(before) :] == ["fetch"]
    else:
        assert failed(fetched)[0] in {"busy", "run_ended"}
        assert upstream.carried_out() == before


async def test_call_cut_off_by_the_runs_end_costs_its_maximum(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    begun_before = upstream.carried_out().count("wait")
    async with proxied(registry, "exits", offering(upstream), budget={"usd": 1.0}) as work:
        async with open_tool_proxy(work.held, offering(upstream)) as other, connected(other) as model:
            calling = asyncio.create_task(model.call_tool("wait", {}))
            await begun(upstream, begun_before + 1)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        assert await work.budget() == {"settled": 0.25}


async def test_calls_of_a_run_without_its_lease_are_refused(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    async with proxied(registry, "stale", offering(upstream), budget={"usd": 1.0}) as work:
        await work.holder.own.leases.release(work.holder.grant.lease.lease_id)
        before = upstream.carried_out()
        codes = [
            failed(await work.call("fetch"))[0],
            failed(await work.call("report_progress", {"summary": "late"}))[0],
            failed(await work.call("mark_complete", {"output": {}}))[0],
        ]
        assert codes == ["stale_token"] * 3
        assert upstream.carried_out() == before
        assert work.heard == []


async def test_no_call_is_executed_after_the_holders_own_deadline(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    async with proxied(registry, "expired", offering(upstream), budget={"usd": 1.0}) as work:
        before = upstream.carried_out()
        work.is_held = False
        for tool, arguments in (("fetch", {}), ("report_progress", {"summary": "late"})):
            assert failed(await work.call(tool, arguments))[0] == "lease_lost"
        assert upstream.carried_out() == before
        assert (await work.task()).status == "assigned"
        assert await work.budget() == {}


async def test_lease_that_is_lost_while_a_call_is_reserved_stops_the_call(
    registry: RegistryServer, upstream: HttpUpstream
) -> None:
    before = upstream.carried_out()
    async with proxied(registry, "lost-in-between", budget={"usd": 1}) as work:
        # Held when the call arrives, and no more once the registry has reserved it.
        answers = iter([True, False])
        held = replace(work.held, is_held=lambda: next(answers))
        async with open_tool_proxy(held, offering(upstream)) as other, connected(other) as model:
            assert failed(await model.call_tool("fetch", {}))[0] == "lease_lost"
        assert await work.budget() == {}
    assert upstream.carried_out() == before


async def test_cost_is_outstanding_as_soon_as_the_call_returns(
    registry: RegistryServer, upstream: HttpUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> Any:
        raise Unavailable("HTTP 502", status=502)

    async def carry_out() -> CallToolResult:
        return CallToolResult(content=[])

    async with proxied(registry, "outstanding", offering(upstream), budget={"usd": 1.0}) as work:
        monkeypatch.setattr(work.held.registry.tasks, "settle_call", fail)
        meter = Meter(work.held)
        # No other task runs in between, and also not that of the report.
        await meter.call("fetch", Price(usd_per_call=0.25), carry_out)
        assert await meter.report_outstanding() == 1
        await meter.close()


@pytest.mark.parametrize(("failures", "code"), [(1, None), (2, "busy")])
async def test_run_ends_only_once_all_costs_are_recorded(
    registry: RegistryServer,
    upstream: HttpUpstream,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
    code: str | None,
) -> None:
    monkeypatch.setattr(metered_call, "RETRY_SECONDS", 1_000)
    async with proxied(registry, f"unpaid-{failures}", offering(upstream), budget={"usd": 1.0}) as work:
        tasks = work.held.registry.tasks
        settle, left = tasks.settle_call, iter(range(failures))

        async def fail_first(*given: Any) -> Any:
            for _ in left:
                raise Unavailable("HTTP 502", status=502)
            return await settle(*given)

        monkeypatch.setattr(tasks, "settle_call", fail_first)
        assert meta_of(await work.call("fetch"))["unsettled"] is True
        ended = await work.call("mark_complete", {"output": {}})
        if code is not None:
            assert failed(ended)[0] == code
            ended = await work.call("mark_complete", {"output": {}})
        assert not ended.is_error
        assert await work.budget() == {"settled": 0.25}


async def test_unreachable_registry_stops_calls_and_later_receives_the_cost(
    upstream: HttpUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metered_call, "RETRY_SECONDS", 0.05)
    begun_before = upstream.carried_out().count("wait")
    with registry_server(tmp_path) as registry:
        async with proxied(
            registry, "away", offering(upstream), timeout_seconds=1, budget={"usd": 1.0}
        ) as work:
            calling = asyncio.create_task(work.call("wait", {"until": str(tmp_path / "go")}))
            await begun(upstream, begun_before + 1)
            await asyncio.to_thread(registry.stop)
            before = upstream.carried_out()
            assert failed(await work.call("fetch"))[0] == "orchestrator_unavailable"
            assert upstream.carried_out() == before
            (tmp_path / "go").touch()
            result = await calling
            assert (text_of(result), meta_of(result)["unsettled"]) == ("wait", True)
            await asyncio.to_thread(registry.start)
            await budget_is(work, settled=0.25)


@pytest.mark.parametrize(
    "expected",
    [None, {}, {"other": 1}, {COST_KEY: 3}, {COST_KEY: {"usd": True}}, {COST_KEY: {"tokens": 1.5}},
     {COST_KEY: {"usd": float("inf")}}, {COST_KEY: {"usd": 1e300}}, {COST_KEY: {"tokens": -1}}],
    ids=str,
)  # fmt: skip
def test_implausible_cost_is_ignored(expected: dict[str, Any] | None) -> None:
    price = Price.model_validate(COSTLY)
    assert reported_cost(price, CallToolResult(content=[], _meta=expected)) is None


def test_fixed_price_ignores_the_reported_cost() -> None:
    result = CallToolResult(content=[], _meta={COST_KEY: {"usd": 9}})
    assert reported_cost(Price(usd_per_call=1), result) is None
    assert Price(usd_per_call=1, tokens_per_call=3).most() == RequestedAmount(usd=1, tokens=3)


def test_server_cannot_set_members_of_the_proxy() -> None:
    meta = {"lifesign/error": "budget_exceeded", "lifesign/unsettled": True, "search/cost": {"usd": 1}}
    meta["io.modelcontextprotocol/serverInfo"] = {"name": "search", "version": "1"}
    result = without_own_members(CallToolResult(content=[], _meta=meta))
    assert result.meta == {"search/cost": {"usd": 1}}
