"""Layers of an MCP server: discovery by `server/discover`, else by a handshake, and transport.

How the server is spoken to is remembered, and found out again daily or after a failure.
"""

from dataclasses import dataclass
from typing import Final

from lifesign.client.candidate_urls import CandidateUrl, server_health_url
from lifesign.domain.credentials.scope import Purpose
from lifesign.domain.mcp.conversation import (
    CURRENT_VERSION,
    Generation,
    McpReply,
    McpSession,
    discover_request,
    initialize_request,
    initialized_notification,
    initialized_version,
    is_discovered,
    may_be_older,
    offered_version,
    ping_request,
    server_name,
    usable_session,
)
from lifesign.domain.observation.results import LayerResult, ResultClass
from lifesign.prober.definition.layer_settings import LayerSettings
from lifesign.prober.network.fetch import Fetched
from lifesign.prober.probe.mcp_exchange import McpAnswer, McpExchange
from lifesign.prober.probe.mcp_tools import NO_TOOLS, ToolLayers, ask_tools
from lifesign.prober.probe.session import ProbeSession, not_measured

RETRY_DISCOVERY_SECONDS: Final = 86_400.0
"""A server that needed a handshake is asked for `server/discover` again after this time."""
_READ: Final = frozenset({
    ResultClass.OK, ResultClass.NOT_AN_AGENT, ResultClass.HTTP_ERROR,
})  # fmt: skip
"""With these a whole answer came, whose body may be that of an MCP server."""


@dataclass(frozen=True, slots=True)
class ServerLayers:
    """Layers that a conversation gave."""

    discovery: LayerResult
    transport: LayerResult | None
    """Only if the server answered, possibly with a request for credentials."""
    tools: ToolLayers = NO_TOOLS


async def probe_server(
    visit: ProbeSession, asked: LayerSettings, *, may_shake_hands: bool = True
) -> ServerLayers | None:
    """Ask a server what it is, and what `asked` says of its tools; None if nothing could be requested.

    Without `may_shake_hands` one `server/discover` is sent, to find out whether it is an MCP server.
    """
    exchange = McpExchange(visit)
    if may_shake_hands and _needs_handshake(visit):
        layers = await _shake_hands(visit, exchange, asked)
        if layers is None or layers.transport is not None:
            return layers
    found = await _discover(exchange)
    if found is None:
        return None
    answer, version = found
    if is_discovered(answer.reply):
        _remember(visit, Generation.STATELESS)
        tools = await ask_tools(visit, exchange, McpSession(Generation.STATELESS, version), asked)
        return _answered(visit, answer, version, tools)
    fetched = answer.fetched
    is_older = fetched.result in _READ and may_be_older(fetched.status or 0, fetched.body, answer.reply)
    if may_shake_hands and is_older and not _needs_handshake(visit):
        return await _shake_hands(visit, exchange, asked)
    return _failed(visit, fetched, answer.reply)


def find_server_health(visit: ProbeSession) -> None:
    """Look for the health document below the parent of the endpoint's path."""
    visit.health_places = (CandidateUrl(server_health_url(visit.given.url)),)


async def _discover(exchange: McpExchange) -> tuple[McpAnswer, str] | None:
    """Return the answer to `server/discover`, and the version of the request."""
    answer = await exchange.send(discover_request(request_id=exchange.next_id()))
    if answer is not None and (version := offered_version(answer.reply)) is not None:
        again = await exchange.send(discover_request(version, request_id=exchange.next_id()))
        return (answer, CURRENT_VERSION) if again is None else (again, version)
    return None if answer is None else (answer, CURRENT_VERSION)


async def _shake_hands(
    visit: ProbeSession, exchange: McpExchange, asked: LayerSettings
) -> ServerLayers | None:
    answer = await exchange.send(initialize_request(request_id=exchange.next_id()))
    if answer is None:
        return None
    version = initialized_version(answer.reply)
    if version is None:
        return _failed(visit, answer.fetched, answer.reply)
    session = McpSession(Generation.HANDSHAKE, version, usable_session(answer.fetched.mcp_session))
    await exchange.send(initialized_notification(session))
    pinged = await exchange.send(ping_request(session, request_id=exchange.next_id()))
    tools = await ask_tools(visit, exchange, session, asked)
    if session.session_id is not None:
        # Servers that do not end sessions answer 405.
        await visit.ask(
            visit.given.url,
            method="DELETE",
            headers=session.headers,
            max_bytes=0,
            is_head_enough=True,
            purpose=Purpose.INTERFACE,
        )
    _remember(visit, Generation.HANDSHAKE)
    note = "" if pinged is None or pinged.reply.is_answer else ", but the session does not answer a ping"
    return _answered(visit, answer, version, tools, note)


def _needs_handshake(visit: ProbeSession) -> bool:
    at_s = visit.entry.memory.mcp_generation_at_s
    is_recent = at_s is not None and 0 <= visit.at_s - at_s < RETRY_DISCOVERY_SECONDS
    return is_recent and visit.entry.memory.mcp_generation == Generation.HANDSHAKE


def _remember(visit: ProbeSession, generation: Generation) -> None:
    if visit.entry.memory.mcp_generation != generation or not _needs_handshake(visit):
        visit.learned |= {"mcp_generation": generation, "mcp_generation_at_s": visit.at_s}


def _answered(
    visit: ProbeSession, answer: McpAnswer, version: str, tools: ToolLayers, note: str = ""
) -> ServerLayers:
    name = server_name(answer.reply)
    reason = f"MCP {version}{f': {name}' if name else ''}{note}"
    fetched = answer.fetched
    return ServerLayers(
        visit.layer(fetched, ResultClass.OK, reason), visit.layer(fetched, ResultClass.OK, ""), tools
    )


def _failed(visit: ProbeSession, fetched: Fetched, reply: McpReply) -> ServerLayers:
    if fetched.result is ResultClass.GATED:
        return ServerLayers(visit.layer(fetched), visit.layer(fetched))
    if fetched.result not in _READ:
        return ServerLayers(visit.layer(fetched), None)
    if reply.code is not None:
        reason = f"HTTP {fetched.status}: JSON-RPC error {reply.code}"
        return ServerLayers(
            visit.layer(fetched, ResultClass.INVALID_DOCUMENT, reason, visit.keep(fetched.body)), None
        )
    if fetched.result is not ResultClass.OK:
        return ServerLayers(visit.layer(fetched), None)
    reason = "the answer is not that of an MCP server"
    evidence = visit.keep(fetched.body)
    return ServerLayers(visit.layer(fetched, ResultClass.NOT_AN_AGENT, reason, evidence), None)


def nothing_asked(visit: ProbeSession) -> LayerResult:
    """Return the discovery of a server to which nothing could be sent."""
    return not_measured("no time was left" if visit.is_late else "nothing was sent")
