import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support import upstream_tools
from tests.support.certificates import Authority
from tests.support.listening_users import AS_ROOT, OTHER, received, silent_server
from tests.support.mcp_tools import text_of
from tests.support.misbehaving_tools import NO_SESSION, OFF_SCHEMA, OLD, http_misbehaving
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY
from yarl import URL

from lifesign.adapter.run_events import CALLED_SERVER
from lifesign.adapter.tools import tool_list, upstream_server
from lifesign.adapter.tools.call_failures import CallNotExecuted
from lifesign.adapter.tools.server_line import NOT_SENT, SESSION_LOST, TOO_LONG, UNREADABLE
from lifesign.adapter.tools.tools_file import CallLimits, Upstream
from lifesign.adapter.tools.upstream_server import MAX_WORDS_CHARS, UpstreamServer
from lifesign.mcp.tool_definition import ToolFailed

PROGRAM = str(REPOSITORY / "tests" / "support" / "upstream_tools.py")
MISBEHAVING = [sys.executable, "-S", str(REPOSITORY / "tests" / "support" / "misbehaving_tools.py")]
FAR_TOO_LONG = 80 * 1_048_576


@asynccontextmanager
async def started(
    command: list[str] | None,
    secrets: Mapping[str, str] | None = None,
    *,
    name: str = "acme",
    start_seconds: float = 30,
    call_seconds: float = 300,
    agent_uid: int | None = None,
    **expected: Any,
) -> AsyncIterator[UpstreamServer]:
    upstream = Upstream.model_validate(
        {"command": command, "offer_all": True, "price": {"usd_per_call": 0}, **expected}
    )
    limits = CallLimits(start_seconds=start_seconds, call_seconds=call_seconds)
    server = UpstreamServer(
        name, upstream, limits, environment=secrets or {}, chance=lambda: 0.0, agent_uid=agent_uid
    )
    try:
        yield server
    finally:
        await server.close()


def program(record: Path | str) -> list[str]:
    return [sys.executable, PROGRAM, str(record)]


async def running(server: UpstreamServer, tool: str = "fetch") -> None:
    """Wait until it answers."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await server.call(tool, {})
            except ToolFailed:
                await asyncio.sleep(0.05)
            else:
                return


async def test_dead_server_fails_the_call_and_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_server, "FIRST_WAIT_SECONDS", 0.05)
    async with started(program(tmp_path / "record")) as server:
        assert text_of(await server.call("fetch", {})) == "fetch"
        assert set(server.tools) == {*upstream_tools.NAMES, upstream_tools.TYPED.name}
        with pytest.raises(ToolFailed, match=r"\bacme ended .*executed") as gone:
            await server.call("die", {})
        assert gone.value.code == "upstream_unavailable"
        # A server that is down is not waited for.
        with pytest.raises(ToolFailed, match=r"\bacme is not running: "):
            await server.call("fetch", {})
        await running(server)


async def test_server_gets_only_its_configured_environment_and_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFESIGN_KEY", "ahk_of_the_adapter")
    (tmp_path / "key").write_text("of-file\n")
    members = {"ONE": {"env": "MINE"}, "TWO": {"file": str(tmp_path / "key"), "prefix": "Bearer "}}
    async with started(MISBEHAVING, {"MINE": "s3cret"}, environment=members) as server:
        found = [
            text_of(await server.call("environment", {"name": name}))
            for name in ("ONE", "TWO", "LIFESIGN_KEY", "MINE")
        ]
    assert found == ["s3cret", "Bearer of-file", "", ""]


async def test_secrets_of_a_server_are_removed_from_its_refusals_failures_and_output(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secrets, members = {"MINE": "of-the-server"}, {"ONE": {"env": "MINE", "prefix": "Key "}}
    async with started(MISBEHAVING, secrets, environment=members) as server:
        failed = await server.call("environment", {"name": "ONE", "fails": True})
        assert (failed.is_error, text_of(failed)) == (True, "Key REMOVED-SECRE")
        assert text_of(await server.call("environment", {"name": "ONE"})) == "Key of-the-server"
        with pytest.raises(CallNotExecuted, match=r"invalid: Key REMOVED-SECRE$"):
            await server.call("refuse", {"message": "invalid: ", "quotes": "ONE"})
    quoting = [sys.executable, "-c", "import os, sys; sys.exit(os.environ['ONE'])"]
    async with started(quoting, secrets, environment=members) as server:
        with pytest.raises(ToolFailed, match="is not running"):
            await server.call("fetch", {})
    assert "acme wrote: Key REMOVED-SECRE" in caplog.messages
    assert "of-the-server" not in caplog.text


@pytest.mark.parametrize("guess", ["of-the-server", "of-the-s", b"of-the-server".hex(), b"of-t".hex()])
async def test_refusal_does_not_show_whether_a_guess_is_right(guess: str) -> None:
    secrets, members = {"MINE": "of-the-server"}, {"ONE": {"env": "MINE"}}
    async with started(MISBEHAVING, secrets, environment=members) as server:
        with pytest.raises(CallNotExecuted, match=f"unknown: {guess}.$"):
            await server.call("refuse", {"message": f"unknown: {guess}."})


async def test_refusal_that_is_cut_ends_with_no_part_of_a_secret() -> None:
    secrets, members = {"MINE": "of-the-server"}, {"ONE": {"env": "MINE"}}
    async with started(MISBEHAVING, secrets, environment=members) as server:
        for kept in range(1, 14):
            padding = "." * (MAX_WORDS_CHARS - kept)
            with pytest.raises(CallNotExecuted) as refused:
                await server.call("refuse", {"message": padding, "quotes": "ONE"})
            assert str(refused.value).endswith("." + "REMOVED-SECRET"[:kept])


async def test_unreadable_answer_at_the_start_shows_no_part_of_a_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = "ak-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGH"
    greeting = f"{secret} is not valid: {secret}".encode()
    with http_misbehaving(greeting=greeting) as url:
        async with started(None, {"MINE": secret}, url=url, headers={"Key": {"env": "MINE"}}) as server:
            with pytest.raises(CallNotExecuted, match="is not running") as failed:
                await server.call("run", {})
    ends = secret[:10], secret[-10:]
    assert not [end for end in ends if end in f"{failed.value} {caplog.messages}"]


async def test_server_with_too_long_a_list_of_tools_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool_list, "MAX_LIST_BYTES", 100)
    async with started(MISBEHAVING) as server:
        with pytest.raises(CallNotExecuted, match="more than 100 bytes") as refused:
            await server.call("run", {})
        assert refused.value.code == "upstream_unavailable"
        assert not server.tools


async def test_list_that_has_become_too_long_restarts_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_server, "FIRST_WAIT_SECONDS", 0.05)
    async with started(MISBEHAVING) as server:
        await server.learn()
        with monkeypatch.context() as patched:
            patched.setattr(tool_list, "MAX_LIST_BYTES", 100)
            await server.learn()
        with pytest.raises(CallNotExecuted, match="is not running"):
            await server.call("run", {})
        await running(server, "run")


@pytest.mark.parametrize(
    ("command", "start_seconds", "why"),
    [
        (["/no/such/program"], 30, "No such file or directory"),
        ([sys.executable, "-c", "print('hello')"], 30, "it has ended"),
        (
            [sys.executable, "-S", "-c", "import time; time.sleep(3_600)"],
            1,
            "the tool server did not start within 1 s",
        ),
    ],
    ids=["absent", "no server", "silent"],
)
async def test_failed_start_is_reported_with_its_reason(
    command: list[str], start_seconds: float, why: str
) -> None:
    async with started(command, start_seconds=start_seconds) as server:
        with pytest.raises(ToolFailed, match=rf"\b{why}; .* 0\.[0-9] s$") as failed:
            await server.call("fetch", {})
        assert failed.value.code == "upstream_unavailable"
        assert not server.tools


@pytest.mark.parametrize("is_url", [False, True])
async def test_server_that_ends_at_a_request_of_a_newer_version_runs_at_its_first_start(
    caplog: pytest.LogCaptureFixture, *, is_url: bool
) -> None:
    with http_misbehaving(is_old=True) as url:
        place: dict[str, Any] = {"url": url} if is_url else {}
        async with started(None if is_url else [*MISBEHAVING, OLD], **place) as server:
            await server.ready()
            assert "run" in server.tools
            assert text_of(await server.call("run", {})) == "run"
    assert "is not running" not in caplog.text


async def test_server_with_a_certificate_of_a_private_authority_needs_only_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    with http_misbehaving(tls=authority.serving("127.0.0.1")) as url:
        async with started(None, url=url) as server:
            with pytest.raises(ToolFailed, match="certificate verify failed"):
                await server.call("run", {})
        authority.is_trusted(monkeypatch)
        async with started(None, url=url) as server:
            assert text_of(await server.call("run", {})) == "run"


async def test_secret_missing_at_start_is_named_in_the_error() -> None:
    async with started(["/bin/true"], environment={"ONE": {"env": "MINE"}}) as server:
        with pytest.raises(ToolFailed, match=r"\benv: .* MINE "):
            await server.call("fetch", {})


@pytest.mark.parametrize(
    ("tool", "code", "words"),
    [
        ("no_result", "answer_invalid", "not valid .*; it may"),
        ("no_number", "answer_invalid", "number .*; it may"),
        ("no_object", "answer_invalid", "cannot be read; it may"),
        ("deep", "answer_invalid", "cannot be read; it may"),
    ],
)
async def test_invalid_response_fails_only_its_own_call(
    tool: str, code: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(MISBEHAVING) as server:
        await server.ready()
        waiting = asyncio.create_task(server.call("wait", {}))
        with pytest.raises(ToolFailed, match=words) as failed:
            await server.call(tool, {})
        assert failed.value.code == code
        assert text_of(await server.call("run", {})) == "run"
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert "does not run" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_structured_content_is_not_validated_on_the_event_loop() -> None:
    async with started(MISBEHAVING) as server:
        await server.ready()
        assert server.tools["off_schema"].output_schema == OFF_SCHEMA
        assert (await server.call("off_schema", {})).structured_content == {"word": 1}
    with http_misbehaving() as url:
        async with started(None, url=url) as server:
            assert (await server.call("off_schema", {})).structured_content == {"word": 1}


async def test_non_text_output_ends_all_calls_and_restarts_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_server, "FIRST_WAIT_SECONDS", 0.05)
    async with started(MISBEHAVING) as server:
        await server.ready()
        calls = [server.call("wait", {}), server.call("no_text", {})]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        for failure in failures:
            assert isinstance(failure, ToolFailed)
            assert failure.code == "upstream_unavailable"
            assert "not UTF-8" in str(failure)
        await running(server, "run")


@pytest.mark.parametrize(
    ("tool", "other"), [("long", "upstream_unavailable"), ("late_id", "answer_too_large")]
)
async def test_endless_answer_fails_its_call_and_restarts_the_server(
    tool: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_server, "FIRST_WAIT_SECONDS", 0.05)
    async with started(MISBEHAVING) as server:
        await server.ready()
        calls = [server.call("wait", {}), server.call(tool, {"bytes": FAR_TOO_LONG})]
        waited, too_large = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(too_large, ToolFailed)
        assert too_large.code == "answer_too_large"
        assert "4194304 bytes on one line" in str(too_large)
        # If it is unknown which call is answered, every call may be.
        assert isinstance(waited, ToolFailed)
        assert waited.code == other
        await running(server, "run")


async def test_hung_server_is_restarted_and_a_busy_one_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upstream_server, "PING_SECONDS", 0.5)
    async with started(MISBEHAVING, call_seconds=1) as server:
        for tool, is_restarted in (("wait", False), ("hang", True)):
            with pytest.raises(ToolFailed, match="longer than 1 s") as failed:
                await server.call(tool, {})
            assert failed.value.code == "upstream_timeout"
            assert ("did not answer" in caplog.text) == is_restarted
        await running(server, "run")


async def test_hung_server_is_not_restarted_during_another_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upstream_server, "PING_SECONDS", 0.1)
    async with started(MISBEHAVING, call_seconds=2) as server:
        await server.ready()
        first = asyncio.create_task(server.call("hang", {}))
        await asyncio.sleep(1)
        second = asyncio.create_task(server.call("run", {}))
        await asyncio.wait({first})
        assert "is not running" not in caplog.text
        await asyncio.wait({second})
        assert "is not running" in caplog.text
        assert [isinstance(call.exception(), ToolFailed) for call in (first, second)] == [True, True]


async def test_server_that_dies_between_calls_is_restarted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upstream_server, "FIRST_WAIT_SECONDS", 0.05)
    async with started([*MISBEHAVING[:2], "-c", "import sys; sys.exit(3)"]) as server:
        await server.ready()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while caplog.text.count("acme is not running") < 2:  # noqa: ASYNC110 - a log has no event to wait for
                await asyncio.sleep(0.02)


async def test_unknown_tool_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    price = {"usd_per_call": 0}
    named: dict[str, Any] = {"tools": {"run": price, "absent": price}, "offer_all": False, "price": None}
    async with started(MISBEHAVING, **named) as server:
        await server.check("run")
        with pytest.raises(ToolFailed, match=r"acme .*'absent'") as missing:
            await server.check("absent")
    assert missing.value.code == "tool_missing"
    (args,) = (record.args for record in caplog.records if record.args and "absent" in record.args)
    assert isinstance(args, tuple)
    assert args[:2] == ("acme", "absent")
    assert "run, no_text, " in str(args[2])


async def test_missing_tool_is_reported_without_a_secret_in_the_names_of_tools(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets, members = {"MINE": "of-the-server"}, {"ONE": {"env": "MINE"}}
    price = {"usd_per_call": 0}
    named: dict[str, Any] = {"tools": {"absent": price}, "offer_all": False, "price": None}
    async with started(program(tmp_path / "record"), secrets, environment=members, **named) as server:
        await server.call("grow", {"name": "of-the-server"})
        for tool in ("absent", "is-of-the-server"):
            with pytest.raises(ToolFailed, match=", REMOVED-SECRE") as missing:
                await server.check(tool)
            assert "of-the-server" not in str(missing.value)
    assert "of-the-server" not in caplog.text


async def test_other_output_of_a_server_is_logged_by_line(caplog: pytest.LogCaptureFixture) -> None:
    async with started(MISBEHAVING) as server:
        assert text_of(await server.call("stray", {})) == "stray"
    found = {record.getMessage() for record in caplog.records if "wrote: " in record.getMessage()}
    assert {"acme wrote: \x1b[2J to standard output", "acme wrote: \x1b[2J to standard error"} < found
    assert max(map(len, found)) < 4_200


async def test_invalid_http_answer_fails_its_call_and_closed_connections_are_reopened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_server, "FIRST_WAIT_SECONDS", 0.05)
    with http_misbehaving() as url:
        async with started(None, url=url) as server:
            for tool in ("no_text", "no_result", "no_object", "deep"):
                with pytest.raises(ToolFailed, match="answer of acme") as failed:
                    await server.call(tool, {})
                assert failed.value.code == "answer_invalid"
                assert text_of(await server.call("run", {})) == "run"
            with pytest.raises(ToolFailed, match="connection was closed") as closed:
                await server.call("wait", {})
            assert closed.value.code == "upstream_unavailable"
            await running(server, "run")


@pytest.mark.parametrize("how", NO_SESSION)
async def test_new_session_follows_one_that_the_server_has_ended(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_server, "FIRST_WAIT_SECONDS", 0.05)
    with http_misbehaving() as url:
        async with started(None, url=url) as server:
            assert text_of(await server.call("run", {})) == "run"
            with pytest.raises(CallNotExecuted) as refused:
                await server.call("forget", {"how": how})
            assert refused.value.code == "upstream_unavailable"
            await running(server, "run")


CODES = (-32000, -32700, -32603, UNREADABLE, TOO_LONG, NOT_SENT, SESSION_LOST)


@pytest.mark.parametrize("code", CODES)
async def test_json_rpc_error_of_a_command_server_is_a_refusal_with_any_code(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(MISBEHAVING) as server:
        with pytest.raises(CallNotExecuted, match=r"\bacme .*: not today$") as refused:
            await server.call("refuse", {"code": code})
        assert refused.value.code == "upstream_refused"
        assert text_of(await server.call("run", {})) == "run"
        assert "does not run" not in caplog.text
        with pytest.raises(CallNotExecuted, match=r"\bacme .*: not today$"):
            await server.call("refuse", {"code": code, "how": "and go"})


@pytest.mark.parametrize(
    "how", ["200", "400", "404", "500", "event", "event of many lines", "event without an end"]
)
@pytest.mark.parametrize("code", CODES)
async def test_json_rpc_error_of_a_url_server_is_a_refusal_with_any_code(
    how: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    with http_misbehaving() as url:
        async with started(None, url=url) as server:
            with pytest.raises(CallNotExecuted, match=r"\bacme .*: not today$") as refused:
                await server.call("refuse", {"code": code, "how": how})
            assert refused.value.code == "upstream_refused"
            assert text_of(await server.call("run", {})) == "run"
    assert "does not run" not in caplog.text


async def test_refusal_by_http_alone_names_its_status_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def reports() -> int:
        return caplog.text.count("tool server acme refuses calls with HTTP 40")

    with http_misbehaving() as url:
        async with started(None, url=url) as server:
            for tool, status in (("unauthorized", 401), ("unauthorized", 401), ("forbidden", 403)):
                with pytest.raises(CallNotExecuted, match=rf"\bacme .*: HTTP {status}$") as refused:
                    await server.call(tool, {})
                assert refused.value.code == "upstream_refused"
            assert reports() == 1
            assert text_of(await server.call("run", {})) == "run"
            with pytest.raises(CallNotExecuted):
                await server.call("forbidden", {})
            assert reports() == 2


async def test_token_that_was_renewed_in_its_file_is_used_without_a_new_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("first-token")
    headers = {"Authorization": {"file": str(token), "prefix": "Bearer "}}
    with http_misbehaving() as url:
        async with started(None, url=url, headers=headers) as server:
            await server.call("token", {"accepted": "Bearer first-token"})
            token.write_text("second-token")
            for _ in range(2):
                answer = await server.call("token", {"accepted": "Bearer second-token"})
                assert text_of(answer) == "token"
    assert "refuses calls" not in caplog.text


@AS_ROOT
async def test_secret_is_not_sent_to_the_server_of_another_user_than_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upstream_server, "FIRST_WAIT_SECONDS", 0.05)
    headers, secrets = {"X-Key": {"env": "MINE"}}, {"MINE": "of-the-server"}
    async with AsyncExitStack() as opened:
        with http_misbehaving() as url:
            server = await opened.enter_async_context(
                started(None, secrets, url=url, headers=headers, call_seconds=1)
            )
            assert text_of(await server.call("run", {})) == "run"
        with silent_server(OTHER, URL(url).port or 0) as other:
            for _ in range(3):
                with pytest.raises(CallNotExecuted, match=f"user {OTHER}") as refused:
                    await server.call("run", {})
                assert refused.value.code == "upstream_unavailable"
                await asyncio.sleep(0.1)
            await opened.aclose()
            assert set(received(other)) == {b""}
    assert f"running: user {OTHER}" in caplog.text


@AS_ROOT
async def test_secret_is_never_sent_to_a_server_of_the_agents_user() -> None:
    headers, secrets = {"X-Key": {"env": "MINE"}}, {"MINE": "of-the-server"}
    with silent_server(OTHER) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}/mcp"
        async with started(None, secrets, url=url, headers=headers, agent_uid=OTHER) as server:
            with pytest.raises(CallNotExecuted, match=r"the agent.s user"):
                await server.call("run", {})
        assert set(received(other)) == {b""}
        async with started(None, url=url, agent_uid=OTHER, start_seconds=1) as server:
            with pytest.raises(CallNotExecuted, match="not start within"):
                await server.call("run", {})
        assert all(received(other))


async def test_stream_that_ends_before_the_answer_leaves_the_execution_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_server, "FIRST_WAIT_SECONDS", 0.05)
    with http_misbehaving() as url:
        async with started(None, url=url) as server:
            with pytest.raises(ToolFailed, match="connection was closed") as closed:
                await server.call("refuse", {"code": -32000, "how": "no event"})
            assert not isinstance(closed.value, CallNotExecuted)
            assert closed.value.code == "upstream_unavailable"
            await running(server, "run")


@contextmanager
def sdk_log_records() -> Iterator[set[tuple[str, str]]]:
    """Return the log records of the SDK, by server."""
    result: set[tuple[str, str]] = set()

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            called = CALLED_SERVER.get()
            result.add(("" if called is None else called.name, record.getMessage()))

    sdk, hearing = logging.getLogger("mcp"), Hearing(logging.WARNING)
    sdk.addHandler(hearing)
    try:
        yield result
    finally:
        sdk.removeHandler(hearing)


async def test_log_lines_of_the_sdk_name_their_server() -> None:
    with http_misbehaving() as url, sdk_log_records() as logged:
        async with started(None, url=url) as one, started(None, url=url, name="other") as other:
            failed = await asyncio.gather(
                one.call("no_text", {}), other.call("no_text", {}), return_exceptions=True
            )
            assert all(isinstance(one, ToolFailed) for one in failed)
    assert logged == {("acme", "Error parsing JSON response"), ("other", "Error parsing JSON response")}
    assert CALLED_SERVER.get() is None


@pytest.mark.parametrize(
    ("tool", "code", "words"),
    [
        ("endless", "answer_too_large", "acme .* 4194304 bytes"),
        ("chatter", "answer_too_large", "acme .* 4194304 bytes"),
        (
            "endless_event",
            "answer_too_large",
            "acme .* 4194304 bytes",
        ),
        (
            "endless_lines",
            "answer_too_large",
            "acme .* 4194304 bytes",
        ),
        ("long_event", "answer_too_large", "acme .* 1100079 bytes, more than 1048576"),
        ("packed", "answer_invalid", "cannot be read; it may"),
    ],
)
async def test_answer_of_a_url_is_limited_while_it_arrives(
    tool: str, code: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with http_misbehaving() as url:
        async with started(None, url=url) as server:
            with pytest.raises(ToolFailed, match=words) as failed:
                await server.call(tool, {})
            assert failed.value.code == code
            assert text_of(await server.call("run", {})) == "run"
    assert "does not run" not in caplog.text
