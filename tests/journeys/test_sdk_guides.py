"""The agents of the SDK guides answer, and their failures are counted.

The SDKs exclude one another or need a hundred packages: they are installed in environments of their own
by `make test-sdks`. Each agent is the guide's own file, on a real socket.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.a2a_serving import OUTCOMES
from tests.support.servers import REPOSITORY, Server, serving, until

OLD_LINE = REPOSITORY / ".venv-a2a03" / "bin" / "python"
SDKS = REPOSITORY / ".venv-sdks" / "bin" / "python"
CARD_PATH = "/.well-known/agent-card.json"


def _call(method: str, message: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}


def call_10(text: str) -> dict[str, Any]:
    return _call("SendMessage", {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}]})


def call_03(text: str) -> dict[str, Any]:
    parts = [{"kind": "text", "text": text}]
    return _call("message/send", {"kind": "message", "messageId": "m-1", "role": "user", "parts": parts})


def question(text: str) -> dict[str, Any]:
    return {"text": text} if text != "fail" else {}


def bare_message(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"type": "text", "text": text}]}


@dataclass(frozen=True)
class Guide:
    """One example, the request to it, and the outcome of a failure in it."""

    app: str
    python: Path
    directory: str
    ask: Any
    failure: str = "task_failed"
    headers: dict[str, str] = field(default_factory=dict)
    answers_later: bool = False
    path: str = "/"


def _in_sdks(guide: Guide) -> Any:
    return pytest.param(guide, marks=pytest.mark.sdks)


V1 = {"A2A-Version": "1.0"}
GUIDES = [
    Guide("a2a_agent", Path(sys.executable), "docs/examples", call_10, headers=V1),
    Guide("a2a03_agent", OLD_LINE, "docs/examples/sdks", call_03),
    _in_sdks(Guide("adk_agent", SDKS, "docs/examples/sdks", call_03)),
    _in_sdks(Guide("fasta2a_agent", SDKS, "docs/examples/sdks", call_10, "raised", V1, answers_later=True)),
    _in_sdks(Guide("flask_agent", SDKS, "docs/examples/sdks", question, "server_fault", path="/ask")),
    _in_sdks(Guide("python_a2a_agent", SDKS, "docs/examples/sdks", bare_message, "server_fault")),
    _in_sdks(Guide("strands_agent", SDKS, "docs/examples/sdks", call_03)),
]


@pytest.fixture(scope="module", params=GUIDES, ids=lambda guide: str(guide.app))
def guide(request: pytest.FixtureRequest) -> Guide:
    found: Guide = request.param
    if not found.python.exists():
        pytest.skip(f"NOT TESTED: {found.python} is absent; `make test-sdks` makes it")
    return found


@pytest.fixture(scope="module")
def agent(guide: Guide, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    command = [str(guide.python), "-m", "uvicorn", "--app-dir", guide.directory, f"{guide.app}:app"]
    log = tmp_path_factory.mktemp("guide") / "log"
    source = {"PYTHONPATH": str(REPOSITORY / "src")}
    with serving([*command, "--port", "{port}"], log=log, env=source) as server:
        yield server


def test_card_of_a_guide_agent_links_to_the_health_document(guide: Guide, agent: Server) -> None:
    answer = agent.raw(f"GET {CARD_PATH} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    # Agents that do not support A2A have no card.
    assert answer.startswith(b"HTTP/1.1 200" if guide.path == "/" else b"HTTP/1.1 404")
    assert b'link: </.well-known/agent-health>; rel="status"' in answer


def test_answers_and_failures_are_counted(guide: Guide, agent: Server) -> None:
    def ask(body: object) -> str:
        headers = {"Content-Type": "application/json", **guide.headers}
        _, reply = agent.send(guide.path, method="POST", body=json.dumps(body).encode(), **headers)
        return reply.decode()

    # A bridge from WSGI ends a request a moment after its answer: the last one may not be there.
    ask(guide.ask("fail"))
    reply = [ask(guide.ask("hello")) for _ in range(11)]
    if guide.answers_later:
        task = {"id": json.loads(reply[-1])["result"]["task"]["id"]}
        poll = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": task}
        reply = [until("the work is done", lambda: answer if "asked" in (answer := ask(poll)) else None)]
    assert all("You asked: hello" in answer for answer in reply)
    outcomes = agent.document()["extensions"][OUTCOMES]
    assert outcomes["answered"] in {10, 11}
    assert outcomes[guide.failure] == 1
