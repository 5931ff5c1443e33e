"""How are the two descriptions of the API served? (`GET /openapi.json`, `GET /docs`)

Both are made when they are first asked for, and are the same bytes from then on. They hold nothing but
what is public anyway, so no key is asked for.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from lifesign.registry.api.operations import Operation
from lifesign.registry.openapi.api_page import HEADERS as PAGE_HEADERS
from lifesign.registry.openapi.api_page import api_page
from lifesign.registry.openapi.document import openapi_document, openapi_json

OPENAPI_PATH = "/openapi.json"
PAGE_PATH = "/docs"
MAX_AGE_SECONDS = 300


class ApiDocuments:
    """Answers for both; one per server process."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._openapi = _CachedBytes(lambda: openapi_json(operations), "application/json", {})
        self._page = _CachedBytes(lambda: api_page(openapi_document(operations)), "text/html", PAGE_HEADERS)

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        return await self._openapi.answer(request)

    async def page(self, request: Request) -> Response:
        """Return the page for people."""
        return await self._page.answer(request)


class _CachedBytes:
    """Bytes that are made once."""

    def __init__(self, make: Callable[[], bytes], media_type: str, headers: Mapping[str, str]) -> None:
        self._make = make
        self._media_type = media_type
        self._headers = {"Cache-Control": f"public, max-age={MAX_AGE_SECONDS}", **headers}
        self._content: bytes | None = None

    async def answer(self, request: Request) -> Response:
        if self._content is None:
            # Beside the event loop: it takes longer than a heartbeat may wait.
            self._content = await asyncio.to_thread(self._make)
            self._headers["ETag"] = f'"{sha256(self._content).hexdigest()[:32]}"'
        known = {
            tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")
        }
        if known & {self._headers["ETag"], "*"}:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, 200, self._headers, self._media_type)
