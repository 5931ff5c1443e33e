"""Demo: a crawl of a directory in which most targets do not work.

    make demo                                       or
    .venv/bin/python docs/examples/crawl_demo.py

Starts a registry and the targets of a small directory: two real A2A agents, one of which fails every second
request, and the usual targets that are no working agents. A crawl probes each target once, the registry
decides its status, and a census counts. Then one agent is killed, and a second crawl finds it. Exits with 0
if every target got the expected result.
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
"""For each agent, so that it has something to say of itself."""
EXPECTED = {
    "well": "ok",
    "half": "ok",
    "gate": "gated",
    "page": "not_an_agent",
    "error": "http_error",
    "closed": "refused",
    "no name": "dns_failure",
}
"""How a probe of each of them has to end."""


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
        raise SystemExit(f"it ended with {done.returncode}")


@asynccontextmanager
async def place(status: str, content_type: str, body: str) -> AsyncIterator[str]:
    """Answer every request in the same way while the body runs; gives the URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def talk(url: str) -> None:
    """Send an agent some messages; it answers each with HTTP 200, whether it failed or not."""
    async with aiohttp.ClientSession(headers={"A2A-Version": "1.0"}) as session:
        for number in range(MESSAGES):
            message = {"messageId": f"m{number}", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
            asked = {"jsonrpc": "2.0", "id": number, "method": "SendMessage", "params": {"message": message}}
            async with session.post(url + "/", json=asked) as answer:
                await answer.read()


async def until_it_tells(url: str) -> None:
    """Wait until an agent's health document knows of its messages: it is renewed every second here."""
    deadline_s = time.monotonic() + PATIENCE_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline_s:
            async with session.get(f"{url}/.well-known/agent-health") as answer:
                if (await answer.json())["calibration"]["sample_count"] >= MESSAGES:
                    return
            await asyncio.sleep(0.1)
    raise SystemExit(f"{url} knows nothing of its messages")


def write_directory(directory: str, urls: Mapping[str, str]) -> None:
    """Write a list of agents, and the definition that names it."""
    Path(directory, "demo.yml").write_text(DEFINITION.read_text())
    Path(directory, "demo-agents.txt").write_text("".join(f"{url}\n" for url in urls.values()))


async def crawl(directory: str, environment: Mapping[str, str]) -> None:
    """Ask every target once."""
    arguments = ("crawl", "demo.yml", "--once", "--registry", environment["LIFESIGN_REGISTRY"])
    await asyncio.to_thread(run, *arguments, environment=environment, directory=directory)


async def check(directory: str, expected: Mapping[str, str]) -> None:
    """Compare how the targets ended with how they have to end."""
    arguments = [*COMMAND, "census", DATABASE, "--json"]
    taken = await asyncio.to_thread(subprocess.check_output, arguments, cwd=directory)
    found = {row["result"]: row["count"] for row in json.loads(taken)["results"]}
    if found != Counter(expected.values()):
        raise SystemExit(f"not all were seen as what they are: {found}")


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
            await until_it_tells(urls[kind])
        write_directory(directory, urls)
        say(
            "a directory: two agents, a gate, a page, an error, a closed port, and a name that does not exist"
        )
        await crawl(directory, environment)
        await check(directory, EXPECTED)
        for kind in agents:
            record = await client.agents.get(target_id(f"{urls[kind]}/"))
            say(f"{kind} is {record.status} by its first liveness signal, and calls itself {record.health}")

        agents["well"].kill()
        agents["well"].wait()
        say("well is killed (SIGKILL)")
        await crawl(directory, environment)
        await check(directory, {**EXPECTED, "well": "refused"})
        record = await client.agents.get(target_id(f"{urls['well']}/"))
        interface = record.observed.transport if record.observed else None
        say(
            f"well was seen {interface and interface.result}, and is {record.status}: one failure is no death"
        )
    command = ("census", DATABASE, "--output", "report")
    await asyncio.to_thread(run, *command, environment=environment, directory=directory)


def show_report(directory: str) -> None:
    """Show what stands at the beginning of the census."""
    report = Path(directory, "report", "census.md").read_text()
    print("\nFrom report/census.md:\n")
    print(report.partition("\n## Layer by layer")[0].partition("## How they ended")[2].strip())


def main() -> int:
    print("A small directory, and what becomes of it:\n")
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
