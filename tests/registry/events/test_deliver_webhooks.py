import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from jsonschema import Draft202012Validator
from sqlalchemy import update
from standardwebhooks import Webhook, WebhookVerificationError
from tests.storage.events.test_event_log import appending, draft, written
from tests.support.databases import WoundClock
from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.registry_api import RegistryApi
from tests.support.servers import PATIENCE_SECONDS, free_port, serving

from lifesign.domain.events import webhook_delivery
from lifesign.domain.events.webhook_delivery import (
    GIVE_UP_SECONDS,
    ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
)
from lifesign.registry.events import deliver_webhooks, safe_post
from lifesign.registry.events.archive_events import archive
from lifesign.registry.events.deliver_webhooks import WebhookCourier
from lifesign.registry.events.event_feed import EventFeed
from lifesign.registry.events.manage_webhooks import MAX_WEBHOOKS
from lifesign.registry.openapi.document import openapi_document
from lifesign.registry.operation_table import OPERATIONS
from lifesign.registry.settings import RegistrySettings
from lifesign.storage.engine.table_definitions import webhooks as webhooks_table
from lifesign.storage.engine.transaction import Database
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events import event_log, webhooks
from lifesign.storage.events.event_archive import files_in
from lifesign.storage.events.webhooks import StoredWebhook

WEBHOOKS = "/api/v1/webhooks"


@dataclass
class Receiver:
    """Receives deliveries on loopback; `behave` sets the next answer."""

    url: str = ""
    behave: Callable[[int], int] = lambda _number: 200
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of its answers."""
    hangs: bool = False
    tries: int = 0
    taken: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """Headers and body of every request, taken or not."""

    async def take(self, request: web.Request) -> web.Response:
        self.tries += 1
        body = await request.read()
        self.attempts.append((dict(request.headers), body))
        if self.hangs:
            await asyncio.Event().wait()
        status = self.behave(self.tries)
        if status == 200:
            self.taken += json.loads(body)["data"]["events"]
        return web.Response(status=status, headers=self.headers)

    def sent(self, header: str) -> list[str]:
        """Return the value of a header in each request."""
        return [headers[header] for headers, _ in self.attempts]

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
    """The API of a server that takes webhooks on this machine; receivers compare its clock with theirs."""
    clock.at_s = time.time()
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
    """Wait until the stored webhook looks like this."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not look(webhook := await stored(api)):  # noqa: ASYNC110 - only the database knows
            await asyncio.sleep(0.01)
    return webhook


@pytest.mark.both_databases
async def test_events_arrive_in_order_in_batches_and_signed(api: RegistryApi, receiver: Receiver) -> None:
    created = await subscribe(api, receiver.url)
    # Before the delivery starts, which would send the webhook's own creation in a batch by itself.
    await api.database.write(appending(*(draft(n) for n in range(250))))
    async with delivering(api.database):
        await when(api, lambda webhook: webhook.delivered_sequence == 251)
    assert receiver.sequences == list(range(1, 252))
    assert receiver.tries == 3
    assert len(set(receiver.sent(ID_HEADER))) == 3
    for headers, body in receiver.attempts:
        payload = Webhook(created["secret"]).verify(body, headers)
        assert payload["data"]["webhook_id"] == created["webhook_id"]
        assert payload["timestamp"] == payload["data"]["events"][-1]["created_at"]
        for broken in ({**headers, ID_HEADER: "msg_2"}, {**headers, TIMESTAMP_HEADER: "1763640000"}):
            with pytest.raises(WebhookVerificationError):
                Webhook(created["secret"]).verify(body, broken)


async def test_delivery_matches_the_openapi_document(api: RegistryApi, receiver: Receiver) -> None:
    await subscribe(api, receiver.url)
    async with delivering(api.database):
        await until(lambda: receiver.sequences == [1])
    document = openapi_document(OPERATIONS)
    operation = document["webhooks"]["events"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]
    headers, body = receiver.attempts[0]
    Draft202012Validator({**reference, "components": document["components"]}).validate(json.loads(body))
    for parameter in operation["parameters"]:
        Draft202012Validator(parameter["schema"]).validate(headers[parameter["name"]])


@pytest.mark.both_databases
async def test_every_attempt_has_the_same_id_and_body_and_its_own_time(
    api: RegistryApi, receiver: Receiver
) -> None:
    created = await subscribe(api, receiver.url)
    receiver.behave = lambda number: 500 if number <= 2 else 200
    async with delivering(api.database):
        for failures in (1, 2):
            await when(api, has_failed(failures))
            await api.database.write(appending(draft()))
            api.clock.advance(60)
        await until(lambda: receiver.sequences == [1, 2, 3])
    assert len(receiver.attempts) == 4
    first, second, third, following = receiver.sent(ID_HEADER)
    assert first == second == third != following
    bodies = [body for _, body in receiver.attempts]
    assert bodies[0] == bodies[1] == bodies[2] != bodies[3]
    began_s = int(receiver.sent(TIMESTAMP_HEADER)[0])
    assert [int(at_s) - began_s for at_s in receiver.sent(TIMESTAMP_HEADER)] == [0, 60, 120, 120]
    for headers, body in receiver.attempts:
        Webhook(created["secret"]).verify(body, headers)


async def test_attempt_after_a_crash_has_the_same_id_and_body(api: RegistryApi, receiver: Receiver) -> None:
    await subscribe(api, receiver.url)
    receiver.hangs = True
    async with delivering(api.database):
        await until(lambda: receiver.tries == 1)
    # The result is unknown: the process ended before the answer.
    receiver.hangs = False
    await api.database.write(appending(draft()))
    api.clock.advance(deliver_webhooks.CLAIM_SECONDS)
    async with delivering(api.database):
        await when(api, lambda webhook: webhook.delivered_sequence == 2)
    first, second, following = receiver.sent(ID_HEADER)
    assert first == second != following
    assert receiver.attempts[0][1] == receiver.attempts[1][1]


@pytest.mark.both_databases
async def test_both_secrets_sign_until_the_overlap_is_over(api: RegistryApi, receiver: Receiver) -> None:
    created = await subscribe(api, receiver.url)
    path = f"{WEBHOOKS}/{created['webhook_id']}/rotate"
    rotated = await api.ask("POST", path, {"overlap_seconds": 100})
    assert rotated.status == 200, rotated.body
    secrets = [created["secret"], rotated.json()["secret"]]
    async with delivering(api.database):
        await when(api, lambda webhook: webhook.delivered_sequence == 2)
        api.clock.advance(100)
        await api.database.write(appending(draft()))
        await when(api, lambda webhook: webhook.delivered_sequence == 3)
    during, after = receiver.attempts
    assert len(during[0][SIGNATURE_HEADER].split(" ")) == 2
    for secret in secrets:
        Webhook(secret).verify(during[1], during[0])
    Webhook(secrets[1]).verify(after[1], after[0])
    with pytest.raises(WebhookVerificationError):
        Webhook(secrets[0]).verify(after[1], after[0])


@pytest.mark.both_databases
async def test_rotation_without_overlap_ends_the_old_secret_of_a_waiting_delivery(
    api: RegistryApi, receiver: Receiver
) -> None:
    created = await subscribe(api, receiver.url)
    receiver.behave = lambda number: 500 if number == 1 else 200
    async with delivering(api.database):
        await when(api, has_failed(1))
        path = f"{WEBHOOKS}/{created['webhook_id']}/rotate"
        secret = (await api.ask("POST", path, {"overlap_seconds": 0})).json()["secret"]
        api.clock.advance(60)
        await until(lambda: receiver.sequences == [1, 2])
    Webhook(secret).verify(receiver.attempts[1][1], receiver.attempts[1][0])
    with pytest.raises(WebhookVerificationError):
        Webhook(created["secret"]).verify(receiver.attempts[1][1], receiver.attempts[1][0])


@pytest.mark.both_databases
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_a_failure_and_is_not_followed(
    api: RegistryApi, receiver: Receiver, status: int
) -> None:
    receiver.behave = lambda _number: status
    receiver.headers = {"Location": receiver.url}
    await subscribe(api, receiver.url)
    async with delivering(api.database):
        webhook = await when(api, has_failed(1))
    assert webhook.last_error == f"answered {status}"
    assert receiver.tries == 1


@pytest.mark.both_databases
async def test_webhook_is_disabled_after_status_410(api: RegistryApi, receiver: Receiver) -> None:
    receiver.behave = lambda _number: 410
    await subscribe(api, receiver.url)
    async with delivering(api.database):
        await when(api, lambda webhook: bool(webhook.is_disabled))
    (event,) = await api.events(type="webhook.disabled")
    assert event["payload"]["failures"] == 1


@pytest.mark.both_databases
async def test_retry_after_delays_the_next_delivery(api: RegistryApi, receiver: Receiver) -> None:
    receiver.behave = lambda _number: 503
    receiver.headers = {"Retry-After": "900"}
    await subscribe(api, receiver.url)
    async with delivering(api.database):
        webhook = await when(api, has_failed(1))
    assert webhook.next_try_at_s == api.clock.at_s + 900


@pytest.mark.both_databases
async def test_example_receiver_of_the_docs_processes_each_event_once(
    api: RegistryApi, tmp_path: Path
) -> None:
    port = free_port()
    created = await subscribe(api, f"http://127.0.0.1:{port}/hook")
    command = [PYTHON, "-m", "uvicorn", "--app-dir", "docs/examples", "--port", str(port)]
    env = {"WEBHOOK_SECRET": created["secret"]}
    log = tmp_path / "receiver.log"
    command.append("webhook_receiver:app")
    with serving(command, log=log, port=port, env=env, start=PreloadedProcess) as receiver:
        async with delivering(api.database):
            await api.database.write(appending(draft(1), draft(2)))
            await when(api, lambda webhook: webhook.delivered_sequence == 3)
        assert (await asyncio.to_thread(receiver.json, "/"))["last_sequence"] == 3
        status, _ = await asyncio.to_thread(receiver.send, "/hook", method="POST", body=b"{}")
        assert status == 401


async def test_webhook_gets_only_events_of_its_types_and_agent(api: RegistryApi, receiver: Receiver) -> None:
    await subscribe(api, receiver.url, types=["state.written", "agent.drift_warning"], agent_id="agent_1")
    async with delivering(api.database):
        await api.database.write(appending(draft(agent_id="agent_2"), draft(), written("intent:i/a", "i")))
        await until(lambda: len(receiver.taken) == 2)
        assert receiver.sequences == [3, 4]
        await api.database.write(appending(draft(agent_id="agent_2")))
        await when(api, lambda webhook: webhook.delivered_sequence == 5)
    assert receiver.tries == 1


@pytest.mark.both_databases
async def test_receiver_that_fails_hangs_and_recovers_gets_each_event(
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


@pytest.mark.both_databases
async def test_webhook_is_disabled_after_three_days_of_failures(
    api: RegistryApi, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_delivery, "GIVE_UP_FAILURES", 2)
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


@pytest.mark.both_databases
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


@pytest.mark.both_databases
async def test_deliveries_of_a_dead_process_are_taken_over(api: RegistryApi, receiver: Receiver) -> None:
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


@pytest.mark.both_databases
async def test_hanging_servers_delay_no_other(
    api: RegistryApi, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_post, "SEND_SECONDS", 10 * PATIENCE_SECONDS)

    asked = asyncio.Event()
    connections: set[asyncio.Task[object] | None] = set()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        asked.set()
        # Until the sender leaves.
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for _ in range(MAX_WEBHOOKS - 1):
        await subscribe(api, f"http://127.0.0.1:{port}/")
    await subscribe(api, receiver.url)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with delivering(api.database):
            await until(lambda: receiver.sequences == [MAX_WEBHOOKS])
            await asked.wait()
        server.close()
        # A slow delivery may be retried.
        await asyncio.gather(*(task for task in connections if task))


@pytest.mark.both_databases
async def test_a_private_address_that_is_not_allowed_is_not_contacted(
    api: RegistryApi, receiver: Receiver
) -> None:
    await subscribe(api, receiver.url)
    async with delivering(api.database, allowed=()):
        await when(api, lambda webhook: bool(webhook.failures))
    assert receiver.tries == 0
    assert "loopback" in str((await stored(api)).last_error)


async def test_events_that_a_webhook_waits_for_are_not_archived(
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


async def test_archive_file_of_a_killed_writer_is_finished_when_no_webhook_waits_for_its_events(
    api: RegistryApi, receiver: Receiver, clock: WoundClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.register("agent-1")
    clock.advance(10)

    def killed(*_arguments: object) -> None:
        raise StoreUnavailable("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(event_log, "remove_until", killed)
        with pytest.raises(StoreUnavailable):
            await archive(api.database, tmp_path, clock.now_s())
    (file,) = files_in(tmp_path)
    await subscribe(api, receiver.url)

    async def deliver_until(sequence: int) -> None:
        delivered = update(webhooks_table).values(delivered_sequence=sequence)
        await api.database.write(lambda transaction: transaction.connection.execute(delivered))

    # As after a restore.
    await deliver_until(file.last_sequence - 1)
    assert await archive(api.database, tmp_path, clock.now_s()) is None
    await deliver_until(file.last_sequence)
    assert await archive(api.database, tmp_path, clock.now_s()) == file
    assert files_in(tmp_path) == [file]
