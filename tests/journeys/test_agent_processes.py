"""Shutdown of agent processes on signals, and survival of one killed worker."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.linked_environment import AGENT_ID, linked_environment
from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer, registry_server
from tests.support.servers import PATIENCE_SECONDS, Server, serving, until

from lifesign.client import RegistryClient
from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE
from lifesign.domain.access.permissions import Role
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.agents import AgentRecord
from lifesign.serving.ending_signals import REPEAT_SECONDS

pytestmark = pytest.mark.fault

T = TypeVar("T")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryServer]:
    with registry_server(tmp_path) as server:
        yield server


def ask(registry: RegistryServer, function: Callable[[RegistryClient], Awaitable[T]]) -> T:
    async def asked() -> T:
        async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
            return await function(client)

    return asyncio.run(asked())


def record(registry: RegistryServer, agent_id: str) -> AgentRecord:
    return ask(registry, lambda client: client.agents.get(agent_id))


def steps(registry: RegistryServer, agent_id: str) -> list[tuple[str, str]]:
    """An agent's changes of status, and why."""

    async def read(client: RegistryClient) -> list[tuple[str, str]]:
        page = await client.events.list(agent_id=agent_id, types=["agent.lifecycle"])
        return [(str(event.payload["new_status"]), str(event.payload["reason"])) for event in page.events]

    return ask(registry, read)


# --- stopping one process ------------------------------------------------------------------------------


@contextmanager
def reporter(registry: RegistryServer, directory: Path) -> Iterator[PreloadedProcess]:
    with PreloadedProcess(
        [PYTHON, "docs/examples/declared_agent.py", directory / "reporter.key"],
        env={**os.environ, URL_VARIABLE: registry.url, KEY_VARIABLE: KEYS[Role.ENROLL]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: PreloadedProcess) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def hand_in(process: PreloadedProcess, task: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{task}\n".encode())
    process.stdin.flush()


def test_second_sigterm_ends_a_draining_agent_at_once(registry: RegistryServer, tmp_path: Path) -> None:
    with reporter(registry, tmp_path) as process:
        assert line(process) == "registered, incarnation 1"
        hand_in(process, "1")
        assert line(process) == "begun: 1"
        process.send_signal(signal.SIGTERM)
        assert [line(process) for _ in range(3)] == [
            "draining",
            "report after 1 s",
            "left: finished",
        ]
        assert process.wait(PATIENCE_SECONDS) == 0
    assert steps(registry, "reporter-1")[-2:] == [
        ("draining", "drain_initiated"),
        ("deregistered", "deregistered"),
    ]
    with reporter(registry, tmp_path) as process:
        # With its own key, which it kept: the enrolling key cannot take over an agent.
        assert line(process) == "registered, incarnation 2"
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
    assert record(registry, "reporter-1").status is Status.ACTIVE
    with reporter(registry, tmp_path) as process:
        assert line(process) == "registered, incarnation 3"
        hand_in(process, "1000")
        assert line(process) == "begun: 1000"
        process.send_signal(signal.SIGTERM)
        assert line(process) == "draining"
        time.sleep(REPEAT_SECONDS)
        process.send_signal(signal.SIGTERM)
        rest = [line(process) for _ in range(2)]
        assert "left: dropped" in rest
        assert process.wait(PATIENCE_SECONDS) == 0
    assert record(registry, "reporter-1").status is Status.DEREGISTERED


# --- several worker processes ------------------------------------------------------------------------------


def who_beats(server: Server, but_not: int | None = None) -> int | None:
    with contextlib.suppress(OSError):
        answer: dict[str, Any] = json.loads(server.send("/who")[1])
        if answer["beats"] and answer["pid"] != but_not:
            return int(answer["pid"])
    return None


def workers(directory: Path) -> int:
    """Return how many workers have joined: their files, with those of killed ones until the next check."""
    return len(list((directory / "crew").glob("load-*")))


def test_killed_heartbeat_worker_is_replaced_within_the_incarnation(
    registry: RegistryServer, tmp_path: Path
) -> None:
    command = [
        PYTHON, "-m", "uvicorn", "tests.support.linked_app:app", "--workers", "2", "--port", "{port}",
        "--log-level", "warning", "--timeout-graceful-shutdown", "1",
    ]  # fmt: skip
    environment = linked_environment(registry.url, KEYS[Role.ENROLL], tmp_path)
    with serving(command, log=tmp_path / "uvicorn.log", env=environment, start=PreloadedProcess) as server:
        until("both workers are there", lambda: workers(tmp_path) == 2)
        beating = until("a worker beats", partial(who_beats, server))
        until("it is registered", (tmp_path / "linked.key").exists)
        callers = [threading.Thread(target=_wait, args=(server,), daemon=True) for _ in range(6)]
        for caller in callers:
            caller.start()
        until("all are counted", lambda: record(registry, AGENT_ID).capacity.current_load == 6)
        os.kill(beating, signal.SIGKILL)
        until("another one beats", lambda: who_beats(server, but_not=beating))
        killed = record(registry, AGENT_ID)
        until(
            "it is heard",
            lambda: record(registry, AGENT_ID).last_heartbeat_at != killed.last_heartbeat_at,
        )
        after = record(registry, AGENT_ID)
        assert (after.status, after.incarnation) == (Status.ACTIVE, 1)
        # The requests of the killed worker are gone; the kernel distributed them between the workers.
        assert after.capacity.current_load <= 6
        until("the killed one has a successor", lambda: workers(tmp_path) == 2)
    assert record(registry, AGENT_ID).status is Status.DEREGISTERED
    # Nothing was superseded on the way. A drain is completed by the agent's request or by a sweep before it.
    reasons = [reason for _, reason in steps(registry, AGENT_ID)]
    assert reasons[0] == "registered"
    assert reasons[-1] in {"deregistered", "drain_completed"}
    assert set(reasons[1:-1]) <= {"drain_initiated"}
    # uvicorn sets up its own loggers only.
    assert "INFO agent linked-1: registered, incarnation 1" in (tmp_path / "uvicorn.log").read_text()


def _wait(server: Server) -> None:
    # The server ends, or the worker is killed, before it answers.
    with contextlib.suppress(OSError, HTTPException):
        server.send("/wait")
