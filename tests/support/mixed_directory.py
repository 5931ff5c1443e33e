"""A small directory of everything that a real one lists, on this machine."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.agent_check import card, document
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    HostileServer,
    Reply,
    answer,
    as_json,
    serving,
)
from tests.support.servers import free_port

DEFINITION = """\
name: mixed
contact: mailto:tests@agent.example
directories: [{file: agents.txt}]
networks: {allow: [127.0.0.0/8]}
opt_out: {robots_txt: false}
cadence: {allow_fast_cadence: true, interval_seconds: 1, confirm_after_seconds: 0.3}
timeouts: {dns_seconds: 30, connect_seconds: 30, first_byte_seconds: 30, total_seconds: 60}
limits: {per_host: 50, host_requests_per_second: 1000}
"""
ALIVE = ("healthy", "bare", "gated")
NOT_ALIVE = ("page", "broken", "closed")
PAGE = answer(200, b"<!doctype html><title>hello</title>", Content_Type="text/html")


def replies(kind: str, url: str) -> dict[str, Reply]:
    """Return the answers of such an agent at `url`."""
    match kind:
        case "healthy":
            return {CARD_PATH: as_json(card(url=f"{url}/")), HEALTH_PATH: as_json(document("healthy"))}
        case "bare":
            return {CARD_PATH: as_json(card(url=f"{url}/"))}
        case "gated":
            return {CARD_PATH: answer(401), HEALTH_PATH: answer(401)}
        case "broken":
            return {CARD_PATH: answer(500), HEALTH_PATH: answer(500)}
        case _:
            return {CARD_PATH: PAGE, HEALTH_PATH: PAGE}


@asynccontextmanager
async def mixed_directory(directory: Path) -> AsyncIterator[dict[str, HostileServer]]:
    """Serve one agent of each kind, and write `mixed.yml` and `agents.txt`; gives the servers by kind."""
    servers: dict[str, HostileServer] = {}
    async with AsyncExitStack() as stack:
        for kind in (*ALIVE, "page", "broken"):
            server = await stack.enter_async_context(serving({}))
            server.replies |= replies(kind, server.url)
            servers[kind] = server
        urls = [server.url for server in servers.values()]
        urls.append(f"http://127.0.0.1:{free_port()}")
        (directory / "mixed.yml").write_text(DEFINITION)
        (directory / "agents.txt").write_text("\n".join(urls) + "\n")
        yield servers
