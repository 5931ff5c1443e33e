"""OpenAPI 3.1 document of the API (`GET /openapi.json`).

It is derived from what the server itself uses: operations, models, permissions, the table of errors. `python
-m lifesign.registry.openapi.document` prints the document; `make schemas` stores it.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from lifesign.domain.events.webhook_delivery import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from lifesign.domain.health.document import MAX_NUMBER
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.agents import AgentRecord
from lifesign.domain.models.base import AGENT_ID_CHARACTERS
from lifesign.domain.models.census import RUN_PATTERN
from lifesign.domain.models.directories import DIRECTORY_PATTERN, IMPORT_PATTERN, MAX_PAGES
from lifesign.domain.models.leases import LeaseRecord
from lifesign.domain.models.tasks import CALL_ID_PATTERN, TASK_ID_PATTERN
from lifesign.domain.targets.target import SHARDS
from lifesign.registry.agents.check_ready import STATUS_HEADER, AgentReadiness
from lifesign.registry.events.manage_webhooks import WebhookDelivery
from lifesign.registry.openapi.endpoints import EXTRA_ENDPOINTS, JSON_TYPE, EndpointDoc, described
from lifesign.registry.openapi.schemas import WireSchemas, with_one_name_each, without_direction
from lifesign.registry.operation_table import OPERATIONS
from lifesign.registry.request_handling.error_statuses import STATUS_AND_CODE
from lifesign.registry.request_handling.operation import Operation

SCHEMAS_PREFIX = "#/components/schemas/"
ROLES_MEMBER = "x-lifesign-roles"
"""Extension member of an operation: the roles that may call it, and for which records."""

DESCRIPTION = """\
Registry of agents: their records, their health, leases, tasks, probe targets and the event log.

* Send a key as `X-API-Key`, or as `Authorization: Bearer`. Each operation lists the roles that may call it.
* Bodies are JSON in UTF-8. The server refuses unknown members, so that it does not ignore a misspelt one, and
  repeated names in one object. A newer server may add members to answers. Absent values are omitted.
* Query values, and items of a list in them, cannot be empty: omit parameters that you do not need.
* Lists have pages: send the `cursor` of a page with the same query to get the next one.
* A refused request changes nothing. `error.code` is for programs and keeps its meaning; `message` and
  `hint` are for people. After 408, 429 and 503 you may retry, after `Retry-After` if it is present.
* Unknown paths are answered by 404 `not_found`, unknown methods by 405 `method_not_allowed`."""

ERROR_SCHEMA: Mapping[str, Any] = MappingProxyType({
    "type": "object",
    "description": "Reason for the refusal, for people.",
    "required": ["error", "message"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "details"],
            "properties": {
                "code": {"type": "string", "pattern": "^[a-z_]+$", "description": "For programs."},
                "message": {"type": "string", "description": "For people."},
                "hint": {"type": "string", "description": "What to do, for people; absent if unknown."},
                "details": {
                    "type": "object",
                    "description": (
                        "Facts of the message. For 422: `faults`, each with the JSON pointer of its place, "
                        "a name and a message."
                    ),
                },
            },
        },
        "message": {"type": "string", "description": "The same as `error.message`."},
        "current_version": {
            "type": "integer",
            "minimum": 1,
            "description": "With `stale_version`: current version; its ETag is in `error.details`.",
        },
        "existing_lease": {
            "$ref": f"{SCHEMAS_PREFIX}LeaseRecord",
            "description": "With `lease_held`: the public facts about that lease.",
        },
    },
})  # fmt: skip

_HEADERS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "If-Match": {
        "description": (
            "ETag of the record as you read it, or `*`; if the record has another version, the answer is "
            "412."
        ),
        "schema": {"type": "string", "examples": ['"14"']},
    },
    "If-None-Match": {
        "description": "ETag of your copy.",
        "schema": {"type": "string"},
    },
    "Last-Event-ID": {
        "description": "Sequence number of the last event that you received. Overrides `after`.",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    },
    "X-Agent-Incarnation": {
        "description": "The agent's own incarnation, as it knows it. 410 if that incarnation has ended.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 10**18 - 1},
    },
    "X-Fencing-Token": {
        "description": "Fencing token of the lease; any other is refused with 412.",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    },
})  # fmt: skip

_ANSWER_HEADERS: Mapping[type[BaseModel], Mapping[str, Any]] = MappingProxyType({
    AgentRecord: {"ETag": {"description": "The record's `etag`.", "schema": {"type": "string"}}},
    AgentReadiness: {
        STATUS_HEADER: {
            "description": "The agent's status. Absent if the answer does not concern the agent.",
            "schema": {"type": "string", "enum": [status.value for status in Status]},
        }
    },
})  # fmt: skip

DELIVERY_DESCRIPTION = """\
Deliveries follow the Standard Webhooks specification 1.0.0. The signature is the HMAC-SHA256 of
`{webhook-id}.{webhook-timestamp}.{body}`, in base64, with the bytes of the secret. Use a library for
Standard Webhooks to verify it, and refuse deliveries whose timestamp is more than 5 minutes away.

* Events arrive at least once and in order. The next delivery waits until the receiver has accepted this one.
* Every attempt of a delivery has the same `webhook-id` and the same body: use the id to detect repetitions.
* A receiver has 15 seconds to answer. The server repeats a failed delivery after 1 to 2 seconds, and then
  after twice as long each time, up to 30 minutes. After 3 days and 100 failures in a row it disables
  the webhook."""

_DELIVERY_HEADERS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    ID_HEADER: {
        "description": "Id of the delivery; the same in every attempt.",
        "schema": {"type": "string", "pattern": "^msg_[0-9a-z]{26}$"},
    },
    TIMESTAMP_HEADER: {
        "description": "Time of this attempt, in seconds since 1970-01-01.",
        "schema": {"type": "string", "pattern": "^[1-9][0-9]*$"},
    },
    SIGNATURE_HEADER: {
        "description": "`v1,` and the signature; two, separated by a space, while a secret is rotated.",
        "schema": {"type": "string", "pattern": "^v1,[A-Za-z0-9+/]{43}=( v1,[A-Za-z0-9+/]{43}=)?$"},
    },
})  # fmt: skip

# lease.read_resource refuses it.
_DOT_PART = r"(^|/)(\.|%2[eE]){1,2}(/|$)"
_PATH_PARAMETERS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "agent_id":   {"type": "string", "pattern": f"^{AGENT_ID_CHARACTERS}$", "example": "agent_billing_01"},
    "intent_id":  {"type": "string", "pattern": r"^[!#-&(-.0-_a-~]{1,128}$", "not": {"pattern": _DOT_PART},
                   "example": "intent_42"},
    "scope":      {"type": "string", "pattern": r"^[!#-&(-_a-~]{1,256}$", "not": {"pattern": _DOT_PART},
                   "example": "research",
                   "description": "May contain slashes. No part may be `.` or `..`, with or without `%2e`."},
    "lease_id":   {"type": "string", "minLength": 1, "maxLength": 128,
                   "example": "lease_1_4294967297_abcdefghijklmnopqrstuvwxyz"},
    "key_id":     {"type": "string", "minLength": 1, "maxLength": 64,
                   "example": "key_01jd0000000000000000000000"},
    "command_id": {"type": "string", "minLength": 1, "maxLength": 64},
    "role_id":    {"type": "string", "pattern": f"^{AGENT_ID_CHARACTERS}$", "example": "billing-processor"},
    "webhook_id": {"type": "string", "minLength": 1, "maxLength": 64,
                   "example": "webhook_01jd0000000000000000000000"},
    "target_id":  {"type": "string", "pattern": f"^{AGENT_ID_CHARACTERS}$",
                   "example": "tgt_0123456789abcdef0123456789abcdef"},
    "shard":      {"type": "integer", "minimum": 0, "maximum": SHARDS - 1, "example": 17},
    "directory":  {"type": "string", "pattern": DIRECTORY_PATTERN, "example": "a2aregistry.org"},
    "import_id":  {"type": "string", "pattern": IMPORT_PATTERN, "example": "2026-02-08"},
    "run_id":     {"type": "string", "pattern": RUN_PATTERN, "example": "2026-02-08"},
    "page":       {"type": "integer", "minimum": 1, "maximum": MAX_PAGES, "example": 1},
    "task_id":    {"type": "string", "pattern": TASK_ID_PATTERN,
                   "example": "task_01kgxw0f7t3v2m9q8s4r5n6b01"},
    "call_id":    {"type": "string", "pattern": CALL_ID_PATTERN, "example": "call-1"},
})  # fmt: skip

_PARAMETER_IN_PATH = re.compile(r"{(\w+)(?::\w+)?}")


def openapi_document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the document, the same for the same operations."""
    ways = [*(described(operation) for operation in operations), *EXTRA_ENDPOINTS]
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
            "title": "lifesign registry",
            "version": version("lifesign"),
            "summary": "Registers agents, monitors them, and leases work to them (RFC-0016)",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "tags": [{"name": tag} for tag in dict.fromkeys(_tag(way) for way in ways)],
        "paths": paths,
        "webhooks": {"events": {"post": _delivery(references[WebhookDelivery, "serialization"])}},
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


def _delivery(payload: str) -> dict[str, Any]:
    """Return the request that this server sends to webhooks."""
    return {
        "operationId": "deliver_events",
        "tags": ["webhooks"],
        "summary": "Events, as this server sends them to the URL of a webhook",
        "description": DELIVERY_DESCRIPTION,
        "security": [],
        "parameters": [
            {"name": name, "in": "header", "required": True, **member}
            for name, member in _DELIVERY_HEADERS.items()
        ],
        "requestBody": {"required": True, "content": {JSON_TYPE: {"schema": {"$ref": payload}}}},
        "responses": {
            "2XX": {"description": "The events were accepted. The body is ignored."},
            "410": {"description": "The webhook is disabled at once."},
            "default": {
                "description": (
                    "The server sends the same delivery again later; it respects `Retry-After` up to 30 "
                    "minutes and follows no redirect."
                )
            },
        },
    }


def openapi_json(operations: Iterable[Operation]) -> bytes:
    """Return the document as it is served and stored."""
    return json.dumps(openapi_document(operations), indent=2, ensure_ascii=False).encode() + b"\n"


def _operation(
    way: EndpointDoc, references: Mapping[tuple[type, str], str], schemas: Mapping[str, Any]
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
        if way.example is not None:
            media["example"] = dict(way.example)
        shown["requestBody"] = {"required": True, "content": {JSON_TYPE: media}}
    shown["responses"] = {
        str(way.status): _answer(way, references),
        **{str(status): _other_response(status) for status in way.statuses},
        **{str(status): _answer_or_error(status, way, references) for status in way.answer_statuses},
    }
    return shown


def _other_response(status: int) -> dict[str, Any]:
    """Return the response of an error, or of an answer without a body."""
    if status >= 400:
        return {"$ref": f"#/components/responses/Error{status}"}
    return {"description": HTTPStatus(status).phrase}


def _answer_or_error(
    status: int, way: EndpointDoc, references: Mapping[tuple[type, str], str]
) -> dict[str, Any]:
    """Return the response of a status that answers and refuses."""
    answer, error = _answer(way, references), _refusal(status)
    schemas = [each["content"][JSON_TYPE]["schema"] for each in (answer, error)]
    return {
        **error,
        "headers": answer.get("headers", {}) | error.get("headers", {}),
        "content": {JSON_TYPE: {"schema": {"oneOf": schemas}}},
    }


def _answer(way: EndpointDoc, references: Mapping[tuple[type, str], str]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(way.status).phrase}
    if isinstance(way.answer, type):
        if way.answer in _ANSWER_HEADERS:
            answer["headers"] = dict(_ANSWER_HEADERS[way.answer])
        schema: Mapping[str, Any] = {"$ref": references[way.answer, "serialization"]}
        answer["content"] = {way.media_type: {"schema": schema}}
    elif way.answer is not None:
        answer["content"] = {way.media_type: {"schema": dict(way.answer)}}
    return answer


def _refusal(status: int) -> dict[str, Any]:
    codes = sorted({code for known, code in STATUS_AND_CODE.values() if known == status})
    text = ", ".join(f"`{code}`" for code in codes)
    shown: dict[str, Any] = {"description": f"{HTTPStatus(status).phrase}. Codes: {text}."}
    if status in {429, 503}:
        shown["headers"] = {
            "Retry-After": {"description": "In seconds.", "schema": {"type": "integer", "minimum": 1}}
        }
    shown["content"] = {JSON_TYPE: {"schema": {"$ref": f"{SCHEMAS_PREFIX}Error"}}}
    return shown


def _path_parameter(name: str) -> dict[str, Any]:
    schema = dict(_PATH_PARAMETERS.get(name, {"type": "string", "minLength": 1}))
    words = {"description": schema.pop("description")} if "description" in schema else {}
    example = {"example": schema.pop("example")} if "example" in schema else {}
    return {"name": name, "in": "path", "required": True, **words, "schema": schema, **example}


def _header(name: str, *, is_required: bool) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": is_required, **_HEADERS[name]}


def _query_parameters(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, member in schema["properties"].items():
        schema_of_it = {key: value for key, value in member.items() if key != "description"}
        if "anyOf" in schema_of_it:
            # A query cannot contain null.
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


def _tag(way: EndpointDoc) -> str:
    """Return the subject: the path segment after /api/v1/."""
    parts = way.path.split("/")
    return parts[3] if parts[1] == "api" else "server"


def _schemas(ways: Iterable[EndpointDoc]) -> tuple[dict[str, Any], dict[tuple[type, str], str]]:
    """Return the schemas of all models by name, and a reference to each model's."""
    wanted: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {
        (LeaseRecord, "serialization"): None,
        (WebhookDelivery, "serialization"): None,
    }
    for way in ways:
        for model in (way.body, way.query):
            if model is not None:
                wanted[model, "validation"] = None
        if isinstance(way.answer, type):
            wanted[way.answer, "serialization"] = None
    references, document = models_json_schema(
        [*wanted], ref_template=SCHEMAS_PREFIX + "{model}", schema_generator=WireSchemas
    )
    return with_one_name_each(document["$defs"]), {
        key: without_direction(reference["$ref"]) for key, reference in references.items()
    }


Writer = Callable[[bytes], object]


def main(write: Writer) -> None:
    """Write the document."""
    write(openapi_json(OPERATIONS))


if __name__ == "__main__":
    main(sys.stdout.buffer.write)
