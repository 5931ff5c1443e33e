"""Dialect of the published SDK of RFC-0016 (`openintent` 0.17, enabled by `dialects`).

Paths, members and statuses are translated to those of the registry's own operations; there are no other
rules. With `…/dialects/openintent` as its base URL and a key of the registry, the SDK works with this server.

Differences from the registry's own API, required by the SDK: a registration answers 200; lists are bare
arrays; a heartbeat has no time; a status is changed without `If-Match`; entity tags are the bare version, so
that a tag of an older incarnation may match; a renewal has no fencing token, since the lease's id replaces
it; times have no zone and are UTC; a lost lease is 404, and faults of a body are 400.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lifesign.domain.access.permissions import Permission
from lifesign.domain.health.document import Time
from lifesign.domain.models.agents import (
    MAX_HEARTBEAT_BYTES,
    AgentRecord,
    AgentSummary,
    Heartbeat,
    Registration,
    StatusChange,
    etag_of,
)
from lifesign.domain.models.base import Body, moment
from lifesign.domain.models.leases import LeaseList, LeaseRecord, TtlSeconds
from lifesign.domain.tasks.lease import MAX_RESOURCE_CHARACTERS, TTL_SECONDS, EndReason, intent_scope_resource
from lifesign.domain.tasks.lease_id import number_in, token_in
from lifesign.errors import LifesignError
from lifesign.registry.agents.drain_agent import set_status
from lifesign.registry.agents.find_agents import MAX_PAGE, Listing, page_of, show_agent
from lifesign.registry.agents.receive_heartbeat import Arrival, receive_heartbeats
from lifesign.registry.agents.register_agent import register_agent
from lifesign.registry.errors import LeaseHeld, LeaseNotFound
from lifesign.registry.leases.find_leases import LeaseListing, list_leases
from lifesign.registry.leases.hold_lease import (
    ACQUIRE_PERMISSIONS,
    RELEASE_PERMISSIONS,
    RENEW_PERMISSIONS,
    Acquire,
    LeaseOperation,
    LeaseReleaseRequest,
    Renew,
    hold_leases,
)
from lifesign.registry.request_handling.execution import OperationDispatcher, checked, incarnation_in
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.agent_records import existing_agent, summary
from lifesign.registry.serializers.lease_records import lease_record
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.tasks import leases
from lifesign.storage.tasks.leases import LeaseFilter

PREFIX = "/dialects/openintent/api/v1"
MAX_VERSION_DIGITS = 18
NO_LEASE = ""
"""Id of no lease."""

# By error code: the statuses for which the SDK has an exception.
_STATUS_OF_CODE: Mapping[str, int] = MappingProxyType({
    "invalid_request":  400,
    "invalid_resource": 400,
    "not_holder":       404,
    "lease_ended":      404,
    "stale_token":      404,
    "stale_version":    409,
})  # fmt: skip
_STATUS_OF_END: Mapping[EndReason | None, str] = MappingProxyType({
    None: "active",
    EndReason.RELEASED: "released",
    EndReason.REVOKED: "revoked",
})  # fmt: skip
"""All other ends are `expired`."""


class OpenIntentRegistration(Registration):
    """The body of `POST …/agents/register`: unknown members and null members are ignored."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _drop_null(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class OpenIntentHeartbeat(Heartbeat):
    """The body of `POST …/agents/{agent_id}/heartbeat`."""

    status: Literal["active", "draining"] = "active"
    client_timestamp: Time = moment(0)
    """Absent, since the SDK sends none: drift cannot be detected."""


class OpenIntentListing(Listing):
    """The query of `GET …/agents`; the SDK does not read further pages, so one page has the maximum."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = MAX_PAGE


class OpenIntentLeaseRequest(Body):
    """The body of `POST …/intents/{intent_id}/leases`."""

    scope: Annotated[str, Field(min_length=1, max_length=MAX_RESOURCE_CHARACTERS)]
    duration_seconds: TtlSeconds = TTL_SECONDS


class OpenIntentRenewal(Body):
    """The body of `PATCH …/intents/{intent_id}/leases/{lease_id}`."""

    duration_seconds: TtlSeconds = TTL_SECONDS


def _register(transaction: Transaction, call: Call) -> OperationReply:
    return _record_shown(register_agent(transaction, call))


def _show(transaction: Transaction, call: Call) -> OperationReply:
    return _record_shown(show_agent(transaction, call))


def _list(transaction: Transaction, call: Call) -> OperationReply:
    page = page_of(transaction, call)
    headers = {}
    if page.cursor is not None:
        headers["Link"] = f'<?cursor={page.cursor}>; rel="next"'
    return OperationReply(
        content=[_agent_shown(summary(agent, transaction.now_s)) for agent in page.agents], headers=headers
    )


def _receive_heartbeat(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    body = call.body_as(OpenIntentHeartbeat)
    if "client_timestamp" not in body.model_fields_set:
        body = body.model_copy(update={"client_timestamp": moment(transaction.now_s)})
    incarnation = incarnation_in(call.headers)
    arrival = Arrival(call.agent_id, call.digest, incarnation, body, call.sent_after_s)
    (answer,) = receive_heartbeats(transaction, [arrival])
    return answer if isinstance(answer, LifesignError) else OperationReply(content=json.loads(answer))


def _set_status(transaction: Transaction, call: Call) -> OperationReply:
    agent = existing_agent(transaction, call.agent_id, to_change=True)
    wanted = call.headers.get("if-match", "*").strip(' "')
    if _is_version(wanted):
        wanted = etag_of(agent.incarnation, int(wanted))
    return _record_shown(set_status(transaction, replace(call, headers={**call.headers, "if-match": wanted})))


def _acquire(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    body = call.body_as(OpenIntentLeaseRequest)
    # Leases of an id that the list refuses could not be listed.
    checked(LeaseListing, {"intent_id": call.path["intent_id"]})
    resource = intent_scope_resource(call.path["intent_id"], body.scope)
    answer = _run_operation(
        transaction, call, Acquire(digest=call.digest, resource=resource, ttl_s=body.duration_seconds)
    )
    if isinstance(answer, LeaseHeld):
        existing = LeaseRecord.model_validate(answer.existing_lease)
        return LeaseHeld(answer.resource, _lease_shown(existing))
    return answer


def _renew(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    lease_id = _lease_of_intent(transaction, call)
    token = token_in(lease_id) or 0
    ttl_s = call.body_as(OpenIntentRenewal).duration_seconds
    return _run_on_lease(
        transaction, call, Renew(digest=call.digest, lease_id=lease_id, token=token, ttl_s=ttl_s)
    )


def _release(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    lease_id = _lease_of_intent(transaction, call)
    return _run_on_lease(transaction, call, LeaseReleaseRequest(digest=call.digest, lease_id=lease_id))


def _list_leases(transaction: Transaction, call: Call) -> OperationReply:
    query = checked(LeaseListing, {"intent_id": call.path["intent_id"], "limit": MAX_PAGE})
    content = list_leases(transaction, replace(call, query=query)).content
    assert isinstance(content, LeaseList)  # noqa: S101 - what our own function answers
    return OperationReply(content={"leases": [_lease_shown(lease) for lease in content.leases]})


def _run_operation(
    transaction: Transaction, call: Call, asked: LeaseOperation
) -> OperationReply | LifesignError:
    asked = replace(asked, incarnation=incarnation_in(call.headers))
    (answer,) = hold_leases(transaction, [asked])
    if isinstance(answer, LifesignError):
        return answer
    return OperationReply(content=_lease_shown(lease_record(answer, transaction.now_s)))


def _run_on_lease(
    transaction: Transaction, call: Call, asked: LeaseOperation
) -> OperationReply | LifesignError:
    answer = _run_operation(transaction, call, asked)
    return LeaseNotFound(call.path["lease_id"]) if isinstance(answer, LeaseNotFound) else answer


def _lease_of_intent(transaction: Transaction, call: Call) -> str:
    """Return the lease's id, or NO_LEASE if it is of another intent, which never changes.

    Other faults of the request come first, whether the intent has this lease or not.
    """
    lease_id = call.path["lease_id"]
    number = number_in(lease_id)
    if number is not None:
        found = leases.listing(transaction, LeaseFilter(), after=number - 1, limit=1).get(number)
        if found is not None and found.resource.startswith(f"intent:{call.path['intent_id']}/"):
            return lease_id
    return NO_LEASE


def _record_shown(reply: OperationReply) -> OperationReply:
    record = reply.content
    assert isinstance(record, AgentRecord)  # noqa: S101 - what our own function answers
    shown = {
        **_agent_shown(record),
        **record.model_dump(include=_MORE_MEMBERS, mode="json", exclude_none=True),
        "registered_at": _naive(record.registered_at),
    }
    return OperationReply(content=shown, headers={"ETag": str(record.version)})


_RENAMED_MEMBERS = {"capacity", "last_heartbeat_at", "endpoint", "card_url"}
_MORE_MEMBERS = {"endpoint", "heartbeat_config", "drain_timeout_seconds", "metadata", "version", "agent_key"}


def _agent_shown(agent: AgentSummary) -> dict[str, Any]:
    capacity = agent.capacity
    return {
        **agent.model_dump(exclude=_RENAMED_MEMBERS, mode="json", exclude_none=True),
        # If it were absent, the SDK would assume 5.
        "capacity": {
            "max_concurrent_tasks": capacity.max_concurrent_tasks,
            "current_load": capacity.current_load,
        },
        # The SDK has it in every record, null for agents without a heartbeat.
        "last_heartbeat_at": None if agent.last_heartbeat_at is None else _naive(agent.last_heartbeat_at),
    }


def _lease_shown(lease: LeaseRecord) -> dict[str, Any]:
    intent_id, _, scope = lease.resource.removeprefix("intent:").partition("/")
    return {
        "id": lease.lease_id,
        "intent_id": intent_id,
        "agent_id": lease.holder,
        "scope": scope,
        "status": _STATUS_OF_END.get(lease.end_reason, "expired"),
        "created_at": _naive(lease.acquired_at),
        "acquired_at": _naive(lease.acquired_at),
        "expires_at": _naive(lease.expires_at),
        "released_at": None if lease.ended_at is None else _naive(lease.ended_at),
        "fencing_token": lease.fencing_token,
    }


def _naive(at: datetime) -> str:
    """Write a time as the SDK can compare it: with its own `datetime.now()`, which has no zone."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")


def _is_version(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_VERSION_DIGITS


OPERATIONS = (
    Operation(
        method="POST",
        path=f"{PREFIX}/agents/register",
        summary="Register an agent",
        action=None,
        one_of=(Permission.REGISTER, Permission.RE_REGISTER),
        function=_register,
        body=OpenIntentRegistration,
    ),
    Operation(
        method="GET",
        path=f"{PREFIX}/agents",
        summary="List agents",
        action=Permission.LIST_AGENTS,
        function=_list,
        is_write=False,
        query=OpenIntentListing,
    ),
    Operation(
        method="GET",
        path=f"{PREFIX}/agents/{{agent_id}}/record",
        summary="Show an agent",
        action=Permission.READ_AGENT,
        function=_show,
        is_write=False,
    ),
    Operation(
        method="POST",
        path=f"{PREFIX}/agents/{{agent_id}}/heartbeat",
        summary="Beat",
        action=Permission.HEARTBEAT,
        function=_receive_heartbeat,
        body=OpenIntentHeartbeat,
        max_body_bytes=MAX_HEARTBEAT_BYTES,
    ),
    Operation(
        method="PATCH",
        path=f"{PREFIX}/agents/{{agent_id}}/status",
        summary="Drain or deregister an agent",
        action=Permission.DRAIN,
        function=_set_status,
        body=StatusChange,
    ),
    Operation(
        method="POST",
        path=f"{PREFIX}/intents/{{intent_id}}/leases",
        summary="Acquire a lease",
        action=None,
        one_of=ACQUIRE_PERMISSIONS,
        function=_acquire,
        body=OpenIntentLeaseRequest,
    ),
    Operation(
        method="GET",
        path=f"{PREFIX}/intents/{{intent_id}}/leases",
        summary="List the leases of an intent",
        action=Permission.READ_LEASES,
        function=_list_leases,
        is_write=False,
    ),
    Operation(
        method="PATCH",
        path=f"{PREFIX}/intents/{{intent_id}}/leases/{{lease_id}}",
        summary="Renew a lease",
        action=None,
        one_of=RENEW_PERMISSIONS,
        function=_renew,
        body=OpenIntentRenewal,
    ),
    Operation(
        method="DELETE",
        path=f"{PREFIX}/intents/{{intent_id}}/leases/{{lease_id}}",
        summary="Release a lease",
        action=None,
        one_of=RELEASE_PERMISSIONS,
        function=_release,
    ),
)


def dialect_routes(dispatcher: OperationDispatcher) -> Iterable[BaseRoute]:
    """Yield the routes of the dialect."""
    for operation in OPERATIONS:
        yield Route(operation.path, _answer(dispatcher, operation), methods=[operation.method])


def _answer(
    dispatcher: OperationDispatcher, operation: Operation
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return _translated(await dispatcher.answer(operation, request))

    return answer


def _translated(response: Response) -> Response:
    """Return a refusal as the SDK reads it; anything else as it is."""
    if response.status_code < 400 or not response.body:
        return response
    refusal = json.loads(bytes(response.body))
    status = _STATUS_OF_CODE.get(refusal["error"]["code"], response.status_code)
    if status == 400:
        refusal["errors"] = refusal["error"]["details"].get("faults", [])
    headers = {
        name: value
        for name, value in response.headers.items()
        if name not in {"content-length", "content-type", "etag"}
    }
    return Response(to_json(refusal), status, headers, "application/json")
