"""How does a call become an answer, whatever goes wrong?

What a model can do something about is the tool's own answer, marked as an error, in words: it never sees a
traceback, and nobody's key. What is a fault of ours stands in the log, on standard error. Of the SDK
there are only its models.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any, Final

from mcp_types import CallToolResult, TextContent, ToolAnnotations
from mcp_types import Tool as ListedTool
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from agent_health.client.registry_errors import (
    InvalidAnswer,
    NotAuthorized,
    NotPermitted,
    RateLimited,
    RegistryError,
    Unavailable,
    Unreachable,
)
from agent_health.errors import InvalidSetting
from agent_health.expectation import invalid_setting
from agent_health.mcp.tool import Reach, Told, Tool, ToolFailed

MAX_NAME_CHARS: Final = 100
"""Of the name of a tool that is not there, as it is told."""

_REMEDIES: Final[Sequence[tuple[type[RegistryError], str]]] = (
    (NotAuthorized, "whoever runs this server must give it a key that the registry knows (--key-file)"),
    (NotPermitted, "the key of this server is not for that: whoever runs it can give it another"),
    (RateLimited, "ask less often"),
    (Unavailable, "ask again in a few seconds"),
    (Unreachable, "ask again later; whoever runs this server can see whether the registry runs"),
    (InvalidAnswer, "whoever runs this server should look at the registry's URL (--registry)"),
)
"""What can be done about it; the first that fits."""

_log = logging.getLogger("agent_health.mcp")


async def answer(tool: Tool, arguments: dict[str, Any], reach: Reach) -> CallToolResult:
    """Run a tool; whatever it raises becomes words."""
    try:
        asked = tool.takes.model_validate_json(json.dumps(arguments))
    except ValidationError as error:
        return failure_in_words(str(invalid_setting(error, "arguments", model=tool.takes)))
    except ValueError:
        # Half a surrogate pair, a number without end.
        return failure_in_words("arguments: expected plain JSON")
    try:
        told = await tool.run(asked, reach)
    except RegistryError as error:
        remedy = next((words for kind, words in _REMEDIES if isinstance(error, kind)), "")
        return failure_in_words(f"{error}: {remedy}" if remedy else str(error))
    except (ToolFailed, InvalidSetting) as error:
        return failure(error)
    except Exception:  # noqa: BLE001 - one call must not end the server for all that follow
        _log.exception("the tool %s failed", tool.name)
        return failure_in_words("a fault of this server, which its log tells; asking again may help")
    return _written(tool, told)


def _written(tool: Tool, told: Told) -> CallToolResult:
    content = told.content.model_dump(mode="json", by_alias=True, exclude_none=not tool.shows_absent)
    return CallToolResult(
        content=[TextContent(type="text", text=told.text)],
        structured_content=content,
        is_error=told.is_error,
    )


def failure(error: ToolFailed | InvalidSetting) -> CallToolResult:
    """Return what is told of a tool that failed: in words, and by its code if it has one."""
    code = error.code if isinstance(error, ToolFailed) else ""
    content = {"error": code, "message": str(error)} if code else None
    return CallToolResult(
        content=[TextContent(type="text", text=str(error))], structured_content=content, is_error=True
    )


def failure_in_words(text: str) -> CallToolResult:
    """Return what is told of a tool that failed, where no program is to know why."""
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def listed(tool: Tool) -> ListedTool:
    """Return a tool as a model reads of it before it calls any."""
    return ListedTool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=_schema(tool.takes, "validation"),
        output_schema=_schema(tool.gives, "serialization"),
        annotations=ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.is_read_only,
            destructive_hint=False,
            idempotent_hint=True,
            open_world_hint=tool.asks_strangers,
        ),
    )


class _Terse(GenerateJsonSchema):
    """Writes no titles: they repeat the names, and a model reads all of it before its first call."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic calls it so
        return False


def _schema(model: type[BaseModel], mode: JsonSchemaMode) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True, mode=mode, schema_generator=_Terse)
    # What a class says of itself is for whoever reads the code.
    for described in (schema, *schema.get("$defs", {}).values()):
        described.pop("title", None)
        described.pop("description", None)
    return schema
