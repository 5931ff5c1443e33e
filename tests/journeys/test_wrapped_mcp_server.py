"""Real MCP servers, bare and wrapped, called by the official clients. Clients and servers are processes."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.support.official_clients import CLIENTS, CLIENTS_OF_EACH_RUN, Answers, OfficialClient, Plan, ask
from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.repetitions import in_faults
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

FORMS: Final = ("json:stateless", "sse:stateful", "json:stateful", "sse:stateless")
each_form = pytest.mark.parametrize("form", [*FORMS[:2], *in_faults(*FORMS[2:])])


@dataclass(frozen=True)
class Pair:
    """A bare server and a wrapped one, of one form."""

    bare: Server
    wrapped: Server


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Pair]]:
    """Starts the two servers of a form at its first use."""
    directory = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:

        @cache
        def started(form: str) -> Pair:
            return Pair(
                *(stack.enter_context(server(f"{wrap}:{form}", directory)) for wrap in ("bare", "wrapped"))
            )

        yield started


@pytest.fixture
def pair(pairs: Callable[[str], Pair], form: str) -> Pair:
    return pairs(form)


@contextmanager
def server(form: str, directory: Path) -> Iterator[Server]:
    command = [PYTHON, "-m", "uvicorn", "tests.support.mcp_app:app", "--port", "{port}"]
    command += ["--log-level", "warning"]
    log = directory / f"{form.replace(':', '-')}.log"
    with serving(command, log=log, env={"MCP_APP_FORM": form}, start=PreloadedProcess) as running:
        yield running


def counted(running: Server) -> Counter[str]:
    """Return the outcomes that a server has counted, without those that are in no ratio."""
    found = Counter(running.document()["extensions"][OUTCOMES])
    del found["excluded"]
    return found


def answers_from(client: OfficialClient, running: Server, directory: Path) -> Answers:
    url = f"http://127.0.0.1:{running.port}/mcp"
    return ask(client, Plan(CALLS, url=url, token="unused"), directory)


@pytest.mark.parametrize(
    ("form", "clients"),
    [
        pytest.param("sse:stateful", CLIENTS_OF_EACH_RUN, id="three clients"),
        *(pytest.param(form, CLIENTS, id=form, marks=pytest.mark.long) for form in FORMS),
    ],
)
def test_clients_get_the_same_answers_and_only_tool_calls_count(
    pair: Pair, clients: Sequence[OfficialClient], tmp_path: Path
) -> None:
    before = counted(pair.wrapped)
    for client in clients:
        answers = answers_from(client, pair.wrapped, tmp_path)
        assert answers == answers_from(client, pair.bare, tmp_path), client.name
        assert [answer["is_error"] for answer in answers.answers] == [False, True, True]
    calls = len(clients)
    until("all are counted", lambda: (counted(pair.wrapped) - before)["tool_error"] == 2 * calls or None)
    assert counted(pair.wrapped) - before == {"answered": calls, "tool_error": 2 * calls}


@each_form
def test_bytes_of_the_answers_are_those_of_the_bare_server(pair: Pair) -> None:
    assert conversation(pair.wrapped) == conversation(pair.bare)


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
