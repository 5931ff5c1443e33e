"""Asks an agent for its health, and the registry for everything else. Needs the extra `client`."""

from typing import TYPE_CHECKING, Any

from lifesign.domain.common.project import import_with_extra

if TYPE_CHECKING:
    from lifesign.client.call_advice import should_call
    from lifesign.client.health import HealthCheck, fetch_health
    from lifesign.client.registry import RegistryClient

__all__ = ["HealthCheck", "RegistryClient", "fetch_health", "should_call"]

_MODULES = {
    "HealthCheck": "health",
    "RegistryClient": "registry",
    "fetch_health": "health",
    "should_call": "call_advice",
}


def __getattr__(name: str) -> Any:
    # Imported late: a check of one agent does not need the registry's client, and reading a key does not need
    # aiohttp.
    if name in _MODULES:
        return getattr(import_with_extra(f"lifesign.client.{_MODULES[name]}", "client"), name)
    raise AttributeError(f"module 'lifesign.client' has no attribute {name!r}")
