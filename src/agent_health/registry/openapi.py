"""What does the API look like to programs? (OpenAPI 3.1; `GET /openapi.json`)

Everything is taken from what the server itself goes by: operations, models, permissions, the table of
errors. `python -m agent_health.registry.openapi` writes the document; `make schemas` stores it.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from agent_health.access import PERMISSIONS, Action, Role
from agent_health.agent_record import AGENT_ID_CHARACTERS, AgentRecord, Heartbeat, HeartbeatReply
from agent_health.census_record import RUN_PATTERN
from agent_health.directory_record import DIRECTORY_PATTERN, IMPORT_PATTERN, MAX_PAGES
from agent_health.document import MAX_NUMBER
from agent_health.lease_record import LeaseRecord
from agent_health.registry.error_responses import STATUS_AND_CODE
from agent_health.registry.lease_records import LeaseRenewal, LeaseRequest
from agent_health.registry.openapi_schemas import WireSchemas
from agent_health.registry.operations import Operation
from agent_health.registry.stream_events import STREAM_PATH, StreamQuery
from agent_health.target import SHARDS
from agent_health.task_record import CALL_ID_PATTERN, TASK_ID_PATTERN, TaskClaim, TaskGrant

JSON_TYPE = "application/json"
ROOT_PATH = "/"
SIGNPOST: Mapping[str, str] = MappingProxyType(
    {
        "name": "agent-health registry",
        "docs": "/docs",
        "openapi": "/openapi.json",
        "healthz": "/healthz",
        "metrics": "/metrics",
    }
)
"""What stands at the root: paths of this server, by what they lead to."""
SCHEMAS_PREFIX = "#/components/schemas/"
ROLES_MEMBER = "x-agent-health-roles"
"""Of an operation: which keys may do it, and to whose record."""

DESCRIPTION = """\
The registry of agents: who is there, who is well, who holds what, and everything that happened.

* Send a key as `X-API-Key`, or as `Authorization: Bearer`. Each role's keys may do what `Keys` says.
* Bodies are JSON in UTF-8. A member that is not described is refused, so that a misspelt one is not
  ignored; of a member that stands twice in one object, the last one counts. Not so in answers: a newer
  server may add members, and what does not exist is left out, never null.
* Lists come in pages: send the `cursor` of one page with the same query for the next one.
* A refusal changes nothing. Its `error.code` is for programs and never changes its meaning, `message` is
  for people. 408, 429 and 503 may be tried again, after `Retry-After` if it is there.
* A path that is not described is answered by 404 `not_found`, a method that is not, by 405
  `method_not_allowed`."""

ERROR_SCHEMA: Mapping[str, Any] = MappingProxyType({
    "type": "object",
    "description": "Why a request was refused.",
    "required": ["error", "message"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "details"],
            "properties": {
                "code": {"type": "string", "pattern": "^[a-z_]+$", "description": "For programs."},
                "message": {"type": "string", "description": "For people."},
                "details": {
                    "type": "object",
                    "description": "The facts in the message. For 422: `faults`, each with the JSON pointer "
                    "of its place, a name and a message.",
                },
            },
        },
        "message": {"type": "string", "description": "The same as `error.message`."},
        "current_version": {
            "type": "integer",
            "minimum": 1,
            "description": "With `stale_version`: the record's version now; its tag is in `error.details`.",
        },
        "existing_lease": {
            "$ref": f"{SCHEMAS_PREFIX}LeaseRecord",
            "description": "With `lease_held`: what everybody may know of it.",
        },
    },
})  # fmt: skip

WORDS_OF_STATUS: Mapping[int, str] = MappingProxyType({
    200: "As asked",
    201: "Created",
    202: "Noted, to be done soon",
    204: "Done; there is nothing to say",
    304: "Not changed",
    400: "The body is not JSON",
    401: "No key, or none that is valid",
    402: "It cannot be paid for",
    403: "The key is valid, and not for this",
    404: "There is no such thing",
    408: "The body did not arrive in time",
    409: "The state of things is against it",
    410: "The agent is dead or deregistered, or this life of it is over",
    412: "What the request builds upon is not so any more",
    413: "The body is too large",
    415: "The body is no plain JSON",
    422: "The request says what it must not",
    428: "The request has to say what it builds upon",
    429: "The key asks too often",
    503: "The server cannot do it now",
})  # fmt: skip

_HEADERS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "If-Match": {
        "description": "The record's `etag` as it was read, or `*`; another version is refused by 412.",
        "schema": {"type": "string", "examples": ['"14"']},
    },
    "If-None-Match": {
        "description": "The `ETag` of the copy at hand.",
        "schema": {"type": "string"},
    },
    "Last-Event-ID": {
        "description": "Go on behind this event; stands above `after`.",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    },
    "X-Agent-Incarnation": {
        "description": "The life that the agent believes to be in; if it is over, 410.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 10**18 - 1},
    },
    "X-Fencing-Token": {
        "description": "The lease's `fencing_token`; any other is refused by 412.",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    },
})  # fmt: skip
_ALWAYS_REQUIRED = frozenset({"X-Fencing-Token"})

# lease.read_resource refuses it.
_DOT_PART = r"(^|/)(\.|%2[eE]){1,2}(/|$)"
_PATH_PARAMETERS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "agent_id":   {"type": "string", "pattern": f"^{AGENT_ID_CHARACTERS}$"},
    "intent_id":  {"type": "string", "pattern": r"^[!#-&(-.0-_a-~]{1,128}$", "not": {"pattern": _DOT_PART}},
    "scope":      {"type": "string", "pattern": r"^[!#-&(-_a-~]{1,256}$", "not": {"pattern": _DOT_PART},
                   "description": "May hold slashes; no part is `.` or `..`, nor with `%2e` for `.`."},
    "lease_id":   {"type": "string", "minLength": 1, "maxLength": 128},
    "key_id":     {"type": "string", "minLength": 1, "maxLength": 64},
    "command_id": {"type": "string", "minLength": 1, "maxLength": 64},
    "role_id":    {"type": "string", "pattern": f"^{AGENT_ID_CHARACTERS}$"},
    "webhook_id": {"type": "string", "minLength": 1, "maxLength": 64},
    "target_id":  {"type": "string", "pattern": f"^{AGENT_ID_CHARACTERS}$"},
    "shard":      {"type": "integer", "minimum": 0, "maximum": SHARDS - 1},
    "directory":  {"type": "string", "pattern": DIRECTORY_PATTERN},
    "import_id":  {"type": "string", "pattern": IMPORT_PATTERN},
    "run_id":     {"type": "string", "pattern": RUN_PATTERN},
    "page":       {"type": "integer", "minimum": 1, "maximum": MAX_PAGES},
    "task_id":    {"type": "string", "pattern": TASK_ID_PATTERN},
    "call_id":    {"type": "string", "pattern": CALL_ID_PATTERN},
})  # fmt: skip

_EXAMPLES_IN_PATH = MappingProxyType({
    "agent_id": "agent_billing_01",
    "intent_id": "intent_42",
    "scope": "research",
    "lease_id": "lease_1_4294967297",
    "key_id": "key_01jd0000000000000000000000",
    "role_id": "billing-processor",
    "target_id": "tgt_0123456789abcdef0123456789abcdef",
    "shard": 17,
    "directory": "a2aregistry.org",
    "import_id": "2026-02-08",
    "page": 1,
    "run_id": "2026-02-08",
    "task_id": "task_01kgxw0f7t3v2m9q8s4r5n6b01",
    "call_id": "call-1",
})  # fmt: skip

# What a docstring calls by the name of our exception is a code to those who call from outside.
_CODES = {error.__name__: f"{status} `{code}`" for error, (status, code) in STATUS_AND_CODE.items()}
_ERROR_NAME = re.compile(rf"\b({'|'.join(_CODES)})\b")
_PARAMETER_IN_PATH = re.compile(r"{(\w+)(?::\w+)?}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One method at one path, as the document tells of it."""

    method: str
    path: str
    name: str
    """Its operationId."""
    summary: str
    description: str = ""
    action: Action | None = None
    needs_key: bool = True
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    answer: type[BaseModel] | Mapping[str, Any] | None = None
    """A model, or a schema of what is not JSON."""
    media_type: str = JSON_TYPE
    status: int = 200
    errors: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()
    """Which the request may or must have besides its key."""
    required_headers: frozenset[str] = field(default=_ALWAYS_REQUIRED)

    @property
    def statuses(self) -> list[int]:
        """Which it may be refused with."""
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
        """Which keys may do it, and to whose record."""
        if self.action is None:
            return {}
        return {
            role.value: extent.value
            for role in Role
            if (extent := PERMISSIONS.get((role, self.action))) is not None
        }


# What is answered without being an `Operation`.
BESIDES = (
    Described(
        method="GET",
        path=ROOT_PATH,
        name="show_signpost",
        summary="See what this is, and where to go on",
        needs_key=False,
        answer=MappingProxyType(
            {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "examples": [dict(SIGNPOST)],
            }
        ),
    ),
    Described(
        method="POST",
        path="/api/v1/agents/{agent_id}/heartbeat",
        name="send_heartbeat",
        summary="Say that an agent lives (RFC-0016 4)",
        description="Stored before it is answered. The answer tells the status as the registry sees it, and "
        "what waits for the agent. An agent that is dead or deregistered has to register again: 410.",
        action=Action.BEAT,
        body=Heartbeat,
        answer=HeartbeatReply,
        errors=(404, 410),
        headers=("X-Agent-Incarnation",),
    ),
    Described(
        method="POST",
        path="/api/v1/leases",
        name="acquire_lease",
        summary="Have a resource for a while",
        description="At most one lease of a resource runs at a time. Each grant of a resource has a higher "
        "fencing token than all before it.",
        action=Action.LEASE,
        body=LeaseRequest,
        answer=LeaseRecord,
        status=201,
        errors=(404, 409, 410),
        headers=("X-Agent-Incarnation",),
    ),
    Described(
        method="POST",
        path="/api/v1/leases/{lease_id}/renew",
        name="renew_lease",
        summary="Keep a lease for longer",
        description="A lease that is over is not brought back, even if nobody took the resource: 412.",
        action=Action.LEASE,
        body=LeaseRenewal,
        answer=LeaseRecord,
        errors=(404, 410, 412),
        headers=("X-Agent-Incarnation",),
    ),
    Described(
        method="DELETE",
        path="/api/v1/leases/{lease_id}",
        name="release_lease",
        summary="Give a lease back, or take it from its holder",
        description="Asked again, it is granted again.",
        action=Action.RELEASE_LEASE,
        status=204,
        errors=(404, 410, 412, 422),
        headers=("X-Agent-Incarnation",),
    ),
    Described(
        method="POST",
        path="/api/v1/tasks/claim",
        name="claim_task",
        summary="Get a task to work at, or wait for one",
        description="The longest queued one that the agent fits: by its name, its pool, and what its record "
        "says it can do, while it has room. With it comes a lease, whose fencing token every write shows, "
        "and what an earlier holder reported last. 204 if there is none after `wait_seconds`.",
        action=Action.WORK_TASKS,
        body=TaskClaim,
        answer=TaskGrant,
        errors=(204, 404, 409, 410),
        headers=("X-Agent-Incarnation",),
    ),
    Described(
        method="GET",
        path=STREAM_PATH,
        name="stream_events",
        summary="Follow the event log as it grows",
        description="Server-Sent Events: `id` is the event's sequence, `event` its type, `data` the event as "
        "JSON. A comment every 10 seconds says that the stream lives. A client that comes back with "
        "`Last-Event-ID`, to whichever server, misses nothing and gets nothing twice.",
        action=Action.READ_EVENTS,
        query=StreamQuery,
        answer=MappingProxyType({"type": "string"}),
        media_type="text/event-stream",
        headers=("Last-Event-ID",),
    ),
    Described(
        method="GET",
        path="/healthz",
        name="check_server",
        summary="Ask whether this server process can serve",
        needs_key=False,
        answer=MappingProxyType({"type": "string"}),
        media_type="text/plain",
        errors=(503,),
    ),
    Described(
        method="GET",
        path="/metrics",
        name="show_metrics",
        summary="Count everything, for Prometheus",
        description="In Prometheus' text format or OpenMetrics, as `Accept` prefers. The setting "
        "`open_metrics` shows it without a key; without prometheus-client it is not found.",
        action=Action.READ_MONITOR,
        answer=MappingProxyType({"type": "string"}),
        media_type="text/plain",
        errors=(404,),
    ),
    Described(
        method="GET",
        path="/openapi.json",
        name="show_openapi",
        summary="Get this document",
        needs_key=False,
        answer=MappingProxyType({"type": "object"}),
        headers=("If-None-Match",),
        errors=(304,),
    ),
    Described(
        method="GET",
        path="/docs",
        name="show_docs",
        summary="Read this document as a page",
        needs_key=False,
        answer=MappingProxyType({"type": "string"}),
        media_type="text/html",
        headers=("If-None-Match",),
        errors=(304,),
    ),
)


def described(operation: Operation) -> Described:
    """Return an operation as the document tells of it."""
    deed = operation.deed
    return Described(
        method=operation.method,
        path=operation.path,
        name=deed.__name__.strip("_"),
        summary=operation.summary,
        description=_ERROR_NAME.sub(lambda found: _CODES[found[0]], inspect.getdoc(deed) or ""),
        action=operation.action,
        body=operation.body,
        query=operation.query,
        answer=operation.answer,
        status=operation.status,
        errors=operation.errors,
        headers=(*(("If-Match",) if operation.needs_version else ()), *operation.headers),
        required_headers=_ALWAYS_REQUIRED | ({"If-Match"} if operation.needs_version else frozenset()),
    )


def openapi_document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the document, the same for the same operations."""
    ways = [*(described(operation) for operation in operations), *BESIDES]
    schemas, references = _schemas(ways)
    paths: dict[str, dict[str, Any]] = {}
    for way in ways:
        path = _PARAMETER_IN_PATH.sub(r"{\1}", way.path)
        item = paths.setdefault(path, {})
        if path_parameters := _PARAMETER_IN_PATH.findall(way.path):
            item["parameters"] = [_path_parameter(name) for name in path_parameters]
        item[way.method.lower()] = _operation(way, references, schemas)
    statuses = sorted({status for way in ways for status in way.statuses})
    queries = {_name_in(references[way.query, "validation"]) for way in ways if way.query is not None}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "agent-health registry",
            "version": version("agent-health"),
            "summary": "Registers agents, watches over them, and leases work to them (RFC-0016)",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "tags": [{"name": tag} for tag in dict.fromkeys(_tag(way) for way in ways)],
        "paths": paths,
        "components": {
            "schemas": {
                **{name: schema for name, schema in schemas.items() if name not in queries},
                "Error": dict(ERROR_SCHEMA),
            },
            "responses": {f"Error{status}": _refusal(status) for status in statuses if status >= 400},
            "securitySchemes": {
                "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "Bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def openapi_json(operations: Iterable[Operation]) -> bytes:
    """Return the document as it is served and stored."""
    return json.dumps(openapi_document(operations), indent=2, ensure_ascii=False).encode() + b"\n"


def _operation(
    way: Described, references: Mapping[tuple[type, str], str], schemas: Mapping[str, Any]
) -> dict[str, Any]:
    parameters = [
        *(_header(name, is_required=name in way.required_headers) for name in way.headers),
        *(
            _query_parameters(schemas[references[way.query, "validation"].rpartition("/")[2]])
            if way.query
            else ()
        ),
    ]
    shown: dict[str, Any] = {"operationId": way.name, "tags": [_tag(way)], "summary": way.summary}
    if way.description:
        shown["description"] = way.description
    if way.roles:
        shown[ROLES_MEMBER] = way.roles
    shown["security"] = [{"ApiKey": []}, {"Bearer": []}] if way.needs_key else []
    if parameters:
        shown["parameters"] = parameters
    if way.body is not None:
        media: dict[str, Any] = {"schema": {"$ref": references[way.body, "validation"]}}
        if (example := EXAMPLES.get(way.body.__name__)) is not None:
            media["example"] = example
        shown["requestBody"] = {"required": True, "content": {JSON_TYPE: media}}
    shown["responses"] = {str(way.status): _answer(way, references)} | {
        str(status): {"$ref": f"#/components/responses/Error{status}"}
        if status >= 400
        else {"description": WORDS_OF_STATUS[status]}
        for status in way.statuses
    }
    return shown


def _answer(way: Described, references: Mapping[tuple[type, str], str]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": WORDS_OF_STATUS[way.status]}
    if way.answer is AgentRecord:
        answer["headers"] = {
            "ETag": {"description": "The record's `etag`.", "schema": {"type": "string"}},
        }
    if isinstance(way.answer, type):
        schema: Mapping[str, Any] = {"$ref": references[way.answer, "serialization"]}
        answer["content"] = {way.media_type: {"schema": schema}}
    elif way.answer is not None:
        answer["content"] = {way.media_type: {"schema": dict(way.answer)}}
    return answer


def _refusal(status: int) -> dict[str, Any]:
    codes = sorted({code for known, code in STATUS_AND_CODE.values() if known == status})
    told = ", ".join(f"`{code}`" for code in codes)
    shown: dict[str, Any] = {"description": f"{WORDS_OF_STATUS[status]}. Codes: {told}."}
    if status in {429, 503}:
        shown["headers"] = {
            "Retry-After": {"description": "In seconds.", "schema": {"type": "integer", "minimum": 1}}
        }
    shown["content"] = {JSON_TYPE: {"schema": {"$ref": f"{SCHEMAS_PREFIX}Error"}}}
    return shown


def _path_parameter(name: str) -> dict[str, Any]:
    schema = dict(_PATH_PARAMETERS.get(name, {"type": "string", "minLength": 1}))
    words = {"description": schema.pop("description")} if "description" in schema else {}
    example = {"example": _EXAMPLES_IN_PATH[name]} if name in _EXAMPLES_IN_PATH else {}
    return {"name": name, "in": "path", "required": True, **words, "schema": schema, **example}


def _header(name: str, *, is_required: bool) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": is_required, **_HEADERS[name]}


def _query_parameters(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, member in schema["properties"].items():
        schema_of_it = {key: value for key, value in member.items() if key != "description"}
        if "anyOf" in schema_of_it:
            # A query cannot say null.
            (schema_of_it,) = (one for one in schema_of_it["anyOf"] if one != {"type": "null"})
        parameter = {"name": name, "in": "query", "required": name in schema.get("required", ())}
        if "description" in member:
            parameter["description"] = member["description"]
        if schema_of_it.get("type") == "array":
            # a,b and not twice the name.
            parameter |= {"style": "form", "explode": False}
        yield {**parameter, "schema": schema_of_it}


def _name_in(reference: str) -> str:
    return reference.removeprefix(SCHEMAS_PREFIX)


def _tag(way: Described) -> str:
    """Return the subject: what follows /api/v1/."""
    parts = way.path.split("/")
    return parts[3] if parts[1] == "api" else "server"


def _schemas(ways: Iterable[Described]) -> tuple[dict[str, Any], dict[tuple[type, str], str]]:
    """Return the schemas of all models by name, and a reference to each model's."""
    wanted: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {(LeaseRecord, "serialization"): None}
    for way in ways:
        for model in (way.body, way.query):
            if model is not None:
                wanted[model, "validation"] = None
        if isinstance(way.answer, type):
            wanted[way.answer, "serialization"] = None
    references, document = models_json_schema(
        [*wanted], ref_template=SCHEMAS_PREFIX + "{model}", schema_generator=WireSchemas
    )
    return document["$defs"], {key: str(reference["$ref"]) for key, reference in references.items()}


_OF_RUN = MappingProxyType({"run_id": "run_01kgxw0f7t3v2m9q8s4r5n6b02", "fencing_token": 4294967297})
EXAMPLES: Mapping[str, Any] = MappingProxyType({
    "Registration": {
        "agent_id": "agent_billing_01",
        "role_id": "billing-processor",
        "name": "Billing Processor",
        "capabilities": ["billing", "invoicing"],
        "capacity": {"max_concurrent_tasks": 5},
    },
    "AgentUpdate": {"capabilities": ["billing"], "max_concurrent_tasks": 3},
    "Heartbeat": {"status": "active", "current_load": 3, "client_timestamp": "2026-02-08T10:30:00Z"},
    "TaskCreation": {
        "title": "Write the landing page",
        "role_id": "writers",
        "input": {"brief": "https://example.com/brief"},
        "budget": {"tokens": 250000, "usd": 1.5},
    },
    "TaskClaim": {"role_id": "writers", "wait_seconds": 30},
    "ProgressWrite": {
        **_OF_RUN,
        "idempotency_key": "report-1",
        "report": {
            "summary": "Drafted the hero section",
            "attempted": [{"action": "fetch brand assets", "outcome": "success"}],
            "nextStep": "Write three variants of the hero copy",
        },
    },
    "CompletionWrite": {**_OF_RUN, "idempotency_key": "done", "output": {"page": "index.html"}},
    "HelpWrite": {**_OF_RUN, "idempotency_key": "help", "reason": "Which logo is the current one?"},
    "DelegationWrite": {
        **_OF_RUN,
        "idempotency_key": "child-1",
        "task": {"title": "Crop the photographs", "budget": {"tokens": 20000, "usd": 0.25}},
    },
    "RunRelease": {**_OF_RUN, "idempotency_key": "end", "exit_reason": "crash", "exit_code": 1},
    "RunWrite": dict(_OF_RUN),
    "CallReservation": {**_OF_RUN, "call_id": "call-1", "tool": "fetch", "most": {"tokens": 0, "usd": 0.01}},
    "CallSettlement": {**_OF_RUN, "cost": {"tokens": 0, "usd": 0.004}},
    "TaskReview": {"verdict": "reject", "comment": "The logo is last year's."},
    "HandoffResolution": {"resolution": "requeue", "comment": "logo-2026.svg"},
    "TaskCancellation": {"reason": "no longer needed"},
    "BudgetTopUp": {"add": {"tokens": 100000, "usd": 0.5}},
    "StatusChange": {"status": "draining", "drain_timeout_seconds": 120},
    "CommandRequest": {"command": "drain", "reason": "maintenance_window", "drain_timeout_seconds": 120},
    "LeaseRequest": {"resource": "intent:intent_42/research", "ttl_seconds": 300},
    "LeaseRenewal": {"fencing_token": 4294967297, "ttl_seconds": 300},
    "State": {"progress": 0.5, "next_step": "compare the sources"},
    "NewKey": {"role": "reader", "name": "dashboard"},
    "NewWebhook": {"url": "https://hooks.example/in", "types": ["agent.lifecycle"]},
    "KeyRotation": {"overlap_seconds": 3600},
    "Maintenance": {"seconds": 3600, "reason": "new disks"},
    "OverrideRequest": {"status": "active", "seconds": 900, "reason": "its probes are refused by a firewall"},
    "IllnessReport": {"ill": True, "why": "most names cannot be resolved"},
    "ShardClaimRequest": {"worker": "prober-1", "ttl_seconds": 60, "held": {"17": 4294967297}},
    "ImportPage": {
        "urls": ["https://agent.example/.well-known/agent-card.json", "other.example"],
        "source": "https://a2aregistry.org/api/agents",
    },
    "ImportEnd": {"pages": 1},
    "OptOutRequest": {"url": "https://agent.example"},
    "RunRequest": {"name": "census", "is_over": True},
    "ObservationBatch": {
        "observations": [
            {
                "agent_id": "agent_billing_01",
                "observed_at": "2026-02-08T10:30:00Z",
                "transport": {"result": "ok", "status_code": 200, "latency_ms": 41.5},
            }
        ]
    },
})  # fmt: skip
"""A body of each model, by its name."""

Writer = Callable[[bytes], object]


def main(write: Writer) -> None:
    """Write the document."""
    from agent_health.registry.app import OPERATIONS  # noqa: PLC0415 - it serves what this makes

    write(openapi_json(OPERATIONS))


if __name__ == "__main__":
    main(sys.stdout.buffer.write)
