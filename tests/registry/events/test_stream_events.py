import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import delete, update
from tests.storage.events.test_event_log import appending, draft, written
from tests.support import servers
from tests.support.databases import create_tables, empty_url
from tests.support.event_server import READER_KEY, Serving, add_key, following, serving
from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.access.permissions import Role, key_of
from lifesign.domain.events.agent_payloads import AgentErased
from lifesign.domain.events.chain import Checkpoint, Event
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.registry.events import event_feed, stream_events
from lifesign.registry.events.archive_events import archive
from lifesign.registry.events.stream_events import STREAM_PATH
from lifesign.storage.engine import table_definitions
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import event_log
from lifesign.storage.keys import key_rows
from lifesign.storage.whole_database import all_rows

AGENT_KEY = key_of(b"a" * 32)
Behind = list[tuple[Event, str | None]] | None


@pytest.fixture
async def served(database: Database) -> AsyncIterator[Serving]:
    await add_key(database, READER_KEY)
    await add_key(database, AGENT_KEY, Role.AGENT, "agent_1")
    async with serving(database) as served:
        yield served


async def test_event_stream_begins_with_new_events(served: Serving, database: Database) -> None:
    await database.write(appending(draft(1)))
    async with following(served.url) as follower:
        assert await follower.begin() == 1
        await database.write(appending(draft(2), draft(3)))
        result = await follower.take(2)
    assert [one.id for one in result] == [2, 3]
    assert {one.type for one in result} == {"agent.drift_warning"}
    assert result[0].data["sequence"] == 2
    assert result[0].data["payload"] == {"agent_id": "agent_1", "drift_seconds": 2.0}


@pytest.mark.both_databases
async def test_reconnecting_client_gets_each_event_once(served: Serving, database: Database) -> None:
    await database.write(appending(*(draft(n) for n in range(250))))
    async with following(served.url, query="?after=0") as follower:
        first = await follower.take(120)
    # The header takes precedence: an EventSource repeats its first query.
    async with following(served.url, query="?after=0", last_event_id=first[-1].id) as follower:
        second = await follower.take(130)
        await database.write(appending(draft(7)))
        third = await follower.take(1)
    assert [one.id for one in [*first, *second, *third]] == list(range(1, 252))


@pytest.mark.both_databases
async def test_event_stream_is_filtered_by_type_agent_and_intent(served: Serving, database: Database) -> None:
    async with (
        following(served.url, query="?type=state.written,log.archived") as by_type,
        following(served.url, query="?agent_id=agent_2") as by_agent,
        following(served.url, query="?intent_id=i2") as by_intent,
    ):
        for follower in (by_type, by_agent, by_intent):
            await follower.begin()
        await database.write(
            appending(
                draft(), draft(agent_id="agent_2"), written("intent:i1/a", "i1"), written("intent:i2/a", "i2")
            )
        )
        assert [one.id for one in await by_type.take(2)] == [3, 4]
        assert [one.id for one in await by_agent.take(1)] == [2]
        assert [one.id for one in await by_intent.take(1)] == [4]


@pytest.mark.both_databases
async def test_erased_payloads_are_not_streamed_from_memory(served: Serving, database: Database) -> None:
    def erase(transaction: Transaction) -> None:
        events = event_log.erase_of(transaction, "agent_1")
        payload = AgentErased(agent_id="agent_1", events=events)
        event_log.append(transaction, [EventDraft(type=EventType.AGENT_ERASED, actor="x", payload=payload)])

    async with following(served.url) as follower:
        await follower.begin()
        await database.write(appending(draft(1), draft(2)))
        await follower.take(2)
        await database.write(erase)
        assert [one.type for one in await follower.take(1)] == ["agent.erased"]
    async with following(served.url, query="?after=0") as follower:
        result = await follower.take(3)
    assert [set(one.data["payload"]) for one in result[:2]] == [{"erased"}, {"erased"}]


async def test_agents_key_streams_only_its_events(served: Serving, database: Database) -> None:
    async with following(served.url, key=AGENT_KEY, query="?after=0") as follower:
        await database.write(
            appending(draft(agent_id="agent_2"), draft(), draft(agent_id="agent_2"), draft())
        )
        assert [one.id for one in await follower.take(2)] == [2, 4]
    async with following(served.url, key=AGENT_KEY, query="?agent_id=agent_2") as follower:
        assert follower.response.status == 403


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("query", "last_event_id", "status"),
    [
        ("?after=5", None, 422),
        ("?after=-1", None, 422),
        ("?after=x", None, 422),
        ("?type=nonsense", None, 422),
        ("?nonsense=1", None, 422),
        ("", "5", 422),
        ("", "x", 422),
        ("", "9" * 5_000, 422),
        ("?after=0", "0", 200),
    ],
)
async def test_invalid_request_is_refused(
    served: Serving, query: str, last_event_id: str | None, status: int
) -> None:
    headers = {"x-api-key": READER_KEY}
    if last_event_id is not None:
        headers["last-event-id"] = last_event_id
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{served.url}{STREAM_PATH}{query}", headers=headers) as response,
    ):
        assert response.status == status


@pytest.mark.parametrize(
    ("position", "status"),
    [
        ({"query": "?after=0"}, 200),
        ({"query": "?after=2"}, 422),
        ({"last_event_id": 0}, 422),
        ({"last_event_id": 2}, 422),
        ({"last_event_id": 3}, 200),
    ],
)
async def test_position_before_archived_events_is_refused(
    served: Serving, database: Database, tmp_path: Path, position: dict[str, Any], status: int
) -> None:
    await database.write(appending(draft(), draft(), draft()))
    await archive(database, tmp_path, time.time() + 60)
    async with following(served.url, **position) as follower:
        assert follower.response.status == status


async def test_stream_requires_a_key(served: Serving) -> None:
    async with following(served.url, key="ahk_none") as follower:
        assert follower.response.status == 401


async def test_idle_stream_advances_its_position_with_pings(
    served: Serving, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_events, "PING_SECONDS", 0.2)
    async with following(served.url, query="?type=log.archived") as follower:
        await follower.begin()
        await database.write(appending(draft(), draft(), draft()))
        result = asyncio.create_task(follower.take(1))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while follower.comments < 2 or follower.last_event_id != 3:
                assert not result.done()
                await asyncio.sleep(0.02)
        result.cancel()


async def test_a_revoked_keys_stream_ends(
    served: Serving, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the change itself can wake the stream: no keep-alive and no event is due.
    monkeypatch.setattr(stream_events, "PING_SECONDS", 600.0)
    async with following(served.url) as follower:
        await follower.begin()
        key_id = await database.read(lambda transaction: key_rows.all_keys(transaction)[0].key_id)
        await database.write(
            lambda transaction: key_rows.end(transaction, key_id, expires_at_s=None, revoked_at_s=1.0)
        )
        assert await follower.end() == []


async def _until_nobody_follows(served: Serving) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while served.streams.open_streams:  # noqa: ASYNC110 - it is the server's to count, not to tell
            await asyncio.sleep(0.01)


@pytest.mark.both_databases
@pytest.mark.parametrize("again", [1, 3, 8])
async def test_streams_end_and_restart_after_a_restore(
    served: Serving, database: Database, again: int
) -> None:
    """The log is shorter than the position, as long, or longer already."""
    await database.write(appending(draft(1)))
    before = await database.read(
        lambda transaction: list(all_rows.read(transaction, table_definitions.events))
    )
    await database.write(appending(*(draft(n) for n in range(2, 6))))

    def restore(transaction: Transaction) -> None:
        transaction.connection.execute(
            delete(table_definitions.events).where(table_definitions.events.c.sequence > 1)
        )
        hash_of_first = before[0][table_definitions.events.columns.keys().index("hash")]
        transaction.connection.execute(
            update(table_definitions.event_log).values(sequence=1, hash=hash_of_first)
        )
        event_log.append(transaction, [draft(100 + n) for n in range(again)])

    async with following(served.url, query="?after=0") as follower:
        assert [one.id for one in await follower.take(5)] == [1, 2, 3, 4, 5]
        await database.write(restore)
        assert await follower.end() == []
    async with following(served.url, query="?after=1") as follower:
        result = await follower.take(again)
        assert [one.data["payload"]["drift_seconds"] for one in result] == [100.0 + n for n in range(again)]
        await database.write(appending(draft(7)))
        assert [one.id for one in await follower.take(1)] == [again + 2]


@pytest.mark.both_databases
async def test_disconnected_client_leaves_no_stream_behind(served: Serving, database: Database) -> None:
    for _ in range(3):
        async with following(served.url) as follower:
            await follower.begin()
            assert served.streams.open_streams == 1
        await _until_nobody_follows(served)
    await database.write(appending(draft()))
    async with aiohttp.ClientSession() as session:
        head = await session.head(f"{served.url}{STREAM_PATH}", headers={"x-api-key": READER_KEY})
    assert head.headers["content-type"].startswith("text/event-stream")
    await _until_nobody_follows(served)


@pytest.mark.both_databases
async def test_number_of_streams_is_bounded(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_events, "MAX_STREAMS_OF_KEY", 1)
    async with following(served.url) as first:
        await first.begin()
        async with following(served.url) as second:
            assert second.response.status == 429
            assert "retry-after" in second.response.headers
        monkeypatch.setattr(stream_events, "MAX_STREAMS", 1)
        async with following(served.url, key=AGENT_KEY) as other:
            assert other.response.status == 503
            assert "retry-after" in other.response.headers


@pytest.mark.both_databases
async def test_a_server_that_stops_ends_its_streams_promptly(database: Database) -> None:
    await add_key(database, READER_KEY)
    async with serving(database) as served, following(served.url) as follower:
        await follower.begin()
        await served.stop()
        assert await follower.end() == []


@pytest.mark.both_databases
async def test_stalled_reader_is_disconnected_and_uses_no_memory(
    served: Serving, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_events, "SEND_SECONDS", 1.0)
    pages = 0
    page = event_feed.EventFeed.page

    async def counted(*arguments: object) -> object:
        nonlocal pages
        pages += 1
        return await page(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(event_feed.EventFeed, "page", counted)
    # 30,000 events are 15 MB: far more than sockets hold.
    for _ in range(10):
        await database.write(appending(*(draft(n) for n in range(3_000))))
    port = int(served.url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
    request = f"GET {STREAM_PATH}?after=0 HTTP/1.1\r\nhost: x\r\nx-api-key: {READER_KEY}\r\n\r\n"
    writer.write(request.encode())
    await reader.readline()
    await asyncio.sleep(0.5)
    assert served.streams.open_streams == 1
    assert 1 <= pages < 250
    await _until_nobody_follows(served)
    assert pages < 250
    writer.close()


@pytest.mark.both_databases
async def test_many_followers_share_one_read(served: Serving, database: Database) -> None:
    looks = 0
    real = database.read

    async def counted(function: object) -> object:
        nonlocal looks
        looks += 1
        return await real(function)  # type: ignore[arg-type]

    async with asyncio.TaskGroup() as group:
        ready = asyncio.Semaphore(0)

        async def follow() -> list[int]:
            async with following(served.url) as follower:
                await follower.begin()
                ready.release()
                return [one.id for one in await follower.take(20)]

        followers = [group.create_task(follow()) for _ in range(50)]
        for _ in followers:
            await ready.acquire()
        database.read = counted  # type: ignore[method-assign, assignment]
        await database.write(appending(*(draft(n) for n in range(20))))
    assert all(one.result() == list(range(1, 21)) for one in followers)
    assert looks < 25


@pytest.mark.both_databases
async def test_without_streams_the_log_is_not_read(
    served: Serving, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(event_feed, "MAX_RECENT", 200)
    read: list[int] = []

    def counting(transaction: Transaction, place: Checkpoint, *, limit: int) -> Behind:
        read.append(place.sequence)
        return behind(transaction, place, limit=limit)

    behind = event_log.behind
    async with following(served.url) as follower:
        assert await follower.begin() == 0
        await database.write(appending(draft(1)))
        assert [one.id for one in await follower.take(1)] == [1]
    feed = served.streams.feed
    while feed._is_wanted.is_set():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)
    monkeypatch.setattr(event_log, "behind", counting)
    await database.write(appending(*(draft(number) for number in range(2, 300))))
    await asyncio.sleep(0.3)
    assert read == []
    # A returning reader gets all of it; the feed itself begins at the end.
    async with following(served.url, query="?after=1") as follower:
        assert [one.id for one in await follower.take(298)] == list(range(2, 300))
        await database.write(appending(draft(300)))
        assert [one.id for one in await follower.take(1)] == [300]
    assert min(read) == 299


async def test_two_processes_deliver_events_of_each_other(tmp_path: Path, database_kind: str) -> None:
    url = empty_url(database_kind, tmp_path)
    database = open_database(url)
    if database_kind == "sqlite":
        await create_tables(database)
    await add_key(database, READER_KEY)
    command = [PYTHON, "-m", "uvicorn", "--factory", "tests.support.event_server:app", "--port", "{port}"]
    env = {"LIFESIGN_SERVER_DATABASE": url}
    with (
        servers.serving(command, log=tmp_path / "one.log", env=env, start=PreloadedProcess) as one,
        servers.serving(command, log=tmp_path / "two.log", env=env, start=PreloadedProcess) as two,
    ):
        async with (
            following(f"http://127.0.0.1:{one.port}") as at_one,
            following(f"http://127.0.0.1:{two.port}") as at_two,
        ):
            await at_one.begin()
            await at_two.begin()
            await database.write(appending(draft(), draft(), draft()))
            assert [result.id for result in await at_one.take(3)] == [1, 2, 3]
            assert [result.id for result in await at_two.take(3)] == [1, 2, 3]
            # Ends with its stream open.
            await asyncio.to_thread(servers.stop, one.process)
            await at_one.end()
            assert "rror" not in one.log.read_text()
            await database.write(appending(draft(), draft()))
            assert [result.id for result in await at_two.take(2)] == [4, 5]
        # Goes on at the other process.
        async with following(f"http://127.0.0.1:{two.port}", last_event_id=3) as follower:
            assert [result.id for result in await follower.take(2)] == [4, 5]
    await database.close()
