"""The JSON schema of an event, written from the models. `make schemas` runs it."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from tools.file_schemas import docstrings

from lifesign.domain.events.chain import Event
from lifesign.domain.events.event_type import PAYLOADS
from lifesign.domain.events.payload_fields import Payload
from lifesign.domain.events.registry_payloads import Erased

SCHEMA_FILE = Path(__file__).parents[1] / "schemas/event.schema.json"


class WireSchema(GenerateJsonSchema):
    """What travels: a member that is None in Python is absent, every other one is there."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        for member, text in docstrings(schema["cls"]).items():
            described["properties"][member]["description"] = text
        return described

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,  # noqa: FBT001 - the signature is pydantic's
    ) -> bool:
        member = field["schema"]
        return member["type"] != "default" or member.get("default") is not None

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _payload_rule(model: type[Payload]) -> dict[str, Any]:
    types = [event_type for event_type, payload in PAYLOADS.items() if payload is model]
    allowed = [{"$ref": f"#/$defs/{model.__name__}"}, {"$ref": "#/$defs/Erased"}]
    return {
        "if": {"properties": {"type": {"enum": types}}},
        "then": {"properties": {"payload": {"anyOf": allowed}}},
    }


def schema_of_the_models() -> dict[str, Any]:
    """Return the schema of an event and of every payload."""
    models: list[type[Any]] = [Event, Erased, *dict.fromkeys(PAYLOADS.values())]
    _, generated = TypeAdapter.json_schemas(
        [(model.__name__, "validation", TypeAdapter(model)) for model in models], schema_generator=WireSchema
    )
    definitions = generated["$defs"]
    for definition in definitions.values():
        definition.pop("title", None)
    event = definitions.pop("Event")
    event["properties"]["payload"] = {"description": "Details of the event; its members depend on `type`."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:lifesign:schema:event",
        "title": "Event of the registry's log",
        "description": "An event in the log. hash is the SHA-256 of the RFC 8785 form of this "
        "object with payload_hash in place of payload and without hash; payload_hash is the SHA-256 of the "
        "RFC 8785 form of payload, or the value of its member erased. The first event has 64 zeros as "
        "previous_hash. Absent values are omitted, never null. Validate with format "
        "assertion on: the pattern of a time accepts 30 February.",
        **{name: value for name, value in event.items() if name != "description"},
        "allOf": [_payload_rule(model) for model in dict.fromkeys(PAYLOADS.values())],
        "$defs": definitions,
    }  # fmt: skip


if __name__ == "__main__":
    SCHEMA_FILE.write_text(json.dumps(schema_of_the_models(), indent=2) + "\n")
