"""Bounded reading of a tool server's HTTP answers.

The SDK reads a whole JSON body before it looks at it. Therefore it is read here as it arrives. A call whose
answer is too long gets an error in the server's place, as does one that was never sent, or whose answer is
not MCP: the SDK's own errors do not distinguish these from a refusal. A refusal by HTTP alone gets an error
that names the status. Compressed answers are not accepted:
they could become arbitrarily large. For an event stream, all events together are bounded, and so is each of
them; each is passed on once it is complete, and an error in it counts as the server's own.

The SDK finds the call of an answer by the id in the answer. Therefore an answer that names another request
than its own is replaced by an error here. A GET stream may only answer the call whose stream it continues.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, Final

import httpx2
from mcp_types import INTERNAL_ERROR, JSONRPCError
from pydantic_core import from_json

from lifesign.adapter.tools.server_line import (
    MAX_UNANSWERED,
    NOT_SENT,
    SESSION_LOST,
    TOO_LONG,
    UNREADABLE,
    error_in,
    substitute_error,
)
from lifesign.adapter.tools.start_failures import reason_of
from lifesign.domain.parsing.surrogate_escapes import replace_half_pairs

UNAWAITED_SECONDS: Final = 30.0
"""Time for a server to take a notification, or an answer to its request."""
END_SECONDS: Final = 3.0
"""Time for a server to end a session (DELETE)."""
AS_IT_IS: Final = "identity"
"""The only encoding of a body that is requested and accepted."""
# Atomic: or the two bytes of one line's end would be two lines' ends.
_EVENT_END: Final = re.compile(rb"(?>\r\n|\r|\n){2}")
_MAX_END_BYTES: Final = 4
_DATA: Final = b"data:"
_ID: Final = b"id:"
# A wait of less than a second before the stream is requested again.
_SHORT_RETRY: Final = re.compile(rb"retry:[ ]?0*[0-9]{1,3}[\r\n]*")
MAX_WAIT_CHARS: Final = 40
"""Maximum length of a server's `Retry-After` in an error, which omits a longer one."""
MAX_INTERRUPTED: Final = 1_000
"""Maximum number of event streams of calls that the SDK may still continue by a GET request."""
_LAST_EVENT_HEADER: Final = "last-event-id"
_OTHER_CALL: Final = "the answer names another request"
_SESSION_HEADER: Final = "mcp-session-id"
_SESSION_ENDED: Final = "its session has ended"

_log = logging.getLogger("lifesign.adapter.tools")


class BoundedBodies(httpx2.AsyncBaseTransport):
    """HTTP transport that limits the number of bytes in each answer of another transport."""

    def __init__(self, transport: httpx2.AsyncBaseTransport, max_bytes: int, name: str) -> None:
        """Limit the answers of the tool server `name`."""
        self._transport = transport
        self._max_bytes = max_bytes
        self._name = name
        self._is_unauthorized = False
        self._calls: dict[str, Any] = {}
        """Request that each event stream answers, by the id of the stream's last event; the newest last."""
        self._unawaited: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the answer. A JSON answer is read completely before this returns.

        The SDK sends one message after the other. Therefore no call waits until the server has taken an
        answer to its request, or a notification; these are dropped while MAX_UNANSWERED of them wait.
        """
        # The body of a request that follows a redirect is a stream.
        await request.aread()
        if request.method == "DELETE":
            return await self._end_session(request)
        if not _is_unawaited(request):
            return await self._send(request)
        if len(self._unawaited) < MAX_UNANSWERED:
            sending = asyncio.create_task(self._send_unawaited(request))
            self._unawaited.add(sending)
            sending.add_done_callback(self._unawaited.discard)
        return httpx2.Response(HTTPStatus.ACCEPTED)

    async def aclose(self) -> None:
        """Close all connections."""
        sending = list(self._unawaited)
        for one in sending:
            one.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await self._transport.aclose()

    async def _end_session(self, request: httpx2.Request) -> httpx2.Response:
        try:
            async with asyncio.timeout(END_SECONDS):
                return await self._send(request)
        except TimeoutError:
            return httpx2.Response(HTTPStatus.GATEWAY_TIMEOUT)

    async def _send_unawaited(self, request: httpx2.Request) -> None:
        try:
            async with asyncio.timeout(UNAWAITED_SECONDS):
                response = await self._transport.handle_async_request(request)
                await response.aclose()
                if (redirected := _redirected(request, response)) is not None:
                    response = await self._transport.handle_async_request(redirected)
                    await response.aclose()
        except (httpx2.TransportError, TimeoutError) as error:
            # The next call finds whether the server is reachable.
            _log.debug("tool server %s did not take a message: %s", self._name, type(error).__name__)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = AS_IT_IS
        try:
            response = await self._transport.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            if not _is_call(request):
                raise
            return _error_response(request, NOT_SENT, reason_of(error))
        return await self._accepted(request, response)

    async def _accepted(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Return an answer that may be passed on, or its replacement."""
        if (fault := _fault_of(request, response)) is not None:
            await response.aclose()
            return _error_response(request, *fault)
        if _is_call(request):
            self._note_authorization(response)
        if request.method == "POST" and _is_of(response, "application/json"):
            return await self._accepted_json(request, response)
        if request.method == "POST" and response.is_client_error:
            await response.aclose()
            return _status_response(request, response)
        instead = _event(request, self._too_long()) if _is_of(response, "text/event-stream") else b""
        return _bounded(response, self._max_bytes, instead, self._relay_to(self._call_of(request)))

    def _call_of(self, request: httpx2.Request) -> Any:
        """Return the JSON-RPC id that answers to an HTTP request must name; None: there is no such answer."""
        if request.method == "POST":
            return _call_in(request)
        return self._calls.get(request.headers.get(_LAST_EVENT_HEADER, ""))

    def _relay_to(self, call: Any) -> Callable[[bytes], bytes]:
        """Return a function that prepares the events of one stream, which may only answer this call."""
        last_id = ""

        def relayed(event: bytes) -> bytes:
            nonlocal last_id
            if call is not None and (event_id := _event_id(event)):
                self._calls.pop(last_id, None)
                last_id = event_id
                self._calls[last_id] = call
                if len(self._calls) > MAX_INTERRUPTED:
                    del self._calls[next(iter(self._calls))]
            return _relayed_event(event, call)

        return relayed

    async def _accepted_json(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        try:
            body = await self._body_of(response)
        finally:
            await response.aclose()
        if body is None:
            return _error_response(request, TOO_LONG, self._too_long())
        error = error_in(body)
        if _refuses_session(request, response, error):
            return _error_response(request, SESSION_LOST, _SESSION_ENDED)
        if _is_call(request) and response.is_server_error and error is None:
            return _error_response(request, UNREADABLE, f"the answer has status {response.status_code}")
        if response.is_client_error and error is None:
            return _status_response(request, response)
        if response.is_success and _answers_another(body, _call_in(request)):
            return _error_response(request, UNREADABLE, _OTHER_CALL)
        content = body if error is None else _written(error)
        return httpx2.Response(response.status_code, headers=_without_length(response), content=content)

    def _note_authorization(self, response: httpx2.Response) -> None:
        """Log that the server refuses the adapter's credentials; once until it accepts a call again."""
        was_unauthorized = self._is_unauthorized
        self._is_unauthorized = response.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
        if self._is_unauthorized and not was_unauthorized:
            _log.warning(
                "tool server %s refuses calls with HTTP %d: check its headers in the tools file",
                self._name,
                response.status_code,
            )

    def _too_long(self) -> str:
        return f"the answer has more than {self._max_bytes} bytes"

    async def _body_of(self, response: httpx2.Response) -> bytes | None:
        """Return a body; None for one that is too long, of which the rest is not read."""
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > self._max_bytes:
                return None
        return replace_half_pairs(bytes(body))


class _BoundedStream(httpx2.AsyncByteStream):
    """A body of which so much is read, event for event, and then something else in place of the rest."""

    def __init__(
        self,
        stream: httpx2.AsyncByteStream,
        max_bytes: int,
        instead: bytes,
        relayed: Callable[[bytes], bytes],
    ) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._instead = instead
        self._relayed = relayed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read_bytes = 0
        begun = bytearray()
        async for part in self._stream:
            read_bytes += len(part)
            if read_bytes > self._max_bytes:
                yield self._instead
                return
            seen_bytes = len(begun)
            begun += part
            while end := _EVENT_END.search(begun, max(0, seen_bytes - _MAX_END_BYTES)):
                yield self._relayed(bytes(begun[: end.end()]))
                del begun[: end.end()]
                seen_bytes = 0
        yield self._relayed(bytes(begun))

    async def aclose(self) -> None:
        await self._stream.aclose()


def _bounded(
    response: httpx2.Response, max_bytes: int, instead: bytes, relayed: Callable[[bytes], bytes]
) -> httpx2.Response:
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - it came over a socket
    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        stream=_BoundedStream(response.stream, max_bytes, instead, relayed),
        extensions=response.extensions,
    )


def _is_of(response: httpx2.Response, media_type: str) -> bool:
    return bool(response.headers.get("content-type", "").lower().startswith(media_type))


def _is_call(request: httpx2.Request) -> bool:
    return request.method == "POST" and json.loads(request.content or b"{}").get("method") == "tools/call"


def _is_unawaited(request: httpx2.Request) -> bool:
    """Return whether a request is a notification or the answer to a request of the server.

    `initialized` is excluded: a server may refuse calls before it.
    """
    if request.method != "POST":
        return False
    method = str(json.loads(request.content or b"{}").get("method", ""))
    return not method or (method.startswith("notifications/") and method != "notifications/initialized")


def _redirected(request: httpx2.Request, response: httpx2.Response) -> httpx2.Request | None:
    """Return the request that follows a redirect within the origin, as the SDK does; None without one."""
    location = response.headers.get("location", "")
    if response.status_code not in {HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT}:
        return None
    try:
        url = request.url.join(location)
    except httpx2.InvalidURL:
        return None
    origins = {(each.scheme, each.host, each.port) for each in (request.url, url)}
    if url.userinfo or len(origins) > 1:
        return None
    return httpx2.Request(request.method, url, headers=request.headers, content=request.content)


def _fault_of(request: httpx2.Request, response: httpx2.Response) -> tuple[int, str] | None:
    """Return code and text of a fault that the head of an answer shows; None for an answer to be read."""
    if response.headers.get("content-encoding", AS_IT_IS).strip().lower() != AS_IT_IS:
        return UNREADABLE, "the answer is compressed, although that was not requested"
    if _is_call(request) and _leaves_outcome_open(response):
        return UNREADABLE, f"the answer has status {response.status_code}"
    if not _is_of(response, "application/json") and _refuses_session(request, response, None):
        return SESSION_LOST, _SESSION_ENDED
    return None


def _leaves_outcome_open(response: httpx2.Response) -> bool:
    """Return whether an answer to a call leaves open whether the call was executed. Redirects and 4xx do not.

    A proxy that has waited for too long answers 502 or 504.
    """
    if response.is_server_error:
        return not _is_of(response, "application/json")
    is_readable = _is_of(response, "application/json") or _is_of(response, "text/event-stream")
    return response.status_code == HTTPStatus.ACCEPTED or (response.is_success and not is_readable)


def _refuses_session(request: httpx2.Request, response: httpx2.Response, error: JSONRPCError | None) -> bool:
    """Return whether the answer to a call refuses its session, not the call.

    MCP prescribes 404 for an unknown session. Many servers answer 400, with an error that names no request.
    """
    if not _is_call(request) or _SESSION_HEADER not in request.headers:
        return False
    if error is None:
        return response.status_code == HTTPStatus.NOT_FOUND
    is_refused = response.status_code in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}
    return is_refused and error.id != _call_in(request)


def _event(request: httpx2.Request, words: str) -> bytes:
    """Return the event that ends a call."""
    call = _call_in(request)
    return b"" if call is None else _event_of([b"event: message"], substitute_error(call, TOO_LONG, words))


def _event_id(event: bytes) -> str:
    """Return the id of an event; empty if it has none."""
    ids = [line[len(_ID) :].removeprefix(b" ") for line in event.splitlines() if line.startswith(_ID)]
    return ids[-1].decode(errors="replace") if ids else ""


def _answers_another(body: bytes, call: Any) -> bool:
    """Return whether a JSON-RPC answer belongs to another request. An error may name none."""
    try:
        message = from_json(body)
    except ValueError:
        return False
    if not isinstance(message, dict) or not {"result", "error"} & message.keys():
        return False
    named = message.get("id")
    if named is None and "error" in message:
        return False
    if call is None:
        return True
    # As in the SDK, for which the texts of numbers are numbers.
    return str(named) != str(call)


def _relayed_event(event: bytes, call: Any) -> bytes:
    """Return a server's event for the SDK: only its error and half surrogate pairs may be changed.

    An answer to another request than `call` becomes an error, or nothing if `call` is None.

    A `retry` of less than a second is omitted: the SDK would request the stream again without a pause.
    """
    whole = replace_half_pairs(event).splitlines(keepends=True)
    event = b"".join(line for line in whole if not _SHORT_RETRY.fullmatch(line))
    lines = event.splitlines()
    data = b"\n".join(line[len(_DATA) :].removeprefix(b" ") for line in lines if line.startswith(_DATA))
    error = error_in(data)
    if _answers_another(data, call):
        error = None if call is None else substitute_error(call, UNREADABLE, _OTHER_CALL)
        if error is None:
            return b""
    if error is None:
        return event
    return _event_of([line for line in lines if line and not line.startswith(_DATA)], error)


def _event_of(fields: list[bytes], error: JSONRPCError) -> bytes:
    return b"\n".join([*fields, _DATA + b" " + _written(error), b"", b""])


def _written(error: JSONRPCError) -> bytes:
    return error.model_dump_json(by_alias=True, exclude_unset=True).encode()


def _call_in(request: httpx2.Request) -> Any:
    """Return the JSON-RPC id of a request; None for a notification, which gets no answer."""
    return json.loads(request.content or b"{}").get("id")


def _without_length(response: httpx2.Response) -> list[tuple[str, str]]:
    """Return the headers except those about the transfer of the body."""
    travel = {"content-length", "transfer-encoding"}
    return [(name, value) for name, value in response.headers.multi_items() if name not in travel]


def _error_response(request: httpx2.Request, code: int, words: str) -> httpx2.Response:
    """Return an error of ours as the answer to a request; a notification gets none."""
    call = _call_in(request)
    if call is None:
        return httpx2.Response(202)
    return _json_response(200, substitute_error(call, code, words))


def _status_response(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """Return a refusal without a JSON-RPC error as one that names the status, which the SDK leaves out."""
    call, status = _call_in(request), response.status_code
    # The SDK distinguishes an unknown session from an unknown method.
    if call is None or status == HTTPStatus.NOT_FOUND:
        return httpx2.Response(status)
    wait = response.headers.get("retry-after", "")
    # Not cut: a text that was cut may end within a secret.
    words = f"HTTP {status} (Retry-After: {wait})" if 0 < len(wait) <= MAX_WAIT_CHARS else f"HTTP {status}"
    return _json_response(status, substitute_error(call, INTERNAL_ERROR, words))


def _json_response(status: int, error: JSONRPCError) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=_written(error))
