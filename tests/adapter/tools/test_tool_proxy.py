import asyncio
import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.registry_server import RegistryServer
from tests.support.repetitions import in_faults
from tests.support.servers import PATIENCE_SECONDS, until
from tests.support.tool_proxies import proxied, read

from lifesign.adapter.tools.proxy_context import ToolProxyContext
from lifesign.adapter.tools.tool_proxy import open_tool_proxy
from lifesign.client import RegistryClient
from lifesign.client.registry_tasks import HeldRun
from lifesign.domain.parsing.json_limits import is_plain

LIST = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
NOBODY = HeldRun(task_id=f"task_{'0' * 26}", run_id=f"run_{'0' * 26}", fencing_token=1)

SILENT = """
import asyncio, sys
import aiohttp
from lifesign.adapter.tools.proxy_context import ToolProxyContext
from lifesign.adapter.tools.tool_proxy import open_tool_proxy
from lifesign.client import RegistryClient
from lifesign.client.registry_tasks import HeldRun

HEAVY = {"mcp", "mcp_types", "uvicorn", "yaml", "sqlalchemy", "cryptography", "structlog", "rich"}

async def main():
    run = HeldRun(task_id="task_1", run_id="run_1", fencing_token=1)
    async with RegistryClient("http://127.0.0.1:9") as client:
        held = ToolProxyContext(
            registry=client, run=run, is_held=lambda: True, ended=print, budget_gone=print
        )
        async with open_tool_proxy(held, None) as opened, aiohttp.ClientSession() as session:
            await asyncio.sleep(0)
            print(sorted(HEAVY & set(sys.modules)))
            headers = {"Authorization": "Bearer " + opened.run_token, "Accept": "application/json"}
            asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            async with session.post(opened.url, json=asked, headers=headers) as answer:
                print(answer.status, sorted(HEAVY & set(sys.modules)))

asyncio.run(main())
"""

LOADED = """
import asyncio, sys
from lifesign.adapter.tools.proxy_context import ToolProxyContext
from lifesign.adapter.tools.tool_proxy import open_tool_proxy
from lifesign.adapter.tools.tools_file import Upstreams
from lifesign.client import RegistryClient
from lifesign.client.registry_tasks import HeldRun

async def main():
    run = HeldRun(task_id="task_1", run_id="run_1", fencing_token=1)
    search = {"command": ["true"], "tools": {"search": {"usd_per_call": 0}}}
    async with RegistryClient("http://127.0.0.1:9") as client:
        held = ToolProxyContext(
            registry=client, run=run, is_held=lambda: True, ended=print, budget_gone=print
        )
        async with open_tool_proxy(held, Upstreams.model_validate({"upstreams": {"search": search}})):
            while "lifesign.adapter.tools.proxy_server" not in sys.modules:
                await asyncio.sleep(0.01)
            print("loaded")

asyncio.run(main())
"""

STILL_SECONDS = 20
"""A loop that does nothing for so long stands still."""
MOST_IN_A_TURN = 15
"""Most messages of a hundred connections; in a loop that reads them itself it is nearly all."""
FLOOD = """
import sys, threading, urllib.request

headers = {"Authorization": "Bearer " + sys.argv[2], "Content-Type": "application/json"}
headers["Accept"] = "application/json"
asked = urllib.request.Request(sys.argv[1], sys.stdin.buffer.read(), headers)

def ask():
    while True:
        try:
            urllib.request.urlopen(asked, timeout=60).read()
        except OSError:
            pass

for _ in range(100):
    threading.Thread(target=ask).start()
"""

CHUNKS = """
import socket, sys, threading, urllib.parse

at = urllib.parse.urlsplit(sys.argv[1])
head = (
    f"POST {at.path} HTTP/1.1\\r\\nHost: {at.netloc}\\r\\nAuthorization: Bearer {sys.argv[2]}\\r\\n"
    "Content-Type: application/json\\r\\nAccept: application/json\\r\\n"
    "Transfer-Encoding: chunked\\r\\n\\r\\n"
)
bytes_of_a_body = b"1\\r\\n \\r\\n" * 10_000

def send():
    while True:
        try:
            with socket.create_connection((at.hostname, at.port), timeout=60) as connection:
                connection.sendall(head.encode())
                for _ in range(10):
                    connection.sendall(bytes_of_a_body)
                print("sent", flush=True)
                while True:
                    connection.sendall(bytes_of_a_body)
        except OSError:
            pass

for _ in range(100):
    threading.Thread(target=send).start()
"""


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": ""}, 401),
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
    ],
)
async def test_missing_run_token_gets_401_and_no_page(
    registry: RegistryServer, headers: dict[str, str], status: int
) -> None:
    name = f"guarded-{status}-{len(headers.get('Authorization', 'none'))}"
    async with (
        proxied(registry, name) as work,
        httpx2.AsyncClient(timeout=PATIENCE_SECONDS, trust_env=False) as http,
    ):
        assert work.open is not None
        fields = {
            "Authorization": f"Bearer {work.open.run_token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **headers,
        }
        answer = await http.post(work.open.url, content=LIST, headers=fields)
    assert answer.status_code == status


async def test_each_run_has_its_own_url_and_token_until_its_end() -> None:
    async with RegistryClient("http://127.0.0.1:9") as client:
        held = ToolProxyContext(
            registry=client, run=NOBODY, is_held=lambda: True, ended=lambda _: None, budget_gone=lambda: None
        )
        async with open_tool_proxy(held, None) as one, open_tool_proxy(held, read(upstreams={})) as other:
            assert one.url.startswith("http://127.0.0.1:")
            assert (one.url, one.run_token) != (other.url, other.run_token)
            assert one.run_token not in repr(one)
        async with httpx2.AsyncClient(timeout=PATIENCE_SECONDS, trust_env=False) as http:
            with pytest.raises(httpx2.ConnectError):
                await http.post(one.url)


async def test_pending_calls_end_with_the_block(registry: RegistryServer, tmp_path: Path) -> None:
    program = ["sh", "-c", "touch $0/began; tail -f /dev/null $0/began", str(tmp_path)]
    upstreams = read(upstreams={"slow": {"command": program, "tools": {"search": {"usd_per_call": 0}}}})
    async with (
        proxied(registry, "cut") as work,
        httpx2.AsyncClient(timeout=PATIENCE_SECONDS, trust_env=False) as http,
        open_tool_proxy(work.held, upstreams) as opened,
    ):
        headers = {"Authorization": f"Bearer {opened.run_token}", "Content-Type": "application/json"}
        headers["Accept"] = "application/json, text/event-stream"
        # The servers start with the first question for tools.
        asking = asyncio.create_task(http.post(opened.url, content=LIST, headers=headers))
        await asyncio.to_thread(until, "it is started", (tmp_path / "began").exists)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    ps = await asyncio.to_thread(subprocess.run, ["ps", "-eo", "args"], capture_output=True, text=True)
    assert str(tmp_path) not in ps.stdout


async def test_call_cut_off_by_the_end_of_its_run_is_not_reported(
    registry: RegistryServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = ["sh", "-c", "touch $0/began; tail -f /dev/null $0/began", str(tmp_path)]
    upstreams = read(upstreams={"slow": {"command": program, "tools": {"search": {"usd_per_call": 0}}}})
    async with proxied(registry, "cut-2") as work, httpx2.AsyncClient(timeout=30, trust_env=False) as http:
        async with open_tool_proxy(work.held, upstreams) as opened:
            headers = {"Authorization": f"Bearer {opened.run_token}", "Content-Type": "application/json"}
            headers["Accept"] = "application/json, text/event-stream"
            asking = asyncio.create_task(http.post(opened.url, content=LIST, headers=headers))
            await asyncio.to_thread(until, "it is started", (tmp_path / "began").exists)
        answer = await asking
    assert (answer.status_code, list(answer.json())) == (503, ["error"])
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_proxy_imports_are_deferred_until_an_agent_connects() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert ended.stdout == "[]\n200 ['cryptography', 'mcp', 'mcp_types', 'uvicorn']\n"


def test_server_is_loaded_before_the_first_connection_if_a_tools_file_names_servers() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert ended.stdout == "loaded\n"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("lifesign.adapter.tools.proxy_server", "is_plain"),
        ("lifesign.adapter.tools.proxied_calls", "read_arguments"),
    ],
)
async def test_event_loop_continues_while_a_message_is_read(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    read_in_earnest = getattr(importlib.import_module(module), name)
    begins, loop, goes_on = asyncio.Event(), asyncio.get_running_loop(), threading.Event()

    def read_slowly(*given: object, **named: object) -> object:
        loop.call_soon_threadsafe(begins.set)
        assert goes_on.wait(STILL_SECONDS), "the adapter's event loop is blocked"
        return read_in_earnest(*given, **named)

    async with proxied(registry, f"slow-{name.replace('_', '-')}") as work:
        monkeypatch.setattr(f"{module}.{name}", read_slowly)
        calling = asyncio.create_task(work.call("report_progress", {"summary": "begun", "nextStep": "go on"}))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await begins.wait()
        goes_on.set()
        assert not (await calling).is_error


@pytest.mark.parametrize("flood_messages", [50, *in_faults(110)])
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"name": "nope", "arguments": {"a": [[1]] * 25_000}}, id="no such tool"),
        pytest.param(
            {"name": "report_progress", "arguments": {"a": [[1]] * 25_000}}, id="a tool of the task"
        ),
    ],
)
async def test_event_loop_runs_between_messages_of_a_flooding_agent(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch, asked: Mapping[str, Any], flood_messages: int
) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked})
    messages = 0

    def read_counted(value: Any) -> bool:
        nonlocal messages
        messages += 1
        return is_plain(value)

    async with proxied(registry, f"flooded-{flood_messages}-{asked['name'].replace('_', '-')}") as work:
        assert work.open is not None
        monkeypatch.setattr("lifesign.adapter.tools.proxy_server.is_plain", read_counted)
        flood = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FLOOD, work.open.url, work.open.run_token, stdin=subprocess.PIPE
        )
        most_in_a_turn = 0
        try:
            assert flood.stdin is not None
            flood.stdin.write(body.encode())
            flood.stdin.close()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while messages < flood_messages:
                    before = messages
                    await asyncio.sleep(0.001)
                    most_in_a_turn = max(most_in_a_turn, messages - before)
        finally:
            flood.kill()
            await flood.wait()
        assert most_in_a_turn <= MOST_IN_A_TURN


async def test_run_ends_silently_while_the_agent_sends(
    registry: RegistryServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(registry, "sends-on") as work:
        assert work.open is not None
        flood = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHUNKS, work.open.url, work.open.run_token, stdout=subprocess.PIPE
        )
        assert flood.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(30):
                await flood.stdout.readline()
    flood.kill()
    await flood.wait()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []
