from collections.abc import Sequence
from typing import Any

import pytest
from mcp_types import ListToolsResult, Tool, ToolExecution

from lifesign.adapter.tools import tool_list
from lifesign.adapter.tools.tool_list import ListTooLong, ToolLister


class Pages:
    """A client whose server lists these pages."""

    def __init__(self, pages: Sequence[Sequence[str]]) -> None:
        self.pages = pages

    async def list_tools(self, *, cursor: str | None = None) -> ListToolsResult:
        place = int(cursor or 0)
        following = str(place + 1) if place + 1 < len(self.pages) else None
        tools = [Tool(name=name, input_schema={"type": "object"}) for name in self.pages[place]]
        return ListToolsResult(tools=tools, next_cursor=following)


def lister_of(*pages: Sequence[str]) -> ToolLister:
    client: Any = Pages(pages)
    return ToolLister(client)


async def test_tools_of_all_pages_are_listed() -> None:
    assert [*await lister_of(["a"], [], ["b", "c"]).list_tools()] == ["a", "b", "c"]


@pytest.mark.parametrize("cursors", [[""], ["a", "b"]])
async def test_repeated_cursor_ends_the_list(cursors: Sequence[str]) -> None:
    requests: list[str | None] = []

    class Repeating:
        async def list_tools(self, *, cursor: str | None = None) -> ListToolsResult:
            requests.append(cursor)
            tool = Tool(name=f"of {cursor}", input_schema={"type": "object"})
            following = cursors[(len(requests) - 1) % len(cursors)]
            return ListToolsResult(tools=[tool], next_cursor=following)

    client: Any = Repeating()
    assert len(await ToolLister(client).list_tools()) == 1 + len(cursors)
    assert requests == [None, *cursors]


async def test_tools_above_the_maximum_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_list, "MAX_TOOLS", 2)
    assert [*await lister_of(["a", "b", "c"], ["d"]).list_tools()] == ["a", "b"]


async def test_tool_that_requires_tasks_is_left_out() -> None:
    schema = {"type": "object"}
    tools = [
        Tool(name=support, input_schema=schema, execution=ToolExecution(task_support=support))
        for support in ("forbidden", "optional", "required")
    ]

    class Listing:
        async def list_tools(self, *, cursor: str | None = None) -> ListToolsResult:
            return ListToolsResult(tools=tools)

    client: Any = Listing()
    listed = await ToolLister(client).list_tools()
    assert [*listed] == ["forbidden", "optional"]
    assert {tool.execution for tool in listed.values()} == {None}


async def test_size_counts_each_tool_once_however_often_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(Tool(name="a", input_schema={"type": "object"}).model_dump_json(exclude_none=True))
    monkeypatch.setattr(tool_list, "MAX_LIST_BYTES", 3 * size)
    client: Any = Pages([["a"], ["b"]])
    lister = ToolLister(client)
    for _ in range(3):
        await lister.list_tools()
    client.pages = [["c"], ["d"]]
    with pytest.raises(ListTooLong):
        await lister.list_tools()
