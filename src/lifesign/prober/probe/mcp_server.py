"""Layers of an MCP server: discovery by `server/discover`, else by a handshake, and transport.

How the server is spoken to is remembered, and found out again daily or after a failure.
"""

from dataclasses import dataclass
from typing import Final

from lifesign.domain.credentials.request_scope import Purpose
from lifesign.domain.mcp.conversation import (
    CURRENT_VERSION,
    EVENT_STREAM,
    HANDSHAKE_VERSION,
    Generation,
    McpSession,
    discover_request,
    initialize_request,
    initialized_notification,
    initialized_version,
    is_discovered,
    may_be_older,
    may_stream_answers,
    offered_version,
    ping_request,
    server_name,
    usable_session,
)
from lifesign.domain.observation.results import REFUSED_LOGIN, LayerResult, ResultClass
from lifesign.domain.observation.server_answer import NO_SERVER, READ_RESULTS, classify_failed_discovery
from lifesign.http_client.mcp_event_stream import NO_ENDPOINT, OTHER_ORIGIN
from lifesign.prober.definition.layer_settings import LayerSettings
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.mcp_exchange import McpAnswer, McpExchange
from lifesign.prober.probe.mcp_stream import open_stream
from lifesign.prober.probe.mcp_tools import NO_TOOLS, ToolLayers, ask_tools
from lifesign.prober.probe.session import ProbeSession, not_measured

RETRY_DISCOVERY_SECONDS: Final = 86_400.0
"""Time after which a server that needed a handshake gets `server/discover` again."""


@dataclass(frozen=True, slots=True)
class ServerLayers:
    """Results of the layers that were probed at an MCP server."""

    discovery: LayerResult
    transport: LayerResult | None
    """Only if the server answered, possibly with a request for credentials."""
    tools: ToolLayers = NO_TOOLS


async def probe_server(visit: ProbeSession, asked: LayerSettings) -> ServerLayers | None:
    """Probe an MCP server: its description, and its tools if `asked` requires them.

    None if no request could be sent.
    """
    exchange = McpExchange(visit)
    known = _known_generation(visit)
    layers = None
    if known is Generation.EVENT_STREAM:
        layers = await _follow_stream(visit, asked, is_known=True)
    elif known is Generation.HANDSHAKE:
        layers = await _shake_hands(visit, exchange, asked)
    if layers is not None and layers.transport is not None:
        return layers
    found = await _discover(exchange)
    if found is None:
        # The earlier failure is the reason that nothing else could be sent.
        return layers
    answer, version = found
    if is_discovered(answer.reply):
        _remember(visit, Generation.STATELESS)
        tools = await ask_tools(visit, exchange, McpSession(Generation.STATELESS, version), asked)
        return _answered(visit, answer, version, tools)
    fetched = answer.fetched
    is_older = fetched.result in READ_RESULTS and may_be_older(
        fetched.status or 0, fetched.body, answer.reply
    )
    if is_older and known is not Generation.HANDSHAKE:
        return await _shake_hands(visit, exchange, asked, may_stream=known is None)
    return _failed(visit, answer)


async def _discover(exchange: McpExchange) -> tuple[McpAnswer, str] | None:
    """Return the answer to `server/discover`, and the version of the request."""
    answer = await exchange.send(discover_request(request_id=exchange.next_id()))
    if answer is not None and (version := offered_version(answer.reply)) is not None:
        again = await exchange.send(discover_request(version, request_id=exchange.next_id()))
        return (answer, CURRENT_VERSION) if again is None else (again, version)
    return None if answer is None else (answer, CURRENT_VERSION)


async def _shake_hands(
    visit: ProbeSession, exchange: McpExchange, asked: LayerSettings, *, may_stream: bool = False
) -> ServerLayers | None:
    answer = await exchange.send(initialize_request(request_id=exchange.next_id()))
    if answer is None:
        return None
    version = initialized_version(answer.reply)
    session_id = usable_session(answer.fetched.mcp_session)
    session = McpSession(Generation.HANDSHAKE, version or HANDSHAKE_VERSION, session_id)
    if version is None:
        await _end_session(visit, session)
        is_streamed = may_stream and may_stream_answers(answer.fetched.status or 0, answer.reply)
        layers = await _follow_stream(visit, asked) if is_streamed else None
        # Without an event stream, the answer to the handshake is more informative.
        return layers or _failed(visit, answer)
    return await _converse(visit, exchange, session, answer, asked)


async def _follow_stream(
    visit: ProbeSession, asked: LayerSettings, *, is_known: bool = False
) -> ServerLayers | None:
    """Shake hands over HTTP with SSE; None if there is no event stream.

    `is_known`: the server had one before, so that a failure of the request is one of the server.
    """
    async with open_stream(visit) as (exchange, get):
        if exchange.stream.endpoint is None:
            fetched = await get
            if fetched is not None and fetched.result is ResultClass.GATED:
                # Its answer to a POST may be 405 with any credential.
                return ServerLayers(visit.layer(fetched), visit.layer(fetched))
            if is_known and fetched is not None and fetched.result not in READ_RESULTS:
                return ServerLayers(visit.layer(fetched), None)
            return _without_endpoint(visit, fetched, is_misled=exchange.stream.is_misled)
        answer = await exchange.send(initialize_request(request_id=exchange.next_id()))
        if answer is None:
            return None
        version = initialized_version(answer.reply)
        if version is None:
            return _failed(visit, answer)
        session = McpSession(Generation.EVENT_STREAM, version)
        return await _converse(visit, exchange, session, answer, asked)


def _without_endpoint(
    visit: ProbeSession, fetched: Fetched | None, *, is_misled: bool
) -> ServerLayers | None:
    if fetched is None or fetched.content_type != EVENT_STREAM:
        return None
    if is_misled:
        return ServerLayers(visit.layer(fetched, ResultClass.INVALID_DOCUMENT, OTHER_ORIGIN), None)
    if fetched.result is ResultClass.OK:
        return ServerLayers(visit.layer(fetched, ResultClass.NOT_AN_AGENT, NO_ENDPOINT), None)
    return ServerLayers(visit.layer(fetched), None)


async def _converse(
    visit: ProbeSession, exchange: McpExchange, session: McpSession, answer: McpAnswer, asked: LayerSettings
) -> ServerLayers:
    """Finish a handshake, ask for the tools, and end the session."""
    await exchange.send(initialized_notification(session))
    pinged = await exchange.send(ping_request(session, request_id=exchange.next_id()))
    tools = await ask_tools(visit, exchange, session, asked)
    await _end_session(visit, session)
    _remember(visit, session.generation)
    note = "" if pinged is None or pinged.reply.is_answer else ", but the session does not answer a ping"
    return _answered(visit, answer, session.version, tools, note)


async def _end_session(visit: ProbeSession, session: McpSession) -> None:
    """End a session, if the server opened one; a slow server must not collect those of all probes."""
    if session.session_id is None:
        return
    # Servers that do not end sessions answer 405.
    await visit.ask(
        visit.given.url,
        method="DELETE",
        headers=session.headers,
        max_bytes=0,
        is_head_enough=True,
        despite_timeouts=True,
        purpose=Purpose.INTERFACE,
    )


def _known_generation(visit: ProbeSession) -> Generation | None:
    """Return how the server was called within the last day; None if that is unknown or older."""
    at_s = visit.entry.memory.mcp_generation_at_s
    is_recent = at_s is not None and 0 <= visit.at_s - at_s < RETRY_DISCOVERY_SECONDS
    return visit.entry.memory.mcp_generation if is_recent else None


def _remember(visit: ProbeSession, generation: Generation) -> None:
    if generation is Generation.STATELESS or _known_generation(visit) != generation:
        visit.learned |= {"mcp_generation": generation, "mcp_generation_at_s": visit.at_s}


def _answered(
    visit: ProbeSession, answer: McpAnswer, version: str, tools: ToolLayers, note: str = ""
) -> ServerLayers:
    name = server_name(answer.reply)
    reason = f"MCP {version}{f': {name}' if name else ''}{note}"
    fetched = answer.fetched
    visit.server_reply = answer.reply
    return ServerLayers(
        visit.layer(fetched, ResultClass.OK, reason), visit.layer(fetched, ResultClass.OK, ""), tools
    )


def _failed(visit: ProbeSession, answer: McpAnswer) -> ServerLayers:
    fetched = answer.fetched
    visit.server_reply = answer.reply
    result, reason = classify_failed_discovery(fetched.result, fetched.status, fetched.reason, answer.reply)
    is_odd = reason == NO_SERVER or result is ResultClass.INVALID_DOCUMENT
    evidence = visit.keep(fetched.body) if is_odd else None
    discovery = visit.layer(fetched, result, reason, evidence)
    is_refused = discovery.result in REFUSED_LOGIN
    return ServerLayers(discovery, visit.layer(fetched, result, reason) if is_refused else None)


def nothing_asked(visit: ProbeSession) -> LayerResult:
    """Return the discovery result of an MCP server to which no request could be sent."""
    return not_measured("no time was left" if visit.is_late else "nothing was sent")
