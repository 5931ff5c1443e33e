"""Authentication and limits of the HTTP server.

Only clients with the token are admitted, on this machine too: every user and program of a machine reaches its
loopback, as does a page in a browser, and the tools use the registry with the server's key. Nothing is
public, not even the list of tools.
"""

import asyncio
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lifesign.domain.parsing.surrogate_escapes import replace_half_pairs
from lifesign.errors import InvalidValue

PATH: Final = "/mcp"
MAX_BODY_BYTES: Final = 262_144
BODY_SECONDS: Final = 10.0
"""Time limit from a request's head to the end of its body."""
CALL_SECONDS: Final = 90.0
"""Time limit for all of one request, including the longest check of an agent."""
LINGER_SECONDS: Final = 5.0
"""Time for which the rest of a body that is too long is received, so that its client gets the answer."""
MAX_DROPPED_BYTES: Final = 16 * 1_048_576
"""Maximum size of this rest; the connection of a longer one is closed, and its client may get a reset."""
TOKEN_BYTES: Final = 32
MIN_TOKEN_CHARS: Final = 22
"""Minimum length of a token from outside: 128 bits, if it is random."""
MAX_TOKEN_CHARS: Final = 4_096

_TOKEN: Final = re.compile(r"[!-~]+")
_CLOSES: Final = {"connection": "close"}
_REFUSED: Final = -32_600
"""JSON-RPC's code of a request that is none."""
_FAILED: Final = -32_603
"""JSON-RPC's code of a failure of the server."""
_TOO_LONG: Final = (413, f"a body has at most {MAX_BODY_BYTES} bytes", _CLOSES)


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def check_token(token: str, name: str) -> str:
    """Return the token if it is strong enough.

    Raises InvalidValue otherwise; the error names `name` and does not contain the token.
    """
    if not (MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS and _TOKEN.fullmatch(token)):
        expected = f"a token of {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} visible ASCII characters"
        raise InvalidValue(name, None, expected)
    return token


class Guard:
    """ASGI app that admits only requests with the token to another app."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        *,
        body_seconds: float = BODY_SECONDS,
        call_seconds: float = CALL_SECONDS,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._app = app
        self._digest = _digest(token.encode("ascii"))
        self._body_seconds = body_seconds
        self._call_seconds = call_seconds
        self._linger_seconds = linger_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is _TOO_LONG:
            await self._refuse_long(receive, send, is_more=True)
        elif refusal is not None:
            await refuse(send, *refusal)
        else:
            await self._bounded(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        is_known = hmac.compare_digest(_digest(token.strip()), self._digest)
        if scheme.lower() != b"bearer" or not is_known:
            text = "this server requires its token: Authorization: Bearer ..."
            return 401, text, {"www-authenticate": 'Bearer realm="lifesign"'}
        if scope["path"] != PATH:
            return 404, f"the MCP endpoint is {PATH}", {}
        if scope["method"] != "POST":
            # There are no sessions to end, and nothing is sent without a question.
            return 405, "only POST is allowed here", {"allow": "POST"}
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if any(_is_too_long(value) for value in lengths):
            return _TOO_LONG
        return None

    async def _refuse_long(self, receive: Receive, send: Send, *, is_more: bool) -> None:
        """Refuse a body that is too long, and receive the rest of it if `is_more`.

        A connection that is closed while its client still sends is reset, and the answer is lost.
        """
        await refuse(send, *_TOO_LONG, is_whole=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._linger_seconds):
                await _drop_rest(receive, is_more=is_more)
        await send({"type": "http.response.body", "body": b""})

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on once it has arrived, if neither it nor its answer takes too long.

        It ends when its client leaves: a call that no client waits for would keep its place.
        """
        try:
            async with asyncio.timeout(self._body_seconds):
                body, is_more = await _body(receive)
        except TimeoutError:
            await refuse(send, 408, _late(self._body_seconds), _CLOSES)
            return
        except ClientDisconnect:
            return
        if len(body) > MAX_BODY_BYTES:
            await self._refuse_long(receive, send, is_more=is_more)
            return
        body = replace_half_pairs(body)
        read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        has_begun = False

        async def receive_read() -> Message:
            return read.pop() if read else await receive()

        async def send_noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        answering = asyncio.ensure_future(self._app(scope, receive_read, send_noting))
        leaves = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait(
                {answering, leaves}, timeout=self._call_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if answering.done():
                answering.result()
                return
            has_left = leaves.done()
        except asyncio.CancelledError:
            # uvicorn cancels the remaining calls at its end, logs their number, and would log each with its
            # traceback and answer 500.
            if not has_begun:
                await _answer_unknown(send, 503, "the server ends")
            return
        finally:
            leaves.cancel()
            answering.cancel()
            await asyncio.gather(leaves, answering, return_exceptions=True)
        # An answer that was started and is cut off is recognised by its client.
        if not has_begun and not has_left:
            await _answer_unknown(send, 504, _late(self._call_seconds))


async def _drop_rest(receive: Receive, *, is_more: bool) -> None:
    """Receive the rest of a body, up to MAX_DROPPED_BYTES of it."""
    left_bytes = MAX_DROPPED_BYTES
    while is_more and left_bytes > 0:
        message = await receive()
        left_bytes -= len(message.get("body", b""))
        is_more = message.get("more_body", False)


def _is_too_long(length: bytes) -> bool:
    """Return whether a body of this declared length is too long."""
    digits = length.strip().lstrip(b"0")
    return digits.isdigit() and (len(digits) > len(str(MAX_BODY_BYTES)) or int(digits) > MAX_BODY_BYTES)


async def _body(receive: Receive) -> tuple[bytes, bool]:
    """Return a body up to the piece that makes it too long, and whether there is more; ClientDisconnect."""
    body, is_more = bytearray(), True
    while is_more and len(body) <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        is_more = message.get("more_body", False)
    return bytes(body), is_more


async def _disconnected(receive: Receive) -> None:
    """Wait until the client has left; its request has arrived already."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _late(seconds: float) -> str:
    return f"it took longer than {seconds:g} s"


def _digest(token: bytes) -> bytes:
    # Digests have the same length, so that the comparison does not reveal the token's.
    return sha256(token).digest()


async def refuse(
    send: Send,
    status: int,
    message: str,
    headers: Mapping[str, str] = MappingProxyType({}),
    *,
    is_whole: bool = True,
) -> None:
    """Refuse a request by a JSON-RPC error. Some MCP clients show neither status nor text of other bodies."""
    code = _FAILED if status >= HTTPStatus.INTERNAL_SERVER_ERROR else _REFUSED
    members = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    await _answer(send, status, members, headers, is_whole=is_whole)


async def _answer_unknown(send: Send, status: int, message: str) -> None:
    """Answer a call that may have been executed: a JSON-RPC error would mean that it was not."""
    await _answer(send, status, {"error": message}, _CLOSES)


async def _answer(
    send: Send,
    status: int,
    members: Mapping[str, object],
    headers: Mapping[str, str],
    *,
    is_whole: bool = True,
) -> None:
    body = json.dumps(members).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": not is_whole})
