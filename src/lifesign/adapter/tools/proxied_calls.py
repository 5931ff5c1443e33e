"""Tools of an agent, and their calls.

These are the four tools for the holder of a task, and those of upstream servers in the tools file. Nothing is
executed after the run has ended; only the call that ended it may be repeated, for its first answer.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mcp_types import CallToolResult, TextContent, Tool
from pydantic import BaseModel, TypeAdapter, ValidationError

from lifesign.adapter.tools.metered_call import CLOSE_SECONDS, Meter, lease_lost
from lifesign.adapter.tools.proxy_context import EndRequest, ToolProxyContext
from lifesign.adapter.tools.tools_file import Price, Upstreams
from lifesign.client.registry_tasks import HeldRun
from lifesign.domain.models.base import Name
from lifesign.domain.text.counts import plural, pluralize
from lifesign.errors import InvalidValue
from lifesign.mcp.answer import MAX_NAME_CHARS, Read, answer, busy, code_of, failure, listed, read_arguments
from lifesign.mcp.mark_complete import CompletionArguments
from lifesign.mcp.refusal_code import ToolRefusalCode
from lifesign.mcp.request_human_help import HelpArguments
from lifesign.mcp.run_binding import key_of
from lifesign.mcp.server import no_such_tool
from lifesign.mcp.task_tools import ENDING, TASK_TOOLS
from lifesign.mcp.tool_definition import Tool as TaskTool
from lifesign.mcp.tool_definition import ToolContext, ToolFailed

if TYPE_CHECKING:
    from lifesign.adapter.tools.server_thread import ThreadedServer

_log = logging.getLogger("lifesign.adapter.tools")
_TASK_TOOLS: Final = {tool.name: tool for tool in TASK_TOOLS}
_NAME: Final[TypeAdapter[str]] = TypeAdapter(Name)
_LISTED: Final = {tool.name: listed(tool) for tool in TASK_TOOLS}
_MAY_BE_REPEATED: Final = frozenset(
    {ToolRefusalCode.UNAVAILABLE, ToolRefusalCode.BUSY, ToolRefusalCode.INTERNAL_ERROR}
)
"""Codes after which the same call may succeed."""


@dataclass(frozen=True, slots=True)
class _Offered:
    """A tool of a server, as it is offered here."""

    server: "ThreadedServer"
    tool: str
    price: Price


class ProxiedCalls:
    """Lists the tools of one run, and executes the agent's calls of them, a limited number at once."""

    def __init__(
        self, held: ToolProxyContext, upstreams: Upstreams, servers: Mapping[str, "ThreadedServer"]
    ) -> None:
        self._held = held
        self._upstreams = upstreams
        self._servers = servers
        self._meter = Meter(held)
        self._reach = ToolContext(get=_refuse_external_request, registry=held.registry, run=held.run)
        self._offered: dict[str, _Offered] = {}
        self._under_way: set[asyncio.Task[CallToolResult]] = set()
        self._reading = asyncio.Lock()
        self._is_closed = False
        self._ended_by = ""
        self._endings = 0
        for upstream, tool in upstreams.named():
            self._offer(upstream, tool)

    async def list(self) -> Sequence[Tool]:
        """Return lifesign's own tools for the task, and the tools of upstream servers that have started."""
        if not self._is_closed:
            # An agent that waits until a server has started does not hang.
            with self._held.progress():
                await self._learn()
        tools = [*_LISTED.values()]
        for name, offered in self._offered.items():
            known = offered.server.tools.get(offered.tool)
            if known is not None:
                tools.append(_shown(known, name, offered.price))
        return tools

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema of a tool's arguments; None if its server has not started.

        Any thread may call this.
        """
        offered = self._offered.get(name)
        known = _LISTED.get(name) if offered is None else offered.server.tools.get(offered.tool)
        return None if known is None else known.input_schema

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool and return its result. The call goes on even if its caller no longer waits."""
        if self._is_closed:
            return failure(lease_lost())
        most = self._upstreams.limits.calls_at_once
        if len(self._under_way) >= most:
            return self._refused(name, busy(most))
        carrying = asyncio.create_task(self._carry_out(name, arguments))
        self._under_way.add(carrying)
        carrying.add_done_callback(self._done)
        return await asyncio.shield(carrying)

    async def refuse(self, name: str, error: ToolFailed) -> CallToolResult:
        """Refuse a call that has not been read."""
        return self._refused(name, failure(error))

    async def close(self) -> None:
        """Cancel running calls, accept no new ones, and report the costs that are due."""
        self._is_closed = True
        for carrying in self._under_way:
            carrying.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_SECONDS)
        await self._meter.close()

    def _done(self, carrying: "asyncio.Task[CallToolResult]") -> None:
        self._under_way.discard(carrying)
        # The caller may have left; then the result is ignored.
        if not carrying.cancelled():
            carrying.exception()

    async def _carry_out(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        with self._held.progress():
            return await self._answer(name, arguments)

    async def _answer(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        tool = _TASK_TOOLS.get(name)
        if self._ended_by and name != self._ended_by:
            return failure(_run_ended(self._ended_by))
        if not self._held.is_held() and not self._ended_by:
            return failure(lease_lost())
        if name in ENDING:
            return await self._end(_TASK_TOOLS[name], arguments)
        if tool is not None:
            return self._of_task(name, await answer(tool, arguments, self._reach, read=self._read_aside))
        return await self._of_server(name, arguments)

    async def _of_server(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """Have a server carry a call out, and pay for it."""
        offered = await self._find(name)
        try:
            await offered.server.check(offered.tool)
            if self._endings:
                what = (
                    "the result of the run is being submitted, and no call is started: wait for the answer "
                    "to that"
                )
                return failure(ToolFailed(what, code=ToolRefusalCode.BUSY))
            result = await self._meter.call(
                name, offered.price, lambda: offered.server.call(offered.tool, arguments)
            )
        except ToolFailed as error:
            return failure(error)
        if result.is_error:
            # The output schema concerns good results, but some clients validate failures against it, too.
            return result.model_copy(update={"structured_content": None})
        return result

    async def _end(self, tool: TaskTool, arguments: dict[str, Any]) -> CallToolResult:
        """Submit the run once all calls are charged: afterwards, they could not be charged."""
        try:
            given = await self._read_aside(tool, arguments)
        except InvalidValue as error:
            failed = ToolFailed(str(error), code=ToolRefusalCode.INVALID_ARGUMENT)
            return self._refused(tool.name, failure(failed))
        request = _end_request(tool.name, given, self._held.run)
        self._held.ending(request)
        if paid := self._meter.paid_under_way:
            what = f"{pluralize(paid, 'call')} of metered tools {plural(paid, 'is', 'are')} running"
            wait = "nothing was submitted: wait until they have ended, then make this call again"
            return failure(ToolFailed(f"{what}; {wait}", code=ToolRefusalCode.BUSY))
        self._endings += 1
        try:
            if unpaid := await self._meter.report_outstanding():
                what = f"the registry has not recorded the cost of {pluralize(unpaid, 'call')} yet"
                wait = "nothing was submitted: wait a few seconds, then make this call again"
                return failure(ToolFailed(f"{what}; {wait}", code=ToolRefusalCode.BUSY))
            result = await answer(tool, arguments, self._reach, read=_already(given))
        finally:
            self._endings -= 1
        if result.is_error and code_of(result) not in _MAY_BE_REPEATED:
            self._refused(tool.name, result, request)
        return self._of_task(tool.name, result)

    def _refused(
        self, name: str, result: CallToolResult, request: EndRequest | None = None
    ) -> CallToolResult:
        """Return a refusal; note that of a call which should have ended the run."""
        if name in ENDING and not self._ended_by:
            self._held.ending(replace(request or EndRequest(tool=name), refusal=_text_of(result)))
        return result

    async def _read_aside(self, tool: TaskTool, arguments: dict[str, Any]) -> BaseModel:
        """Read the arguments of a call in a thread, one at a time: large ones take 0.1 s and more."""
        async with self._reading:
            return await asyncio.to_thread(read_arguments, tool, arguments)

    def _of_task(self, name: str, result: CallToolResult) -> CallToolResult:
        """Return the answer of a task tool: a refusal after the end of the run means that it has ended."""
        if not result.is_error:
            if name in ENDING and not self._ended_by:
                self._ended_by = name
                self._held.ended(name)
            return result
        is_unreachable = code_of(result) == ToolRefusalCode.UNAVAILABLE
        return failure(_run_ended(self._ended_by)) if self._ended_by and not is_unreachable else result

    async def _find(self, name: str) -> _Offered:
        if name not in self._offered:
            await self._learn()
        offered = self._offered.get(name)
        if offered is None:
            raise no_such_tool(name, [*_TASK_TOOLS, *self._offered])
        return offered

    async def _learn(self) -> None:
        """Start all servers, or have them list their tools again; offer tools that the file does not name."""
        await asyncio.gather(*(server.learn() for server in self._servers.values()))
        known = {(offered.server.name, offered.tool) for offered in self._offered.values()}
        for upstream, server in self._servers.items():
            if self._upstreams.upstreams[upstream].offer_all:
                for tool in server.tools:
                    if (upstream, tool) not in known:
                        self._offer(upstream, tool)

    def _offer(self, upstream: str, tool: str) -> None:
        """Offer a tool under the first of its names that is free; once offered, it keeps it."""
        price = self._upstreams.price_of(upstream, tool)
        names = [name for name in self._upstreams.names_for(upstream, tool) if _is_valid(name)]
        free = (name for name in names if name not in _TASK_TOOLS and name not in self._offered)
        name = next(free, None)
        if name is None or price is None:
            why = "other tools already have its names" if names else "the registry does not accept its name"
            shown = self._servers[upstream].clean_text(tool)[:MAX_NAME_CHARS]
            _log.warning("tool %s of server %s is not offered: %s", shown, upstream, why)
            return
        self._offered[name] = _Offered(self._servers[upstream], tool, price)


def _is_valid(name: str) -> bool:
    """Return whether the registry accepts the reservation of a call of a tool with this name."""
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return False
    return True


def _already(given: BaseModel) -> Read:
    """Return a reader of arguments that have been read."""

    async def read(_tool: TaskTool, _arguments: dict[str, Any]) -> BaseModel:
        return given

    return read


def _end_request(tool: str, given: BaseModel, run: HeldRun) -> EndRequest:
    """Return a call that shall end the run in the form in which the adapter can repeat it."""
    assert isinstance(given, CompletionArguments | HelpArguments)  # noqa: S101 - those of ENDING
    key = key_of(tool, given, run)
    report = None if given.report is None else given.report.members()
    if isinstance(given, HelpArguments):
        return EndRequest(tool=tool, idempotency_key=key, reason=given.reason, report=report)
    return EndRequest(tool=tool, idempotency_key=key, output=given.output, report=report)


def _text_of(result: CallToolResult) -> str:
    return " ".join(part.text for part in result.content if isinstance(part, TextContent))


def _shown(tool: Tool, name: str, price: Price) -> Tool:
    """Return a server's tool as the proxy offers it: under the proxy's name, with its price."""
    text = f"{tool.description or ''}\n\n{_price_in_words(price)}".strip()
    return tool.model_copy(update={"name": name, "description": text})


def _price_in_words(price: Price) -> str:
    most = price.most()
    parts = [f"{most.usd:g} USD"] if most.usd else []
    parts += [pluralize(most.tokens, "token")] if most.tokens else []
    if not parts:
        return "A call costs nothing."
    most_words = "" if price.cost_in is None else "at most "
    return f"A call costs {most_words}{' and '.join(parts)} of the task's budget."


def _run_ended(tool: str) -> ToolFailed:
    """Return the answer to every call after the one that ended the run."""
    what = f"this run has ended by {tool}: no call is executed any more, and nothing was spent"
    return ToolFailed(what, code=ToolRefusalCode.RUN_ENDED)


async def _refuse_external_request(*_: object) -> Any:
    raise ToolFailed("the tools of a task send no requests to agents", code=ToolRefusalCode.NOT_ASKED)
