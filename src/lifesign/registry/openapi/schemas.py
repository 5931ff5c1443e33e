"""JSON schemas of models as they are on the wire."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema


class WireSchemas(GenerateJsonSchema):
    """Schemas of the JSON form: with docstrings, and null only where a body may contain it."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return a model's schema with the docstrings of its members."""
        return _with_docstrings(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Return a dataclass's schema with the docstrings of its members."""
        return _with_docstrings(super().dataclass_schema(schema), schema["cls"])

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Remove null from answers: absent values are omitted."""
        if self.mode == "serialization":
            return self.generate_inner(schema["schema"])
        return super().nullable_schema(schema)

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Leave defaults out of answers, and null as a default out of everything."""
        if self.mode == "serialization" or schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,  # noqa: FBT001 - pydantic's own signature
    ) -> bool:
        """Require all members of answers that cannot be None."""
        if self.mode == "serialization":
            return not _may_be_none(field["schema"])
        return super().field_is_required(field, total)

    def field_title_should_be_set(self, _schema: Any) -> bool:
        """Leave out titles that only repeat the name."""
        return False


def with_one_name_each(definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return schemas by name, one per model, also for models of requests and answers.

    Pydantic has two schemas for these. The schema of requests also accepts all answers, in which optional
    members are always present and never null: programs that are generated from the document get one class.
    """
    return {
        without_direction(name): _with_references(schema)
        for name, schema in definitions.items()
        if not name.endswith("-Output")
    }


def without_direction(name: str) -> str:
    """Return a model's name or reference without pydantic's suffix `-Input` or `-Output`."""
    return name.removesuffix("-Input").removesuffix("-Output")


def _with_references(schema: Any) -> Any:
    match schema:
        case {"$ref": str(name)}:
            return {**schema, "$ref": without_direction(name)}
        case dict():
            return {name: _with_references(member) for name, member in schema.items()}
        case list():
            return [_with_references(one) for one in schema]
    return schema


def _may_be_none(schema: Any) -> bool:
    while schema["type"] != "nullable":
        if "schema" not in schema:
            return False
        schema = schema["schema"]
        if schema["type"] in {"list", "dict", "tuple", "set"}:
            return False
    return True


def _with_docstrings(schema: JsonSchemaValue, of: type) -> JsonSchemaValue:
    properties = schema.get("properties", {})
    for name, text in docstrings_of(of).items():
        if name in properties:
            properties[name].setdefault("description", text)
    return schema


def docstrings_of(of: type) -> dict[str, str]:
    """Return the docstrings of a class's attributes, including those of its bases.

    Each module is read once. Pydantic's own way reads it again for every class, at every start.
    """
    found: dict[str, str] = {}
    for one in reversed(of.__mro__):
        if one.__module__.startswith("lifesign"):
            found |= _docstrings_in(one.__module__).get(one.__qualname__, {})
    return found


@cache
def _docstrings_in(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: dict(_attributes(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for member, after in zip(node.body, node.body[1:], strict=False):
        match member, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
            case _:
                pass
