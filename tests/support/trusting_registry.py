"""Which server takes any mass of silence at its word, and sweeps more often?

For drills in which a thousand agents fall silent on purpose: the real one would hold them back.
`uvicorn --factory tests.support.trusting_registry:app`
"""

import os
import time

from agent_health.middleware import AgentHealthMiddleware
from agent_health.monitor_health import MonitorPolicy
from agent_health.registry.app import Registry, create_app
from agent_health.registry.settings import RegistrySettings
from agent_health.registry.sweep import Sweeper

DATABASE_VARIABLE = "AGENT_HEALTH_SERVER_DATABASE"
SWEEP_SECONDS = 0.25


def app() -> AgentHealthMiddleware:
    """Return the app of one server process."""
    settings = RegistrySettings.read(database=os.environ[DATABASE_VARIABLE], sweep_seconds=SWEEP_SECONDS)
    registry = Registry(settings)
    trusting = MonitorPolicy(min_exits=1_000_000)
    registry.sweeper = Sweeper(registry.database, settings, time.monotonic, policy=trusting)
    return create_app(registry)
