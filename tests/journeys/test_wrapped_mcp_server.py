"""Real MCP servers, bare and wrapped, called by the official clients. Clients and servers are processes."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.support.official_clients import CLIENTS, CLIENTS_OF_EACH_RUN, Answers, OfficialClient, Plan, ask
from tests.support.servers import Server, serving, until

CALLS: Final[Sequence[tuple[str, Mapping[str, Any]]]] = (
    ("double", {"number": 21}),
    ("double", {"number": "x"}),
    ("fail", {}),
)
OUTCOMES: Final = "io.github.lifesign.outcomes"
CALL: Final[dict[str, Any]] = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "double", "arguments": {"number": 4}},
}
HEADERS: Final = {"accept": "application/json, text/event-stream"}
SESSION: Final = "mcp-session-id"

each_form = pytest.mark.parametrize(
    "form",
    [
        "json:stateless",
        "sse:stateful",
        pytest.param("json:stateful", marks=pytest.mark.long),
        pytest.param("sse:stateless", marks=pytest.mark.long),
    ],
)


@contextmanager
def server(form: str, directory: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "uvicorn", "tests.support.mcp_app:app", "--port", "{port}"]
    log = directory / f"{form.replace(':', '-')}.log"
    with serving([*command, "--log-level", "warning"], log=log, env={"MCP_APP_FORM": form}) as running:
        yield running


def outcomes(running: Server) -> dict[str, int]:
    counted: dict[str, int] = running.document()["extensions"][OUTCOMES]
    return counted


def answers_from(client: OfficialClient, running: Server, directory: Path) -> Answers:
    url = f"http://127.0.0.1:{running.port}/mcp"
    return ask(client, Plan(CALLS, url=url, token="unused"), directory)


@each_form
@pytest.mark.parametrize("clients", [
    pytest.param(CLIENTS_OF_EACH_RUN, id="three clients"),
    pytest.param(CLIENTS, id="all clients", marks=pytest.mark.long),
])  # fmt: skip
def test_clients_get_the_same_answers_and_only_tool_calls_count(
    form: str, clients: Sequence[OfficialClient], tmp_path: Path
) -> None:
    with server(f"bare:{form}", tmp_path) as bare, server(f"wrapped:{form}", tmp_path) as wrapped:
        for client in clients:
            answers = answers_from(client, wrapped, tmp_path)
            assert answers == answers_from(client, bare, tmp_path), client.name
            assert [answer["is_error"] for answer in answers.answers] == [False, True, True]
        calls = len(clients)
        expected = {"answered": calls, "tool_error": 2 * calls}
        until("all calls are counted", lambda: outcomes(wrapped).get("tool_error") == 2 * calls or None)
        counted = outcomes(wrapped)
    assert {name: counted[name] for name in counted if name != "excluded"} == expected


@each_form
def test_bytes_of_the_answers_are_those_of_the_bare_server(form: str, tmp_path: Path) -> None:
    with server(f"bare:{form}", tmp_path) as bare, server(f"wrapped:{form}", tmp_path) as wrapped:
        assert conversation(wrapped) == conversation(bare)


def conversation(running: Server) -> list[Any]:
    """Return all answers of a session, without its id, the ids of events and the time."""
    shaking = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    url = f"http://127.0.0.1:{running.port}/mcp"
    found = []
    with httpx.Client(headers=HEADERS, trust_env=False, timeout=30) as http:
        begun = http.post(url, json={**CALL, "method": "initialize", "params": shaking})
        if SESSION in begun.headers:
            http.headers[SESSION] = begun.headers[SESSION]
        http.headers["mcp-protocol-version"] = "2025-11-25"
        found.append(begun)
        found.append(http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}))
        found.extend(
            http.post(url, json={**CALL, **more}) for more in ({}, {"method": "tools/list", "params": {}})
        )
        found.append(http.post(url, json={**CALL, "method": "unheard/of"}))
        found.append(http.post(url, content=b"no JSON", headers={"content-type": "application/json"}))
        found.append(http.post(url, json=CALL, headers={"accept": "text/html"}))
        found.append(http.delete(url))
        found.append(http.post(url, json=CALL))
    return [normalised(one) for one in found]


def normalised(response: httpx.Response) -> tuple[int, list[tuple[str, str]], str]:
    headers = [
        (name, "" if name in {SESSION, "date"} else value) for name, value in response.headers.multi_items()
    ]
    return response.status_code, headers, re.sub(r"(?m)^id: .*$", "id: ", response.text)
