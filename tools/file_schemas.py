"""JSON schemas of probe definitions, tools files, observations and censuses, written from the models.

`make schemas` runs it.
"""

import ast
import inspect
import json
import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from lifesign.adapter.tools.tools_file import Upstreams
from lifesign.census.document import Census
from lifesign.domain.observation.results import Observation
from lifesign.prober.definition.models import ProbeDefinition

SCHEMAS = Path(__file__).parents[1] / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# A name, not an address: the schemas are read from files and refer to nothing outside.
NAMESPACE = "urn:lifesign:schema:"

# The rules of an observation that no single member has.
ONE_SUBJECT = {"oneOf": [{"required": ["agent_id"]}, {"required": ["target_url"]}]}
DOCUMENT_AND_READINESS = {
    "if": {
        "required": ["readiness"],
        "properties": {"readiness": {"properties": {"result": {"enum": ["ok", "stale_document"]}}}},
    },
    "then": {"required": ["document"]},
    "else": {"properties": {"document": False}},
}
STALE_OR_NOT = {
    "if": {"properties": {"readiness": {"properties": {"result": {"const": "stale_document"}}}}},
    "then": {
        "properties": {"document": {"required": ["is_stale"], "properties": {"is_stale": {"const": True}}}}
    },
    "else": {"properties": {"document": {"properties": {"is_stale": {"const": False}}}}},
}


class FileSchema(GenerateJsonSchema):
    """Schema of a file that a person writes, without titles: the member names say as much."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class WireSchema(FileSchema):
    """Schema of a document that programs exchange: absent values are omitted, never null."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each member of a model, inherited members too.

    pydantic can read them too, but at each import of the model, which would slow down every program.
    """
    models = [each for each in model.__mro__ if issubclass(each, BaseModel) and each is not BaseModel]
    return {member: text for each in reversed(models) for member, text in own_docstrings(each).items()}


def own_docstrings(described: type[Any]) -> dict[str, str]:
    """Return the docstring below each member that a model or an enumeration itself declares."""
    return {
        name.id: inspect.cleandoc(below.value.value)
        for member, below in pairwise(_classes(described.__module__)[described.__name__].body)
        if isinstance(member, ast.AnnAssign | ast.Assign)
        for name in (member.targets if isinstance(member, ast.Assign) else [member.target])
        if isinstance(name, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by name: `inspect.getsource` would parse it again for each of them."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def schema_of(
    models: Sequence[type[BaseModel]], generator: type[GenerateJsonSchema], **members: Any
) -> dict[str, Any]:
    """Return the schema of the first model, with the other models under `$defs`."""
    whole = models[0]
    schema = whole.model_json_schema(schema_generator=generator)
    described = {whole.__name__: schema, **schema.pop("$defs")}
    for model in models:
        for member, text in docstrings(model).items():
            described[model.__name__]["properties"][member]["description"] = text
    for rules in described.values():
        rules.pop("title", None)
    definitions = {name: described[name] for name in sorted(described) if name != whole.__name__}
    return {"$schema": DIALECT, **schema, **members, "$defs": definitions}


def models_of(whole: type[BaseModel]) -> list[type[BaseModel]]:
    """Return a model and the models of its members at any depth, `whole` first."""
    found = [whole]

    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in found:
            found.append(annotation)
        for argument in get_args(annotation):
            visit(argument)

    # The list grows while it is read.
    for model in found:
        for member in model.model_fields.values():
            visit(member.annotation)
    return [each for each in found if each.model_fields]


@cache
def generated() -> dict[str, dict[str, Any]]:
    """Return each schema by the name of its file."""
    return {
        "probe.schema.json": schema_of(
            models_of(ProbeDefinition),
            FileSchema,
            **{"$id": NAMESPACE + "probe"},
            title="Probe definition",
            description="A file of probes/: targets, requests of a probe, interval and limits. "
            "Durations are in seconds; paths are relative to the directory of the file.",
        ),
        "observation.schema.json": schema_of(
            models_of(Observation),
            WireSchema,
            **{"$id": NAMESPACE + "observation"},
            title="Observation",
            description="Result of one probe of one agent: a line of a results file, or an item of a report "
            "to the registry. Absent values are omitted, never null, as are layers that were not probed.",
            allOf=[ONE_SUBJECT, DOCUMENT_AND_READINESS, STALE_OR_NOT],
        ),
        "tools.schema.json": schema_of(
            models_of(Upstreams),
            FileSchema,
            **{"$id": NAMESPACE + "tools"},
            title="Tools file",
            description="The tools that an agent gets while it works on a task, their servers and prices. "
            "Durations are in seconds; paths are relative to the directory of the file.",
        ),
        "census.schema.json": schema_of(
            models_of(Census),
            FileSchema,
            **{"$id": NAMESPACE + "census"},
            title="Census",
            description="Share of a directory that is alive, as `lifesign census` writes it.",
        ),
    }


if __name__ == "__main__":
    for file_name, schema in generated().items():
        (SCHEMAS / file_name).write_text(json.dumps(schema, indent=2) + "\n")
