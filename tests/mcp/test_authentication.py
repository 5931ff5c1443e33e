import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.support.servers import PATIENCE_SECONDS
from tests.support.uvicorn_thread import served

from lifesign.errors import InvalidValue
from lifesign.mcp.authentication import (
    MAX_BODY_BYTES,
    MAX_TOKEN_CHARS,
    MIN_TOKEN_CHARS,
    PATH,
    Guard,
    check_token,
    new_token,
)

TOKEN = "t" * MIN_TOKEN_CHARS


async def taken(_scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"taken"})


async def never(_scope: Scope, _receive: Receive, _send: Send) -> None:
    await asyncio.Event().wait()


async def ask(
    guard: Guard,
    *authorization: str,
    method: str = "POST",
    path: str = PATH,
    body: tuple[bytes | None, ...] = (b"{}",),
    length: bytes | None = None,
) -> tuple[int, dict[bytes, bytes], bytes]:
    """Send one request, its body in pieces; None is a piece that never comes."""
    pieces = list(body)
    sent: list[Message] = []

    async def receive() -> Message:
        piece = pieces.pop(0) if pieces else None
        if piece is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", value.encode()) for value in authorization]
    headers += [] if length is None else [(b"content-length", length)]
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "headers": headers}
    await guard(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])


@pytest.mark.parametrize(
    "authorization",
    [
        (),
        ("",),
        ("Bearer",),
        ("Bearer ",),
        (f"Basic {TOKEN}",),
        (f"Bearer {TOKEN}x",),
        (f"Bearer {TOKEN[:-1]}",),
        (TOKEN,),
        (f"Bearer {TOKEN}", f"Bearer {TOKEN}"),
    ],
)
@pytest.mark.parametrize("path", [PATH, "/"])
async def test_missing_token_gets_401(authorization: tuple[str, ...], path: str) -> None:
    status, headers, body = await ask(Guard(never, TOKEN), *authorization, path=path)
    assert (status, headers[b"www-authenticate"]) == (401, b'Bearer realm="lifesign"')
    assert TOKEN.encode() not in body


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_right_token_is_admitted(scheme: str) -> None:
    assert (await ask(Guard(taken, TOKEN), f"{scheme} {TOKEN}", body=(b"{", b"}")))[::2] == (200, b"taken")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", PATH, 405), ("DELETE", PATH, 405), ("POST", "/other", 404)]
)
async def test_other_methods_and_paths_are_refused(method: str, path: str, status: int) -> None:
    found = await ask(Guard(never, TOKEN), f"Bearer {TOKEN}", method=method, path=path)
    assert found[0] == status
    assert json.loads(found[2])["error"]["code"] == -32600


async def test_missing_request_body_times_out() -> None:
    async def excuses_itself(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(TimeoutError):
            await taken(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"Internal Server Error"})

    guard = Guard(excuses_itself, TOKEN, body_seconds=0.01)
    status, _, body = await ask(guard, f"Bearer {TOKEN}", body=(b"{", None))
    assert status == 408
    assert json.loads(body)["error"]["message"].endswith(" 0.01 s")


async def test_endless_request_body_is_refused() -> None:
    guard = Guard(never, TOKEN, linger_seconds=0.01)
    status, headers, _ = await ask(guard, f"Bearer {TOKEN}", body=(b" " * MAX_BODY_BYTES, b" ", None))
    assert (status, headers[b"connection"]) == (413, b"close")


@pytest.mark.parametrize("length", [b"262145", b"1000000000000", 5_000 * b"9"])
async def test_body_with_a_large_content_length_is_refused_at_once(length: bytes) -> None:
    guard = Guard(never, TOKEN, linger_seconds=0.01)
    status, headers, _ = await ask(guard, f"Bearer {TOKEN}", body=(None,), length=length)
    assert (status, headers[b"connection"]) == (413, b"close")


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_client_that_sends_a_long_body_to_its_end_gets_the_answer(*, is_chunked: bool) -> None:
    body = b" " * (32 * MAX_BODY_BYTES)
    framing = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body)}"
    lines = (f"POST {PATH} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}", framing, "", "")
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    with served(lambda _url: Guard(taken, TOKEN)) as url:
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write("\r\n".join(lines).encode() + sent)
            await writer.drain()
            answer = await reader.read()
            writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == -32600


async def test_size_limit_of_a_body_is_configurable() -> None:
    guard = Guard(taken, TOKEN)
    assert (await ask(guard, f"Bearer {TOKEN}", length=b"00262144"))[0] == 200


async def test_caller_that_disconnects_midway_gets_no_answer() -> None:
    sent: list[Message] = []

    async def leave() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers}
    await Guard(never, TOKEN)(scope, leave, send)
    assert sent == []


async def test_call_ends_when_its_client_disconnects() -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b"{}", "more_body": False},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []
    has_ended = asyncio.Event()

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    async def waits(_scope: Scope, _receive: Receive, _send: Send) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers}
    async with asyncio.timeout(PATIENCE_SECONDS):
        await Guard(waits, TOKEN)(scope, receive, send)
    assert has_ended.is_set()
    assert sent == []


async def test_endless_call_times_out() -> None:
    status, headers, _ = await ask(Guard(never, TOKEN, call_seconds=0.01), f"Bearer {TOKEN}")
    assert (status, headers[b"connection"]) == (504, b"close")


async def test_call_that_is_cancelled_at_the_end_of_the_server_gets_an_answer() -> None:
    asking = asyncio.create_task(ask(Guard(never, TOKEN), f"Bearer {TOKEN}"))
    await asyncio.sleep(0.01)
    asking.cancel("Task cancelled, timeout graceful shutdown exceeded")
    status, headers, body = await asking
    assert (status, headers[b"connection"]) == (503, b"close")
    assert json.loads(body).keys() == {"error"}


async def test_started_answer_is_cut_off() -> None:
    async def stuck(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    status, _, body = await ask(Guard(stuck, TOKEN, call_seconds=0.01), f"Bearer {TOKEN}")
    assert (status, body) == (200, b"")


@pytest.mark.parametrize(
    "token", ["", "t" * (MIN_TOKEN_CHARS - 1), "t" * (MAX_TOKEN_CHARS + 1), "t" * 30 + " t", "é" * 30]
)
def test_weak_or_unsendable_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidValue, match=f"{MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS}") as caught:
        check_token(token, "--token-file")
    assert caught.value.name == "--token-file"
    assert caught.value.given is None


def test_generated_tokens_are_strong_and_unique() -> None:
    assert len({check_token(new_token(), "x") for _ in range(100)}) == 100
