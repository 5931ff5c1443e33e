"""Who is told of events without asking? (`POST`, `GET`, `DELETE /api/v1/webhooks`)"""

import secrets
from typing import Annotated, Any

from pydantic import BaseModel, Field
from ulid import ULID

from agent_health.access import Action
from agent_health.agent_record import AgentId, Body, Url, moment
from agent_health.document import Time
from agent_health.errors import InvalidRequest, TooManyWebhooks, WebhookNotFound
from agent_health.event import EventDraft, EventType, WebhookChanged
from agent_health.finding import Finding
from agent_health.registry.operations import Call, Operation, Reply
from agent_health.storage import event_log, webhooks
from agent_health.storage.database import Transaction
from agent_health.storage.webhooks import StoredWebhook
from agent_health.target_address import Refused, judge_url
from agent_health.webhook import SECRET_PREFIX

MAX_WEBHOOKS = 100
SECRET_BYTES = 32


class NewWebhook(Body):
    """The body of `POST /api/v1/webhooks`."""

    url: Url
    """Takes POST; private networks need the server's setting `webhook_networks`."""
    types: Annotated[tuple[EventType, ...], Field(max_length=len(EventType))] = ()
    """Which events; empty: all."""
    agent_id: AgentId | None = None
    """Whose events; absent: everybody's."""


class WebhookRecord(BaseModel):
    """A webhook without its secret."""

    webhook_id: str
    url: str
    types: list[EventType]
    agent_id: str | None
    created_at: Time
    created_by: str
    delivered_sequence: int
    """Up to here nothing is missing."""
    failures: int
    """In a row; 0 after a success."""
    failing_since: Time | None
    last_error: str | None
    next_try_at: Time | None
    """Absent unless it is failing."""
    is_disabled: bool
    """It failed for three days; delete it and create it anew."""


class CreatedWebhook(WebhookRecord):
    """A new webhook, with the secret that signs its deliveries, shown this once."""

    secret: str


class WebhookList(BaseModel):
    """All webhooks, the oldest first."""

    webhooks: list[WebhookRecord]


def create_webhook(transaction: Transaction, call: Call) -> Reply:
    """Store a webhook that is told of what happens from now on.

    A literal address, or localhost, is judged at once by the server's own setting; what a name leads to
    is judged at each delivery.
    """
    body = call.body_as(NewWebhook)
    refused = judge_url(body.url, call.webhook_networks)
    if isinstance(refused, Refused):
        raise InvalidRequest([Finding(refused.name, "/url", refused.reason)])
    if webhooks.count(transaction) >= MAX_WEBHOOKS:
        raise TooManyWebhooks(MAX_WEBHOOKS)
    now_s = transaction.now_s
    webhook = StoredWebhook(
        id=f"webhook_{str(ULID()).lower()}",
        url=body.url,
        types=tuple(dict.fromkeys(kind.value for kind in body.types)),
        agent_id=body.agent_id,
        secret=SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES),
        created_by=call.caller.key_id,
        created_at_s=now_s,
        delivered_sequence=event_log.lock(transaction).last.sequence,
        failures=0,
        failing_since_s=None,
        last_error=None,
        next_try_at_s=now_s,
        claimed_until_s=None,
        is_disabled=False,
    )
    webhooks.add(transaction, webhook)
    event_log.append(transaction, [changed(EventType.WEBHOOK_CREATED, webhook, call.actor)])
    return Reply(content=CreatedWebhook(**_members(webhook), secret=webhook.secret), status=201)


def list_webhooks(transaction: Transaction, _call: Call) -> Reply:
    """Return all webhooks."""
    found = webhooks.listing(transaction, MAX_WEBHOOKS)
    return Reply(content=WebhookList(webhooks=[WebhookRecord(**_members(webhook)) for webhook in found]))


def delete_webhook(transaction: Transaction, call: Call) -> Reply:
    """Remove a webhook; a delivery that is on its way may still arrive."""
    webhook_id = call.path["webhook_id"]
    webhook = webhooks.remove(transaction, webhook_id)
    if webhook is None:
        raise WebhookNotFound(webhook_id)
    event_log.append(transaction, [changed(EventType.WEBHOOK_DELETED, webhook, call.actor)])
    return Reply(status=204)


def changed(kind: EventType, webhook: StoredWebhook, actor: str, failures: int = 0) -> EventDraft:
    """Return the event of a webhook that was created, deleted or disabled; it tells the host alone."""
    # Credentials are refused, so that the host is what stands between these.
    host = webhook.url.split("://", 1)[1].split("/", 1)[0].split("?", 1)[0].split("#", 1)[0]
    payload = WebhookChanged(webhook_id=webhook.id, host=host, failures=failures)
    return EventDraft(type=kind, actor=actor, payload=payload)


def _members(webhook: StoredWebhook) -> dict[str, Any]:
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
    }


OPERATIONS = (
    Operation(
        method="POST",
        path="/api/v1/webhooks",
        summary="Have events sent to a URL, signed, in order, at least once",
        action=Action.MANAGE_WEBHOOKS,
        deed=create_webhook,
        body=NewWebhook,
        answer=CreatedWebhook,
        status=201,
        errors=(409,),
    ),
    Operation(
        method="GET",
        path="/api/v1/webhooks",
        summary="List webhooks, without their secrets",
        action=Action.MANAGE_WEBHOOKS,
        deed=list_webhooks,
        is_write=False,
        answer=WebhookList,
    ),
    Operation(
        method="DELETE",
        path="/api/v1/webhooks/{webhook_id}",
        summary="Stop telling a webhook",
        action=Action.MANAGE_WEBHOOKS,
        deed=delete_webhook,
        status=204,
        errors=(404,),
    ),
)
