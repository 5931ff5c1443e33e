"""Outside, looking at one agent, or asking the registry about many.

    health.py               fetch_health: is there an agent, how is it, and should I call it?
    check_report.py         how is that told as JSON?
    places.py               where may its card and its health document stand?

    registry.py             RegistryClient: how is the registry asked from outside?
    registry_agents.py      client.agents
    registry_leases.py      client.leases and client.states
    registry_tasks.py       client.tasks
    lease_keeper.py         how is one lease kept, and when is it lost?
    registry_events.py      client.events
    registry_monitor.py     client.monitor
    registry_targets.py     client.targets
    registry_shards.py      client.shards
    older_registry.py       what is left out of a report that an older registry does not know?
    registry_directories.py  client.directories
    registry_census.py      client.census
    registry_opt_outs.py    client.opt_outs
    registry_connection.py  how is one question put: bounded, and repeated where that is safe?
    registry_errors.py      what can go wrong, and which answer means which?
    event_stream.py         what does a stream of server-sent events say?

    variables.py            which variables of the environment say where it is, and by which key it is asked?
    secret_file.py          how is a key or a token read from a file?

Needs the extra `client` (aiohttp). Decides nothing by itself: see `lifesign.domain.observation.decision`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lifesign.client.health import HealthCheck, fetch_health
    from lifesign.client.registry import RegistryClient

__all__ = ["HealthCheck", "RegistryClient", "fetch_health"]

_PLACES = {"HealthCheck": "health", "RegistryClient": "registry", "fetch_health": "health"}


def __getattr__(name: str) -> Any:
    # Imported late: who checks one agent needs nothing of the registry, and who reads a key, no aiohttp.
    if name in _PLACES:
        return getattr(import_module(f"lifesign.client.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'lifesign.client' has no attribute {name!r}")
