"""Official MCP servers of each generation in TypeScript, probed from outside. Servers are processes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.official_clients import NODE_ROOT
from tests.support.probing import layer, probing, results
from tests.support.servers import REPOSITORY, free_port, serving

from lifesign.domain.mcp.conversation import Generation

PROGRAMS = REPOSITORY / "tests" / "support" / "typescript"
EVERYTHING = NODE_ROOT / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
HELLO: Mapping[str, Any] = {"tool": "hello"}
ECHO: Mapping[str, Any] = {"tool": "echo", "arguments": {"message": "hello"}, "allow_side_effects": True}


@contextmanager
def server(name: str, log: Path) -> Iterator[str]:
    """Serve until the block ends; yield the origin."""
    node, port = str(NODE_ROOT / "bin" / "node"), free_port()
    assert EVERYTHING.exists(), f"{EVERYTHING} is absent; `make {NODE_ROOT.name}/.installed`"
    command = [node, "--require", str(PROGRAMS / "loopback.cjs"), str(EVERYTHING), name]
    if name == "stateless":
        command = [node, str(PROGRAMS / "stateless_server.mjs"), str(NODE_ROOT), "{port}"]
    with serving(command, log=log, port=port, env={"PORT": str(port)}) as running:
        yield f"http://127.0.0.1:{running.port}"


@pytest.mark.parametrize(
    ("name", "path", "generation", "requests"),
    [
        ("stateless", "/mcp", Generation.STATELESS, (3, 3)),
        ("streamableHttp", "/mcp", Generation.HANDSHAKE, (7, 6)),
        ("sse", "/sse", Generation.EVENT_STREAM, (8, 6)),
    ],
)
async def test_tool_of_an_official_server_is_called(
    tmp_path: Path, name: str, path: str, generation: Generation, requests: tuple[int, int]
) -> None:
    """`requests`: those of a first probe and of a second one, the tool call included."""
    call = HELLO if name == "stateless" else ECHO
    with server(name, tmp_path / "server.log") as origin:
        url = f"{origin}{path}"
        target = {
            "url": url,
            "kind": "mcp",
            "ask": {"health": False, "tools": True, "call": call},
            "assertions": [{"of": "tool", "text_contains": "hello"}],
        }
        async with probing(targets=[target]) as probes:
            first = await probes.report(url)
            again = await probes.report(url)
            assert probes.memory.mcp_generation is generation
    for report in (first, again):
        seen = report.observation
        assert results(seen) == {"discovery": "ok", "transport": "ok", "message": "ok"}
        assert layer(seen.tools).result == "ok"
        assert [each.result for each in seen.assertions or ()] == ["ok"]
    assert (first.requests, again.requests) == requests
