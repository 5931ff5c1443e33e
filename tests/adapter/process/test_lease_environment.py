from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import proxy_bypass

import pytest

from lifesign.adapter.process.lease_environment import environment_of
from lifesign.adapter.tools.tool_proxy import OpenProxy

TOOLS = OpenProxy(url="http://127.0.0.1:4711/mcp", run_token="lst_1")
GRANT: Any = SimpleNamespace(
    run_id="run_1",
    task=SimpleNamespace(task_id="task_1"),
    lease=SimpleNamespace(fencing_token=1, expires_at=datetime(2026, 11, 30, tzinfo=UTC)),
    budget=SimpleNamespace(envelope=SimpleNamespace(tokens=0, usd=0)),
)


def environment(inherited: dict[str, str], tools: OpenProxy | None = TOOLS) -> dict[str, str]:
    return environment_of(GRANT, Path("/runs/run_1"), inherited, tools=tools)


@pytest.mark.parametrize(
    ("inherited", "upper", "lower"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"NO_PROXY": "localhost,.corp.example"}, *["localhost,.corp.example,127.0.0.1"] * 2),
        ({"no_proxy": "localhost"}, *["localhost,127.0.0.1"] * 2),
        ({"NO_PROXY": "a.example,", "no_proxy": ""}, "a.example,127.0.0.1", "127.0.0.1"),
        ({"NO_PROXY": "*"}, "*", "*"),
        ({"no_proxy": "127.0.0.1, a.example"}, *["127.0.0.1, a.example"] * 2),
    ],
)
def test_no_proxy_of_the_environment_gets_the_calls_of_tools(
    inherited: dict[str, str], upper: str, lower: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = environment({"HTTP_PROXY": "http://proxy.corp.example:3128", **inherited})
    assert (given["NO_PROXY"], given["no_proxy"]) == (upper, lower)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, given[name])
    assert proxy_bypass("127.0.0.1:4711")


@pytest.mark.parametrize(
    ("inherited", "expected"),
    [({}, "1"), ({"PYTHONUNBUFFERED": ""}, ""), ({"PYTHONUNBUFFERED": "0"}, "0")],
)
def test_python_writes_each_line_at_once_unless_the_adapter_has_another_setting(
    inherited: dict[str, str], expected: str
) -> None:
    assert environment(inherited)["PYTHONUNBUFFERED"] == expected


def test_exceptions_from_proxies_are_unchanged_without_tools() -> None:
    assert "NO_PROXY" not in environment({}, tools=None)
    assert environment({"no_proxy": "a.example"}, tools=None)["no_proxy"] == "a.example"
