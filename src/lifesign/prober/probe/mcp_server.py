"""Layers of an MCP server: discovery by `server/discover`, else by a handshake, and transport.

No tool is called. How the server is spoken to is remembered, and found out again daily or after a failure.
"""

from dataclasses import dataclass
from typing import Final

from lifesign.client.candidate_urls import CandidateUrl, server_health_url
from lifesign.domain.credentials.scope import Purpose
from lifesign.domain.mcp.conversation import (
    ACCEPT,
    CURRENT_VERSION,
    Generation,
    McpReply,
    McpRequest,
    discover_request,
    initialize_request,
    initialized_notification,
    initialized_version,
    is_discovered,
    may_be_older,
    offered_version,
    ping_request,
    read_reply,
    server_name,
    session_headers,
    usable_session,
)
from lifesign.domain.observation.results import LayerResult, ResultClass
from lifesign.prober.network.fetch import Fetched
from lifesign.prober.probe.session import ProbeSession, not_measured

MAX_ANSWER_BYTES: Final = 1024 * 1024
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


async def probe_server(visit: ProbeSession, *, may_shake_hands: bool = True) -> ServerLayers | None:
    """Ask a server what it is; None if nothing could be requested.

    Without `may_shake_hands` one `server/discover` is sent, to find out whether it is an MCP server.
    """
    if may_shake_hands and _needs_handshake(visit):
        layers = await _shake_hands(visit)
        if layers is None or layers.transport is not None:
            return layers
    asked = await _discover(visit)
    if asked is None:
        return None
    fetched, reply = asked
    if is_discovered(reply):
        _remember(visit, Generation.STATELESS)
        return _answered(visit, fetched, reply, CURRENT_VERSION)
    is_older = fetched.result in _READ and may_be_older(fetched.status or 0, fetched.body, reply)
    if may_shake_hands and is_older and not _needs_handshake(visit):
        return await _shake_hands(visit)
    return _failed(visit, fetched, reply)


def find_server_health(visit: ProbeSession) -> None:
    """Look for the health document below the parent of the endpoint's path."""
    visit.health_places = (CandidateUrl(server_health_url(visit.given.url)),)


async def _discover(visit: ProbeSession) -> tuple[Fetched, McpReply] | None:
    asked = await _post(visit, discover_request())
    if asked is not None and (version := offered_version(asked[1])) is not None:
        return await _post(visit, discover_request(version)) or asked
    return asked


async def _shake_hands(visit: ProbeSession) -> ServerLayers | None:
    asked = await _post(visit, initialize_request())
    if asked is None:
        return None
    fetched, reply = asked
    version = initialized_version(reply)
    if version is None:
        return _failed(visit, fetched, reply)
    session_id = usable_session(fetched.mcp_session)
    await _post(visit, initialized_notification(version, session_id))
    pinged = await _post(visit, ping_request(version, session_id))
    if session_id is not None:
        # Servers that do not end sessions answer 405.
        headers = session_headers(version, session_id)
        await visit.ask(
            visit.given.url,
            method="DELETE",
            headers=headers,
            max_bytes=0,
            is_head_enough=True,
            purpose=Purpose.INTERFACE,
        )
    _remember(visit, Generation.HANDSHAKE)
    note = "" if pinged is None or pinged[1].is_answer else ", but the session does not answer a ping"
    return _answered(visit, fetched, reply, version, note)


async def _post(visit: ProbeSession, request: McpRequest) -> tuple[Fetched, McpReply] | None:
    fetched = await visit.ask(
        visit.given.url,
        method="POST",
        body=request.body,
        headers=request.headers,
        accept=ACCEPT,
        max_bytes=MAX_ANSWER_BYTES,
        purpose=Purpose.INTERFACE,
    )
    return None if fetched is None else (fetched, read_reply(fetched.content_type, fetched.body))


def _needs_handshake(visit: ProbeSession) -> bool:
    at_s = visit.entry.memory.mcp_generation_at_s
    is_recent = at_s is not None and 0 <= visit.at_s - at_s < RETRY_DISCOVERY_SECONDS
    return is_recent and visit.entry.memory.mcp_generation == Generation.HANDSHAKE


def _remember(visit: ProbeSession, generation: Generation) -> None:
    if visit.entry.memory.mcp_generation != generation or not _needs_handshake(visit):
        visit.learned |= {"mcp_generation": generation, "mcp_generation_at_s": visit.at_s}


def _answered(
    visit: ProbeSession, fetched: Fetched, reply: McpReply, version: str, note: str = ""
) -> ServerLayers:
    name = server_name(reply)
    reason = f"MCP {version}{f': {name}' if name else ''}{note}"
    return ServerLayers(
        visit.layer(fetched, ResultClass.OK, reason), visit.layer(fetched, ResultClass.OK, "")
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
