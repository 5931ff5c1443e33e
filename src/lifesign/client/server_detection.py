"""Detection of MCP servers: `server/discover`, else a handshake, else an event stream (HTTP with SSE).

Only for a URL that a person or a program named: two of the requests are POSTs.
"""

from typing import Final

from yarl import URL

from lifesign.domain.mcp.conversation import (
    ACCEPT,
    EVENT_STREAM,
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
    read_reply,
    usable_session,
)
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.answer import Answer
from lifesign.http_client.bounded_get import Ask, Get

MAX_ANSWER_BYTES: Final = 1024 * 1024
READ_RESULTS: Final = frozenset({
    ResultClass.OK, ResultClass.NOT_AN_AGENT, ResultClass.HTTP_ERROR,
})  # fmt: skip
"""Results with a complete answer, whose body may be that of an MCP server."""


async def is_mcp_server(get: Get, url: URL, deadline_s: float) -> bool:
    """Return whether `url` is the endpoint of an MCP server, by at most four requests.

    `deadline_s` is that of the event loop's clock, for all of them. A session that the server opens is ended.
    """
    answer, reply = await _post(get, url, discover_request(), deadline_s)
    if is_discovered(reply):
        return True
    if answer.result not in READ_RESULTS or not may_be_older(answer.status or 0, answer.body, reply):
        return False
    answer, reply = await _post(get, url, initialize_request(), deadline_s)
    if (version := initialized_version(reply)) is not None:
        await _end_session(get, answer, version, deadline_s)
        return True
    if answer.result not in READ_RESULTS or not may_stream_answers(answer.status or 0, reply):
        return False
    # The head shows the event stream, which may never end.
    ask = Ask(max_bytes=0, deadline_s=deadline_s, headers={"Accept": EVENT_STREAM}, is_head_enough=True)
    answer = await get(url, ask)
    return answer.result is ResultClass.OK and answer.content_type == EVENT_STREAM


async def _post(get: Get, url: URL, request: McpRequest, deadline_s: float) -> tuple[Answer, McpReply]:
    answer = await get(
        url,
        Ask(
            max_bytes=MAX_ANSWER_BYTES,
            deadline_s=deadline_s,
            body=request.body,
            headers={**request.headers, "Accept": ACCEPT},
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
