"""How much is read of what a server at a URL answers, and what is said in place of more?

The SDK reads a JSON body whole before it looks at it. So it is read here, as it comes in, and the call whose
answer has no end is told so in the server's place. What is packed is not unpacked: a little of it may be
anything. Events are bounded one by one, by the SDK.
"""

import json
from typing import Final

import httpx2

from agent_health.adapter.server_line import TOO_LONG, UNREADABLE, answer_in_place

AS_IT_IS: Final = "identity"
"""The only encoding of a body that is asked for, and taken."""


class BoundedBodies(httpx2.AsyncBaseTransport):
    """Hands on what another transport brings, of JSON no more than so many bytes."""

    def __init__(self, transport: httpx2.AsyncBaseTransport, max_bytes: int) -> None:
        self._transport = transport
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Put a question; a JSON answer is there, whole, when this returns."""
        request.headers["accept-encoding"] = AS_IT_IS
        response = await self._transport.handle_async_request(request)
        if response.headers.get("content-encoding", AS_IT_IS).strip().lower() != AS_IT_IS:
            await response.aclose()
            return _in_place(request, UNREADABLE, "its answer is packed, though that was not asked for")
        is_json = response.headers.get("content-type", "").lower().startswith("application/json")
        if request.method != "POST" or not is_json:
            return response
        try:
            body = await self._body_of(response)
        finally:
            await response.aclose()
        if body is None:
            return _in_place(request, TOO_LONG, f"its answer has more than {self._max_bytes} bytes")
        return httpx2.Response(response.status_code, headers=_without_length(response), content=body)

    async def aclose(self) -> None:
        """Let all connections go."""
        await self._transport.aclose()

    async def _body_of(self, response: httpx2.Response) -> bytes | None:
        """Return a body; None for one that is too long, of which the rest is not read."""
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > self._max_bytes:
                return None
        return bytes(body)


def _without_length(response: httpx2.Response) -> list[tuple[str, str]]:
    """Return the headers but for those that tell how the body travelled."""
    travel = {"content-length", "transfer-encoding"}
    return [(name, value) for name, value in response.headers.multi_items() if name not in travel]


def _in_place(request: httpx2.Request, code: int, words: str) -> httpx2.Response:
    """Return an error of ours as the answer to what was asked; to what is no question there is none."""
    call = json.loads(request.content or b"{}").get("id")
    if call is None:
        return httpx2.Response(202)
    return httpx2.Response(
        200,
        headers={"content-type": "application/json"},
        content=answer_in_place(call, code, words).model_dump_json(by_alias=True, exclude_none=True),
    )
