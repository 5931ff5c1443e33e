"""Layers that a probe checks, in a probe definition."""

import json
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.mcp.tools import MAX_TOOL_NAME_CHARS
from lifesign.prober.definition.values import HealthPath, Switch, drop_duplicates

MAX_PATHS: Final = 8
MAX_MESSAGE_CHARS: Final = 4096
MAX_ARGUMENTS_BYTES: Final = 65_536
"""Maximum size of the arguments of a tool call, as JSON."""


class DefinitionMapping(BaseModel):
    """Base class of the mappings of a definition. Unknown keys are errors, as they may be misspelt limits."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _bound_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(json.dumps(arguments, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise PydanticCustomError("arguments", "expected arguments that JSON can express") from None
    if size > MAX_ARGUMENTS_BYTES:
        raise PydanticCustomError(
            "arguments_too_large",
            "expected arguments of {most} bytes at most as JSON, got {size}",
            {"most": MAX_ARGUMENTS_BYTES, "size": size},
        )
    return arguments


class MessageSettings(DefinitionMapping):
    """A message that each probe sends to the agent. It may cost the agent's owner money.

    Send it only to agents whose owners agreed.
    """

    text: Annotated[str, Field(min_length=1, max_length=MAX_MESSAGE_CHARS)]
    """Text of the message."""


class ToolCallSettings(DefinitionMapping):
    """A tool of an MCP server that each probe calls."""

    tool: Annotated[str, Field(min_length=1, max_length=MAX_TOOL_NAME_CHARS)]
    """Name of the tool."""
    arguments: Annotated[dict[str, Any], AfterValidator(_bound_arguments)] = Field(default_factory=dict)
    """Arguments of the call."""
    allow_side_effects: Switch = False
    """Whether the tool is called although the server does not mark it `readOnlyHint`."""


class LayerSettings(DefinitionMapping):
    """Layers that a probe checks: card, interface, health document, message or tools."""

    card: Switch = True
    """Probe the card, at both well-known places."""
    transport: Switch = True
    """Whether the interface that the card declares answers at all. The probe sends no message to it."""
    health: Switch = True
    """Probe the health document, where it is announced or at the well-known place."""
    message: MessageSettings | None = None
    """A real message; null sends none."""
    tools: Switch = False
    """Whether the tools of an MCP server are listed. The list decides nothing."""
    call: ToolCallSettings | None = None
    """A tool call, for a target that is an MCP server; null calls none."""
    paths: Annotated[
        tuple[HealthPath, ...],
        Field(max_length=MAX_PATHS),
        AfterValidator(drop_duplicates),
    ] = ()
    """More GETs, such as /ping: shown with their queries, they decide nothing."""

    @model_validator(mode="after")
    def _require_a_layer(self) -> Self:
        if not (self.card or self.transport or self.health or self.message):
            raise PydanticCustomError(
                "nothing_asked", "expected card or health to be true: otherwise nothing is requested"
            )
        if not self.card and (self.transport or self.message):
            raise PydanticCustomError(
                "no_card",
                "expected card: true with transport or message: only the card says where the agent listens",
            )
        if self.call is not None and not self.tools:
            raise PydanticCustomError(
                "no_tools",
                "expected tools: true with call: only the list of tools says whether the tool is read-only",
            )
        return self
