"""Middleware and client import no module that only Unix or Linux has."""

import json
import os
import subprocess
import sys

import pytest
from tests.support.servers import REPOSITORY

from lifesign.cli.output.exit_codes import ExitCode

# Packages of others know where they run: they are imported before the modules are blocked.
BLOCK = """
import asyncio, importlib, pkgutil, subprocess, sys
import aiohttp, pydantic, typer
{packages}
for name in {blocked!r}:
    sys.modules[name] = None
"""
IMPORT_CLIENT = """
import lifesign.client
for module in pkgutil.walk_packages(lifesign.client.__path__, "lifesign.client."):
    importlib.import_module(module.name)
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
RUN_COMMAND = """
import os
from lifesign.cli import main

sys.exit(main(os.environ["ARGUMENTS"].split()))
"""
BLOCKED = (
    "crypt", "fcntl", "grp", "nis", "ossaudiodev", "posix", "pty", "pwd", "resource", "spwd", "syslog",
    "termios", "tty", "uvloop",
)  # fmt: skip


def run_without_unix(
    program: str, arguments: str = "", *, packages: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program; `packages`: an import statement of other packages that the program needs."""
    command = [sys.executable, "-c", BLOCK.format(blocked=BLOCKED, packages=packages) + program]
    variables = {**os.environ, "ARGUMENTS": arguments}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


def test_client_and_its_hooks_are_importable_without_the_modules_of_unix() -> None:
    done = run_without_unix(IMPORT_CLIENT, packages="import a2a.client, mcp")
    assert done.returncode == 0, done.stderr


def test_the_middleware_serves_without_the_modules_of_unix() -> None:
    # A state directory needs file locks, and is refused without them; the default needs none.
    done = run_without_unix(USE_MIDDLEWARE)
    assert done.returncode == 0, done.stderr


def test_check_and_validate_run_without_the_modules_of_unix() -> None:
    checked = run_without_unix(RUN_COMMAND, "check http://127.0.0.1:1 --json")
    assert checked.returncode == 3, checked.stderr
    assert json.loads(checked.stdout)["decision"]["action"] == "proceed_and_monitor"
    document = min((REPOSITORY / "schemas" / "examples" / "valid").glob("*.json"))
    validated = run_without_unix(RUN_COMMAND, f"validate {document}")
    assert validated.returncode == 0, validated.stderr


@pytest.mark.parametrize(("arguments", "module"), [("serve --port 0", "resource"), ("mcp", "fcntl")])
def test_a_command_that_needs_unix_names_the_module_that_is_absent(arguments: str, module: str) -> None:
    refused = run_without_unix(RUN_COMMAND, arguments)
    assert refused.returncode == ExitCode.USAGE
    first, hint = refused.stderr.splitlines()
    assert first.startswith("lifesign: ")
    assert module in first.split()
    assert hint.startswith("hint: ")


def test_check_detects_an_import_of_a_unix_module() -> None:
    done = run_without_unix("import lifesign.filesystem.file_lock")
    assert done.returncode == 1
    assert "fcntl" in done.stderr
