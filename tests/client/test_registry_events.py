import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.support.event_logs import verify
from tests.support.hostile_server import HostileServer, Reply, answer, as_json, serving, silence
from tests.support.registry_server import KEYS, RegistryServer
from tests.support.servers import PATIENCE_SECONDS

from lifesign.agent.credentials import AgentKeys
from lifesign.client import RegistryClient, registry_connection
from lifesign.client.registry_errors import (
    InvalidAnswer,
    NotAuthorized,
    NotPermitted,
    Unavailable,
    Unprocessable,
)
from lifesign.client.registry_events import LoggedEvent
from lifesign.domain.access.permissions import Role
from lifesign.domain.events.chain import GENESIS, read_event
from lifesign.errors import InvalidValue

STREAM = "/api/v1/events/stream"


async def take(stream: AsyncGenerator[LoggedEvent, None], number: int) -> list[int]:
    """Return the sequences of the next events."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [(await anext(stream)).sequence for _ in range(number)]


# ── against a real registry ──


async def test_complete_log_is_read_with_a_valid_chain(client: RegistryClient) -> None:
    for number in range(3):
        await client.agents.register(f"a-{number}")
    page = await client.events.list(limit=2)
    assert [event.sequence for event in page.events] == [1, 2]
    assert (page.next_after, page.last_sequence) == (2, 6)
    events = [event async for event in client.events.each(page=2)]
    assert verify([read_event(event.members()) for event in events]).sequence == 6
    assert events[0].previous_hash == GENESIS.hash


async def test_events_are_filtered_by_type_and_agent(client: RegistryClient) -> None:
    for agent_id in ("a", "b"):
        await client.agents.register(agent_id)
    chosen = client.events.each(types=["agent.lifecycle", "agent.updated"], agent_id="b")
    assert [event.payload["agent_id"] async for event in chosen] == ["b"]


async def test_event_stream_delivers_new_events(client: RegistryClient) -> None:
    await client.agents.register("before")
    async with aclosing(client.events.stream(types=["agent.lifecycle"])) as stream:
        next_one = asyncio.ensure_future(take(stream, 1))
        agent = 0
        while not next_one.done():
            # The stream does not report when it is connected: create events until one arrives.
            await client.agents.register(f"after-{agent}")
            agent += 1
            await asyncio.sleep(0.05)
        assert (await next_one)[0] > 2


async def test_stream_resumes_when_the_server_returns(
    client: RegistryClient, registry: RegistryServer
) -> None:
    await client.agents.register("a")
    async with aclosing(client.events.stream(after=0)) as stream:
        assert await take(stream, 2) == [1, 2]
        await asyncio.to_thread(registry.stop)
        await asyncio.to_thread(registry.start)
        await client.agents.register("b")
        assert await take(stream, 2) == [3, 4]


async def test_a_key_that_is_revoked_opens_no_stream(registry: RegistryServer) -> None:
    key = KEYS[Role.READER]
    await asyncio.to_thread(registry.revoke, key)
    async with RegistryClient(registry.url, key=key) as reader:
        with pytest.raises(NotAuthorized):
            await anext(reader.events.stream())


async def test_stream_is_opened_with_a_replaced_key(registry: RegistryServer, tmp_path: Path) -> None:
    file = tmp_path / "own.key"
    file.write_text("ahk_former")
    file.chmod(0o600)
    keys = AgentKeys(key_file=file, environment={})
    assert keys.current() == "ahk_former"
    file.write_text(KEYS[Role.READER])
    async with (
        RegistryClient(registry.url, key=KEYS[Role.COORDINATOR]) as coordinator,
        RegistryClient(registry.url, key=keys) as reader,
    ):
        await coordinator.agents.register("streamed")
        async with aclosing(reader.events.stream(after=0)) as stream:
            assert await take(stream, 1) == [1]


async def test_stream_position_beyond_the_log_is_refused(client: RegistryClient) -> None:
    with pytest.raises(Unprocessable):
        await anext(client.events.stream(after=1_000))


# ── against a scripted one ──


def event(sequence: int, **members: Any) -> dict[str, Any]:
    return {
        "sequence": sequence, "id": f"evt_{sequence}", "type": "agent.lifecycle", "actor": "a",
        "payload": {}, "created_at": "2026-11-20T12:00:00.000Z", "previous_hash": "0" * 64, "hash": "0" * 64,
        **members,
    }  # fmt: skip


def event_bytes(*sequences: int) -> bytes:
    return b"".join(
        b"id: %d\ndata: %s\n\n" % (number, json.dumps(event(number)).encode()) for number in sequences
    )


def stream_of(content: bytes) -> Reply:
    return answer(200, content, Content_Type="text/event-stream; charset=utf-8")


class Script:
    """Answers one request after another; the last answer stays."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)

    async def __call__(self, writer: asyncio.StreamWriter, head: str) -> None:
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        await reply(writer, head)


async def follow(
    script: Script,
    number: int,
    *,
    path: str = STREAM,
    timeout_seconds: float = 10.0,
    **settings: Any,
) -> tuple[list[int], HostileServer, list[float]]:
    """Take so many events; return them, the server, and how long was waited."""
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    async with (
        serving({STREAM: script, path: script}) as server,
        RegistryClient(server.url, timeout_seconds=timeout_seconds) as client,
    ):
        client._connection.sleep = note
        async with aclosing(client.events.stream(**settings)) as stream:
            return await take(stream, number), server, waits


def last_event_ids(server: HostileServer) -> list[str | None]:
    heads = [head.lower().partition("last-event-id: ")[2].partition("\r\n")[0] for head in server.heads]
    return [head or None for head in heads]


async def test_broken_stream_raises_its_position() -> None:
    script = Script(
        stream_of(event_bytes(4, 5)), stream_of(b": nothing new\nid: 9\n\n"), stream_of(event_bytes(10))
    )
    found, server, waits = await follow(script, 3)
    assert found == [4, 5, 10]
    assert last_event_ids(server) == [None, "5", "9"]
    assert len(waits) == 2


async def test_start_position_is_sent_in_the_query() -> None:
    script = Script(stream_of(event_bytes(8)))
    found, server, _ = await follow(script, 1, path=f"{STREAM}?after=7", after=7)
    assert found == [8]
    assert server.paths == [f"{STREAM}?after=7"]


async def test_each_event_is_delivered_once() -> None:
    script = Script(stream_of(event_bytes(1, 2)), stream_of(event_bytes(1, 2, 3)))
    assert (await follow(script, 3))[0] == [1, 2, 3]


async def test_unknown_event_type_of_a_newer_registry_is_delivered() -> None:
    newer = event(1, type="agent.promoted", new={"x": 1})
    script = Script(stream_of(b"data: %s\n\n" % json.dumps(newer).encode()))
    async with (
        serving({STREAM: script}) as server,
        RegistryClient(server.url) as client,
        aclosing(client.events.stream()) as stream,
    ):
        found = await anext(stream)
    assert found.type == "agent.promoted"
    assert found.members() == newer


@pytest.mark.parametrize(("status", "kind"), [(401, NotAuthorized), (403, NotPermitted)])
async def test_a_stream_ends_with_its_key(status: int, kind: type[Exception]) -> None:
    script = Script(stream_of(event_bytes(1)), answer(status, b'{"error": {"code": "a_code"}}'))
    with pytest.raises(kind):
        await follow(script, 2)


async def test_silent_stream_is_reopened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_connection, "IDLE_SECONDS", 0.5)

    async def fall_silent(writer: asyncio.StreamWriter, head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + event_bytes(1))
        await writer.drain()
        await silence(writer, head)

    found, server, _ = await follow(Script(fall_silent, stream_of(event_bytes(2))), 2)
    assert (found, last_event_ids(server)) == ([1, 2], [None, "1"])


async def test_waits_grow_while_streams_end_at_once() -> None:
    script = Script(*[stream_of(b"")] * 5, stream_of(event_bytes(1)))
    _, _, waits = await follow(script, 1)
    assert all(0.05 * 2**tries <= wait <= 0.1 * 2**tries for tries, wait in enumerate(waits))
    assert len(waits) == 5


async def test_retry_after_of_the_server_is_respected() -> None:
    script = Script(answer(503, Retry_After="3"), stream_of(b"retry: 4000\n\n"), stream_of(event_bytes(1)))
    _, _, waits = await follow(script, 1)
    assert 3 < waits[0] < 3.2
    assert 4 <= waits[1] < 4.3


async def test_interrupted_stream_is_retried_longer_than_one_that_never_opened() -> None:
    script = Script(stream_of(event_bytes(1)), answer(503, Retry_After="5"), stream_of(event_bytes(2)))
    found, _, waits = await follow(script, 2, timeout_seconds=2)
    assert found == [1, 2]
    assert waits[1] > 5


async def test_reconnect_wait_is_bounded() -> None:
    with pytest.raises(Unavailable):
        await follow(Script(answer(503, Retry_After="3600")), 1)
    script = Script(stream_of(event_bytes(1)), answer(503, Retry_After="61"))
    with pytest.raises(Unavailable):
        await follow(script, 2, patience_seconds=60)


@pytest.mark.parametrize(
    "reply",
    [
        as_json({}),
        answer(200, b"<html>", Content_Type="text/html"),
        stream_of(b"data: {}\n\n"),
        stream_of(b"data: nonsense\n\n"),
        stream_of(b"data: " + b"x" * 2_000_000),
        answer(307, Location="https://elsewhere.example/"),
        answer(404),
    ],
)
async def test_answer_without_an_event_stream_ends_at_once(reply: Reply) -> None:
    with pytest.raises(InvalidAnswer):
        await follow(Script(reply), 1)


async def test_event_page_that_does_not_advance_is_refused() -> None:
    page = as_json({"events": [], "next_after": 0, "last_sequence": 9, "archived_sequence": 0})
    replies = {"/api/v1/events?after=0&limit=500": page}
    async with serving(replies) as server, RegistryClient(server.url) as client:
        with pytest.raises(InvalidAnswer, match="not continue"):
            [found async for found in client.events.each()]
    assert len(server.heads) == 1


@pytest.mark.parametrize("seconds", [-1, float("nan")])
async def test_invalid_reconnect_time_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidValue):
        await follow(Script(answer(503)), 1, patience_seconds=seconds)
