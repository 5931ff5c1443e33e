"""A real fastmcp server, bare and wrapped, called by the official clients and probed, in a process."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.official_clients import CLIENTS_OF_EACH_RUN, OfficialClient, Plan, ask, each_client
from tests.support.probing import layer, probing, results
from tests.support.servers import REPOSITORY, Server, serving, until

from lifesign.client import fetch_health

PYTHON = REPOSITORY / ".venv-fastmcp" / "bin" / "python"
OUTCOMES = "io.github.lifesign.outcomes"
CALLS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("double", {"number": 21}),
    ("double", {"number": "x"}),
    ("fail", {}),
)


@contextmanager
def server(name: str, directory: Path, form: str = "sse:stateful") -> Iterator[Server]:
    """Serve `app` or `wrapped` until the block ends."""
    assert PYTHON.exists(), f"{PYTHON} is absent: make .venv-fastmcp/.installed"
    command = [str(PYTHON), "-m", "uvicorn", f"tests.support.fastmcp_app:{name}", "--port", "{port}"]
    log, variables = directory / f"{name}.log", {"FASTMCP_APP_FORM": form}
    with serving([*command, "--log-level", "warning"], log=log, env=variables) as running:
        yield running


def url_of(running: Server) -> str:
    return f"http://127.0.0.1:{running.port}/mcp"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server("app", tmp_path_factory.mktemp("bare")) as running:
        yield running


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server("wrapped", tmp_path_factory.mktemp("wrapped")) as running:
        yield running


def counted(running: Server) -> Counter[str]:
    """Return the outcomes that a server has counted, without those that are in no ratio."""
    found = Counter(running.document()["extensions"][OUTCOMES])
    del found["excluded"]
    return found


@each_client
def test_clients_get_the_same_answers_and_only_tool_calls_count(
    client: OfficialClient, bare: Server, wrapped: Server, tmp_path: Path
) -> None:
    before = counted(wrapped)
    both = [ask(client, Plan(CALLS, url=url_of(one), token="unused"), tmp_path) for one in (bare, wrapped)]
    assert both[0] == both[1]
    assert [answer["is_error"] for answer in both[0].answers] == [False, True, True]
    until("all are counted", lambda: (counted(wrapped) - before)["tool_error"] == 2 or None)
    assert counted(wrapped) - before == {"answered": 1, "tool_error": 2}


@pytest.mark.long
@pytest.mark.parametrize("form", ["json:stateless", "json:stateful", "sse:stateless"])
def test_clients_get_the_same_answers_in_each_form(form: str, tmp_path: Path) -> None:
    with server("app", tmp_path, form) as bare, server("wrapped", tmp_path, form) as wrapped:
        for client in CLIENTS_OF_EACH_RUN:
            plans = [Plan(CALLS, url=url_of(one), token="unused") for one in (bare, wrapped)]
            without, within = [ask(client, plan, tmp_path) for plan in plans]
            assert without == within, client.name
            assert [answer["is_error"] for answer in within.answers] == [False, True, True]


async def test_wrapped_server_is_found_probed_and_its_tool_called(wrapped: Server) -> None:
    url = url_of(wrapped)
    call: dict[str, Any] = {"tool": "double", "arguments": {"number": 21}}
    target = {
        "url": url,
        "ask": {"tools": True, "call": call},
        "assertions": [{"of": "tool", "text_contains": "42"}],
    }
    async with probing(targets=[target]) as probes:
        seen = await probes.see(url)
    checked = await fetch_health(url)
    assert results(seen) == {"discovery": "ok", "transport": "ok", "readiness": "ok", "message": "ok"}
    assert layer(seen.tools).result == "ok"
    assert [each.result for each in seen.assertions or ()] == ["ok"]
    assert seen.reported_agent_id == "urn:example:tools"
    assert checked.document is not None
    assert checked.is_server
