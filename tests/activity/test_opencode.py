import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.hostile_server import Reply, answer, as_json, endless_body, raw, redirect, reset, silence
from tests.support.opencode_events import idle, text_of, tool
from tests.support.opencode_server import DIRECTORY, STREAM_HEAD, FakeOpencode, opencode
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from lifesign.activity.opencode import NotOpencode, OpencodeServer, OpencodeUnreachable
from lifesign.domain.activity.passive_heartbeat import SERVER_SILENT_S, WatchedSessionState
from lifesign.errors import InvalidValue

BUSY, IDLE, ABSENT = WatchedSessionState.BUSY, WatchedSessionState.IDLE, WatchedSessionState.ABSENT


@asynccontextmanager
async def opencode_client(
    directory: str | None = None, password: str | None = None, **sessions: str
) -> AsyncIterator[tuple[FakeOpencode, OpencodeServer]]:
    """A server, and a client of it."""
    async with (
        opencode(**sessions) as (fake, url),
        OpencodeServer(url, directory=directory, password=password) as server,
    ):
        yield fake, server


async def failure_of(server: OpencodeServer) -> tuple[type, str]:
    """Follow the stream until it fails."""
    try:
        async with server.events() as lines:
            async for _ in lines:
                pass
    except (OpencodeUnreachable, NotOpencode) as failed:
        return type(failed), str(failed)
    pytest.fail("the stream ended by itself")


def stream_of(*pieces: bytes, and_then: Reply | None = None) -> Reply:
    async def reply(writer: asyncio.StreamWriter, head: str) -> None:
        writer.write(STREAM_HEAD)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if and_then is not None:
            await and_then(writer, head)

    return reply


async def test_event_lines_are_returned_unchanged() -> None:
    async with opencode_client(ses_1="idle") as (fake, server), server.events() as lines:
        assert await anext(lines) == [text_of(("server.connected", {}))]
        fake.says(idle("ses_1"), tool("ses_1"))
        assert await anext(lines) == [text_of(idle("ses_1")), text_of(tool("ses_1"))]
        fake.says(raw=b": heartbeat\n")
        assert await anext(lines) == [], "a comment counts as a keep-alive"
    assert fake.asked == ["/global/event"]


async def test_events_of_one_directory_are_followed_if_configured() -> None:
    async with opencode_client(directory="/a b/\u00e9") as (fake, server), server.events():
        pass
    assert fake.asked == ["/event?directory=/a+b/%C3%A9"]


async def test_session_status_is_requested_for_its_directory() -> None:
    async with opencode_client(ses_1="busy", ses_2="idle", ses_3="retry") as (fake, server):
        fake.sessions["ses_3"] = "/elsewhere"
        found = await server.session_statuses(["ses_1", "ses_2", "ses_3", "ses_4"])
    assert {session_id: standing.state for session_id, standing in found.items()} == {
        "ses_1": BUSY, "ses_2": IDLE, "ses_3": BUSY, "ses_4": ABSENT,
    }  # fmt: skip
    assert found["ses_4"].why == "the server has no such session"


async def test_session_of_another_directory_is_ignored() -> None:
    async with opencode_client(directory=DIRECTORY + "/", ses_1="busy", ses_2="busy") as (fake, server):
        fake.sessions["ses_2"] = "/elsewhere"
        found = await server.session_statuses(["ses_1", "ses_2"])
    assert found["ses_1"].state is BUSY
    assert found["ses_2"].state is ABSENT
    assert "'/elsewhere'" in found["ses_2"].why


async def test_password_is_sent_with_each_request() -> None:
    async with opencode_client(password="sesame", ses_1="idle") as (fake, server), server.events():
        await server.session_statuses(["ses_1"])
    expected = "Authorization: Basic " + base64.b64encode(b"opencode:sesame").decode()
    assert len(fake.heads) == 3
    assert all(expected in head for head in fake.heads)
    assert "sesame" not in repr(vars(server)["url"])


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (answer(401), NotOpencode, "$OPENCODE_SERVER_PASSWORD"),
        (answer(404), NotOpencode, "HTTP 404: expected 200"),
        (redirect("/elsewhere"), NotOpencode, "HTTP 302: expected 200"),
        (as_json({}), NotOpencode, "expected text/event-stream, got 'application/json'"),
        (answer(200, b"<html>", Content_Type="text/html"), NotOpencode, "got 'text/html': check"),
        (answer(503), OpencodeUnreachable, "HTTP 503"),
        (answer(429), OpencodeUnreachable, "HTTP 429"),
        (reset, OpencodeUnreachable, "the connection broke"),
        (stream_of(b": hello\n"), OpencodeUnreachable, "the stream ended"),
        (stream_of(b"data: 1\n", and_then=reset), OpencodeUnreachable, "the stream"),
        (
            stream_of(and_then=endless_body),
            OpencodeUnreachable,
            "more than 1048576 bytes",
        ),
        (
            stream_of(*[b"data: " + b"x" * 700_000 + b"\n"] * 4),
            OpencodeUnreachable,
            "more than 2097152 bytes",
        ),
    ],
    ids=[
        "password", "nothing", "redirect", "json", "html", "away", "too often", "reset", "end", "cut off",
        "endless line", "endless message",
    ],
)  # fmt: skip
async def test_answer_that_is_not_an_event_stream_is_reported(reply: Reply, kind: type, message: str) -> None:
    async with opencode_client() as (fake, server):
        fake.instead["/global/event"] = reply
        found, text = await failure_of(server)
    assert found is kind
    assert message in text


async def test_wrong_password_is_reported_without_showing_it() -> None:
    async with opencode_client(password="sesame") as (fake, server):
        fake.instead["/global/event"] = answer(401)
        _, text = await failure_of(server)
    assert text.startswith("/global/event: HTTP 401: ")
    assert ("$OPENCODE_SERVER_PASSWORD" in text, "sesame" in text) == (True, False)


ECHOED = b"canary-of-opencode"
PAIR = base64.b64encode(b"opencode:" + ECHOED)


@pytest.mark.parametrize(
    "reply",
    [
        stream_of(b'data: {"error": "it got ' + ECHOED + b'"}\n\n'),
        stream_of(b'data: {"error": "it got ' + PAIR + b'"}\n\n'),
        answer(200, Content_Type=ECHOED.decode()),
        raw(b"HTTP/1.1 200 OK\r\nBad " + ECHOED + b"\r\n\r\n"),
        raw(b"GARBAGE " + ECHOED + b"\r\n\r\n"),
    ],
)
async def test_password_that_the_server_sends_back_is_removed(reply: Reply) -> None:
    shown: list[str] = []
    async with opencode_client(password=ECHOED.decode()) as (fake, server):
        fake.instead["/global/event"] = reply
        try:
            async with server.events() as lines:
                shown += await anext(lines)
        except (OpencodeUnreachable, NotOpencode) as failed:
            shown.append(str(failed))
    assert shown
    assert not any(secret.decode() in text for text in shown for secret in (ECHOED, PAIR))


async def test_absent_server_is_unreachable() -> None:
    async with opencode() as (_, url):
        pass
    async with OpencodeServer(url) as server:
        with pytest.raises(OpencodeUnreachable, match="no connection to"):
            await server.session_statuses(["ses_1"])


@in_virtual_time
async def test_half_a_minute_without_a_line_is_a_stall() -> None:
    async with opencode_client() as (fake, server):
        fake.instead["/global/event"] = stream_of(b": hello\n", and_then=silence)
        began_s = virtual_loop().time()
        kind, text = await failure_of(server)
        assert (kind, " 30 s" in text) == (OpencodeUnreachable, True)
        assert SERVER_SILENT_S <= virtual_loop().time() - began_s < SERVER_SILENT_S + 1


@in_virtual_time
async def test_bytes_without_a_line_end_count_as_a_stall() -> None:
    async def drip(writer: asyncio.StreamWriter, _head: str) -> None:
        while True:
            writer.write(b"x")
            await asyncio.sleep(1)

    async with opencode_client() as (fake, server):
        fake.instead["/global/event"] = stream_of(and_then=drip)
        kind, text = await failure_of(server)
        assert (kind, " 30 s" in text) == (OpencodeUnreachable, True)


@in_virtual_time
async def test_occasional_line_prevents_a_stall() -> None:
    async with opencode_client() as (_, server), server.events() as lines:
        for _ in range(20):
            await anext(lines)
    assert virtual_loop().time() > 1_150


@in_virtual_time
async def test_server_without_answer_is_unreachable() -> None:
    async with opencode_client(ses_1="idle") as (fake, server):
        fake.instead = {"/global/event": silence, "/session/ses_1": silence}
        assert (await failure_of(server))[0] is OpencodeUnreachable
        with pytest.raises(OpencodeUnreachable, match="in time"):
            await server.session_statuses(["ses_1"])


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("/session/ses_1", as_json({"id": "ses_1"})),
        ("/session/ses_1", as_json([])),
        ("/session/ses_1", answer(200, b"<html>", Content_Type="text/html")),
        ("/session/ses_1", answer(404, b"<html>", Content_Type="text/html")),
        ("/session/status", answer(200, b"{", Content_Type="application/json")),
        ("/session/status", answer(200, b" " * 5_000_000, Content_Type="application/json")),
    ],
)
async def test_answers_of_another_program_are_reported(path: str, reply: Reply) -> None:
    async with opencode_client(ses_1="idle") as (fake, server):
        fake.instead[path] = reply
        with pytest.raises(NotOpencode):
            await server.session_statuses(["ses_1"])


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("/session/ses_2", answer(500)),
        ("/session/ses_2", silence),
        ("/session/ses_2", as_json({"id": "ses_2"})),
        ("/session/status?directory=/home/user/other", answer(500)),
    ],
)
def test_session_that_cannot_be_read_hides_no_other_one(path: str, reply: Reply) -> None:
    @in_virtual_time
    async def run() -> None:
        async with opencode_client(ses_1="busy", ses_2="busy") as (fake, server):
            fake.sessions["ses_2"] = "/home/user/other"
            fake.instead[path] = reply
            found = await server.session_statuses(["ses_1", "ses_2"])
            states = {session_id: status.state for session_id, status in found.items()}
            assert states == {"ses_1": WatchedSessionState.BUSY, "ses_2": WatchedSessionState.UNKNOWN}
            assert found["ses_2"].why

    run()


def test_password_over_plain_http_is_refused() -> None:
    with pytest.raises(InvalidValue) as refused:
        OpencodeServer("http://agents.example", password="sesame")
    assert (refused.value.name, refused.value.given) == ("URL", "http://agents.example")
    OpencodeServer("http://agents.example", password="sesame", allow_plain_http=True)
    OpencodeServer("http://agents.example")


@pytest.mark.parametrize("url", ["", "agents.example", "ftp://agents.example", "http://u:p@agents.example"])
def test_invalid_opencode_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidValue):
        OpencodeServer(url)


@pytest.mark.parametrize("directory", ["", ".", "project", "~/project"])
def test_directory_that_is_not_absolute_is_refused(directory: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        OpencodeServer("http://127.0.0.1:1", directory=directory)
    assert (refused.value.name, refused.value.given) == ("directory", directory)
    OpencodeServer("http://127.0.0.1:1", directory="C:\\project")
