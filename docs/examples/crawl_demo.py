"""Demo: a crawl of a directory in which most targets do not work.

    make demo                                       or
    .venv/bin/python docs/examples/crawl_demo.py

Starts a registry and the targets of a small directory: two real A2A agents, one of which fails every second
request, and five targets that are not working agents. A crawl probes each target once, the registry
decides its status, and a census counts the results. Then one agent is killed, and a second crawl detects
this. Exits with 0 if every target got the expected result.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from demo_programs import COMMAND, PATIENCE_SECONDS, address, exit_with, first_line, process, say

from lifesign.client import RegistryClient
from lifesign.domain.targets.target import target_id

HERE = Path(__file__).parent
DEFINITION = HERE.parents[1] / "probes" / "demo.yml"
DATABASE = "registry.db"
MESSAGES = 20
"""Messages to each agent: its health document needs at least 10 samples."""
EXPECTED = {
    "well": "ok",
    "half": "ok",
    "gate": "gated",
    "page": "not_an_agent",
    "error": "http_error",
    "closed": "refused",
    "no name": "dns_failure",
}
"""Expected result of a probe of each target."""


def run(*arguments: str, environment: Mapping[str, str], directory: str) -> None:
    """Run a command as a user would, and show its output."""
    print(f"\n$ lifesign {' '.join(arguments)}", flush=True)
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=directory,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise SystemExit(f"the command ended with exit code {done.returncode}")


@asynccontextmanager
async def place(status: str, content_type: str, body: str) -> AsyncIterator[str]:
    """Serve the same answer to every request while the body runs, and yield the URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def talk(url: str) -> None:
    """Send an agent some messages; it answers each with HTTP 200, also if it failed."""
    async with aiohttp.ClientSession(headers={"A2A-Version": "1.0"}) as session:
        for number in range(MESSAGES):
            message = {"messageId": f"m{number}", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
            asked = {"jsonrpc": "2.0", "id": number, "method": "SendMessage", "params": {"message": message}}
            async with session.post(url + "/", json=asked) as answer:
                await answer.read()


async def until_document_counts(url: str) -> None:
    """Wait until an agent's health document, which is computed every second here, counts its messages."""
    deadline_s = time.monotonic() + PATIENCE_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline_s:
            async with session.get(f"{url}/.well-known/agent-health") as answer:
                if (await answer.json())["calibration"]["sample_count"] >= MESSAGES:
                    return
            await asyncio.sleep(0.1)
    raise SystemExit(f"{url} has no health document that counts its messages")


def write_directory(directory: str, urls: Mapping[str, str]) -> None:
    """Write a list of agents, and a probe definition that names the list."""
    Path(directory, "demo.yml").write_text(DEFINITION.read_text())
    Path(directory, "demo-agents.txt").write_text("".join(f"{url}\n" for url in urls.values()))


async def crawl(directory: str, environment: Mapping[str, str]) -> None:
    """Probe every target once."""
    arguments = ("crawl", "demo.yml", "--once", "--registry", environment["LIFESIGN_REGISTRY"])
    await asyncio.to_thread(run, *arguments, environment=environment, directory=directory)


async def check(directory: str, expected: Mapping[str, str]) -> None:
    """Compare the results of the targets with the expected ones."""
    arguments = [*COMMAND, "census", DATABASE, "--json"]
    taken = await asyncio.to_thread(subprocess.check_output, arguments, cwd=directory)
    found = {row["result"]: row["count"] for row in json.loads(taken)["results"]}
    if found != Counter(expected.values()):
        raise SystemExit(f"unexpected results of the targets: {found}")


async def follow(
    directory: str, environment: Mapping[str, str], agents: dict[str, "subprocess.Popen[str]"]
) -> None:
    """Run the demo."""
    async with (
        place("401 Unauthorized", "text/plain", "log in first") as gate,
        place("200 OK", "text/html", "<!doctype html><title>Buy this domain</title>") as page,
        place("500 Internal Server Error", "text/plain", "oops") as error,
        RegistryClient(environment["LIFESIGN_REGISTRY"], key=environment["LIFESIGN_KEY"]) as client,
    ):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
        urls = {kind: first_line(running) for kind, running in agents.items()}
        urls |= {
            "gate": gate,
            "page": page,
            "error": error,
            "closed": closed,
            "no name": "http://agent.invalid",
        }
        for kind in agents:
            await talk(urls[kind])
            await until_document_counts(urls[kind])
        write_directory(directory, urls)
        say(
            "a directory: two agents, a login (gated), a page, an error, a closed port, and a name that does "
            "not exist"
        )
        await crawl(directory, environment)
        await check(directory, EXPECTED)
        for kind in agents:
            record = await client.agents.get(target_id(f"{urls[kind]}/"))
            say(f"{kind} is {record.status} after its first liveness signal, and reports {record.health}")

        agents["well"].kill()
        agents["well"].wait()
        say("well is killed (SIGKILL)")
        await crawl(directory, environment)
        await check(directory, {**EXPECTED, "well": "refused"})
        record = await client.agents.get(target_id(f"{urls['well']}/"))
        interface = record.observed.transport if record.observed else None
        say(
            f"the probe of well is {interface and interface.result}, and well stays {record.status}: "
            "one failure is not enough"
        )
    command = ("census", DATABASE, "--output", "report")
    await asyncio.to_thread(run, *command, environment=environment, directory=directory)


def show_report(directory: str) -> None:
    """Show the beginning of the census."""
    report = Path(directory, "report", "census.md").read_text()
    print("\nFrom report/census.md:\n")
    print(report.partition("\n## Layer by layer")[0].partition("## How they ended")[2].strip())


def main() -> int:
    print("A small directory, and the verdicts about its targets (seconds since the start of this part):\n")
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-demo-"))
        environment = {
            "LIFESIGN_SERVER_DATABASE": f"sqlite:///{directory}/{DATABASE}",
            "LIFESIGN_SERVER_STATE_DIR": f"{directory}/state",
        }
        create = [*COMMAND, "keys", "create", "--role", "prober", "--name", "demo"]
        made = subprocess.run(
            create, env={**os.environ, **environment}, capture_output=True, text=True, check=True
        )
        environment["LIFESIGN_KEY"] = made.stdout.strip()
        server = stack.enter_context(process([*COMMAND, "serve", "--port", "0"], environment))
        environment["LIFESIGN_REGISTRY"] = address(server)
        script = str(HERE / "sample_agents.py")
        agents = {
            kind: stack.enter_context(process([sys.executable, script, kind], environment))
            for kind in ("well", "half")
        }
        asyncio.run(follow(directory, environment, agents))
        show_report(directory)
    return 0


if __name__ == "__main__":
    exit_with(main)
