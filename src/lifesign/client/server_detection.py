"""Detection of MCP servers: `server/discover`, else a handshake, else an event stream (HTTP with SSE).

Only for a URL that a person or a program named: most of the requests are POSTs.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from yarl import URL

from lifesign.domain.mcp.conversation import (
    ACCEPT,
    CURRENT_VERSION,
    EVENT_STREAM,
    HANDSHAKE_VERSION,
    NO_REPLY,
    Generation,
    McpReply,
    McpRequest,
    McpSession,
    discover_request,
    initialize_request,
    initialized_version,
    is_discovered,
    may_be_older,
    may_stream_answers,
    offered_version,
    read_reply,
    server_name,
    usable_session,
)
from lifesign.domain.mcp.event_reader import ReplyReader
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.observation.server_answer import (
    READ_RESULTS,
    classify_failed_discovery,
    is_login_of_server,
)
from lifesign.http_client.answer import Answer
from lifesign.http_client.bounded_get import Ask, Get
from lifesign.http_client.mcp_event_stream import (
    ACCEPTED,
    NO_ANSWER,
    NO_ENDPOINT,
    OTHER_ORIGIN,
    McpEventStream,
)

MAX_ANSWER_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedServer:
    """Answer of a URL to the first requests of an MCP client."""

    answer: Answer
    """The answer that decided; its result is `ok` if an MCP server answered as one."""
    generation: Generation | None = None
    """Generation of MCP that the server speaks; None if it is unknown."""
    version: str | None = None
    """Version of MCP that the server named or accepted; None if it is unknown."""
    name: str = ""
    """Name and version that the server states, printable and bounded."""

    @property
    def is_server(self) -> bool:
        """Whether an MCP server answered, possibly with a request for a login."""
        return self.answer.result is ResultClass.OK or self.is_gated

    @property
    def is_gated(self) -> bool:
        """Whether an MCP server asked for a login."""
        return is_login_of_server(self.answer.result, self.answer.challenges)


async def detect_server(get: Get, url: URL, deadline_s: float) -> DetectedServer:
    """Ask whether `url` is the endpoint of an MCP server, by at most six requests.

    `deadline_s` is that of the event loop's clock, for all of them. A session or a stream that the server
    opens is ended.
    """
    version = CURRENT_VERSION
    answer, reply = await _post(get, url, discover_request(), deadline_s)
    if (offered := offered_version(reply)) is not None:
        version = offered
        answer, reply = await _post(get, url, discover_request(offered), deadline_s)
    if is_discovered(reply):
        return _found(answer, reply, Generation.STATELESS, version)
    if answer.result not in READ_RESULTS or not may_be_older(answer.status or 0, answer.body, reply):
        return _failed(answer, reply)
    answer, reply = await _post(get, url, initialize_request(), deadline_s)
    accepted = initialized_version(reply)
    await _end_session(get, answer, accepted or HANDSHAKE_VERSION, deadline_s)
    if accepted is not None:
        return _found(answer, reply, Generation.HANDSHAKE, accepted)
    if answer.result in READ_RESULTS and may_stream_answers(answer.status or 0, reply):
        # Without an event stream, the answer to the handshake is more informative.
        return await _detect_in_stream(get, url, deadline_s) or _failed(answer, reply)
    return _failed(answer, reply)


async def _detect_in_stream(get: Get, url: URL, deadline_s: float) -> DetectedServer | None:
    """Shake hands over HTTP with SSE; None if a GET opens no event stream."""
    stream = McpEventStream(url)
    ask = Ask(
        max_bytes=MAX_ANSWER_BYTES,
        deadline_s=deadline_s,
        headers={"Accept": EVENT_STREAM},
        is_enough=stream.feed,
    )
    task = asyncio.ensure_future(get(url, ask))
    task.add_done_callback(lambda _: stream.end())
    try:
        await stream.until_endpoint()
        if stream.endpoint is None:
            return _without_endpoint(await task, is_misled=stream.is_misled)
        request = initialize_request()
        stream.expect(request.request_id)
        answer, _ = await _post(get, stream.endpoint, request, deadline_s)
        if answer.status not in ACCEPTED:
            return _failed(answer, NO_REPLY)
        reply = await stream.reply()
    finally:
        task.cancel()
        await asyncio.wait({task})
    if reply is None:
        return DetectedServer(answer=replace(answer, result=ResultClass.TIMEOUT, reason=NO_ANSWER))
    if (accepted := initialized_version(reply)) is not None:
        return _found(answer, reply, Generation.EVENT_STREAM, accepted)
    return _failed(replace(answer, result=ResultClass.OK, reason=""), reply)


def _without_endpoint(streamed: Answer, *, is_misled: bool) -> DetectedServer | None:
    if streamed.content_type != EVENT_STREAM:
        return None
    if is_misled:
        streamed = replace(streamed, result=ResultClass.INVALID_DOCUMENT, reason=OTHER_ORIGIN)
    elif streamed.result is ResultClass.OK:
        streamed = replace(streamed, result=ResultClass.NOT_AN_AGENT, reason=NO_ENDPOINT)
    return DetectedServer(answer=streamed)


def _found(answer: Answer, reply: McpReply, generation: Generation, version: str) -> DetectedServer:
    # A server may answer a request with a status of its own.
    read = replace(answer, result=ResultClass.OK, reason="")
    return DetectedServer(answer=read, generation=generation, version=version, name=server_name(reply))


def _failed(answer: Answer, reply: McpReply) -> DetectedServer:
    result, reason = classify_failed_discovery(answer.result, answer.status, answer.reason, reply)
    return DetectedServer(answer=replace(answer, result=result, reason=reason))


async def _post(get: Get, url: URL, request: McpRequest, deadline_s: float) -> tuple[Answer, McpReply]:
    answer = await get(
        url,
        Ask(
            max_bytes=MAX_ANSWER_BYTES,
            deadline_s=deadline_s,
            body=request.body,
            headers={**request.headers, "Accept": ACCEPT},
            is_enough=ReplyReader(request.request_id).feed,
        ),
    )
    return answer, read_reply(answer.content_type, answer.body, request.request_id)


async def _end_session(get: Get, answer: Answer, version: str, deadline_s: float) -> None:
    """End the session of a handshake, if the server opened one. Servers that end none answer 405."""
    session_id = usable_session(answer.mcp_session)
    if session_id is None:
        return
    session = McpSession(Generation.HANDSHAKE, version, session_id)
    ask = Ask(
        max_bytes=0, deadline_s=deadline_s, headers=session.headers, is_delete=True, is_head_enough=True
    )
    await get(answer.url, ask)
