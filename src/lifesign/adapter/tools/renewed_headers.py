"""Renewal of a tool server's secret headers during a connection, such as an access token that expires."""

from collections.abc import Callable, Mapping
from http import HTTPStatus

import httpx2

from lifesign.errors import InvalidValue


class RenewedHeaders(httpx2.AsyncBaseTransport):
    """HTTP transport that reads the headers again if the server refuses a request with 401.

    If the server did not accept the former ones, and `read` returns others, the request is repeated once: a
    server that answers 401 has not executed it. Later requests carry the new headers.
    """

    def __init__(
        self,
        transport: httpx2.AsyncBaseTransport,
        sent: Mapping[str, str],
        read: Callable[[], Mapping[str, str]],
    ) -> None:
        """`sent` are the headers that the HTTP client adds to each request."""
        self._transport = transport
        self._sent = sent
        self._read = read
        self._current = sent

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the answer."""
        renewable = [name for name, value in self._sent.items() if request.headers.get(name) == value]
        self._renew(request, renewable)
        response = await self._transport.handle_async_request(request)
        if response.status_code != HTTPStatus.UNAUTHORIZED or not renewable:
            return response
        try:
            self._current = self._read()
        except InvalidValue:
            # For example, the file is being replaced: the next refusal reads it again.
            return response
        if not self._renew(request, renewable):
            return response
        await response.aclose()
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    def _renew(self, request: httpx2.Request, names: list[str]) -> bool:
        """Set the current values of these headers of a request; return whether one of them differs."""
        former = {name: request.headers[name] for name in names}
        current = {name: self._current[name] for name in names}
        request.headers.update(current)
        return current != former
