"""Facts that depend on the database: the same requests on both of them."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Annotated, Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import REPOSITORY
from tests.support.task_api import create, steer, worker

from lifesign.domain.access.permissions import Role
from lifesign.registry.events.stream_events import STREAM_PATH
from lifesign.registry.operation_table import OPERATIONS

ODD = [
    "\x00",
    "a\x00b",
    "\ufffd",
    "💩" * 50,
    "a" * 5_000,
    "'; DROP TABLE agents; --",
    "%",
    "\\",
    "{}",
    "-1",
    "NaN",
]
EXAMPLES = {
    (operation.method, operation.path): operation.example for operation in OPERATIONS if "{" in operation.path
}

_IN_PATH = re.compile(r"{[^}]+}")
DOCUMENTED = json.loads((REPOSITORY / "schemas" / "openapi.json").read_text())["paths"]


async def permitted_key(api: RegistryApi, path: str, method: str) -> str | Role:
    """Return a key that may call an operation: an administrator's, else an agent's."""
    documented = DOCUMENTED[re.sub(r":\w+}", "}", path)][method.lower()]
    if "admin" in documented.get("x-lifesign-roles", "admin"):
        return Role.ADMIN
    return await api.add_agent_key("poet")


@pytest.mark.both_databases
@pytest.mark.parametrize(("method", "path"), sorted(EXAMPLES))
async def test_impossible_name_is_404_on_both_databases(
    api: RegistryApi, caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    key = await permitted_key(api, path, method)
    for odd in ODD:
        asked = _IN_PATH.sub(odd.replace("\\", r"\\"), path)
        headers = {"If-Match": "*", "X-Fencing-Token": "1"}
        answer = await api.ask(method, asked, EXAMPLES[method, path], key=key, headers=headers)
        assert answer.status in {200, 204, 404, 409, 412, 422}, (asked, answer.body)
        if answer.status in {200, 204}:
            assert method in {"PUT", "GET", "DELETE"}
        else:
            assert answer.json()["error"]["code"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


QUERIES = {
    path: [member["name"] for member in methods["get"]["parameters"] if member["in"] == "query"]
    for path, methods in DOCUMENTED.items()
    if "parameters" in methods.get("get", {}) and path != STREAM_PATH
}
ODD_VALUES = ("%00", "a%00b", "%ff", "'", "9" * 400, "1e999", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")


@pytest.mark.both_databases
@pytest.mark.parametrize("path", [path for path, names in QUERIES.items() if names])
async def test_unusual_query_is_answered_on_both_databases(
    api: RegistryApi, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    key = await permitted_key(api, path, "GET")
    await api.register("poet")
    for name, odd in product(QUERIES[path], ODD_VALUES):
        answer = await api.ask("GET", f"{_IN_PATH.sub('poet', path)}?{name}={odd}", key=key)
        assert answer.status in {200, 404, 422}, (name, odd, answer.body)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_free_form_metadata_is_returned_unchanged(api: RegistryApi) -> None:
    metadata = {
        "": "", "\u0000": "\u0000\u2028\ufffe", "💩": [1, -0.0, 1e-320, 2**63, -(10**300), None, True],
        "1": {"1": {"1": {}}}, "e": 1.7976931348623157e308, "f": 0.1 + 0.2,
    }  # fmt: skip
    await api.register("poet", metadata=metadata)
    assert (await api.record("poet"))["metadata"] == metadata


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" + "0" * 400 + ".0"])
async def test_number_that_cannot_be_stored_exactly_is_refused(api: RegistryApi, number: str) -> None:
    raw = b'{"metadata": {"a": [{"b": %s}]}}' % number.encode()
    answer = await api.ask("POST", AGENTS, raw=raw)
    assert (answer.status, answer.json()["error"]["code"]) == (400, "not_json")


# Their texts are stored within JSON, which writes NUL as an escape.
IN_JSON = {
    "Registration.metadata", "AgentUpdate.metadata", "State.root",
    "TaskRequest.input", "TaskCreation.input", "CompletionWrite.output", "HandoffResolution.output",
    "ProgressReport.summary", "ProgressReport.beliefs", "ProgressReport.next_step", "ProgressReport.blockers",
    "Attempt.action", "Attempt.outcome", "AssertionResult.pointer",
    "ProbeMemory.card_etag", "ProbeMemory.interface_binding", "ProbeMemory.interface_tenant",
}  # fmt: skip
# The operation itself checks them before it stores them.
CHECKED_LATER = {
    "LinkRequest.url", "ImportPageRequest.urls", "ProbeMemory.link_registry", "ProbeMemory.protocol_version",
}  # fmt: skip


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """Models in an annotation, also those of their own members."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for member in annotation.model_fields.values():
            yield from models_in(member.annotation)
    for part in get_args(annotation):
        yield from models_in(part)


def members_that_keep_nul(model: type[BaseModel]) -> Iterator[str]:
    """Members of a model that accept a text with NUL, and do not replace it."""
    for name, member in model.model_fields.items():
        # Metadata may be empty, which `Annotated` refuses.
        annotated: Any = Annotated[(member.annotation, name, *member.metadata)]
        adapter = TypeAdapter[Any](annotated)
        for value in ("\x00", ["\x00"], {"\x00": "\x00"}, {"\x00": 1}, {"a": "\x00"}):
            with suppress(ValidationError):
                if r"\x00" in repr(adapter.validate_json(json.dumps(value))):
                    yield f"{model.__name__}.{name}"


def test_no_other_member_of_a_body_keeps_a_nul_character() -> None:
    found = {model for operation in OPERATIONS for model in models_in(operation.body)}
    kept = {name for model in found for name in members_that_keep_nul(model)}
    assert kept == IN_JSON | CHECKED_LATER


@pytest.mark.both_databases
async def test_nul_characters_in_a_task_reach_people(api: RegistryApi) -> None:
    made = await create(api, input={"\x00": "a\x00b"})
    one = await worker(api)
    grant = await one.granted()
    answer = await one.write(grant, "help", reason="a\x00b", report={"summary": "a\x00b"})
    assert answer.status == 200
    answer = await steer(api, made["task_id"], "resolve", resolution="requeue", comment="a\x00b")
    assert answer.status == 200
    again = await one.granted()
    assert again["input"] == {"\x00": "a\x00b"}
    assert again["latest_report"]["report"]["summary"] == "a\x00b"
    assert [each["comment"] for each in again["comments"]] == ["a\ufffdb", "a\ufffdb"]
    await one.write(again, "complete", output={"\x00": "a\x00b"})
    answer = await steer(api, made["task_id"], "review", verdict="accept", comment="a\x00b")
    assert answer.json()["task"]["explanation"] == "a\ufffdb"


def with_each_leaf(value: object, leaf: str) -> Iterator[object]:
    """The same value again and again, each time with another one of its leaves replaced."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from ({**value, name: other} for other in with_each_leaf(inner, leaf))
        yield {**value, "": leaf}
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from ([*value[:index], other, *value[index + 1 :]] for other in with_each_leaf(inner, leaf))
    else:
        yield leaf


TAKING = sorted(
    (path, method)
    for path, methods in DOCUMENTED.items()
    for method, documented in methods.items()
    if isinstance(documented, dict) and "requestBody" in documented
)


@pytest.mark.parametrize(("path", "method"), TAKING)
async def test_non_json_numbers_are_refused_everywhere(api: RegistryApi, path: str, method: str) -> None:
    example = DOCUMENTED[path][method]["requestBody"]["content"]["application/json"]["example"]
    asked = path.replace("{agent_id}", "poet")
    await api.register("poet")
    key = await permitted_key(api, path, method)
    for body in with_each_leaf(example, "@"):
        for number in (b"NaN", b"-Infinity", b"1e999"):
            raw = json.dumps(body).encode().replace(b'"@"', number)
            headers = {"If-Match": "*", "X-Fencing-Token": "1"}
            answer = await api.ask(method.upper(), asked, raw=raw, key=key, headers=headers)
            assert answer.status in {400, 422}, (raw, answer.status, answer.body)
