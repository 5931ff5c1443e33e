import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.hostile_server import answer
from tests.support.opencode_events import failed, tool
from tests.support.opencode_server import opencode
from tests.support.registry_server import ADMIN_KEY, RegistryServer
from tests.support.servers import PATIENCE_SECONDS

from lifesign.activity.opencode import PASSWORD_VARIABLE
from lifesign.cli import main
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.client import RegistryClient
from lifesign.client.environment_variables import KEY_VARIABLE

PROGRAM = "import sys; from lifesign.cli import main; sys.exit(main())"


@asynccontextmanager
async def watching(
    *options: str, stdout: int = asyncio.subprocess.PIPE
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command in a separate process, since a signal ends it."""
    environment = dict(os.environ)
    # Or whatever is written would come through at once by itself.
    environment.pop("PYTHONUNBUFFERED", None)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        "watch-activity",
        "opencode",
        *options,
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line_with(process: asyncio.subprocess.Process, what: str) -> str:
    assert process.stdout is not None
    while what not in (line := (await process.stdout.readline()).decode()):
        assert line, "the process has ended"
    return line


async def test_watch_activity_prints_a_line_per_decision_until_ctrl_c(registry: RegistryServer) -> None:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        await client.agents.register("a")
    async with opencode(ses_1="busy") as (fake, url), watching(url, "--map", "ses_1=a") as process:
        await fake.is_listened_to()
        await line_with(process, "server_reachable")
        fake.says(tool("ses_1"), failed("ses_1", words="a\x1b[2J"))
        error = await line_with(process, "session_error")
        assert "a: ses_1: UnknownError: a\ufffd[2J" in error
        assert "a: ses_1: message.part.updated" in await line_with(process, "heartbeat")
        process.send_signal(signal.SIGINT)
        assert "1 heartbeat sent, 0 dropped" in await line_with(process, "ended")
        assert await process.wait() == 0
        assert process.stderr is not None
        assert await process.stderr.read() == b""


async def test_heartbeats_continue_while_nobody_reads_the_lines(registry: RegistryServer) -> None:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        await client.agents.register("a")
        unread, written = os.pipe()
        try:
            async with (
                opencode(ses_1="busy") as (fake, url),
                watching(url, "--map", "ses_1=a", stdout=written) as process,
            ):
                await fake.is_listened_to()
                # A pipe takes 64 KiB.
                fake.says(*[failed("ses_1", words="x" * 300)] * 400, tool("ses_1"))
                while (await client.agents.get("a")).reported.current_load != 1:
                    assert process.returncode is None
                    await asyncio.sleep(0.05)
                os.set_blocking(unread, False)
                while os.read(unread, 65_536).count(b"session_error") == 0:
                    pass
        finally:
            os.close(unread)
            os.close(written)


async def test_command_ends_with_the_reader_of_its_lines(registry: RegistryServer) -> None:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        await client.agents.register("a")
    unread, written = os.pipe()
    async with (
        opencode(ses_1="busy") as (fake, url),
        watching(url, "--map", "ses_1=a", stdout=written) as process,
    ):
        os.close(written)
        await fake.is_listened_to()
        os.close(unread)
        while process.returncode is None:
            fake.says(failed("ses_1"))
            await asyncio.sleep(0.05)
        assert process.returncode == ExitCode.READER_LEFT


async def test_watch_activity_prints_json_lines_without_keys_until_terminated(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "sesame")
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        await client.agents.register("a")
    async with opencode(ses_1="idle") as (fake, url), watching(url, "--map", "ses_1=a", "--json") as process:
        document = json.loads(await line_with(process, '"heartbeat"'))
        assert "Authorization: Basic" in fake.heads[0]
        process.terminate()
        output, errors = await process.communicate()
        assert process.returncode == 0
    assert document.pop("at").endswith("Z")
    assert document == {
        "what": "heartbeat",
        "agent_id": "a",
        "session_id": "ses_1",
        "text": "ses_1: idle, and the server answers",
    }
    assert ADMIN_KEY.encode() not in output + errors
    assert b"sesame" not in output + errors


async def test_other_server_than_opencode_exits_with_2(
    registry: RegistryServer, capfd: pytest.CaptureFixture[str]
) -> None:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as client:
        await client.agents.register("a")
    async with opencode(ses_1="idle") as (fake, url):
        fake.instead["/global/event"] = answer(200, b"<html>", Content_Type="text/html")
        arguments = ["watch-activity", "opencode", url, "--map", "ses_1=a"]
        assert await asyncio.to_thread(main, arguments) == 2
    output = capfd.readouterr().err
    assert output.startswith("lifesign: /global/event: HTTP 200: ")
    assert ("'text/html'" in output, output.count("\n")) == (True, 1)


def test_refused_start_exits_with_1(
    registry: RegistryServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "ahk_" + "x" * 43)
    assert main(["watch-activity", "opencode", "http://127.0.0.1:1", "--map", "ses_1=a"]) == 1
    assert re.search(r"\ba: .*: HTTP 401", capfd.readouterr().err)


@pytest.mark.parametrize(
    "arguments",
    [[], ["http://127.0.0.1:1"], ["http://127.0.0.1:1", "--map", "x"], ["127.0.0.1:1", "--map", "ses_1=a"]],
)
def test_wrong_usage_exits_with_3(
    arguments: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, ADMIN_KEY)
    assert main(["watch-activity", "opencode", *arguments]) == 3
    assert capfd.readouterr().err.startswith("lifesign: ")
