"""Webhooks: registration, secrets and their rotation, and the payload of a delivery."""

import secrets
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from ulid import ULID

from lifesign.domain.access.permissions import Permission
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.events.chain import Event
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.payload_fields import MOMENT_PATTERN
from lifesign.domain.events.registry_payloads import WebhookChanged
from lifesign.domain.events.webhook_delivery import PAYLOAD_TYPE, secret_of
from lifesign.domain.health.document import Time
from lifesign.domain.models.base import AgentId, Body, Url, moment
from lifesign.domain.net.allowed_addresses import AddressRefused, vet_url
from lifesign.registry.errors import TooManyWebhooks, WebhookNotFound
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log, webhooks
from lifesign.storage.events.webhooks import StoredWebhook

MAX_WEBHOOKS = 100
SECRET_BYTES = 32
"""Size of a new secret."""
OVERLAP_SECONDS = 86_400
"""Default time for which a rotated secret signs beside its successor."""
MAX_OVERLAP_SECONDS = 7 * 86_400


class NewWebhook(Body):
    """The body of `POST /api/v1/webhooks`."""

    url: Url
    """URL that accepts POST requests. The setting `webhook_networks` must allow a private address."""
    types: Annotated[tuple[EventType, ...], Field(max_length=len(EventType))] = ()
    """Types of the events that are sent; empty: all."""
    agent_id: AgentId | None = None
    """Only events about this agent; absent: about any."""


class SecretRotation(Body):
    """Body of a rotation of a webhook's secret."""

    overlap_seconds: Annotated[float, Field(ge=0, le=MAX_OVERLAP_SECONDS, strict=True)] = OVERLAP_SECONDS
    """Time for which deliveries are signed with both secrets; 0 if the old one has leaked."""


class WebhookRecord(BaseModel):
    """A webhook without its secret."""

    webhook_id: str
    url: str
    types: list[EventType]
    agent_id: str | None
    created_at: Time
    created_by: str
    delivered_sequence: int
    """Sequence number up to which the webhook has received all events."""
    failures: int
    """Number of failed deliveries in a row; 0 after a success."""
    failing_since: Time | None
    last_error: str | None
    next_try_at: Time | None
    """Time of the next attempt; absent unless the last one failed."""
    is_disabled: bool
    """True if deliveries failed for three days, or the receiver answered 410. Create the webhook again."""
    previous_secret_expires_at: Time | None
    """Time until which deliveries are also signed with the secret before the rotation; absent otherwise."""


class CreatedWebhook(WebhookRecord):
    """A webhook with a new secret that signs its deliveries, shown this once."""

    secret: str
    """`whsec_` and the base64 of the key, as libraries for Standard Webhooks expect it."""


class WebhookList(BaseModel):
    """All webhooks, the oldest first."""

    webhooks: list[WebhookRecord]


class WebhookBatch(BaseModel):
    """The events of one delivery."""

    webhook_id: str
    events: list[Event]
    """Events, at least one, in the order of their sequence."""


class WebhookDelivery(BaseModel):
    """The payload of one delivery to a webhook."""

    type: Literal["registry.events"] = PAYLOAD_TYPE
    """Type of the delivery, which is always the same. Each event in it has its own type."""
    timestamp: Annotated[str, Field(pattern=MOMENT_PATTERN, json_schema_extra={"format": "date-time"})]
    """Time of the last of these events."""
    data: WebhookBatch


def create_webhook(transaction: Transaction, call: Call) -> OperationReply:
    """Create a webhook. It gets the events that are logged from now on.

    The setting `webhook_networks` must allow a private address. The server checks an IP address and localhost
    now, and the addresses of a host name at each delivery.
    """
    body = call.body_as(NewWebhook)
    refused = vet_url(body.url, call.webhook_networks)
    if isinstance(refused, AddressRefused):
        error = InvalidRequest([Finding(refused.name, "/url", refused.reason)])
        if refused.name == "blocked_address":
            error.hint = "to allow a network of your own, start the server with --webhook-networks NETWORK"
        raise error
    # The lock of the log comes before the count: requests at once would all count before one has stored.
    head = event_log.lock(transaction)
    if webhooks.count(transaction) >= MAX_WEBHOOKS:
        raise TooManyWebhooks(MAX_WEBHOOKS)
    now_s = transaction.now_s
    webhook = StoredWebhook(
        id=f"webhook_{str(ULID()).lower()}",
        url=body.url,
        types=tuple(dict.fromkeys(kind.value for kind in body.types)),
        agent_id=body.agent_id,
        secret=_new_secret(),
        created_by=call.caller.key_id,
        created_at_s=now_s,
        delivered_sequence=head.last.sequence,
        failures=0,
        failing_since_s=None,
        last_error=None,
        next_try_at_s=now_s,
        claimed_until_s=None,
        is_disabled=False,
    )
    webhooks.add(transaction, webhook)
    event_log.append(transaction, [changed(EventType.WEBHOOK_CREATED, webhook, call.actor)])
    return OperationReply(
        content=CreatedWebhook(**_members(webhook, now_s), secret=webhook.secret), status=201
    )


def list_webhooks(transaction: Transaction, _call: Call) -> OperationReply:
    """Return all webhooks."""
    found = webhooks.listing(transaction, MAX_WEBHOOKS)
    now_s = transaction.now_s
    return OperationReply(
        content=WebhookList(webhooks=[WebhookRecord(**_members(webhook, now_s)) for webhook in found])
    )


def rotate_webhook_secret(transaction: Transaction, call: Call) -> OperationReply:
    """Give a webhook a new secret. During the overlap, deliveries have a signature with each of both secrets.

    If you rotate again within the overlap, the oldest secret ends at once.
    """
    webhook = webhooks.find(transaction, call.path["webhook_id"], to_change=True)
    if webhook is None:
        raise WebhookNotFound(call.path["webhook_id"])
    now_s = transaction.now_s
    overlap_s = call.body_as(SecretRotation).overlap_seconds
    after = replace(
        webhook,
        secret=_new_secret(),
        previous_secret=webhook.secret if overlap_s else None,
        previous_secret_until_s=now_s + overlap_s if overlap_s else None,
    )
    webhooks.set_secrets(transaction, after)
    event_log.append(transaction, [changed(EventType.WEBHOOK_SECRET_ROTATED, after, call.actor)])
    return OperationReply(content=CreatedWebhook(**_members(after, now_s), secret=after.secret))


def delete_webhook(transaction: Transaction, call: Call) -> OperationReply:
    """Delete a webhook. A delivery that has begun may still arrive."""
    webhook_id = call.path["webhook_id"]
    webhook = webhooks.remove(transaction, webhook_id)
    if webhook is None:
        raise WebhookNotFound(webhook_id)
    event_log.append(transaction, [changed(EventType.WEBHOOK_DELETED, webhook, call.actor)])
    return OperationReply(status=204)


def changed(kind: EventType, webhook: StoredWebhook, actor: str, failures: int = 0) -> EventDraft:
    """Return an event about a webhook; it contains only the host of the webhook's URL."""
    payload = WebhookChanged(webhook_id=webhook.id, host=webhook.host, failures=failures)
    return EventDraft(type=kind, actor=actor, payload=payload)


def _new_secret() -> str:
    return secret_of(secrets.token_bytes(SECRET_BYTES))


def _members(webhook: StoredWebhook, now_s: float) -> dict[str, Any]:
    is_overlap = len(webhook.secrets_at(now_s)) > 1
    until_s = webhook.previous_secret_until_s if is_overlap else None
    is_failing = webhook.failures > 0 and not webhook.is_disabled
    since_s = webhook.failing_since_s
    return {
        "webhook_id": webhook.id,
        "url": webhook.url,
        "types": list(webhook.types),
        "agent_id": webhook.agent_id,
        "created_at": moment(webhook.created_at_s),
        "created_by": webhook.created_by,
        "delivered_sequence": webhook.delivered_sequence,
        "failures": webhook.failures,
        "failing_since": None if since_s is None else moment(since_s),
        "last_error": webhook.last_error,
        "next_try_at": moment(webhook.next_try_at_s) if is_failing else None,
        "is_disabled": webhook.is_disabled,
        "previous_secret_expires_at": None if until_s is None else moment(until_s),
    }


OPERATIONS = (
    Operation(
        method="POST",
        path="/api/v1/webhooks",
        summary="Create a webhook: events are sent to a URL, signed, in order, at least once",
        action=Permission.MANAGE_WEBHOOKS,
        function=create_webhook,
        body=NewWebhook,
        example={"url": "https://hooks.example/in", "types": ["agent.lifecycle"]},
        answer=CreatedWebhook,
        status=201,
        errors=(409,),
    ),
    Operation(
        method="GET",
        path="/api/v1/webhooks",
        summary="List webhooks, without their secrets",
        action=Permission.MANAGE_WEBHOOKS,
        function=list_webhooks,
        is_write=False,
        answer=WebhookList,
    ),
    Operation(
        method="POST",
        path="/api/v1/webhooks/{webhook_id}/rotate",
        summary="Replace a webhook's secret; both sign deliveries for a while",
        action=Permission.MANAGE_WEBHOOKS,
        function=rotate_webhook_secret,
        body=SecretRotation,
        example={"overlap_seconds": 86400},
        answer=CreatedWebhook,
        errors=(404,),
    ),
    Operation(
        method="DELETE",
        path="/api/v1/webhooks/{webhook_id}",
        summary="Delete a webhook",
        action=Permission.MANAGE_WEBHOOKS,
        function=delete_webhook,
        status=204,
        errors=(404,),
    ),
)
