import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from tests.storage.test_event_log import appending, draft, written
from tests.support.databases import WoundClock
from tests.support.registry_api import RegistryApi
from tests.support.servers import PATIENCE_SECONDS

from agent_health.registry import deliver_webhooks, safe_post
from agent_health.registry.archive_events import archive
from agent_health.registry.deliver_webhooks import WebhookCourier
from agent_health.registry.event_feed import EventFeed
from agent_health.registry.settings import RegistrySettings
from agent_health.storage import webhooks
from agent_health.storage.database import Database
from agent_health.storage.webhooks import StoredWebhook
from agent_health.webhook import GIVE_UP_SECONDS, SIGNATURE_HEADER, is_signed

WEBHOOKS = "/api/v1/webhooks"


@dataclass
class Receiver:
    """Takes deliveries on loopback; `behave` says how the next one is answered."""

    url: str = ""
    behave: Callable[[int], int] = lambda _number: 200
    hangs: bool = False
    tries: int = 0
    taken: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[tuple[str, bytes]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self.tries += 1
        body = await request.read()
        self.bodies.append((request.headers[SIGNATURE_HEADER], body))
        if self.hangs:
            await asyncio.Event().wait()
        status = self.behave(self.tries)
        if status == 200:
            self.taken += json.loads(body)["events"]
        return web.Response(status=status)

    @property
    def sequences(self) -> list[int]:
        return [event["sequence"] for event in self.taken]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application(client_max_size=10_000_000)
    app.router.add_post("/hook", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield receiver
    await runner.cleanup()


@pytest.fixture
async def api(database: Database, clock: WoundClock) -> RegistryApi:
    """The API of a server that takes webhooks on this machine."""
    api = RegistryApi(database, clock, webhook_networks=["127.0.0.0/8"])
    await api.add_keys()
    return api


@asynccontextmanager
async def delivering(
    database: Database, *, allowed: tuple[str, ...] = ("127.0.0.0/8",)
) -> AsyncIterator[None]:
    """Deliver as one server process does, until the block ends."""
    feed = EventFeed(database)
    courier = WebhookCourier(database, feed, RegistrySettings.read(webhook_networks=allowed))
    running = [asyncio.create_task(feed.run()), asyncio.create_task(courier.run())]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not look():  # noqa: ASYNC110 - what is waited for is far away
            await asyncio.sleep(0.01)


async def subscribe(api: RegistryApi, url: str, **members: object) -> dict[str, Any]:
    answer = await api.ask("POST", WEBHOOKS, {"url": url, **members})
    assert answer.status == 201, answer.body
    return dict(answer.json())


async def stored(api: RegistryApi) -> StoredWebhook:
    (webhook,) = await api.database.read(lambda transaction: webhooks.listing(transaction, 10))
    return webhook


def has_failed(times: int) -> Callable[[StoredWebhook], bool]:
    return lambda webhook: webhook.failures == times


async def when(api: RegistryApi, look: Callable[[StoredWebhook], bool]) -> StoredWebhook:
    """Wait until what is stored of the webhook looks like that."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not look(webhook := await stored(api)):  # noqa: ASYNC110 - only the database knows
            await asyncio.sleep(0.01)
    return webhook


async def test_events_arrive_in_order_in_batches_and_signed(api: RegistryApi, receiver: Receiver) -> None:
    created = await subscribe(api, receiver.url)
    async with delivering(api.database):
        await api.database.write(appending(*(draft(n) for n in range(250))))
        # The first event is the webhook's own creation.
        await when(api, lambda webhook: webhook.delivered_sequence == 251)
    assert receiver.sequences == list(range(1, 252))
    assert receiver.tries == 3
    for header, body in receiver.bodies:
        assert is_signed(created["secret"], header, body, api.clock.now_s())
        assert json.loads(body)["webhook_id"] == created["webhook_id"]


async def test_only_what_is_wanted_is_sent(api: RegistryApi, receiver: Receiver) -> None:
    await subscribe(api, receiver.url, types=["state.written", "agent.drift_warning"], agent_id="agent_1")
    async with delivering(api.database):
        await api.database.write(appending(draft(agent_id="agent_2"), draft(), written("intent:i/a", "i")))
        await until(lambda: len(receiver.taken) == 2)
        assert receiver.sequences == [3, 4]
        await api.database.write(appending(draft(agent_id="agent_2")))
        await when(api, lambda webhook: webhook.delivered_sequence == 5)
    assert receiver.tries == 1


async def test_a_receiver_that_fails_then_hangs_then_works_misses_nothing(
    api: RegistryApi, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.behave = lambda number: 500 if number <= 2 else 200
    await subscribe(api, receiver.url)
    async with delivering(api.database):
        await until(lambda: receiver.tries == 1)
        for failures in (1, 2):
            webhook = await when(api, has_failed(failures))
            assert webhook.last_error == "answered 500"
            # Not tried again before its time.
            await asyncio.sleep(0.2)
            assert receiver.tries == failures
            receiver.hangs = failures == 2
            monkeypatch.setattr(safe_post, "SEND_SECONDS", 0.3 if receiver.hangs else PATIENCE_SECONDS)
            api.clock.advance(60)
        webhook = await when(api, has_failed(3))
        assert "no answer" in str(webhook.last_error)
        receiver.hangs = False
        monkeypatch.setattr(safe_post, "SEND_SECONDS", PATIENCE_SECONDS)
        await api.database.write(appending(draft()))
        api.clock.advance(60)
        webhook = await when(api, lambda webhook: webhook.delivered_sequence == 2)
    assert receiver.sequences == [1, 2]
    assert (webhook.failures, webhook.failing_since_s, webhook.last_error) == (0, None, None)


async def test_after_three_days_of_failure_it_is_disabled(api: RegistryApi, receiver: Receiver) -> None:
    receiver.behave = lambda _number: 503
    created = await subscribe(api, receiver.url)
    async with delivering(api.database):
        await until(lambda: receiver.tries == 1)
        await when(api, lambda webhook: bool(webhook.failures))
        api.clock.advance(GIVE_UP_SECONDS)
        await when(api, lambda webhook: bool(webhook.is_disabled))
        api.clock.advance(GIVE_UP_SECONDS)
        await asyncio.sleep(0.7)
    assert receiver.tries == 2
    (event,) = await api.events(type="webhook.disabled")
    assert event["payload"]["webhook_id"] == created["webhook_id"]
    assert event["payload"]["failures"] == 2
    assert event["actor"] == "courier"


async def test_several_processes_deliver_each_event_once_and_in_order(
    api: RegistryApi, receiver: Receiver
) -> None:
    await subscribe(api, receiver.url)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(delivering(api.database))
        for number in range(30):
            await api.database.write(appending(draft(number)))
        await until(lambda: len(receiver.taken) >= 31)
        await asyncio.sleep(0.3)
    assert receiver.sequences == list(range(1, 32))


async def test_what_a_dead_process_was_delivering_is_delivered_by_another(
    api: RegistryApi, receiver: Receiver
) -> None:
    await subscribe(api, receiver.url)
    # A process claims and dies.
    claim_s = deliver_webhooks.CLAIM_SECONDS
    dead = await api.database.write(
        lambda transaction: webhooks.claim(transaction, transaction.now_s + claim_s, 10)
    )
    assert len(dead) == 1
    async with delivering(api.database):
        await asyncio.sleep(0.7)
        assert receiver.tries == 0
        api.clock.advance(claim_s)
        await when(api, lambda webhook: webhook.delivered_sequence == 1)
    assert receiver.sequences == [1]
    # Should it wake again, what it stores is not taken.
    assert not await api.database.write(
        lambda transaction: webhooks.settle(transaction, dead[0], delivered_sequence=0)
    )
    assert (await stored(api)).delivered_sequence == 1


async def test_one_that_hangs_holds_up_no_other(
    api: RegistryApi, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_post, "SEND_SECONDS", 10 * PATIENCE_SECONDS)

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await subscribe(api, f"http://127.0.0.1:{port}/")
    await subscribe(api, receiver.url)
    async with delivering(api.database):
        await until(lambda: receiver.sequences == [2])
    server.close()


async def test_a_private_address_that_is_not_allowed_is_not_contacted(
    api: RegistryApi, receiver: Receiver
) -> None:
    await subscribe(api, receiver.url)
    async with delivering(api.database, allowed=()):
        await when(api, lambda webhook: bool(webhook.failures))
    assert receiver.tries == 0
    assert "loopback" in str((await stored(api)).last_error)


async def test_nothing_is_archived_that_a_webhook_still_waits_for(
    api: RegistryApi, receiver: Receiver, clock: WoundClock, tmp_path: Any
) -> None:
    await api.register("agent-1")
    before = len(await api.events())
    await subscribe(api, receiver.url)
    clock.advance(10)
    archived = await archive(api.database, tmp_path, clock.now_s())
    assert archived is not None
    assert archived.last_sequence == before
    assert await archive(api.database, tmp_path, clock.now_s()) is None
