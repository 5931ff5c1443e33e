"""Runs the command that serves tools in a separate process."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.support.preloaded import PROGRAM, PreloadedProcess
from tests.support.servers import PATIENCE_SECONDS

from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE

COMMAND = ("-c", "import sys; from lifesign.cli import main; sys.exit(main())", "mcp")


def settings(registry_url: str, key: str) -> dict[str, str]:
    """Return the environment that names a registry."""
    return {URL_VARIABLE: registry_url, KEY_VARIABLE: key}


@asynccontextmanager
async def by_stdio(*options: str, environment: Mapping[str, str], errors: Path) -> AsyncIterator[Client]:
    """Start it as a client would, and speak to it through its pipes."""
    started = StdioServerParameters(command=sys.executable, args=[*COMMAND, *options], env=dict(environment))
    with errors.open("w") as result:
        async with Client(stdio_client(started, errlog=result)) as client:
            yield client


@dataclass(frozen=True)
class HttpServer:
    """It serves on loopback."""

    process: "subprocess.Popen[bytes]"
    output: BinaryIO
    url: str
    token: str
    """Empty if it was not made by the server."""


@contextmanager
def http_server(options: Sequence[str], environment: Mapping[str, str]) -> Iterator[HttpServer]:
    """Start it on any free port; it is killed if it is still there at the end.

    Without a token file its output is a terminal, on which it shows a new token.
    """
    is_new = "--token-file" not in options
    reader, writer = os.openpty() if is_new else os.pipe()
    process = PreloadedProcess(
        [PROGRAM, "mcp", "--transport", "http", "--port", "0", *options],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", **environment},
    )
    os.close(writer)
    assert process.stderr is not None
    with os.fdopen(reader, "rb", buffering=0) as output, process.stderr:
        try:
            first = output.readline().decode().split()
            assert first, process.stderr.read()
            lines = [output.readline().decode() for _ in range(2)] if is_new else ["", ""]
            yield HttpServer(process, output, first[-1], lines[1].strip())
        finally:
            process.kill()
            process.wait()


@asynccontextmanager
async def by_http(
    server: HttpServer, token: str, *, mode: str = "auto", **more: str
) -> AsyncIterator[Client]:
    """Speak to it with a token and more headers, in the way of the SDK."""
    headers = {"Authorization": f"Bearer {token}", **more}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE_SECONDS, trust_env=False) as http,
        Client(streamable_http_client(server.url, http_client=http), mode=mode) as client,
    ):
        yield client
