"""Each declared setting has code that reads it."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import cache

from tests.support.repository import REPOSITORY
from tools.syntax_tree import walked

from lifesign.registry.policies import Policies
from lifesign.registry.settings import RegistrySettings


@cache
def read_members() -> dict[str, set[str]]:
    """Return what the modules with settings or policies read, such as `database` of `registry.settings`.

    The keys are the last names of the objects.
    """
    found: dict[str, set[str]] = {}
    for file in (REPOSITORY / "src").rglob("*.py"):
        text = file.read_text()
        if "settings" not in text and "policies" not in text:
            continue
        for node in walked(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.setdefault(_last_name(node.value), set()).add(node.attr)
    return found


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr.lstrip("_")
    return node.id.lstrip("_") if isinstance(node, ast.Name) else ""


def policies_of_settings() -> Iterator[str]:
    """Return the settings from which `RegistrySettings.policies` makes policies."""
    tree = ast.parse((REPOSITORY / "src/lifesign/registry/settings.py").read_text())
    (method,) = (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "policies"
    )
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and _last_name(node.value) == "self":
            yield node.attr


def test_code_reads_each_setting() -> None:
    read = read_members()["settings"] | set(policies_of_settings())
    assert set(RegistrySettings.model_fields) - read == set(), (
        "no code reads these settings as `settings.NAME`, and RegistrySettings.policies has no line for them"
    )


def test_code_reads_each_policy() -> None:
    names = {field.name for field in fields(Policies)}
    assert names - read_members()["policies"] == set(), "no code reads these as `call.policies.NAME`"
