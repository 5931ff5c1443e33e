"""HTTP connections to tool servers that count every received byte.

The limit of a body counts neither 1xx answers nor chunk extensions, and a server can send them without end.
"""

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore2
import httpx2

from lifesign.http_client.byte_counter import (
    MAX_BYTES_PER_BODY_BYTE,
    MAX_HEADER_BYTES,
    MAX_SPARE_BYTES,
    ByteCounter,
)


class CountedConnections(httpx2.AsyncHTTPTransport):
    """HTTP transport whose connections end if an answer takes too many bytes: httpx2.ReadError.

    The environment's proxies are ignored: the requests are for the server only. SSL_CERT_FILE is not.
    """

    def __init__(self, max_body_bytes: int) -> None:
        """`max_body_bytes`: the bytes of an answer's body that another transport reads at most."""
        tls = ssl.create_default_context()
        super().__init__(verify=tls, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(ssl_context=tls, network_backend=_CountingBackend())
        self._body_bytes = MAX_SPARE_BYTES + MAX_BYTES_PER_BODY_BYTE * max_body_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the answer, whose body is read later."""
        response = await super().handle_async_request(request)
        stream = response.extensions["network_stream"]
        if isinstance(stream, _CountedStream):
            stream.counter.limit_bytes += self._body_bytes
        return response


class _CountedStream(httpcore2.AsyncNetworkStream):
    """A connection whose counter begins again with each request."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self.counter = ByteCounter(MAX_HEADER_BYTES)
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        data = await self._inner.read(max_bytes, timeout)
        if not self.counter.receive(len(data)):
            raise httpcore2.ReadError("the answer takes too many bytes besides its body")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self.counter = ByteCounter(MAX_HEADER_BYTES)
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        return _CountedStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _CountingBackend(httpcore2.AnyIOBackend):
    """Opens connections that count."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _CountedStream(await super().connect_tcp(host, port, timeout, local_address, socket_options))
