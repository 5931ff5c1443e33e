import pytest
from jsonschema import Draft202012Validator

from lifesign.mcp.task_tools import TASK_TOOLS
from lifesign.mcp.tool_definition import Tool
from lifesign.mcp.tool_list import TOOLS, offered


def test_only_tools_without_a_registry_are_listed_without_one() -> None:
    assert [tool.name for tool in offered(has_registry=False)] == ["check_agent"]
    with_registry = [tool.name for tool in offered(has_registry=True)]
    assert with_registry == ["heartbeat", "check_agent", "find_agents", *(tool.name for tool in TASK_TOOLS)]


def test_task_write_needs_the_run_unless_the_server_is_bound() -> None:
    shown = {"taskId", "runId", "fencingToken"}
    for has_run in (False, True):
        for tool in offered(has_registry=True, has_run=has_run):
            members = set(tool.takes.model_json_schema(by_alias=True)["properties"])
            assert members & shown == (shown if tool.is_in_run and not has_run else set())


@pytest.mark.parametrize("tool", [*TOOLS, *offered(has_registry=True)], ids=lambda tool: tool.name)
def test_every_tool_and_argument_has_a_description(tool: Tool) -> None:
    assert len(tool.description) > 100
    for model in (tool.takes, tool.gives):
        schema = model.model_json_schema(by_alias=True)
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
    asked = tool.takes.model_json_schema(by_alias=True)["properties"]
    assert [name for name, member in asked.items() if not member.get("description")] == []
