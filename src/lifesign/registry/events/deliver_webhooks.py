"""Webhook deliveries (Standard Webhooks 1.0.0).

Each webhook gets its events in order, a batch at a time, at least once: its position moves on when the
receiver has taken a batch. A batch has one id and one body, however often it is sent: which events it has is
stored before the first attempt. One server process claims a webhook for a while; if it dies, another one
continues.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic_core import to_json
from ulid import ULID

from lifesign.domain.access.event_actor import OwnActor
from lifesign.domain.events.chain import Event
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.webhook_delivery import after_failure, delivery_headers
from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.registry.events.event_feed import EventFeed
from lifesign.registry.events.manage_webhooks import MAX_WEBHOOKS, WebhookBatch, WebhookDelivery, changed
from lifesign.registry.events.safe_post import SEND_SECONDS, Sent, safe_post
from lifesign.registry.request_handling.work_counts import WorkCounts, WorkKind
from lifesign.registry.settings import RegistrySettings
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events import event_log, webhooks
from lifesign.storage.events.webhooks import StoredWebhook

MAX_EVENTS = 100
"""Maximum of events per batch."""
MAX_BATCH_BYTES = 1_048_576
"""Maximum size of a batch of more than one event."""
CLAIM_SECONDS = 60.0
"""Time after which the webhooks of a dead process pass to another one. A batch takes less time."""
POLL_SECONDS = 0.5
"""Interval at which due webhooks are looked for: retries, and those of a dead process."""
MIN_WAIT_SECONDS = 0.05
MAX_ERROR_CHARACTERS = 256
COURIER = OwnActor.COURIER.value
"""Actor of the event that disables a webhook."""

_log = logging.getLogger("lifesign.registry")


class WebhookCourier:
    """Delivers events to all webhooks; one per server process."""

    def __init__(
        self,
        database: Database,
        feed: EventFeed,
        settings: RegistrySettings,
        counts: WorkCounts | None = None,
    ) -> None:
        self._counts = counts or WorkCounts()
        self._database = database
        self._feed = feed
        self._allowed = read_networks(settings.webhook_networks, "webhook_networks")
        self._deliveries: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Deliver until cancelled; unfinished deliveries are repeated later."""
        position: int | None = 0
        try:
            while True:
                try:
                    position = await self._begin_deliveries()
                except StoreUnavailable:
                    _log.debug("no webhook is delivered while the database is unreachable")
                except Exception:  # noqa: BLE001 - it is logged
                    _log.exception("due webhooks could not be read; it is tried again")
                if position is None:
                    await asyncio.sleep(POLL_SECONDS)
                else:
                    await asyncio.sleep(MIN_WAIT_SECONDS)
                    await self._feed.wait_beyond(position, POLL_SECONDS)
        finally:
            for delivery in self._deliveries:
                delivery.cancel()
            await asyncio.gather(*self._deliveries, return_exceptions=True)

    async def _begin_deliveries(self) -> int | None:
        """Claim webhooks and deliver to each; return the end of the log, None if there is no webhook."""
        is_due, position = await self._database.read(_find_due)
        if is_due:
            # All of them at once: slow receivers delay no other.
            for webhook in await self._database.write(_claim_due):
                delivery = asyncio.create_task(self._deliver_safely(webhook))
                self._deliveries.add(delivery)
                delivery.add_done_callback(self._deliveries.discard)
        return position

    async def _deliver_safely(self, webhook: StoredWebhook) -> None:
        try:
            await self._deliver(webhook)
        except StoreUnavailable:
            _log.debug("the delivery of a webhook waits until the database is reachable")
        except Exception:  # noqa: BLE001 - one webhook must not stop the others
            _log.exception("the webhook %s failed", webhook.id)

    async def _deliver(self, claimed: StoredWebhook) -> None:
        """Deliver batches until nothing is left, one fails, or the claim has passed to another process."""
        webhook: StoredWebhook | None = claimed
        while webhook is not None:
            message = await self._database.read(_next_message(webhook))
            if message is None or not await self._keep(message):
                return
            sent = None
            if message.events:
                body = _body(message)
                headers = {
                    "Content-Type": "application/json",
                    "User-Agent": "lifesign",
                    **delivery_headers(message.id, message.now_s, body, message.secrets),
                }
                sent = await safe_post(webhook.url, body, headers, self._allowed)
                self._counts.note(WorkKind.DELIVERED if sent.error is None else WorkKind.UNDELIVERED)
            webhook = await self._database.write(_settlement(message, sent))

    async def _keep(self, message: "_Message") -> bool:
        """Store which events a new message has before it is sent; False if another process has the claim.

        Without it, an attempt after a crash would send other events under another id.
        """
        if message.webhook.message_id is not None or not message.events:
            return True
        message_values = {"message_id": message.id, "message_sequence": message.sequence}
        return await self._database.write(
            lambda transaction: webhooks.settle(transaction, message.webhook, **message_values)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """One delivery: the same id and events in every attempt."""

    webhook: StoredWebhook
    """Webhook as it is stored now: its secrets may have been rotated since the claim."""
    id: str
    events: Sequence[Event]
    sequence: int
    """Up to here the webhook has got everything once this is taken."""
    now_s: float
    """Time of this attempt."""

    @property
    def secrets(self) -> list[str]:
        return self.webhook.secrets_at(self.now_s)


def _find_due(transaction: Transaction) -> tuple[bool, int | None]:
    """Return whether a webhook is due, and the last event of the log; None instead if there is no webhook."""
    if webhooks.slowest(transaction) is None:
        return False, None
    return webhooks.has_due(transaction), event_log.last_sequence(transaction)


def _claim_due(transaction: Transaction) -> list[StoredWebhook]:
    return webhooks.claim(transaction, transaction.now_s + CLAIM_SECONDS, MAX_WEBHOOKS)


def _next_message(claimed: StoredWebhook) -> Callable[[Transaction], _Message | None]:
    """Return the transaction function that reads the current delivery, or else composes the next one.

    None if the claim has passed to another process, or if there is nothing to deliver any more.
    """

    def read(transaction: Transaction) -> _Message | None:
        webhook = webhooks.find(transaction, claimed.id)
        if webhook is None or webhook.is_disabled or webhook.claimed_until_s != claimed.claimed_until_s:
            return None
        last = event_log.last_sequence(transaction)
        found = event_log.after(
            transaction,
            webhook.delivered_sequence,
            limit=MAX_EVENTS,
            types=webhook.types,
            agent_id=webhook.agent_id,
        )
        if webhook.message_id is None or webhook.message_sequence is None:
            message_id = f"msg_{str(ULID()).lower()}"
            events, sequence = _batch(found, last)
        else:
            message_id, sequence = webhook.message_id, webhook.message_sequence
            events = [event for event in found if event.sequence <= sequence]
        return _Message(
            webhook=webhook, id=message_id, events=events, sequence=sequence, now_s=transaction.now_s
        )

    return read


def _batch(found: Sequence[Event], last: int) -> tuple[list[Event], int]:
    """Return the events of a new message, and the sequence up to which nothing else is wanted."""
    batch: list[Event] = []
    size = 0
    for event in found:
        size += len(to_json(event.payload))
        if batch and size > MAX_BATCH_BYTES:
            return batch, batch[-1].sequence
        batch.append(event)
    return batch, batch[-1].sequence if len(batch) == MAX_EVENTS else last


def _body(message: _Message) -> bytes:
    """Return the payload, in the structure that Standard Webhooks recommends."""
    payload = WebhookDelivery(
        timestamp=message.events[-1].created_at,
        data=WebhookBatch(webhook_id=message.webhook.id, events=list(message.events)),
    )
    return payload.model_dump_json(exclude_none=True).encode()


def _settlement(message: _Message, sent: Sent | None) -> Callable[[Transaction], StoredWebhook | None]:
    """Return the transaction function that stores the result; it returns the webhook if there is more."""
    if sent is not None and sent.error is not None:
        return lambda transaction: _fail(transaction, message.webhook, sent)
    return lambda transaction: _succeed(transaction, message)


def _succeed(transaction: Transaction, message: _Message) -> StoredWebhook | None:
    webhook = message.webhook
    has_more = event_log.last_sequence(transaction) > message.sequence
    claimed_until_s = transaction.now_s + CLAIM_SECONDS if has_more else None
    is_stored = webhooks.settle(
        transaction,
        webhook,
        delivered_sequence=message.sequence,
        message_id=None,
        message_sequence=None,
        failures=0,
        failing_since_s=None,
        last_error=None,
        claimed_until_s=claimed_until_s,
    )
    return replace(webhook, claimed_until_s=claimed_until_s) if is_stored and has_more else None


def _fail(transaction: Transaction, webhook: StoredWebhook, sent: Sent) -> None:
    now_s = transaction.now_s
    # Chance spreads the load here; it guards nothing.
    chance = random.random()  # noqa: S311
    after = after_failure(
        webhook.failures, webhook.failing_since_s, now_s, chance, sent.status, sent.retry_after_s
    )
    is_stored = webhooks.settle(
        transaction,
        webhook,
        failures=after.failures,
        failing_since_s=after.failing_since_s,
        last_error=(sent.error or "")[:MAX_ERROR_CHARACTERS],
        next_try_at_s=after.next_try_at_s,
        claimed_until_s=None,
        is_disabled=after.is_given_up,
    )
    if is_stored and after.is_given_up:
        event_log.append(transaction, [changed(EventType.WEBHOOK_DISABLED, webhook, COURIER, after.failures)])


assert CLAIM_SECONDS > 2 * SEND_SECONDS  # noqa: S101 - a batch must not be sent by two at once
