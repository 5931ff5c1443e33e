"""How do events reach those who do not ask?

Each webhook gets its events in order, a batch at a time, at least once: its place moves on when a
batch was taken. One server process claims a webhook for a while; if it dies, another one goes on.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace

from pydantic_core import to_json

from agent_health.actor import OwnActor
from agent_health.errors import StoreUnavailable
from agent_health.event import EventType
from agent_health.event_chain import Event
from agent_health.registry.event_feed import EventFeed
from agent_health.registry.manage_webhooks import changed
from agent_health.registry.safe_post import SEND_SECONDS, Sent, safe_post
from agent_health.registry.settings import RegistrySettings
from agent_health.registry.work_counts import Work, WorkCounts
from agent_health.storage import event_log, webhooks
from agent_health.storage.database import Database, Transaction
from agent_health.storage.webhooks import StoredWebhook
from agent_health.target_address import read_networks
from agent_health.webhook import SIGNATURE_HEADER, after_failure, signature

MAX_EVENTS = 100
"""Of one batch."""
MAX_BATCH_BYTES = 1_048_576
"""Of one batch of more than one event."""
MAX_DELIVERIES = 16
"""At once, per server process: one endpoint that hangs holds up none of the others."""
CLAIM_SECONDS = 60.0
"""How long a dead process's webhooks wait for another one. A batch takes less, or it would come twice."""
POLL_SECONDS = 0.5
"""Between two looks for webhooks that are due: another try, or what a dead process has left."""
MIN_WAIT_SECONDS = 0.05
MAX_ERROR_CHARACTERS = 256
COURIER = OwnActor.COURIER.value
"""Who acts when a webhook is given up."""

_log = logging.getLogger("agent_health.registry")


class WebhookCourier:
    """Delivers to all webhooks; one per server process."""

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
        """Deliver until cancelled; what is on its way then is delivered again later."""
        position: int | None = 0
        try:
            while True:
                try:
                    position = await self._begin_deliveries()
                except StoreUnavailable:
                    _log.debug("no webhooks while the database is away")
                except Exception:  # noqa: BLE001 - it is logged
                    _log.exception("webhooks could not be looked for")
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
        """Claim webhooks and deliver to each; return how far the log went, None if nobody wants any of it."""
        is_due, position = await self._database.read(_look)
        free = MAX_DELIVERIES - len(self._deliveries)
        if is_due and free > 0:
            for webhook in await self._database.write(
                lambda transaction: webhooks.claim(transaction, transaction.now_s + CLAIM_SECONDS, free)
            ):
                delivery = asyncio.create_task(self._deliver_safely(webhook))
                self._deliveries.add(delivery)
                delivery.add_done_callback(self._deliveries.discard)
        return position

    async def _deliver_safely(self, webhook: StoredWebhook) -> None:
        try:
            await self._deliver(webhook)
        except StoreUnavailable:
            _log.debug("a webhook waits for the database")
        except Exception:  # noqa: BLE001 - one webhook must not stop the others
            _log.exception("the webhook %s failed", webhook.id)

    async def _deliver(self, claimed: StoredWebhook) -> None:
        """Deliver batches until nothing is left, one fails, or the claim has passed to another."""
        webhook: StoredWebhook | None = claimed
        while webhook is not None:
            batch, position, now_s = await self._database.read(_next_batch(webhook))
            sent = None
            if batch:
                body = _body(webhook, batch)
                headers = {
                    "Content-Type": "application/json",
                    "User-Agent": "agent-health",
                    SIGNATURE_HEADER: signature(webhook.secret, int(now_s), body),
                }
                sent = await safe_post(webhook.url, body, headers, self._allowed)
                self._counts.note(Work.DELIVERED if sent.error is None else Work.UNDELIVERED)
            webhook = await self._database.write(_settlement(webhook, position, sent))


def _look(transaction: Transaction) -> tuple[bool, int | None]:
    """Return whether a webhook is due, and how far the log goes; None instead if there is no webhook."""
    if webhooks.slowest(transaction) is None:
        return False, None
    return webhooks.has_due(transaction), event_log.last_sequence(transaction)


def _next_batch(webhook: StoredWebhook) -> Callable[[Transaction], tuple[list[Event], int, float]]:
    """Return the deed that reads a batch, the sequence up to which nothing else is wanted, and the time."""

    def read(transaction: Transaction) -> tuple[list[Event], int, float]:
        last = event_log.last_sequence(transaction)
        found = event_log.after(
            transaction,
            webhook.delivered_sequence,
            limit=MAX_EVENTS,
            types=webhook.types,
            agent_id=webhook.agent_id,
        )
        batch: list[Event] = []
        size = 0
        for event in found:
            size += len(to_json(event.payload))
            if batch and size > MAX_BATCH_BYTES:
                return batch, batch[-1].sequence, transaction.now_s
            batch.append(event)
        is_full = len(batch) == MAX_EVENTS
        return batch, batch[-1].sequence if is_full else last, transaction.now_s

    return read


def _body(webhook: StoredWebhook, batch: list[Event]) -> bytes:
    return to_json({"webhook_id": webhook.id, "events": [event.members() for event in batch]})


def _settlement(
    webhook: StoredWebhook, position: int, sent: Sent | None
) -> Callable[[Transaction], StoredWebhook | None]:
    """Return the deed that stores how it ended; it returns the webhook if there is more to deliver now."""
    if sent is not None and sent.error is not None:
        error = sent.error[:MAX_ERROR_CHARACTERS]
        return lambda transaction: _fail(transaction, webhook, error)
    return lambda transaction: _succeed(transaction, webhook, position)


def _succeed(transaction: Transaction, webhook: StoredWebhook, position: int) -> StoredWebhook | None:
    has_more = event_log.last_sequence(transaction) > position
    after = replace(
        webhook,
        delivered_sequence=position,
        failures=0,
        failing_since_s=None,
        last_error=None,
        claimed_until_s=transaction.now_s + CLAIM_SECONDS if has_more else None,
    )
    is_stored = webhooks.settle(
        transaction,
        webhook,
        delivered_sequence=after.delivered_sequence,
        failures=0,
        failing_since_s=None,
        last_error=None,
        claimed_until_s=after.claimed_until_s,
    )
    return after if is_stored and has_more else None


def _fail(transaction: Transaction, webhook: StoredWebhook, error: str) -> None:
    now_s = transaction.now_s
    # Chance spreads the load here; it guards nothing.
    chance = random.random()  # noqa: S311
    after = after_failure(webhook.failures, webhook.failing_since_s, now_s, chance)
    is_stored = webhooks.settle(
        transaction,
        webhook,
        failures=after.failures,
        failing_since_s=after.failing_since_s,
        last_error=error,
        next_try_at_s=after.next_try_at_s,
        claimed_until_s=None,
        is_disabled=after.is_given_up,
    )
    if is_stored and after.is_given_up:
        event_log.append(transaction, [changed(EventType.WEBHOOK_DISABLED, webhook, COURIER, after.failures)])


assert CLAIM_SECONDS > 2 * SEND_SECONDS  # noqa: S101 - a batch must not be sent by two at once
