"""Connection to one upstream MCP server, which is kept running.

It is started when it is first needed, and restarted after its end, with increasing delays. A call to a server
that is not running fails at once: there is no wait.
"""

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any, Final

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, CallToolResult, EmptyResult, PingRequest, Tool
from pydantic import ValidationError

from lifesign.adapter.process.run_deadline import RunDeadline
from lifesign.adapter.run_events import CALLED_SERVER, CalledServer
from lifesign.adapter.tools.call_failures import CallNotExecuted, ResultWithheld
from lifesign.adapter.tools.checked_connections import CheckedConnections
from lifesign.adapter.tools.counted_connections import CountedConnections
from lifesign.adapter.tools.renewed_headers import RenewedHeaders
from lifesign.adapter.tools.server_body import BoundedBodies
from lifesign.adapter.tools.server_line import NOT_SENT, SESSION_LOST, TOO_LONG, UNREADABLE
from lifesign.adapter.tools.server_pipes import ServerEnd, ServerProgram, server_pipes
from lifesign.adapter.tools.server_secrets import ServerSecrets
from lifesign.adapter.tools.start_failures import HANDSHAKES, is_closed, reason_of, was_started
from lifesign.adapter.tools.tool_list import ListTooLong, ToolLister, listed_names, offered_names
from lifesign.adapter.tools.tools_file import CallLimits, Upstream
from lifesign.domain.parsing.json_limits import is_finite
from lifesign.mcp.refusal_code import ToolRefusalCode
from lifesign.mcp.tool_definition import ToolFailed

FIRST_WAIT_SECONDS: Final = 0.5
"""Before the first restart; doubled with each that follows soon, and spread by chance."""
MAX_WAIT_SECONDS: Final = 60.0
STEADY_SECONDS: Final = 60.0
"""A server that ran for so long restarts without a delay."""
CLOSE_SECONDS: Final = 8.0
"""Time for a server to end on request; the SDK kills it before that."""
LIST_SECONDS: Final = 5.0
"""Time for a running server to list its tools again; then its last list counts."""
PING_SECONDS: Final = 5.0
"""Time for a server to answer a ping after a call that took too long; then it counts as hung."""
MAX_WORDS_CHARS: Final = 500
"""Maximum length of a server's own text in an error."""

MIN_WRITTEN_BYTES: Final = 4 * 1_048_576
"""Minimum of the limit for one line or body of a server: the list of all its tools is one line."""
WRITTEN_PER_ANSWER: Final = 4
"""Ratio of that limit to the limit of an answer: a character of two bytes may be escaped with six."""


_log = logging.getLogger("lifesign.adapter.tools")


class UpstreamServer:
    """One MCP server whose tools are offered during a run. It starts when it is first needed."""

    def __init__(
        self,
        name: str,
        upstream: Upstream,
        limits: CallLimits,
        *,
        environment: Mapping[str, str] = os.environ,
        chance: Callable[[], float] = random.random,
        run_deadline: RunDeadline | None = None,
        agent_uid: int | None = None,
    ) -> None:
        """`agent_uid`: number of the agent's user, if it is another one than ours."""
        self.name = name
        self.tools: Mapping[str, Tool] = MappingProxyType({})
        """Tools when it last listed them, by its own names."""
        self._upstream = upstream
        self._limits = limits
        self._secrets = ServerSecrets(upstream, environment)
        self._called = CalledServer(self.name, self._secrets.clean_text)
        self._chance = chance
        self._run_deadline = run_deadline
        self._agent_uid = agent_uid
        self._client: Client | None = None
        self._lister: ToolLister | None = None
        self._end = ServerEnd()
        self._unreachable_reason = "it has not started yet"
        self._failures = 0
        self._began_at_s = 0.0
        self._again_at_s = 0.0
        self._missing: Collection[str] = ()
        self._has_run = False
        self._handshake = HANDSHAKES[0]
        self._is_connected = False
        self._running = 0
        self._is_tried = asyncio.Event()
        self._is_broken = asyncio.Event()
        self._is_ending = asyncio.Event()
        self._living: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Start the server if that was not done, and wait until it runs or its first start has failed."""
        if self._living is None:
            self._living = asyncio.create_task(self._live(), name=f"upstream {self.name}")
        await self._is_tried.wait()

    async def learn(self) -> None:
        """Start the server if that was not done, else request its list of tools again."""
        if not self._is_tried.is_set():
            await self.ready()
            return
        client, lister = self._client, self._lister
        if client is None or lister is None:
            return
        try:
            async with asyncio.timeout(LIST_SECONDS):
                tools = await lister.list_tools()
        except ListTooLong as error:
            self._break(client, str(error))
            return
        except Exception as error:  # noqa: BLE001 - the last list counts; a call notices what is wrong
            _log.info(
                "tool server %s did not list its tools again, so the last list stays in use: %s",
                self.name,
                self._reason(error),
            )
            return
        # A server that has restarted meanwhile has listed its tools itself.
        if client is self._client:
            self.tools = tools

    async def check(self, tool: str) -> None:
        """Start the server if that was not done; ToolFailed if it has started and does not offer the tool."""
        await self.ready()
        if self._has_run and tool not in self.tools:
            await self.learn()
        if self._has_run and tool not in self.tools:
            what = f"{self.name} has no tool {self.clean_text(tool)!r}, although the tools file names it"
            raise ToolFailed(
                f"{what}; {self._offered_names()}. Nothing was spent", code=ToolRefusalCode.TOOL_MISSING
            )

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool of the server; ToolFailed if there is no answer that can be passed on.

        CallNotExecuted if that is sure, ResultWithheld with the answer that there is.
        """
        await self.ready()
        client, end = self._client, self._end
        if client is None:
            raise self._does_not_run()
        former = CALLED_SERVER.set(self._called)
        try:
            async with self._call_limit():
                result = await client.call_tool(tool, arguments)
        except TimeoutError:
            await self._restart_hung(client)
            what = f"{self.name} took longer than {self._limits.call_seconds:g} s"
            raise ToolFailed(
                f"{what}; it may have been partly executed", code=ToolRefusalCode.UPSTREAM_TIMEOUT
            ) from None
        except MCPError as error:
            raise await self._refusal(client, end, error, arguments) from None
        except (ValidationError, RuntimeError) as error:
            # The SDK's errors for an answer that is no result, or that requests input again and again.
            _log.warning(
                "an answer of tool server %s is invalid, so the call failed: %s",
                self.name,
                type(error).__name__,
            )
            what = f"the answer of {self.name} is not valid for a tool"
            raise ToolFailed(
                f"{what}; it may have been executed", code=ToolRefusalCode.ANSWER_INVALID
            ) from None
        except Exception as error:  # noqa: BLE001 - whatever a server does, a call has an end
            self._break(client, self._reason(error))
            raise self._ended_during_call() from None
        finally:
            CALLED_SERVER.reset(former)
        size = len(result.model_dump_json(by_alias=True, exclude_none=True).encode())
        if size > self._limits.answer_bytes:
            what = f"{self.name} answered with {size} bytes, more than {self._limits.answer_bytes}"
            raise ResultWithheld(
                f"{what}: ask for less", code=ToolRefusalCode.ANSWER_TOO_LARGE, answer=result
            )
        if not is_finite(result.model_dump()):
            what = f"{self.name} answered with a number that is not valid JSON"
            raise ResultWithheld(
                f"{what}; it may have been executed",
                code=ToolRefusalCode.ANSWER_INVALID,
                answer=result,
            )
        return await self._without_secrets(result, arguments) if result.is_error else result

    @asynccontextmanager
    async def _call_limit(self) -> AsyncIterator[None]:
        """Limit the time of one call; TimeoutError."""
        self._running += 1
        try:
            async with asyncio.timeout(self._limits.call_seconds):
                yield
        finally:
            self._running -= 1

    async def _restart_hung(self, client: Client) -> None:
        """Restart the server if it does not answer a ping, unless another call runs, which it may work on."""
        try:
            async with asyncio.timeout(PING_SECONDS):
                await client.session.send_request(PingRequest(), EmptyResult)
        except MCPError as error:
            # A server of MCP 2026-07-28 does not know the ping.
            is_hung = error.code in {CONNECTION_CLOSED, NOT_SENT}
        except Exception:  # noqa: BLE001 - whatever a server does, a call has an end
            is_hung = True
        else:
            is_hung = False
        if is_hung and not self._running:
            self._break(client, f"it did not answer within {self._limits.call_seconds:g} s")

    def clean_text(self, text: str) -> str:
        """Return a text without the secrets that the tools file gives to the server."""
        return self._secrets.clean_text(text)

    async def close(self) -> None:
        """Stop the server."""
        self._is_ending.set()
        if self._living is None:
            return
        if self._client is not None:
            # Asked, not cancelled, so that it gets its time to end.
            await asyncio.wait({self._living}, timeout=CLOSE_SECONDS)
        self._living.cancel()
        await asyncio.wait({self._living}, timeout=CLOSE_SECONDS)

    async def _refusal(
        self, client: Client, end: ServerEnd, error: MCPError, arguments: dict[str, Any]
    ) -> ToolFailed:
        """Return the answer for the caller, and restart the server if it has ended.

        The codes that are recognised here never come from the server: see `SAID`.
        """
        of_one = "on one line" if self._upstream.url is None else "in one answer"
        too_long = f"{self.name} wrote more than {self._max_bytes()} bytes {of_one}: request less"
        if error.code == TOO_LONG:
            return ToolFailed(too_long, code=ToolRefusalCode.ANSWER_TOO_LARGE)
        if error.code in {UNREADABLE, PARSE_ERROR}:
            what = f"the answer of {self.name} cannot be read"
            return ToolFailed(f"{what}; it may have been executed", code=ToolRefusalCode.ANSWER_INVALID)
        if error.code == NOT_SENT:
            self._break(client, self._reason(error))
            return self._does_not_run()
        if error.code == SESSION_LOST:
            # It has restarted, or ends idle sessions: a new connection begins a new session.
            self._break(client, "its session has ended")
            return self._does_not_run()
        if error.code == CONNECTION_CLOSED:
            self._break(client, end.why)
            return (
                ToolFailed(too_long, code=ToolRefusalCode.ANSWER_TOO_LARGE)
                if end.is_too_long
                else self._ended_during_call()
            )
        try:
            words = await asyncio.to_thread(self._secrets.cleaned_words, str(error), arguments)
        except ValueError:
            words = "its text may contain a secret that cannot be removed"
        return CallNotExecuted(
            f"{self.name} refused the call: {words[:MAX_WORDS_CHARS]}", code=ToolRefusalCode.UPSTREAM_REFUSED
        )

    async def _without_secrets(self, result: CallToolResult, arguments: dict[str, Any]) -> CallToolResult:
        """Return a failure that the tool reports; it may quote the server's secrets."""
        try:
            # The search takes about 0.1 s per MiB.
            return await asyncio.to_thread(self._secrets.cleaned, result, arguments)
        except ValueError:
            what = f"the answer of {self.name} may contain a secret that cannot be removed"
            raise ResultWithheld(what, code=ToolRefusalCode.ANSWER_INVALID, answer=result) from None

    def _reason(self, error: BaseException) -> str:
        """Return why the server does not run, without its secrets."""
        # Cut afterwards: a text that was cut may end within a secret.
        return self._secrets.clean_text(reason_of(error))[:MAX_WORDS_CHARS]

    def _does_not_run(self) -> ToolFailed:
        what = f"{self.name} is not running: {self._unreachable_reason}; {self._restart_text()}"
        return CallNotExecuted(what, code=ToolRefusalCode.UPSTREAM_UNAVAILABLE)

    def _ended_during_call(self) -> ToolFailed:
        what = f"{self.name} ended during the call, which may have been executed"
        return ToolFailed(
            f"{what}: {self._unreachable_reason}; {self._restart_text()}",
            code=ToolRefusalCode.UPSTREAM_UNAVAILABLE,
        )

    def _restart_text(self) -> str:
        """Say when it is started again."""
        left_s = self._again_at_s - asyncio.get_running_loop().time()
        return f"it restarts in {left_s:.1f} s" if left_s > 0 else "it is restarting now"

    def _break(self, client: Client | None, why: str) -> None:
        """Send the server no further call, and decide when it restarts; once for each of its starts."""
        if client is not self._client or self._is_broken.is_set():
            return
        now_s = asyncio.get_running_loop().time()
        self._failures = 1 if now_s - self._began_at_s > STEADY_SECONDS else self._failures + 1
        wait_s = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(self._failures - 1, 20))
        self._again_at_s = now_s + wait_s * (0.5 + 0.5 * self._chance())
        self._client, self._unreachable_reason = None, why
        self._is_broken.set()
        _log.warning("tool server %s is not running: %s; %s", self.name, why, self._restart_text())

    async def _live(self) -> None:
        """Start it as often as necessary, until it is stopped."""
        CALLED_SERVER.set(self._called)
        loop = asyncio.get_running_loop()
        while not self._is_ending.is_set():
            self._began_at_s = loop.time()
            self._is_broken.clear()
            self._is_connected = False
            self._end = ServerEnd()
            try:
                async with self._connected() as client:
                    self._client, self._has_run = client, True
                    self._is_tried.set()
                    await _first(self._is_broken, self._is_ending, self._end.is_there)
                    if not self._is_ending.is_set():
                        self._break(client, self._end.why)
            except Exception as error:  # noqa: BLE001 - one server must not end the others
                if self._tries_other_handshake(error):
                    continue
                is_of_its_end = self._end.is_fault or is_closed(error)
                self._break(self._client, self._end.why if is_of_its_end else self._reason(error))
            self._client = None
            self._is_tried.set()
            await _first(self._is_ending, timeout_s=max(0.0, self._again_at_s - loop.time()))

    def _tries_other_handshake(self, error: BaseException) -> bool:
        """Choose the handshake of the next start; return whether that start is due at once."""
        if self._is_connected or not was_started(error):
            return False
        is_first = self._handshake == HANDSHAKES[0]
        self._handshake = HANDSHAKES[is_first]
        return is_first and not isinstance(error, TimeoutError)

    def _offered_names(self) -> str:
        """Return in words which tools the server has, without its secrets."""
        return offered_names([self.clean_text(tool) for tool in self.tools])

    def _log_missing_tools(self) -> None:
        """Log the tools that the file names and the server lacks, unless that was logged already."""
        missing = [tool for tool in self._upstream.tools if tool not in self.tools]
        if missing and missing != self._missing:
            _log.warning(
                "tool server %s has no tool %s, although the tools file names it; %s",
                self.name,
                listed_names(missing),
                self._offered_names(),
            )
        self._missing = missing

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        """Connect, and learn which tools there are, within the time for that."""
        async with AsyncExitStack() as opened:
            made = await opened.enter_async_context(self._opened())
            try:
                async with asyncio.timeout(self._limits.start_seconds):
                    client = await opened.enter_async_context(made)
                    self._is_connected = True
                    # The SDK has no setting for this. A test fails if the SDK validates by another method.
                    client.session.validate_tool_result = _accept_result  # type: ignore[assignment, method-assign]
                    self._lister = ToolLister(client)
                    self.tools = await self._lister.list_tools()
                    self._log_missing_tools()
            except TimeoutError:
                limit = f"{self._limits.start_seconds:g} s"
                raise TimeoutError(f"the tool server did not start within {limit}") from None
            yield client

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Client]:
        settings = self._upstream
        if settings.command is not None:
            variables = self._secrets.read()
            program = ServerProgram(
                name=self.name,
                command=settings.command,
                environment=variables,
                scrubber=self._secrets.scrubber,
                directory=settings.directory,
                max_line_bytes=self._max_bytes(),
                run_deadline=self._run_deadline,
            )
            yield Client(server_pipes(program, self._end), cache=None, mode=self._handshake)
            return
        self._end.why = "the connection was closed"
        headers = self._secrets.read()
        connections = CountedConnections(self._max_bytes())
        checked = CheckedConnections(connections, refused_user=self._agent_uid if headers else None)
        renewed = RenewedHeaders(checked, headers, self._secrets.read)
        bodies = BoundedBodies(renewed, self._max_bytes(), self.name)
        async with httpx2.AsyncClient(
            headers=headers, timeout=None, trust_env=False, transport=bodies
        ) as http:
            # An event is bounded with all of its answer, by our transport: here it would cost the connection.
            transport = streamable_http_client(settings.url or "", http_client=http, max_sse_event_size=None)
            yield Client(transport, cache=None, mode=self._handshake)

    def _max_bytes(self) -> int:
        return max(MIN_WRITTEN_BYTES, WRITTEN_PER_ANSWER * self._limits.answer_bytes)


async def _accept_result(_tool: str, _result: CallToolResult) -> None:
    """Accept structured content of any form: the agent's own client validates it.

    The SDK's validation runs on the event loop without a time limit. The server chooses the schema with its
    regular expressions, so a validation may take longer than a lease.
    """


async def _first(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait for the first of these, or until time is up."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()
