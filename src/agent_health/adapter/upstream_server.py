"""How is one upstream MCP server kept alive, and asked?

It is started when it is first needed, and started again when it is gone, after a wait that grows. A call
meets a server that runs, or fails at once: nothing waits for one that is down.
"""

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any, Final

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, CallToolResult, Tool

from agent_health.adapter.upstreams import MAX_TOOLS, Limits, Upstream
from agent_health.adapter.upstreams_file import secret_of
from agent_health.errors import InvalidSetting
from agent_health.mcp.tool import ToolFailed

FIRST_WAIT_SECONDS: Final = 0.5
"""Before the first restart; doubled with each that follows soon, and spread by chance."""
MAX_WAIT_SECONDS: Final = 60.0
STEADY_SECONDS: Final = 60.0
"""Who ran for so long starts again as if for the first time."""
CLOSE_SECONDS: Final = 8.0
"""For a server to end when it is told to; the SDK kills it before that."""
MAX_WORDS_CHARS: Final = 500
"""Of a server's own words in an error."""

AWAY: Final = "upstream_unavailable"
TIMED_OUT: Final = "upstream_timeout"
REFUSED: Final = "upstream_refused"
TOO_LARGE: Final = "answer_too_large"

_log = logging.getLogger("agent_health.adapter")


class UpstreamServer:
    """One server, while a run goes on."""

    def __init__(
        self,
        name: str,
        upstream: Upstream,
        limits: Limits,
        *,
        environment: Mapping[str, str] = os.environ,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.tools: Mapping[str, Tool] = MappingProxyType({})
        """What it offered when it last started, by its own names."""
        self._upstream = upstream
        self._limits = limits
        self._environment = environment
        self._chance = chance
        self._client: Client | None = None
        self._why_away = "it has not started yet"
        self._is_tried = asyncio.Event()
        self._is_broken = asyncio.Event()
        self._is_ending = asyncio.Event()
        self._living: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Start it, if that was not done, and wait until it runs or its first start has failed."""
        if self._living is None:
            self._living = asyncio.create_task(self._live(), name=f"upstream {self.name}")
        await self._is_tried.wait()

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Have a tool called; ToolFailed if there is no answer that can be handed on."""
        await self.ready()
        client = self._client
        if client is None:
            raise ToolFailed(f"{self.name} does not run: {self._why_away}; try again later", code=AWAY)
        try:
            async with asyncio.timeout(self._limits.call_seconds):
                result = await client.call_tool(tool, arguments)
        except TimeoutError:
            what = f"{self.name} took longer than {self._limits.call_seconds:g} s"
            raise ToolFailed(f"{what}; what it did until then is not known", code=TIMED_OUT) from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise self._broken(client, error) from None
            words = str(error)[:MAX_WORDS_CHARS]
            raise ToolFailed(f"{self.name} refused the call: {words}", code=REFUSED) from None
        except Exception as error:  # noqa: BLE001 - whatever a server does, a call has an end
            raise self._broken(client, error) from None
        size = len(result.model_dump_json(by_alias=True, exclude_none=True).encode())
        if size > self._limits.answer_bytes:
            what = f"{self.name} answered with {size} bytes, of which {self._limits.answer_bytes} are taken"
            raise ToolFailed(f"{what}: ask for less", code=TOO_LARGE)
        return result

    async def close(self) -> None:
        """End it."""
        self._is_ending.set()
        if self._living is None:
            return
        if self._client is not None:
            # Asked, not cancelled, so that the SDK takes its time to end the process.
            await asyncio.wait({self._living}, timeout=CLOSE_SECONDS)
        self._living.cancel()
        await asyncio.wait({self._living}, timeout=CLOSE_SECONDS)

    def _broken(self, client: Client, error: Exception) -> ToolFailed:
        """Have it started again, and return what whoever called it is told."""
        if client is self._client:
            self._client, self._why_away = None, "it is being started again"
            self._is_broken.set()
        _log.warning("%s is gone in the middle of a call: %s", self.name, _words(error))
        what = f"{self.name} is gone in the middle of the call; whether it was carried out is not known"
        return ToolFailed(f"{what}. It is being started again", code=AWAY)

    async def _live(self) -> None:
        """Start it as often as it takes, until it is told to end."""
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._is_ending.is_set():
            began_at_s = loop.time()
            self._is_broken.clear()
            try:
                async with self._connected() as client:
                    self._client = client
                    self._is_tried.set()
                    await _first(self._is_broken, self._is_ending)
            except Exception as error:  # noqa: BLE001 - one server must not end the others
                self._why_away = _words(error)
                _log.warning("%s does not run: %s", self.name, self._why_away)
            self._client = None
            self._is_tried.set()
            failures = 1 if loop.time() - began_at_s > STEADY_SECONDS else failures + 1
            wait_s = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failures - 1, 20))
            await _first(self._is_ending, timeout_s=wait_s * (0.5 + 0.5 * self._chance()))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        """Connect, and learn which tools there are, within the time for that."""
        async with AsyncExitStack() as opened:
            made = await opened.enter_async_context(self._opened())
            try:
                async with asyncio.timeout(self._limits.start_seconds):
                    client = await opened.enter_async_context(made)
                    self.tools = await _tools_of(client)
            except TimeoutError:
                raise TimeoutError(f"it did not start within {self._limits.start_seconds:g} s") from None
            yield client

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Client]:
        said = self._upstream
        if said.command is not None:
            variables = {name: secret_of(one, self._environment) for name, one in said.environment.items()}
            program, *words = said.command
            started = StdioServerParameters(command=program, args=words, env=variables, cwd=said.directory)
            yield Client(stdio_client(started), cache=None)
            return
        headers = {name: secret_of(one, self._environment) for name, one in said.headers.items()}
        # What a proxy of the environment would see is nobody's but the server's.
        async with httpx2.AsyncClient(headers=headers, timeout=None, trust_env=False) as http:
            transport = streamable_http_client(
                said.url or "", http_client=http, max_sse_event_size=self._limits.answer_bytes
            )
            yield Client(transport, cache=None)


async def _tools_of(client: Client) -> Mapping[str, Tool]:
    found: dict[str, Tool] = {}
    cursor: str | None = None
    while len(found) < MAX_TOOLS:
        page = await client.list_tools(cursor=cursor)
        found.update({tool.name: tool for tool in page.tools[: MAX_TOOLS - len(found)]})
        if page.next_cursor is None or not page.tools:
            break
        cursor = page.next_cursor
    return MappingProxyType(found)


async def _first(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait for the first of these, or until time is up."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


def _words(error: BaseException) -> str:
    """Return why it does not run, on one line; never what stands in a header or a variable."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return os.strerror(error.errno) if error.errno else type(error).__name__
    if isinstance(error, InvalidSetting | TimeoutError | MCPError):
        return " ".join(str(error).split())[:MAX_WORDS_CHARS] or "it took too long"
    return type(error).__name__
