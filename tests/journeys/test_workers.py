"""Several worker processes report as one agent, also after crashes."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.repetitions import in_faults
from tests.support.servers import Server, serving, until

OUTCOMES = "io.github.lifesign.outcomes"
APP = "tests.support.worker_app:app"

# It may miss that a worker died until that one's timeout.
_GUNICORN = [
    "gunicorn", APP, "-k", "asgi", "-w", "{workers}", "-b", "127.0.0.1:{port}",
    "--graceful-timeout", "5", "--timeout", "5", "--no-control-socket",
]  # fmt: skip
COMMANDS = {
    "uvicorn": ["uvicorn", APP, "--workers", "{workers}", "--port", "{port}", "--log-level", "warning"],
    "gunicorn": _GUNICORN,
    "gunicorn-preload": [*_GUNICORN, "--preload"],
    "gunicorn-recycling": [*_GUNICORN, "--max-requests", "100", "--max-requests-jitter", "20"],
    "granian": [
        "granian", APP, "--interface", "asgi", "--workers", "{workers}", "--port", "{port}",
        "--respawn-failed-workers", "--respawn-interval", "0.1",
    ],
    "hypercorn": ["hypercorn", APP, "-w", "{workers}", "-b", "127.0.0.1:{port}"],
}  # fmt: skip
BY_INTERPRETERS = "hypercorn"
"""Its processes load all modules themselves; those of the other servers begin with them."""
EACH_SERVER = ["uvicorn", "gunicorn", "granian", "hypercorn"]
# With hypercorn, a killed worker takes all others with it; recycled ones end by themselves.
KILLED = [name for name in COMMANDS if name not in {"hypercorn", "gunicorn-recycling"}]


class Agent:
    """An agent that can be started again and again over the same state directory."""

    def __init__(self, name: str, directory: Path) -> None:
        self.workers = 2
        self.state_dir = directory / "state"
        self._command = COMMANDS[name]
        self._log = directory / "server.log"

    @contextmanager
    def running(self) -> Iterator[Server]:
        """Serve with all workers up, which have no traffic so far."""
        module, *arguments = self._command
        with serving(
            [PYTHON, "-m", module, *(part.replace("{workers}", str(self.workers)) for part in arguments)],
            log=self._log,
            env={"AGENT_STATE_DIR": str(self.state_dir)},
            start=subprocess.Popen if module == BY_INTERPRETERS else PreloadedProcess,
        ) as server:
            self.wait_for_workers(server)
            yield server

    def wait_for_workers(self, server: Server, but_not: int | None = None) -> set[int]:
        """Wait until all workers have answered, and none of them is `but_not`; return their ids.

        An answer is counted once it was sent: who answers again has counted all before.
        """
        seen: set[int] = set()

        def all_seen() -> bool:
            # Connections that a killed worker had not accepted yet are reset.
            with contextlib.suppress(ConnectionError):
                seen.update(ask(server, 2 * self.workers, "/pid"))
            return len(seen - {but_not}) >= self.workers

        until("all workers answer", all_seen)
        return seen - {but_not}

    def window_files(self) -> int:
        return len(list(self.state_dir.glob("*/worker-*.window")))


@pytest.fixture
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Agent:
    return Agent(request.param, tmp_path)


def ask(server: Server, requests: int, path: str = "/answer") -> list[int]:
    """Send so many requests, several at once; return which processes answered."""

    def one(_: int) -> int:
        return int(json.loads(server.send(path)[1])["pid"])

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(one, range(requests)))


def expect(server: Server, sent: dict[str, int], looks: int) -> None:
    """Wait until the worker reports exactly the sent number; it may never report more."""

    def all_agree() -> bool:
        for _ in range(looks):
            document = server.document()
            outcomes = document["extensions"][OUTCOMES]
            outcomes.pop("excluded", None)
            assert all(count <= sent[name] for name, count in outcomes.items()), (outcomes, sent)
            if outcomes != sent:
                return False
            assert document["calibration"]["sample_count"] == sum(sent.values())
        return True

    until(f"{looks} looks in a row find {sent}", all_agree)


@pytest.mark.parametrize(("failures", "workers"), [(40, 2), *in_faults((100, 4))])
@pytest.mark.parametrize(
    "agent", [*EACH_SERVER, *in_faults("gunicorn-preload", "gunicorn-recycling")], indirect=True
)
def test_workers_report_the_exact_sum_also_after_a_restart(agent: Agent, failures: int, workers: int) -> None:
    agent.workers = workers
    answered, looks = 9 * failures, failures // 2
    with agent.running() as server:
        pids = ask(server, answered)
        ask(server, failures, "/answer?status=500")
        assert len(set(pids)) > 1, "a single worker answered all requests"
        expect(server, {"answered": answered, "server_fault": failures}, looks)
    with agent.running() as server:
        ask(server, 10)
        expect(server, {"answered": answered + 10, "server_fault": failures}, looks)
        assert agent.window_files() <= agent.workers


def kill_workers(agent: Agent, kills: int, workers: int) -> None:
    agent.workers = workers
    by_age: list[int] = []
    with agent.running() as server:
        for number in range(1, kills + 1):
            ask(server, 20)
            # Kill the oldest worker: granian gives up if the same one dies twice within 5.5 s. Process ids do
            # not show it, since the kernel begins again with small ones.
            found = agent.wait_for_workers(server)
            by_age = [pid for pid in by_age if pid in found] + sorted(found.difference(by_age))
            victim = by_age.pop(0)
            os.kill(victim, signal.SIGKILL)
            agent.wait_for_workers(server, but_not=victim)
            expect(server, {"answered": 20 * number}, looks=10)
            assert agent.window_files() <= agent.workers


@pytest.mark.fault
@pytest.mark.parametrize(
    ("agent", "workers"), [("uvicorn", 2), ("granian", 4), *in_faults(("gunicorn", 4))], indirect=["agent"]
)
def test_killed_workers_lose_no_interaction_and_leave_no_files(agent: Agent, workers: int) -> None:
    kill_workers(agent, 3, workers)


@pytest.mark.fault
@pytest.mark.long
@pytest.mark.parametrize("agent", KILLED, indirect=True)
def test_repeatedly_killed_workers_lose_no_interaction_and_leave_no_files(agent: Agent) -> None:
    kill_workers(agent, 20, 4)


@pytest.mark.fault
@pytest.mark.parametrize("agent", ["uvicorn", *in_faults("gunicorn")], indirect=True)
def test_requests_that_kill_their_worker_make_the_agent_unhealthy(agent: Agent) -> None:
    """As those do that need too much memory: no worker lives to count them."""
    kills = 11
    with agent.running() as server:
        ask(server, 10)
        for _ in range(kills):
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                server.send("/crash", method="POST")
            agent.wait_for_workers(server)
        expect(server, {"answered": 10, "unfinished": kills}, looks=10)
        assert server.document()["health"]["status"] == "unhealthy"


@pytest.mark.parametrize("workers", [2, *in_faults(4)])
@pytest.mark.parametrize("agent", EACH_SERVER, indirect=True)
def test_disconnect_in_mid_stream_changes_no_ratio(agent: Agent, workers: int) -> None:
    agent.workers = workers
    with agent.running() as server:
        assert server.leave_midway("/stream", after_seconds=0.35).count(b"data:") > 1
        expect_abandoned(server)


def expect_abandoned(server: Server) -> None:
    """Wait until the server has noticed; gunicorn's own ASGI worker takes three seconds."""

    def is_counted() -> bool:
        document = server.document()
        outcomes = document["extensions"][OUTCOMES]
        outcomes.pop("excluded", None)
        assert outcomes.keys() <= {"abandoned"}, outcomes
        assert document["calibration"]["sample_count"] == 0
        return bool(outcomes == {"abandoned": 1})

    until("the caller who left is counted as such", is_counted)
