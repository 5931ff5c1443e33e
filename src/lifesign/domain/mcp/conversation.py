"""Requests to an MCP server, and its answers (Model Context Protocol, 2025-03-26 to 2026-07-28).

A server of 2026-07-28 answers `server/discover` without a session. An older one needs a handshake:
`initialize`, then `notifications/initialized`. `tools` has the requests about tools.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from lifesign.domain.parsing.bounded_json import parse_or_none
from lifesign.domain.parsing.event_framing import MESSAGE_NAMES, named_events
from lifesign.domain.text.safe_text import harmless

CURRENT_VERSION: Final = "2026-07-28"
"""First version with `server/discover`."""
HANDSHAKE_VERSION: Final = "2025-11-25"
"""Last version with a handshake."""
ACCEPT: Final = "application/json, text/event-stream"
"""A server may answer with either; without both it refuses the request."""
EVENT_STREAM: Final = "text/event-stream"
SESSION_HEADER: Final = "Mcp-Session-Id"
MAX_SESSION_CHARS: Final = 512
MAX_EVENTS: Final = 10_000
"""Maximum number of events that are read before the answer: a server may send notifications first."""
MAX_VERSION_CHARS: Final = 32
MAX_NAME_CHARS: Final = 64
NO_ID: Final = 0
FIRST_ID: Final = 1
"""Identifier of the first request of a session; each further one has the next number."""
MAX_CODE: Final = 10**9
UNSUPPORTED_VERSION: Final = -32022
_ERRORS_OF_CURRENT: Final = frozenset({-32020, -32021, UNSUPPORTED_VERSION})
"""Codes that only a server of 2026-07-28 or later answers with."""
_OLDER_STATUSES: Final = frozenset({400, 404, 405, 406, 415})
_REQUEST_HEADERS: Final = MappingProxyType({"Content-Type": "application/json"})
_CLIENT: Final = MappingProxyType({"name": "lifesign", "version": "1"})


class Generation(StrEnum):
    """Group of MCP versions that need the same kind of requests."""

    STATELESS = "stateless"
    """Requests without a session, since 2026-07-28."""
    HANDSHAKE = "handshake"
    """`initialize` first, 2025-03-26 to 2025-11-25."""
    EVENT_STREAM = "event_stream"
    """The same over HTTP with SSE, 2024-11-05: answers arrive in the event stream of a GET."""


@dataclass(frozen=True, slots=True)
class McpRequest:
    """One POST request to an MCP server: method, headers and body."""

    body: bytes
    headers: Mapping[str, str]
    request_id: int = NO_ID
    """Identifier of the answer; NO_ID for a notification, which has none."""

    @property
    def is_notification(self) -> bool:
        """Whether the request is a notification, which gets no answer."""
        return self.request_id == NO_ID


@dataclass(frozen=True, slots=True)
class McpSession:
    """What the first exchange with an MCP server determined, and later requests need."""

    generation: Generation
    version: str
    session_id: str | None = None
    """Session id of a handshake, if the server sent one."""

    def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        request_id: int,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> McpRequest:
        """Return a request of this session, with these headers in addition to those of the session."""
        if self.generation is Generation.STATELESS:
            params = {**(params or {}), "_meta": _meta(self.version)}
        return _request(method, params, {**self.headers, **headers}, request_id)

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of every request of this session. Methods may add others."""
        session = {} if self.session_id is None else {SESSION_HEADER: self.session_id}
        return {**_REQUEST_HEADERS, "MCP-Protocol-Version": self.version, **session}


@dataclass(frozen=True, slots=True)
class McpReply:
    """A server's answer to one request."""

    result: Mapping[str, Any] | None = None
    code: int | None = None
    """Code of a JSON-RPC error; None without one."""
    error_data: object = None

    @property
    def is_answer(self) -> bool:
        """Whether the server sent a JSON-RPC answer: a result or an error."""
        return self.result is not None or self.code is not None


NO_REPLY: Final = McpReply()


def discover_request(version: str = CURRENT_VERSION, *, request_id: int = FIRST_ID) -> McpRequest:
    """Return a request of the method `server/discover`."""
    session = McpSession(Generation.STATELESS, version)
    return session.request("server/discover", request_id=request_id)


def initialize_request(*, request_id: int = FIRST_ID) -> McpRequest:
    """Return a request of the method `initialize`, which begins a handshake."""
    params = {"protocolVersion": HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": dict(_CLIENT)}
    return _request("initialize", params, {}, request_id)


def initialized_notification(session: McpSession) -> McpRequest:
    """Return the notification `notifications/initialized`, which completes a handshake."""
    body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    return McpRequest(json.dumps(body).encode(), session.headers)


def ping_request(session: McpSession, *, request_id: int) -> McpRequest:
    """Return a request of the method `ping`, which shows whether a session works."""
    return session.request("ping", request_id=request_id)


def read_reply(content_type: str, body: bytes, request_id: int = FIRST_ID) -> McpReply:
    """Return the JSON-RPC answer to a request in an HTTP body; NO_REPLY if there is none.

    In an event stream, an event of another name than `message` is none. Messages with a `method` are requests
    and notifications of the server, and never its answer. The id must be that of the request, a number.
    """
    values = _values_of_stream(body) if content_type == EVENT_STREAM else iter((parse_or_none(body),))
    for value in values:
        for message in value if isinstance(value, list) else (value,):
            if isinstance(message, dict) and "method" not in message and _answers(message, request_id):
                return _read_message(message)
    return NO_REPLY


def is_discovered(reply: McpReply) -> bool:
    """Return whether this is a valid answer to `server/discover`."""
    versions = None if reply.result is None else reply.result.get("supportedVersions")
    return isinstance(versions, list) and any(isinstance(version, str) for version in versions)


def initialized_version(reply: McpReply) -> str | None:
    """Return the MCP version in a valid answer to `initialize`; None if the answer is not valid."""
    result = reply.result
    if result is None or not isinstance(result.get("capabilities"), dict):
        return None
    version = result.get("protocolVersion")
    is_usable = isinstance(version, str) and 0 < len(version) <= MAX_VERSION_CHARS and version.isprintable()
    return version if is_usable and isinstance(version, str) and version.isascii() else None


def offered_version(reply: McpReply) -> str | None:
    """Return the newest supported version that a server names when it refuses ours; None if it names none."""
    if reply.code != UNSUPPORTED_VERSION or not isinstance(reply.error_data, dict):
        return None
    offered = reply.error_data.get("supported")
    versions = [
        version
        for version in (offered if isinstance(offered, list) else ())
        if isinstance(version, str) and len(version) == len(CURRENT_VERSION) and version.isascii()
        and version.replace("-", "").isdecimal() and version >= CURRENT_VERSION
    ]  # fmt: skip
    return max(versions, default=None)


def may_be_older(status: int, body: bytes, reply: McpReply) -> bool:
    """Return whether a server may be an older one that needs `initialize` instead of `server/discover`."""
    if is_discovered(reply) or reply.code in _ERRORS_OF_CURRENT:
        return False
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return bool(body)
    return status < HTTPStatus.MULTIPLE_CHOICES or status in _OLDER_STATUSES


def may_stream_answers(status: int, reply: McpReply) -> bool:
    """Return whether the server may be one of 2024, which answers `initialize` in an event stream."""
    return status in _OLDER_STATUSES and not reply.is_answer


def server_name(reply: McpReply) -> str:
    """Return the name and version that a server states, safe to show; empty if it states none."""
    result = reply.result or {}
    info = result.get("serverInfo")
    if not isinstance(info, dict):
        meta = result.get("_meta")
        info = meta.get("io.modelcontextprotocol/serverInfo") if isinstance(meta, dict) else None
    parts = (info.get("name"), info.get("version")) if isinstance(info, dict) else ()
    return " ".join(harmless(part[:MAX_NAME_CHARS]) for part in parts if isinstance(part, str) and part)


def usable_session(session_id: str) -> str | None:
    """Return a session id if it can be sent back (short printable ASCII), else None."""
    is_usable = 0 < len(session_id) <= MAX_SESSION_CHARS and all("!" <= char <= "~" for char in session_id)
    return session_id if is_usable else None


def _meta(version: str) -> Mapping[str, Any]:
    return {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": dict(_CLIENT),
        "io.modelcontextprotocol/clientCapabilities": {},
    }


def _request(
    method: str, params: Mapping[str, Any] | None, headers: Mapping[str, str], request_id: int
) -> McpRequest:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    if params is not None:
        message["params"] = params
    # Servers since 2026-07-28 require the method's name; older ones ignore it.
    sent = {**_REQUEST_HEADERS, "Mcp-Method": method, **headers}
    return McpRequest(json.dumps(message).encode(), sent, request_id)


def _values_of_stream(body: bytes) -> Iterator[object]:
    for number, (name, data) in enumerate(named_events(body)):
        if number >= MAX_EVENTS:
            return
        if name in MESSAGE_NAMES:
            # A stream is always in UTF-8, and the parser also knows others.
            yield None if 0 in data[:4] else parse_or_none(data)


def _answers(message: Mapping[str, Any], request_id: int) -> bool:
    given = message.get("id")
    return message.get("jsonrpc") == "2.0" and type(given) is int and given == request_id


def _read_message(message: Mapping[str, Any]) -> McpReply:
    error, result = message.get("error"), message.get("result")
    if isinstance(error, dict):
        code = error.get("code")
        # A number may have more digits than Python agrees to print.
        is_usable = type(code) is int and abs(code) < MAX_CODE
        return McpReply(code=code if is_usable else 0, error_data=error.get("data"))
    return McpReply(result=result) if isinstance(result, dict) else NO_REPLY
