"""Tools of an MCP server: their list, and the one call that the definition names.

A tool may cost money or change something. It is called only if the definition names it, and only if the
server marks it read-only or the definition allows side effects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lifesign.domain.credentials.secret import NO_SECRETS, Scrubber, united
from lifesign.domain.mcp.conversation import EVENT_STREAM, McpSession
from lifesign.domain.mcp.tools import (
    MAX_LIST_BYTES,
    MAX_PAGES,
    MAX_TOOLS,
    call_request,
    is_marked_read_only,
    list_request,
    near_names,
    read_page,
    tool_named,
)
from lifesign.domain.observation.results import MAX_REASON_CHARS, LayerResult, ResultClass
from lifesign.domain.observation.tool_answer import classify_tool_answer
from lifesign.domain.parsing.event_framing import has_event_id
from lifesign.domain.text.counts import pluralize
from lifesign.prober.definition.layer_settings import LayerSettings, ToolCallSettings
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.interface_reading import note_tools
from lifesign.prober.probe.mcp_exchange import McpAnswer, McpExchange
from lifesign.prober.probe.session import ALTERED, ProbeSession, not_measured


@dataclass(frozen=True, slots=True)
class ToolLayers:
    """Results of listing and calling tools; None for what was not done."""

    listed: LayerResult | None = None
    """A separate fact, which decides nothing."""
    called: LayerResult | None = None
    uncalled: str | None = None
    """Reason why the tool of the definition may not be called; None unless the server listed all tools."""


@dataclass(frozen=True, slots=True)
class _ToolList:
    tools: Sequence[Mapping[str, Any]]
    layer: LayerResult
    is_without_credential: bool = False
    """Whether a credential was missing: a server may list fewer tools to those without a login."""
    is_altered: bool = False
    """Whether secrets were removed from it."""
    scrubber: Scrubber = NO_SECRETS
    """Removes the secrets that the server received."""

    @property
    def is_whole(self) -> bool:
        return self.layer.result is ResultClass.OK


NO_TOOLS: Final = ToolLayers()


async def ask_tools(
    visit: ProbeSession, exchange: McpExchange, session: McpSession, asked: LayerSettings
) -> ToolLayers:
    """List a server's tools and call one, as the definition requires."""
    if not asked.tools or visit.entry.is_repeat:
        return NO_TOOLS
    found = await _list_tools(visit, exchange, session)
    if found.is_whole and not found.is_without_credential and not found.is_altered:
        note_tools(visit, found.tools, found.scrubber)
    if asked.call is None:
        return ToolLayers(found.layer)
    tool = tool_named(found.tools, asked.call.tool)
    if not asked.call.allow_side_effects and (tool is None or not is_marked_read_only(tool)):
        why = _why_not_called(asked.call.tool, tool, found)
        return ToolLayers(found.layer, not_measured(why), why if found.is_whole else None)
    return ToolLayers(found.layer, await _call(visit, exchange, session, asked.call, tool))


async def _list_tools(visit: ProbeSession, exchange: McpExchange, session: McpSession) -> _ToolList:
    tools: list[Mapping[str, Any]] = []
    cursors: set[str] = set()
    cursor: str | None = None
    bytes_left = MAX_LIST_BYTES
    last: McpAnswer | None = None
    is_without = is_altered = False
    scrubbers: list[Scrubber] = []
    for _ in range(MAX_PAGES):
        request = list_request(session, cursor, request_id=exchange.next_id())
        answer = await exchange.send(request, max_bytes=bytes_left)
        if answer is None:
            return _ToolList(tools, not_measured("no time was left" if visit.is_late else "nothing was sent"))
        last = answer
        is_without |= visit.is_without_credential(answer.fetched)
        is_altered |= answer.fetched.is_altered
        scrubbers.append(answer.fetched.scrubber)
        page = read_page(answer.reply)
        if page is None:
            return _ToolList(tools, _failed_page(visit, answer))
        tools += page.tools
        bytes_left -= len(answer.fetched.body)
        if len(tools) > MAX_TOOLS or bytes_left <= 0:
            break
        if page.next_cursor is None:
            text = pluralize(len(tools), "tool")
            layer = visit.layer(answer.fetched, ResultClass.OK, text)
            return _ToolList(tools, layer, is_without, is_altered, united(scrubbers))
        if page.next_cursor in cursors:
            reason = f"tools/list repeats a cursor after {pluralize(len(tools), 'tool')}"
            return _ToolList(tools, visit.layer(answer.fetched, ResultClass.INVALID_DOCUMENT, reason))
        cursor = page.next_cursor
        if visit.has_removed(cursor):
            return _ToolList(tools, not_measured(ALTERED))
        cursors.add(cursor)
    assert last is not None  # noqa: S101 - MAX_PAGES is above 0
    reason = f"more than {MAX_PAGES} pages, {MAX_TOOLS:,} tools or {MAX_LIST_BYTES} bytes"
    return _ToolList(tools[:MAX_TOOLS], visit.layer(last.fetched, ResultClass.TOO_LARGE, reason))


def _failed_page(visit: ProbeSession, answer: McpAnswer) -> LayerResult:
    fetched, reply = answer.fetched, answer.reply
    if reply.code is not None:
        return visit.layer(fetched, ResultClass.HTTP_ERROR, f"tools/list: JSON-RPC error {reply.code}")
    if fetched.result is not ResultClass.OK:
        return visit.layer(fetched)
    reason = "the answer is no list of tools"
    return visit.layer(fetched, ResultClass.INVALID_DOCUMENT, reason, visit.keep(fetched.body))


async def _call(
    visit: ProbeSession,
    exchange: McpExchange,
    session: McpSession,
    call: ToolCallSettings,
    tool: Mapping[str, Any] | None,
) -> LayerResult:
    request = call_request(session, call.tool, call.arguments, tool, request_id=exchange.next_id())
    answer = await exchange.send(request)
    if answer is None:
        return not_measured("no time was left" if visit.is_late else "nothing was sent")
    visit.tool_result = answer.reply.result
    verdict = classify_tool_answer(answer.reply)
    if verdict is not None:
        evidence = visit.keep(answer.fetched.body) if verdict.reason else None
        return visit.layer(answer.fetched, verdict.result, verdict.reason, evidence)
    return _unanswered(visit, answer.fetched)


def _unanswered(visit: ProbeSession, fetched: Fetched) -> LayerResult:
    """Return the result of a call without a JSON-RPC answer."""
    if fetched.result is ResultClass.TOO_LARGE and 200 <= (fetched.status or 0) < 300:
        return visit.layer(fetched, ResultClass.OK, f"{fetched.reason}: not looked into")
    if fetched.result is not ResultClass.OK:
        return visit.layer(fetched)
    if fetched.content_type == EVENT_STREAM and has_event_id(fetched.body):
        # A server may do so, and expects a GET for the rest (MCP 2025-11-25).
        return not_measured("the server ended the event stream before the answer, to be resumed later")
    reason = "the answer is not that of an MCP server"
    return visit.layer(fetched, ResultClass.INVALID_DOCUMENT, reason, visit.keep(fetched.body))


def _why_not_called(name: str, tool: Mapping[str, Any] | None, found: _ToolList) -> str:
    """Return the reason for a tool that is neither marked read-only nor allowed by the definition."""
    if tool is not None:
        why = "does not mark it readOnlyHint, and call has no allow_side_effects: true"
    elif not found.is_whole:
        why = "did not list its tools to the end"
    else:
        near = ", ".join(f"{each!a}" for each in near_names(found.tools, name))
        why = f"lists no such tool{near and f', but {near}'}"
    return f"tool {name!a} is not called: the server {why}"[:MAX_REASON_CHARS]
