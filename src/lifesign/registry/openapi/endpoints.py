"""Endpoints in the OpenAPI document.

Operations are endpoints; endpoints without an operation are listed here.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from lifesign.domain.access.permissions import PERMISSIONS, Extent, Permission, Role
from lifesign.domain.models.agents import Heartbeat, HeartbeatReply
from lifesign.domain.models.leases import LeaseRecord
from lifesign.domain.models.tasks import TaskClaim, TaskGrant
from lifesign.registry.events.stream_events import STREAM_PATH, StreamQuery
from lifesign.registry.leases.hold_lease import (
    ACQUIRE_PERMISSIONS,
    RELEASE_PERMISSIONS,
    RENEW_PERMISSIONS,
)
from lifesign.registry.request_handling.error_statuses import STATUS_AND_CODE
from lifesign.registry.request_handling.operation import Operation
from lifesign.registry.serializers.lease_records import LeaseRenewal, LeaseRequest

JSON_TYPE = "application/json"
ROOT_PATH = "/"
HEALTH_PATH = "/healthz"
READY_PATH = "/readyz"
"""The same answer as `HEALTH_PATH`, under the name that Kubernetes uses for readiness."""
ROOT_LINKS: Mapping[str, str] = MappingProxyType(
    {
        "name": "lifesign registry",
        "openapi": "/openapi.json",
        "healthz": HEALTH_PATH,
        "readyz": READY_PATH,
        "metrics": "/metrics",
    }
)
"""Links at the root: paths of this server by their purpose."""
_SERVES = (
    "200 if the database answers and accepts changes, else 503. Use it for load balancers and "
    "readiness probes, not for liveness probes: a restart does not repair a database."
)
ALWAYS_REQUIRED = frozenset({"X-Fencing-Token"})

# Docstrings name exceptions; clients of the API know their codes.
_CODES = {error.__name__: f"{status} `{code}`" for error, (status, code) in STATUS_AND_CODE.items()}
_ERROR_NAME = re.compile(rf"\b({'|'.join(_CODES)})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDoc:
    """One method at one path in the document."""

    method: str
    path: str
    name: str
    """Its operationId."""
    summary: str
    description: str = ""
    action: Permission | None = None
    one_of: tuple[Permission, ...] = ()
    """Alternative permissions, if there is no `action`."""
    needs_any_record: bool = False
    needs_key: bool = True
    body: type[BaseModel] | None = None
    example: Mapping[str, Any] | None = None
    """Example of a body."""
    query: type[BaseModel] | None = None
    answer: type[BaseModel] | Mapping[str, Any] | None = None
    """Model of the answer, or a schema if it is not JSON."""
    media_type: str = JSON_TYPE
    status: int = 200
    answer_statuses: tuple[int, ...] = ()
    """Further statuses whose body may be the `answer` instead of an error."""
    errors: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()
    """Further optional or required headers of the request."""
    required_headers: frozenset[str] = field(default=ALWAYS_REQUIRED)

    @property
    def statuses(self) -> list[int]:
        """Possible statuses of refusals."""
        statuses = set(self.errors)
        if self.needs_key:
            statuses |= {401, 403, 429, 503}
        if self.body is not None:
            statuses |= {400, 408, 413, 415, 422}
        if self.query is not None:
            statuses.add(422)
        return sorted(statuses)

    @property
    def roles(self) -> dict[str, str]:
        """Roles that may call it, and for which records."""
        actions = self.one_of if self.action is None else (self.action,)
        extents = {role: {PERMISSIONS.get((role, action)) for action in actions} for role in Role}
        wanted = (Extent.ANY,) if self.needs_any_record else (Extent.ANY, Extent.OWN)
        return {
            role.value: next(extent.value for extent in wanted if extent in found)
            for role, found in extents.items()
            if not found.isdisjoint(wanted)
        }


# Endpoints without an `Operation`.
EXTRA_ENDPOINTS = (
    EndpointDoc(
        method="GET",
        path=ROOT_PATH,
        name="show_signpost",
        summary="Show the name of the server, with links to its parts",
        needs_key=False,
        answer=MappingProxyType(
            {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "examples": [dict(ROOT_LINKS)],
            }
        ),
    ),
    EndpointDoc(
        method="POST",
        path="/api/v1/agents/{agent_id}/heartbeat",
        name="send_heartbeat",
        summary="Send a heartbeat (RFC-0016 4)",
        description=(
            "The server stores the heartbeat before it answers. The answer contains the status in the "
            "registry and pending commands for the agent. An agent that is dead or deregistered gets 410 "
            "and has to register again."
        ),
        action=Permission.HEARTBEAT,
        body=Heartbeat,
        example={"status": "active", "current_load": 3, "client_timestamp": "2026-02-08T10:30:00Z"},
        answer=HeartbeatReply,
        errors=(404, 410),
        headers=("X-Agent-Incarnation",),
    ),
    EndpointDoc(
        method="POST",
        path="/api/v1/leases",
        name="acquire_lease",
        summary="Acquire a lease on a resource",
        description=(
            "A resource has at most one running lease. Each grant has a higher fencing token than all "
            "earlier grants of the resource."
        ),
        one_of=ACQUIRE_PERMISSIONS,
        body=LeaseRequest,
        example={"resource": "intent:intent_42/research", "ttl_seconds": 300},
        answer=LeaseRecord,
        status=201,
        errors=(404, 409, 410),
        headers=("X-Agent-Incarnation",),
    ),
    EndpointDoc(
        method="POST",
        path="/api/v1/leases/{lease_id}/renew",
        name="renew_lease",
        summary="Renew a lease",
        description="A lease that has expired cannot be renewed, even if the resource is still free: 412.",
        one_of=RENEW_PERMISSIONS,
        body=LeaseRenewal,
        example={"fencing_token": 4294967297, "ttl_seconds": 300},
        answer=LeaseRecord,
        errors=(404, 410, 412),
        headers=("X-Agent-Incarnation",),
    ),
    EndpointDoc(
        method="DELETE",
        path="/api/v1/leases/{lease_id}",
        name="release_lease",
        summary="Release a lease, or revoke that of another holder",
        description="A repeated request gets the same answer.",
        one_of=RELEASE_PERMISSIONS,
        status=204,
        errors=(404, 410, 412, 422),
        headers=("X-Agent-Incarnation",),
    ),
    EndpointDoc(
        method="POST",
        path="/api/v1/tasks/claim",
        name="claim_task",
        summary="Claim a task, or wait for one",
        description=(
            "Returns the task that has been queued longest among those that fit the agent: its id, its "
            "pool, its registered capabilities and its free capacity. The answer contains a lease, whose "
            "fencing token goes with every write, and the last report of an earlier holder. 204 if there "
            "is no task after `wait_seconds`."
        ),
        action=Permission.WORK_TASKS,
        body=TaskClaim,
        example={"role_id": "writers", "wait_seconds": 30},
        answer=TaskGrant,
        errors=(204, 404, 409, 410),
        headers=("X-Agent-Incarnation",),
    ),
    EndpointDoc(
        method="GET",
        path=STREAM_PATH,
        name="stream_events",
        summary="Follow the event log",
        description=(
            "Server-Sent Events: `id` is the event's sequence, `event` its type, `data` the event as JSON. "
            "A comment every 10 seconds shows that the stream is alive. A client that reconnects with "
            "`Last-Event-ID`, to any server, misses no event and gets none twice. If the next events are "
            "archived by then, the answer is 422 (`archived`)."
        ),
        action=Permission.READ_EVENTS,
        query=StreamQuery,
        answer=MappingProxyType({"type": "string"}),
        media_type="text/event-stream",
        headers=("Last-Event-ID",),
    ),
    EndpointDoc(
        method="GET",
        path=HEALTH_PATH,
        name="check_server",
        summary="Check that this server process can serve",
        description=_SERVES,
        needs_key=False,
        answer=MappingProxyType({"type": "string"}),
        media_type="text/plain",
        errors=(503,),
    ),
    EndpointDoc(
        method="GET",
        path=READY_PATH,
        name="check_readiness",
        summary="Check that this server process is ready",
        description=f"Answers as `{HEALTH_PATH}` does. {_SERVES}",
        needs_key=False,
        answer=MappingProxyType({"type": "string"}),
        media_type="text/plain",
        errors=(503,),
    ),
    EndpointDoc(
        method="GET",
        path="/metrics",
        name="show_metrics",
        summary="Get the metrics of the registry, for Prometheus",
        description=(
            "Prometheus text format or OpenMetrics, as `Accept` prefers. With the setting `open_metrics`, "
            "no key is needed. Without prometheus-client, the answer is 404."
        ),
        action=Permission.READ_MONITOR,
        answer=MappingProxyType({"type": "string"}),
        media_type="text/plain",
        errors=(404,),
    ),
    EndpointDoc(
        method="GET",
        path="/openapi.json",
        name="show_openapi",
        summary="Get the OpenAPI document",
        needs_key=False,
        answer=MappingProxyType({"type": "object"}),
        headers=("If-None-Match",),
        errors=(304,),
    ),
)


def described(operation: Operation) -> EndpointDoc:
    """Return the documentation of an operation."""
    function = operation.function
    return EndpointDoc(
        method=operation.method,
        path=operation.path,
        name=function.__name__.strip("_"),
        summary=operation.summary,
        description=_ERROR_NAME.sub(lambda found: _CODES[found[0]], inspect.getdoc(function) or ""),
        action=operation.action,
        one_of=operation.one_of,
        needs_any_record=operation.needs_any_record,
        body=operation.body,
        example=operation.example,
        query=operation.query,
        answer=operation.answer,
        status=operation.status,
        answer_statuses=operation.answer_statuses,
        errors=operation.errors,
        headers=(*(("If-Match",) if operation.needs_version else ()), *operation.headers),
        required_headers=ALWAYS_REQUIRED | ({"If-Match"} if operation.needs_version else frozenset()),
    )
