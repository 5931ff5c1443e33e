"""The OpenAPI document as the server serves it (`GET /openapi.json`).

It is generated at the first request, and the same bytes are served from then on. It contains only what is
public, so no key is required.
"""

import asyncio
from collections.abc import Sequence
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from lifesign.registry.openapi.document import openapi_json
from lifesign.registry.request_handling.operation import Operation

OPENAPI_PATH = "/openapi.json"
MAX_AGE_SECONDS = 300


class OpenapiEndpoint:
    """Answers for the OpenAPI document; one per server process."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self._headers = {"Cache-Control": f"public, max-age={MAX_AGE_SECONDS}"}
        self._content: bytes | None = None

    async def answer(self, request: Request) -> Response:
        """Return the document, or 304 if the client has it."""
        if self._content is None:
            # In a thread: it takes longer than a heartbeat may wait.
            self._content = await asyncio.to_thread(openapi_json, self._operations)
            self._headers["ETag"] = f'"{sha256(self._content).hexdigest()[:32]}"'
        known = {
            tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")
        }
        if known & {self._headers["ETag"], "*"}:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, 200, self._headers, "application/json")
