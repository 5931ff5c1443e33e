"""Sessions of a real opencode server become heartbeats at a real registry.

`make test-opencode` installs the server (npm) and runs this; no model is needed.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.registry_server import ADMIN_KEY, registry_server
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY, free_port, serving, until

from lifesign.activity.opencode import PASSWORD_VARIABLE

BINARIES = sorted((REPOSITORY / ".opencode" / "node_modules").glob("opencode-*/bin/opencode"))
PASSWORD = "sesame"
PROGRAM = "import sys; from lifesign.cli import main; sys.exit(main())"

pytestmark = pytest.mark.opencode


def answer_to(
    url: str, headers: Mapping[str, str], body: object = None, seconds: float = PATIENCE_SECONDS
) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})  # noqa: S310
    with urllib.request.urlopen(request, timeout=seconds) as response:  # noqa: S310
        text = response.read()
    return json.loads(text) if text else None


class Opencode:
    """A real server, and the requests to it."""

    def __init__(self, port: int, directory: Path) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.directory = directory

    def is_ready(self) -> bool:
        # opencode never answers a request that arrives as soon as it accepts connections.
        with suppress(OSError):
            return bool(self.ask("/global/health", seconds=2)["healthy"])
        return False

    def ask(self, path: str, body: object = None, seconds: float = PATIENCE_SECONDS) -> Any:
        login = b64encode(f"opencode:{PASSWORD}".encode()).decode()
        url = f"{self.url}{path}?directory={self.directory}"
        return answer_to(url, {"Authorization": f"Basic {login}"}, body, seconds)


@contextmanager
def opencode(home: Path, server: Opencode) -> Iterator[None]:
    if not BINARIES:
        pytest.skip("NOT TESTED against a real opencode server: it is absent; `make test-opencode` gets it")
    places = {f"XDG_{kind}_HOME": str(home / kind) for kind in ("DATA", "CONFIG", "STATE", "CACHE")}
    quiet = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    env = {"HOME": str(home), PASSWORD_VARIABLE: PASSWORD, **places, **quiet}
    command = [str(BINARIES[0]), "serve", "--hostname", "127.0.0.1", "--port", "{port}"]
    with serving(command, log=home / "opencode.log", port=server.port, env=env) as started:
        until("it answers", server.is_ready)
        try:
            yield
        finally:
            # Asked to end after a prompt that failed, it may not have ended a minute later.
            os.killpg(started.process.pid, signal.SIGKILL)


class Watching:
    """The running command and its messages."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.events: list[dict[str, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def texts(self, what: str) -> list[str]:
        return [event["text"] for event in self.events if event["what"] == what]

    def until(self, what: str, text: str = "", times: int = 1) -> None:
        until(
            f"{what} {text}, in {self.events}",
            lambda: sum(text in message for message in self.texts(what)) >= times,
            PATIENCE_SECONDS,
        )

    def ended(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code


@contextmanager
def watching(url: str, *options: str, env: Mapping[str, str]) -> Iterator[Watching]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "watch-activity", "opencode", url, "--json", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    ) as process:
        try:
            yield Watching(process)
        finally:
            process.kill()


def registered(registry: str, session_id: str) -> str:
    """Register an agent that works in this session, and return its key."""
    body = {
        "agent_id": "worker-1",
        "metadata": {"opencode_session": session_id},
        "heartbeat_config": {"interval_seconds": 6, "unhealthy_after_seconds": 20, "dead_after_seconds": 600},
    }
    return str(answer_to(f"{registry}/api/v1/agents", {"X-API-Key": ADMIN_KEY}, body)["agent_key"])


@pytest.mark.parametrize("is_one_directory", [True, False], ids=["/event", "/global/event"])
def test_opencode_session_activity_sends_heartbeats_for_its_agent(
    tmp_path: Path, *, is_one_directory: bool
) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    server = Opencode(free_port(), project)
    with registry_server(tmp_path) as registry:
        with opencode(home, server):
            session_id, other_id = (server.ask("/session", {})["id"] for _ in range(2))
            key_file = tmp_path / "key"
            key_file.write_text(registered(registry.url, session_id))
            key_file.chmod(0o600)
        options = ["--registry", registry.url, "--key-file", f"worker-1={key_file}"]
        options += ["--directory", str(project)] if is_one_directory else []
        with watching(server.url, *options, env={PASSWORD_VARIABLE: PASSWORD}) as seen:
            seen.until("server_unreachable", "no connection")
            with opencode(home, server):
                seen.until("heartbeat", "idle, and the server lives")
                server.ask(
                    f"/session/{session_id}/shell", {"agent": "build", "command": "sleep 7; echo done"}
                )
                seen.until("heartbeat", "session.status")
                seen.until("heartbeat", "session.idle")
                server.ask(f"/session/{other_id}/shell", {"agent": "build", "command": "true"})
                seen.until("unknown_session", other_id)
                model, hello = {"providerID": "nope", "modelID": "nope"}, [{"type": "text", "text": "hello"}]
                server.ask(f"/session/{session_id}/prompt_async", {"model": model, "parts": hello})
                seen.until("session_error", "Model not found: nope/nope")
            seen.until("server_unreachable", times=2)
            sent = len(seen.texts("heartbeat"))
            with opencode(home, server):
                seen.until("server_reachable", times=2)
                until("it beats again", lambda: len(seen.texts("heartbeat")) > sent, PATIENCE_SECONDS)
                assert seen.ended() == 0
        record = answer_to(f"{registry.url}/api/v1/agents/worker-1", {"X-API-Key": ADMIN_KEY})
    assert record["reported"]["current_load"] == 0
    assert len(seen.texts("ended")) == 1
    assert "ahk_" not in str(seen.events)
    assert PASSWORD not in str(seen.events)
