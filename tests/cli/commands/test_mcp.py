import asyncio
import re
import socket
import threading
from pathlib import Path

import pytest
from tests.support.complaints import problems_in
from tests.support.servers import PATIENCE_SECONDS

from lifesign.cli import main
from lifesign.cli.commands.mcp import TOKEN_VARIABLE
from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE
from lifesign.mcp import over_stdio


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (KEY_VARIABLE, URL_VARIABLE, TOKEN_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--registry", "http://127.0.0.1:9"], "key: expected a key in $LIFESIGN_KEY or --key-file"),
        (["--key-file", "key"], "--registry: expected the URL of the registry"),
        (["--allow-network", "0.0.0.0/0"], "--allow-network: expected a network smaller than all addresses"),
        (["--transport", "smoke"], "Invalid value for '--transport'"),
        (["--transport", "http", "--host", "0.0.0.0"], "--allow-host: expected a name"),
        (["--transport", "http", "--token-file", "/nowhere"], "--token-file: expected a readable file"),
        (["--transport", "http", "--port", "70000"], "--port: expected at most 65535; got 70000"),
    ],
)
def test_wrong_usage_exits_with_3(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", *arguments]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert problems_in(captured.err)[-1].startswith(f"lifesign: {message}")


def test_weak_token_is_refused_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hunter2")
    assert main(["mcp", "--transport", "http", "--token-file", str(tmp_path / "token")]) == 3
    monkeypatch.setenv(TOKEN_VARIABLE, "hunter2")
    assert main(["mcp", "--transport", "http"]) == 3
    errors = capsys.readouterr().err
    assert re.search(r"--token-file: .* 22 to 4096 ", errors)
    assert f"{TOKEN_VARIABLE}: expected a token" in errors
    assert "hunter2" not in errors


def test_without_a_terminal_no_token_is_created(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["mcp", "--transport", "http", "--port", str(port)]) == 3
    captured = capfd.readouterr()
    assert captured.out == ""
    assert TOKEN_VARIABLE in captured.err


def test_mcp_server_on_an_occupied_port_exits_with_1(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "t" * 30)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["mcp", "--transport", "http", "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in capfd.readouterr().err


def test_lookups_of_the_server_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # More than the threads that an event loop has by default.
    all_run = threading.Barrier(100)

    async def look_up(_server: object) -> None:
        await asyncio.gather(
            *(asyncio.to_thread(all_run.wait, PATIENCE_SECONDS) for _ in range(all_run.parties))
        )

    monkeypatch.setattr(over_stdio, "over_stdio", look_up)
    assert main(["mcp"]) == 0
