import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY

from lifesign.domain.access.permissions import Role
from lifesign.registry.app import Registry, create_app
from lifesign.registry.openapi import document
from lifesign.registry.openapi.document import openapi_document, openapi_json
from lifesign.registry.openapi.endpoints import EXTRA_ENDPOINTS, EndpointDoc, described
from lifesign.registry.openapi.schemas import docstrings_of
from lifesign.registry.operation_table import OPERATIONS
from lifesign.registry.request_handling.operation import Operation
from lifesign.registry.settings import RegistrySettings

STORED = REPOSITORY / "schemas" / "openapi.json"
DOCUMENT = openapi_document(OPERATIONS)
WAYS = [*map(described, OPERATIONS), *EXTRA_ENDPOINTS]
EXAMPLES = {way.body.__name__: dict(way.example) for way in WAYS if way.body and way.example}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield method.upper(), path, operation


def validator_of(name: str) -> Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def test_the_document_is_valid_openapi_3_1() -> None:
    # Each process of pytest-xdist would load it.
    from openapi_spec_validator import OpenAPIV31SpecValidator  # noqa: PLC0415

    assert not [str(error) for error in OpenAPIV31SpecValidator(DOCUMENT).iter_errors()]


def test_the_stored_document_is_the_one_that_is_served() -> None:
    assert STORED.read_bytes() == openapi_json(OPERATIONS), "run: make schemas"


def test_the_document_is_the_same_in_another_process_with_another_hash_seed() -> None:
    command = [sys.executable, "-m", "lifesign.registry.openapi.document"]
    env = {**os.environ, "PYTHONHASHSEED": "4711"}
    written = subprocess.run(
        command, capture_output=True, check=True, timeout=PATIENCE_SECONDS, env=env
    ).stdout
    assert written == openapi_json(OPERATIONS)


async def test_document_describes_exactly_the_served_routes() -> None:
    registry = Registry(RegistrySettings.read(database="sqlite://"))
    app: Any = create_app(registry)
    while not hasattr(app, "routes"):
        cells = {cell.cell_contents for cell in app.__closure__} if hasattr(app, "__closure__") else {app.app}
        app = next(one for one in cells if hasattr(one, "routes") or hasattr(one, "app") or callable(one))
    served = {
        (method, document._PARAMETER_IN_PATH.sub(r"{\1}", route.path))
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or {"POST"}
        if method != "HEAD"
    }
    assert served == {(method, path) for method, path, _ in operations()}
    await registry.database.close()


def test_each_operation_has_a_unique_id_and_described_parameters() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    for way in WAYS:
        assert way.summary
        undescribed = set(document._PARAMETER_IN_PATH.findall(way.path)) - set(document._PATH_PARAMETERS)
        assert not undescribed, f"add to _PATH_PARAMETERS of registry/openapi/document.py: {undescribed}"
        assert set(way.statuses) | {way.status} <= set(HTTPStatus), way.path


@pytest.mark.parametrize("way", [way for way in WAYS if way.body is not None], ids=lambda way: way.name)
def test_every_body_has_an_example_that_its_model_and_its_schema_take(way: EndpointDoc) -> None:
    assert way.body is not None
    assert way.example is not None, f"add `example` to the operation of {way.name}"
    example = dict(way.example)
    way.body.model_validate_json(json.dumps(example))
    assert validator_of(way.body.__name__).is_valid(example)


def test_docstrings_of_own_and_inherited_members_are_descriptions() -> None:
    record = DOCUMENT["components"]["schemas"]["CreatedKey"]["properties"]
    assert record["is_valid"]["description"].endswith(" the answer.")
    assert set(docstrings_of(int)) == set()


def test_model_of_request_and_response_has_one_schema_name() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert not [name for name in schemas if not name.isalnum()]
    assert "-Input" not in json.dumps(DOCUMENT)
    for name in ("Registration", "AgentRecord"):
        assert schemas[name]["properties"]["capacity"]["$ref"] == "#/components/schemas/Capacity"
    # All members of the one may be left out, and are answered all the same.
    assert validator_of("HeartbeatConfig").is_valid({"interval_seconds": 5})
    assert not validator_of("HeartbeatConfig").is_valid({"interval_seconds": 0})


def test_responses_and_query_parameters_allow_no_null() -> None:
    for name in ("AgentRecord", "AgentList", "KeyRecord", "LeaseRecord", "EventList", "Event"):
        assert "null" not in json.dumps(DOCUMENT["components"]["schemas"][name]), name
    for _, _, operation in operations():
        assert "null" not in json.dumps(operation.get("parameters", [])), operation["operationId"]


def test_internal_error_has_a_code_and_no_class_name() -> None:
    register = DOCUMENT["paths"][AGENTS]["post"]
    assert "409 `already_registered`" in register["description"]
    assert "AlreadyRegistered" not in json.dumps(DOCUMENT)


def test_only_public_operations_need_no_key() -> None:
    public = {operation["operationId"] for _, _, operation in operations() if not operation["security"]}
    assert public == {"check_readiness", "check_server", "show_openapi", "show_signpost"}


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.needs_any_record])
async def test_agents_are_no_callers_of_operations_for_all_records(
    api: RegistryApi, operation: Operation
) -> None:
    key = (await api.register())["agent_key"]
    path = operation.path.format(directory="d")
    assert (await api.ask(operation.method, path, key=key)).status == 403
    assert Role.AGENT not in described(operation).roles


async def test_openapi_document_needs_no_key_and_has_an_etag(api: RegistryApi) -> None:
    answer = await api.ask("GET", "/openapi.json", key=None)
    assert answer.status == 200
    assert answer.header("content-type") == "application/json"
    assert answer.body == openapi_json(OPERATIONS)
    etag = answer.header("etag")
    assert etag is not None
    again = await api.ask("GET", "/openapi.json", key=None, headers={"If-None-Match": f'"x", W/{etag}'})
    assert (again.status, again.body) == (304, b"")
    assert (await api.ask("GET", "/openapi.json", headers={"If-None-Match": '"x"'})).status == 200


async def test_real_answers_match_the_document(api: RegistryApi) -> None:
    registered = await api.ask("POST", AGENTS, EXAMPLES["Registration"])
    validator_of("AgentRecord").validate(registered.json())
    agent_id, key = registered.json()["agent_id"], registered.json()["agent_key"]
    send_heartbeat = await api.send_heartbeat(agent_id, key, current_load=1)
    validator_of("HeartbeatReply").validate(send_heartbeat.json())
    validator_of("AgentRecord").validate(await api.record(agent_id))
    listing = await api.ask("GET", f"{AGENTS}?role_id=billing-processor")
    validator_of("AgentList").validate(listing.json())
    lease = await api.ask("POST", "/api/v1/leases", EXAMPLES["LeaseRequest"], key=key)
    validator_of("LeaseRecord").validate(lease.json())
    refused = await api.ask("POST", "/api/v1/leases", EXAMPLES["LeaseRequest"], key=key)
    assert refused.status == 409
    validator_of("Error").validate(refused.json())
    events = await api.ask("GET", "/api/v1/events")
    validator_of("EventList").validate(events.json())
    keys = await api.ask("POST", "/api/v1/keys", EXAMPLES["NewKey"], key=Role.ADMIN)
    validator_of("CreatedKey").validate(keys.json())


@pytest.mark.both_databases
async def test_root_document_links_to_reachable_endpoints(api: RegistryApi) -> None:
    answer = await api.ask("GET", "/", key=None)
    assert (answer.status, answer.header("content-type")) == (200, "application/json")
    for name in ("openapi", "healthz", "readyz"):
        assert (await api.ask("GET", answer.json()[name], key=None)).status == 200
