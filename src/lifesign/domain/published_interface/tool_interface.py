"""Interface that an MCP server publishes: its tools by name.

A model obeys descriptions, so a changed one is a changed interface. Lists of a JSON schema that are sets are
sorted; a schema that is too large or too deep is replaced by its digest.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lifesign.domain.parsing.json_limits import MAX_NUMBER
from lifesign.domain.published_interface.published import (
    DIGEST_KEY,
    MAX_KEY_CHARS,
    Form,
    Interface,
    InterfaceKind,
    bounded_interface,
    canonical,
    digest_form,
    group,
    optional_text,
    short,
    without_absent,
)

MAX_SCHEMA_LEVELS: Final = 12
MAX_SCHEMA_BYTES: Final = 8_192
MAX_ANNOTATION_BYTES: Final = 1_024

_SETS: Final = frozenset({"required", "enum", "type", "anyOf", "oneOf", "allOf"})
"""Members of a JSON schema whose lists have no order."""
_TOO_DEEP: Final[Form] = {DIGEST_KEY: "too_deep"}
"""Replaces values that are nested too deep for the encoder."""


def tool_interface(tools: Iterable[object]) -> Interface:
    """Return the published interface of an MCP server with these tools, given as in `tools/list`.

    What is no object, or has no name, is left out. Of two tools with one name the same one counts in any
    order of the list.
    """
    named = [
        (tool["name"], _tool(tool))
        for tool in tools
        if isinstance(tool, dict) and isinstance(tool.get("name"), str)
    ]
    if len(dict(named)) < len(named):
        named.sort(key=lambda each: canonical(each[1]))
    return bounded_interface(InterfaceKind.MCP_TOOLS, without_absent({"tools": group(named)}))


def _tool(tool: Mapping[str, Any]) -> Form:
    return without_absent({
        "title": optional_text(tool.get("title")),
        "description": optional_text(tool.get("description")),
        "input_schema": _schema(tool.get("inputSchema"), MAX_SCHEMA_BYTES),
        "output_schema": _schema(tool.get("outputSchema"), MAX_SCHEMA_BYTES),
        "annotations": _schema(tool.get("annotations"), MAX_ANNOTATION_BYTES),
    })  # fmt: skip


def _schema(schema: object, most_bytes: int) -> Form | None:
    if not isinstance(schema, dict):
        return None
    try:
        form = _normalised(schema, MAX_SCHEMA_LEVELS)
        if len(canonical(form)) <= most_bytes and DIGEST_KEY not in form:
            return dict(form)
        return digest_form({"schema": form})
    except RecursionError:
        return _TOO_DEEP


def _normalised(value: object, levels: int) -> Any:
    if isinstance(value, str):
        return short(value)
    if isinstance(value, int | float) and not -MAX_NUMBER <= value <= MAX_NUMBER:
        return short(str(value))
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return digest_form(value)
    if isinstance(value, list):
        return [_normalised(item, levels - 1) for item in value]
    return {short(key, MAX_KEY_CHARS): _member(key, item, levels - 1) for key, item in value.items()}


def _member(key: str, value: object, levels: int) -> Any:
    normalised = _normalised(value, levels)
    if key not in _SETS or not isinstance(normalised, list):
        return normalised
    unique = {canonical(item): item for item in normalised}
    return [unique[text] for text in sorted(unique)]
