"""Middleware and client import no module that only Unix or Linux has."""

import subprocess
import sys

# Packages of others know where they run: they are imported before the modules are blocked.
BLOCK = """
import asyncio, importlib, pkgutil, subprocess, sys
import aiohttp, pydantic, typer

for name in {blocked!r}:
    sys.modules[name] = None
"""
IMPORT_CLIENT = """
import lifesign.client
for module in pkgutil.iter_modules(lifesign.client.__path__, "lifesign.client."):
    importlib.import_module(module.name)
importlib.import_module("lifesign.client.hooks.call_guard")
for name in lifesign.client.__all__:
    getattr(lifesign.client, name)
"""
USE_MIDDLEWARE = """
import lifesign.middleware
from lifesign import AgentHealthMiddleware

async def agent(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})

async def ask(path):
    sent = []
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "headers": []}
    await app(scope, receive, send)
    return sent[0]["status"]

app = AgentHealthMiddleware(agent, agent_id="https://agent.test/")
assert asyncio.run(ask("/")) == 204
assert asyncio.run(ask("/.well-known/agent-health")) == 200
"""
BLOCKED = (
    "crypt", "fcntl", "grp", "nis", "ossaudiodev", "posix", "pty", "pwd", "resource", "spwd", "syslog",
    "termios", "tty", "uvloop",
)  # fmt: skip


def run_without_unix(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK.format(blocked=BLOCKED) + program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_module_of_the_client_is_importable_without_the_modules_of_unix() -> None:
    done = run_without_unix(IMPORT_CLIENT)
    assert done.returncode == 0, done.stderr


def test_the_middleware_serves_without_the_modules_of_unix() -> None:
    # A state directory needs file locks, and is refused without them; the default needs none.
    done = run_without_unix(USE_MIDDLEWARE)
    assert done.returncode == 0, done.stderr


def test_the_check_finds_a_module_of_unix() -> None:
    done = run_without_unix("import lifesign.filesystem.file_lock")
    assert done.returncode == 1
    assert "fcntl" in done.stderr
