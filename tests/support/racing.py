"""Processes that act at the same moment, for tests of what only one of them may win."""

import multiprocessing
from multiprocessing.context import ForkServerContext

_MODULES = [
    "alembic.context",
    "asyncpg",
    "lifesign.registry.app",
    "lifesign.storage.engine.postgresql",
    "lifesign.storage.engine.schema_version",
    "tests.support.databases",
]


def racing_context() -> ForkServerContext:
    """Return the context of multiprocessing whose processes begin with most modules loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_MODULES)
    return context
