"""From a call to an answer, for successes and errors.

Errors that a model can act upon are the tool's own answer, marked as an error, as text without tracebacks and
keys. Defects are logged to standard error. Only the models of the SDK are used.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from mcp_types import CallToolResult, TextContent, ToolAnnotations
from mcp_types import Tool as ListedTool
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from lifesign.client.registry_errors import (
    InvalidAnswer,
    NotAuthorized,
    NotPermitted,
    RateLimited,
    RegistryError,
    Unavailable,
    Unreachable,
    is_final,
)
from lifesign.domain.files.validation_messages import invalid_setting
from lifesign.domain.text.safe_text import visible
from lifesign.errors import InvalidValue
from lifesign.mcp.refusal_code import ToolRefusalCode
from lifesign.mcp.tool_definition import Tool, ToolAnswer, ToolContext, ToolFailed

MAX_NAME_CHARS: Final = 100
"""Maximum length of an unknown tool's name in an answer."""
ERROR_KEY: Final = "lifesign/error"
"""Member of a refusal's `_meta`: its code, for programs."""

_REMEDIES: Final[Sequence[tuple[type[RegistryError], str]]] = (
    (NotAuthorized, "the operator of this server must give it a valid key of the registry (--key-file)"),
    (NotPermitted, "the key of this server lacks that permission: its operator can give it another key"),
    (RateLimited, "ask less often"),
    (Unavailable, "try again in a few seconds"),
    (Unreachable, "try again later; the operator of this server can check whether the registry is running"),
    (InvalidAnswer, "the operator of this server should check the registry's URL (--registry)"),
)
"""Hints by error; the first match counts."""

_log = logging.getLogger("lifesign.mcp")


Read = Callable[[Tool, dict[str, Any]], Awaitable[BaseModel]]
"""Reads arguments; like `read_arguments`."""


async def read_at_once(tool: Tool, arguments: dict[str, Any]) -> BaseModel:
    """Validate the arguments of a tool in this thread; InvalidValue if they are invalid."""
    return read_arguments(tool, arguments)


async def answer(
    tool: Tool, arguments: dict[str, Any], reach: ToolContext, *, read: Read = read_at_once
) -> CallToolResult:
    """Run a tool; exceptions become texts."""
    try:
        result = await tool.run(await read(tool, arguments), reach)
    except ToolFailed as error:
        failed = error
    except InvalidValue as error:
        failed = ToolFailed(str(error), code=ToolRefusalCode.INVALID_ARGUMENT)
    except RegistryError as error:
        failed = _refused(error)
    except Exception:  # noqa: BLE001 - one call must not end the server for all that follow
        _log.exception("the tool %s failed", tool.name)
        what = "internal error of this server; see its log. A retry may succeed"
        failed = ToolFailed(what, code=ToolRefusalCode.INTERNAL_ERROR)
    else:
        return _written(tool, result)
    return failure(failed)


def read_arguments(tool: Tool, arguments: dict[str, Any]) -> BaseModel:
    """Return the arguments of a tool; InvalidValue if they are invalid."""
    try:
        return tool.takes.model_validate_json(json.dumps(arguments))
    except ValidationError as error:
        raise invalid_setting(error, "arguments", model=tool.takes) from None
    except ValueError:
        # Half a surrogate pair, a number without end.
        raise InvalidValue("arguments", None, "plain JSON") from None


def _refused(error: RegistryError) -> ToolFailed:
    remedy = next((words for kind, words in _REMEDIES if isinstance(error, kind)), "")
    code = error.code or ToolRefusalCode.REFUSED if is_final(error) else ToolRefusalCode.UNAVAILABLE
    return ToolFailed(f"{error}: {remedy}" if remedy else str(error), code=code)


def _written(tool: Tool, result: ToolAnswer) -> CallToolResult:
    content = result.content.model_dump(mode="json", by_alias=True, exclude_none=not tool.shows_absent)
    return CallToolResult(
        content=[TextContent(type="text", text=visible(result.text))],
        structured_content=_all_visible(content),
        is_error=result.is_error,
    )


def _all_visible(value: Any) -> Any:
    """Return JSON without invisible characters in its texts: some of them were written by agents."""
    match value:
        case str():
            return visible(value)
        case dict():
            return {visible(name): _all_visible(inner) for name, inner in value.items()}
        case list():
            return [_all_visible(inner) for inner in value]
        case _:
            return value


def failure(error: ToolFailed) -> CallToolResult:
    """Return a refusal: a text that begins with its code, and the code in `_meta`.

    There is no structured content. A client that validates it against the tool's output schema, as the
    TypeScript SDK does, would report its own error in place of the refusal.
    """
    return CallToolResult(
        content=[TextContent(type="text", text=visible(str(error)))],
        _meta={ERROR_KEY: str(error.code)},
        is_error=True,
    )


def code_of(result: CallToolResult) -> str | None:
    """Return the code of a refusal; None for any other result."""
    return (result.meta or {}).get(ERROR_KEY)


def busy(most: int) -> CallToolResult:
    """Return the answer to a call beyond the limit of concurrent calls."""
    what = f"{most} calls are running: wait for one of them, then try again"
    return failure(ToolFailed(what, code=ToolRefusalCode.BUSY))


def listed(tool: Tool) -> ListedTool:
    """Return a tool in the form in which the server's list of tools shows it to a model."""
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
            open_world_hint=tool.contacts_external_hosts,
        ),
    )


class _Terse(GenerateJsonSchema):
    """Writes no titles: they repeat the names, and a model reads all of it before its first call."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic calls it so
        return False


def _schema(model: type[BaseModel], mode: JsonSchemaMode) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True, mode=mode, schema_generator=_Terse)
    # The docstring of a class is for readers of the code.
    for described in (schema, *schema.get("$defs", {}).values()):
        described.pop("title", None)
        described.pop("description", None)
    return schema
