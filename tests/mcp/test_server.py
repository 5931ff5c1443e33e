import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolResult
from mcp_types import Tool as ListedTool
from pydantic import BaseModel
from tests.support.mcp_tools import text_of, tools
from tests.support.servers import PATIENCE_SECONDS
from tests.support.task_tools import failed

from lifesign.client.registry_errors import (
    InvalidAnswer,
    NotAuthorized,
    NotPermitted,
    RateLimited,
    RegistryRefusal,
    Unavailable,
    Unreachable,
)
from lifesign.domain.observation.results import ResultClass
from lifesign.errors import InvalidValue
from lifesign.mcp.server import MAX_CALLS, new_server, server_of
from lifesign.mcp.tool_definition import Arguments, Tool, ToolAnswer, ToolContext, ToolFailed, registry_of


class Word(Arguments):
    word: str = ""


class Echo(BaseModel):
    word: str
    absent: str | None = None


def tool(run: Callable[[Word, ToolContext], Awaitable[ToolAnswer]], **more: Any) -> Tool:
    return Tool(name="echo", title="Echo", description="Says it.", takes=Word, gives=Echo, run=run, **more)


async def echo(asked: Word, _reach: ToolContext) -> ToolAnswer:
    return ToolAnswer(content=Echo(word=asked.word), text=asked.word)


def client_of(made: Tool) -> Client:
    async def nobody(*_: object) -> Any:
        raise AssertionError

    return Client(new_server([made], ToolContext(get=nobody)))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_answer_has_text_and_structured_content_in_both_protocol_versions(mode: str) -> None:
    async def nobody(*_: object) -> Any:
        raise AssertionError

    server = new_server([tool(echo)], ToolContext(get=nobody))
    async with Client(server, mode=mode) as client:
        result = await client.call_tool("echo", {"word": "hé\n"})
    assert text_of(result) == "hé\n"
    assert result.structured_content == {"word": "hé\n"}


async def test_tools_with_null_show_absent_values() -> None:
    async with client_of(tool(echo, shows_absent=True)) as client:
        result = await client.call_tool("echo", {})
    assert result.structured_content == {"word": "", "absent": None}


async def test_unknown_tool_is_refused_with_the_known_names() -> None:
    async with client_of(tool(echo)) as client:
        with pytest.raises(MCPError, match=r"'shout'; .*: echo"):
            await client.call_tool("shout", {})


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ToolFailed("too late", code="late"), "late: too late"),
        (InvalidValue("url", "x", "a URL"), "invalid_argument: url: expected a URL; got 'x'"),
        (RegistryRefusal("HTTP 409: no"), "refused: HTTP 409: no"),
        (NotAuthorized("no", code="unknown_key"), "unknown_key: no: the operator of this server must"),
        (NotPermitted("no"), "refused: no: the key of this server lacks that permission"),
        (RateLimited("no"), "orchestrator_unavailable: no: ask less often"),
        (Unavailable("no"), "orchestrator_unavailable: no: try again in a few seconds"),
        (Unreachable("no", was_sent=False), "orchestrator_unavailable: no: try again later; the operator"),
        (InvalidAnswer("no"), "orchestrator_unavailable: no: the operator of this server should check"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
async def test_helpful_errors_carry_a_hint(error: Exception, message: str) -> None:
    async def fail(_asked: Word, _reach: ToolContext) -> ToolAnswer:
        raise error

    async with client_of(tool(fail)) as client:
        result = await client.call_tool("echo", {})
    assert result.is_error
    assert text_of(result).startswith(message)
    assert failed(result)[0] == message.partition(":")[0]


async def test_internal_error_is_logged_and_reveals_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_asked: Word, _reach: ToolContext) -> ToolAnswer:
        raise ZeroDivisionError("ahk_secret")

    async with client_of(tool(fail)) as client:
        with caplog.at_level(logging.ERROR):
            result = await client.call_tool("echo", {})
        assert not (await client.list_tools()).next_cursor
    assert result.is_error
    assert failed(result)[0] == "internal_error"
    assert "ahk_secret" not in text_of(result)
    (logged,) = (record for record in caplog.records if record.exc_info)
    assert logged.args == ("echo",)


async def test_number_of_concurrent_calls_of_the_server_is_limited() -> None:
    begun, may_end = asyncio.Queue[None](), asyncio.Event()

    async def wait(_asked: Word, _reach: ToolContext) -> ToolAnswer:
        begun.put_nowait(None)
        await may_end.wait()
        return ToolAnswer(content=Echo(word="done"), text="done")

    async with client_of(tool(wait)) as client, asyncio.TaskGroup() as group:
        waiting = [group.create_task(client.call_tool("echo", {})) for _ in range(MAX_CALLS)]
        for _ in range(MAX_CALLS):
            await begun.get()
        refused = await client.call_tool("echo", {})
        may_end.set()
        answers = [await task for task in waiting]
        again = await client.call_tool("echo", {})
    assert refused.is_error
    assert failed(refused)[0] == "busy"
    assert f" {MAX_CALLS} calls " in text_of(refused)
    assert [text_of(answer) for answer in [*answers, again]] == ["done"] * (MAX_CALLS + 1)


@pytest.mark.parametrize(("is_read_only", "ends"), [(True, ["cancelled"]), (False, ["done"])])
async def test_caller_that_leaves_ends_a_question_but_not_a_write(
    *, is_read_only: bool, ends: list[str]
) -> None:
    has_begun, may_end, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def wait(_asked: Word, _reach: ToolContext) -> ToolAnswer:
        has_begun.set()
        try:
            await may_end.wait()
            seen.append("done")
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            has_ended.set()
        return ToolAnswer(content=Echo(word=""), text="")

    async with client_of(tool(wait, is_read_only=is_read_only)) as client:
        calling = asyncio.create_task(client.call_tool("echo", {}))
        await has_begun.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        if not is_read_only:
            may_end.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await has_ended.wait()
    assert seen == ends


class Foreign:
    """Tools of another server, which may be newer than the client."""

    def __init__(self, *listed: ListedTool, answer: Any = None) -> None:
        self._listed = listed
        self._answer = answer

    async def list(self) -> Sequence[ListedTool]:
        return self._listed

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        if name == "broken":
            raise ZeroDivisionError("ahk_secret")
        return CallToolResult(content=[], structured_content=self._answer)

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        return None


def foreign(offer: Foreign, mode: str) -> Client:
    return Client(server_of(offer, "foreign", title="Foreign", instructions="-"), mode=mode)


@pytest.mark.parametrize(("mode", "schema"), [("legacy", None), ("auto", {"type": "array"})])
async def test_tool_is_listed_as_the_clients_version_can_describe_it(mode: str, schema: Any) -> None:
    of_newest = ListedTool(name="new", input_schema={"type": "object"}, output_schema={"type": "array"})
    of_none = ListedTool(name="odd", input_schema={"type": "string"})
    async with foreign(Foreign(of_newest, of_none), mode) as client:
        listed = (await client.list_tools()).tools
    assert [(tool.name, tool.output_schema) for tool in listed] == [("new", schema)]


@pytest.mark.parametrize(("mode", "structured"), [("legacy", None), ("auto", [1, 2])])
async def test_structured_content_that_is_no_object_is_sent_to_new_clients_only(
    mode: str, structured: Any
) -> None:
    tool = ListedTool(name="new", input_schema={"type": "object"})
    async with foreign(Foreign(tool, answer=[1, 2]), mode) as client:
        result = await client.call_tool("new", {})
    assert (result.is_error, result.structured_content) == (False, structured)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_exception_of_a_tool_is_logged_and_its_text_is_not_sent(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with foreign(Foreign(), mode) as client:
        with pytest.raises(MCPError) as raised:
            await client.call_tool("broken", {})
    assert raised.value.code == INTERNAL_ERROR
    assert "ahk_secret" not in str(raised.value)
    assert "tools/call failed" in caplog.text


async def test_tools_have_annotations_about_side_effects() -> None:
    async with tools("http://127.0.0.1:9", "ahk_x") as client:
        listed = (await client.list_tools()).tools
        assert client.server_info is not None
    hints = {tool.name: tool.annotations for tool in listed}
    assert {name: (hint.read_only_hint, hint.open_world_hint) for name, hint in hints.items() if hint} == {
        "heartbeat": (False, False),
        "check_agent": (True, True),
        "find_agents": (True, False),
        "report_progress": (False, False),
        "mark_complete": (False, False),
        "request_human_help": (False, False),
        "delegate_subtask": (False, False),
    }


async def test_tool_descriptions_are_short() -> None:
    async with tools("http://127.0.0.1:9", "ahk_x") as client:
        listed = (await client.list_tools()).tools
    text = json.dumps([tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed])
    assert len(text) < 24_850
    assert "ResultClass" in text
    assert (ResultClass.__doc__ or "").splitlines()[0] not in text
    assert all(
        set(tool.input_schema) <= {"type", "properties", "required", "additionalProperties", "$defs"}
        for tool in listed
    )


def test_tool_without_a_registry_reports_it() -> None:
    async def nobody(*_: object) -> Any:
        raise AssertionError

    with pytest.raises(ToolFailed, match="registry"):
        registry_of(ToolContext(get=nobody))
