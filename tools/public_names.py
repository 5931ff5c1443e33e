"""Snapshot of the public Python names, with members and parameters (docs/stability.md).

`make schemas` writes it to schemas/public_names.txt. A name is public if it is in `__all__` of a public
package, in PUBLIC, or a part of `RegistryClient`.
"""

import functools
import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Unpack, get_args, get_origin, get_type_hints

from lifesign.client import RegistryClient

SNAPSHOT: Final = Path(__file__).parents[1] / "schemas/public_names.txt"
PACKAGES: Final = ("lifesign", "lifesign.agent", "lifesign.client", "lifesign.middleware")
PUBLIC: Final[Mapping[str, tuple[str, ...]]] = {
    "lifesign.client.registry_errors": (
        "Conflict", "Gone", "InvalidAnswer", "NotAuthorized", "NotFound", "NotPermitted",
        "PreconditionRequired", "RateLimited", "RegistryError", "RegistryFailure", "RegistryRefusal", "Stale",
        "Unavailable", "Unprocessable", "Unreachable",
    ),
    "lifesign.client.hooks.a2a_sdk": ("AdviceInterceptor",),
    "lifesign.client.hooks.call_guard": ("CallGuard", "CallRefused"),
    "lifesign.client.hooks.mcp_sdk": ("AdvisedTransport",),
    "lifesign.domain.a2a.announcement": ("announce_health",),
    "lifesign.domain.health.document": ("HealthDocument",),
    "lifesign.domain.observation.decision": ("Action",),
    "lifesign.errors": ("InvalidValue", "LifesignError", "NoAnswer"),
    "lifesign.middleware.metrics": ("HealthCollector",),
}  # fmt: skip
"""Public names outside the packages, by module."""


def snapshot() -> str:
    """Return the snapshot: a line for each name and each member, sorted."""
    lines = [
        line
        for module, names in public_names().items()
        for name in names
        for line in _lines(f"{module}.{name}", getattr(import_module(module), name))
    ]
    return "".join(f"{line}\n" for line in sorted(lines))


def public_names() -> dict[str, tuple[str, ...]]:
    """Return the public names by module."""
    names = {package: tuple(import_module(package).__all__) for package in PACKAGES}
    client = RegistryClient("http://127.0.0.1")
    for part, value in vars(RegistryClient).items():
        if isinstance(value, functools.cached_property):
            kind = type(getattr(client, part))
            names[kind.__module__] = (*names.get(kind.__module__, ()), kind.__name__)
    return {**names, **PUBLIC}


def _lines(path: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{path}{_parameters(value)}"
        return
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    yield f"{path}: class({bases})"
    if "__init__" in vars(value) and not getattr(value, "_is_protocol", False):
        yield f"{path}.__init__{_parameters(value.__init__)}"
    for name in sorted(_members(value)):
        # A bound class method has no `cls`; a field without a default is no attribute.
        member = getattr(value, name, None)
        is_method = inspect.isfunction(member) or inspect.ismethod(member)
        yield f"{path}.{name}{_parameters(member) if is_method else ''}"


def _members(kind: type) -> set[str]:
    """Return the public members of lifesign's own classes: methods, properties, fields, constants."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("lifesign")]
    named = {name for base in own for name in (*vars(base), *inspect.get_annotations(base))}
    return {name for name in named if not name.startswith("_")} - {"model_config"}


def _parameters(value: Any) -> str:
    """Return the parameters as in a call: names, `=` where there is a default, `*` before keywords."""
    positional, keywords = [], []
    for parameter in inspect.signature(value).parameters.values():
        named = f"{parameter.name}{'' if parameter.default is parameter.empty else '='}"
        if parameter.kind is parameter.VAR_KEYWORD:
            keywords += _unpacked(value, parameter)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            keywords.append(named)
        elif parameter.name != "self":
            positional.append(f"*{named}" if parameter.kind is parameter.VAR_POSITIONAL else named)
    star = ["*"] if any(not named.startswith("**") for named in keywords) else []
    return f"({', '.join([*positional, *star, *keywords])})"


def _unpacked(function: Any, parameter: inspect.Parameter) -> list[str]:
    """Return the keywords of a `**settings: Unpack[Settings]`, else the parameter itself."""
    hint = get_type_hints(function, include_extras=True).get(parameter.name)
    if get_origin(hint) is not Unpack:
        return [f"**{parameter.name}"]
    (settings,) = get_args(hint)
    return [f"{name}=" for name in sorted(settings.__optional_keys__ | settings.__required_keys__)]


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot())
