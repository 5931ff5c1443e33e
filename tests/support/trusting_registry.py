"""A server that takes any mass of silence at its word, and sweeps more often.

For drills in which a thousand agents fall silent on purpose: the real one would hold them back.
`uvicorn --factory tests.support.trusting_registry:app`
"""

import os

from tests.support.servers import LONGEST_ANSWER_SECONDS

from lifesign.middleware import AgentHealthMiddleware
from lifesign.registry.app import Registry, create_app
from lifesign.registry.settings import RegistrySettings

DATABASE_VARIABLE = "LIFESIGN_SERVER_DATABASE"
SWEEP_SECONDS = 0.25


def app() -> AgentHealthMiddleware:
    """Return the app of one server process."""
    settings = RegistrySettings.read(
        database=os.environ[DATABASE_VARIABLE],
        # How late an answer comes is no part of these drills.
        answer_seconds=LONGEST_ANSWER_SECONDS,
        sweep_seconds=SWEEP_SECONDS,
        mass_exit_min_exits=1_000_000,
    )
    return create_app(Registry(settings))
