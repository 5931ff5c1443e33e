"""Prometheus endpoint of a crawl (`--metrics HOST:PORT`, `GET /metrics`).

It serves only numbers, without names of targets, and without authentication.
"""

import errno
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from lifesign.errors import InvalidValue
from lifesign.serving.errors import CannotListen

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client.core import Metric

PATH: Final = "/metrics"
MAX_ACCEPT_CHARACTERS: Final = 1_024
MAX_PORT: Final = 65_535
SHUTDOWN_SECONDS: Final = 1.0
"""Time for a running scrape to end."""
EXPECTED: Final = "an address and a port, such as 127.0.0.1:9109 or [::1]:9109"


def place_in(text: str) -> tuple[str, int]:
    """Return the address and the port of `HOST:PORT`; InvalidValue for anything else."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not (colon and host and port.isascii() and port.isdecimal() and len(port) <= len(str(MAX_PORT))):
        raise InvalidValue("--metrics", text, EXPECTED)
    if int(port) > MAX_PORT or (":" in host and not text.startswith("[")):
        raise InvalidValue("--metrics", text, EXPECTED)
    return host, int(port)


@asynccontextmanager
async def serving_metrics(
    place: str | None, families: "Callable[[], Iterable[Metric]]"
) -> AsyncIterator[int | None]:
    """Serve metrics until the end of the block, and yield the port; without an address nothing is served.

    InvalidValue for an invalid address, CannotListen if it is in use.
    """
    if place is None:
        yield None
        return
    from aiohttp import web  # noqa: PLC0415 - half of those who crawl never get here
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - may not be installed

    async def answer(request: "web.Request") -> "web.Response":
        encode, media_type = choose_encoder(request.headers.get("Accept", "")[:MAX_ACCEPT_CHARACTERS])
        headers = {"Content-Type": media_type, "Cache-Control": "no-store"}
        return web.Response(body=encode(_CrawlMetrics(families())), headers=headers)

    host, port = place_in(place)
    app = web.Application(client_max_size=0)
    app.router.add_get(PATH, answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            is_in_use = error.errno == errno.EADDRINUSE
            raise CannotListen(host, port, error.strerror or str(error), is_in_use=is_in_use) from None
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class _CrawlMetrics:
    """Collector for prometheus-client's encoders."""

    def __init__(self, found: "Iterable[Metric]") -> None:
        self._found = found

    def collect(self) -> "Iterable[Metric]":
        return self._found
