"""The table of operations is complete."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

from lifesign import registry
from lifesign.registry.operation_table import OPERATIONS
from lifesign.registry.request_handling.operation import Operation

SERVED_WITH_AN_OPTION = "lifesign.registry.openintent_dialect"


def declared() -> Iterator[tuple[str, Operation]]:
    """Yield the operations of each module under registry/, with the module's name."""
    modules = {module.name for module in walk_packages(registry.__path__, f"{registry.__name__}.")}
    for name in sorted(modules - {SERVED_WITH_AN_OPTION}):
        for value in vars(import_module(name)).values():
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, Operation):
                    yield name, one


def test_every_operation_is_in_the_table() -> None:
    known = {(operation.method, operation.path) for operation in OPERATIONS}
    missing = {
        f"{module}: {operation.method} {operation.path}"
        for module, operation in declared()
        if (operation.method, operation.path) not in known
    }
    assert missing == set(), "add their rows to OPERATIONS of registry/operation_table.py"


def test_every_get_only_reads() -> None:
    writes = [one.path for one in OPERATIONS if one.method == "GET" and one.is_write]
    assert writes == [], "add is_write=False to these operations"
