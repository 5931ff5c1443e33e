"""How does a message reach the tool proxy over HTTP, and its answer go back? (MCP, streamable HTTP)

Behind the guard, which has asked for the token and read the message. That comes in one POST, and its answer
is one JSON object: there are no sessions, and no streams.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_health.adapter.proxy_answers import ProxyAnswers, Reply

JSON: Final = "application/json"
_TAKES_JSON: Final = frozenset({JSON, "application/*", "*/*"})


class ProxyApp:
    """An ASGI app; `hosts` are those that requests may name, and pages may come from.

    `most_at_once` messages are read and answered at a time; those beyond wait unread, since a message
    takes twenty times its size once it is read.
    """

    def __init__(self, answers: ProxyAnswers, hosts: Collection[str], *, most_at_once: int) -> None:
        self._answers = answers
        self._hosts = hosts
        self._places = asyncio.Semaphore(most_at_once)
        self._has_ended = False

    def end(self) -> None:
        """Read nothing more; from any thread."""
        self._has_ended = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = _headers_of(scope)
        reply = self._refusal(headers)
        if reply is None:
            whole = await receive()
            async with self._places:
                is_over = self._has_ended
                reply = _OVER if is_over else await self._answers.reply(whole["body"], headers)
        await _send_back(send, reply)

    def _refusal(self, headers: Mapping[str, str]) -> Reply | None:
        """Return what is answered to a request that is not meant for us, or not for a program."""
        if not headers.get("content-type", "").lower().startswith(JSON):
            return _refused(400, f"expected Content-Type: {JSON}")
        if not self._is_ours(headers.get("host", "")):
            return _refused(421, "expected this machine in Host")
        # A page that a browser was led to here by its own name says so in Host, and by whom in Origin.
        scheme, _, host = headers.get("origin", "http://localhost").partition("://")
        if scheme not in {"http", "https"} or not self._is_ours(host):
            return _refused(403, "expected no Origin, or this machine's")
        accepted = {one.partition(";")[0].strip().lower() for one in headers.get("accept", "").split(",")}
        if not accepted & _TAKES_JSON:
            return _refused(406, f"expected Accept: {JSON}")
        return None

    def _is_ours(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        return host in self._hosts or (name in self._hosts and port.isdecimal())


class Ending:
    """An ASGI app that ends what is under way in another one, before its server complains of it.

    A run's end is nothing out of the ordinary. Whoever asked is gone mostly, with the agent.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._has_ended = asyncio.Event()

    def end(self) -> None:
        """Answer nothing any more."""
        self._has_ended.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on until the end."""
        has_begun = False

        async def send_noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        answering = asyncio.ensure_future(self._app(scope, receive, send_noting))
        ends = asyncio.ensure_future(self._has_ended.wait())
        try:
            await asyncio.wait({answering, ends}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
                return
        finally:
            ends.cancel()
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        if not has_begun:
            await _send_back(send, _OVER)


async def _send_back(send: Send, reply: Reply) -> None:
    fields = [(b"content-length", b"%d" % len(reply.body))]
    if reply.body:
        fields.append((b"content-type", JSON.encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": fields})
    await send({"type": "http.response.body", "body": reply.body})


def _headers_of(scope: Scope) -> dict[str, str]:
    """Return all headers; one that stands there twice says both, which nothing is equal to."""
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return {name: ", ".join(values) for name, values in found.items()}


def _refused(status: int, text: str) -> Reply:
    return Reply(status, to_json({"error": text}))


_OVER: Final = _refused(503, "the run is over")
