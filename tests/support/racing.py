"""Processes that act at the same moment, for tests of what only one of them may win."""

import multiprocessing
from multiprocessing.context import ForkServerContext

_MODULES = ["lifesign.registry.app", "lifesign.storage.engine.schema_version"]


def racing_context() -> ForkServerContext:
    """Return the context of multiprocessing whose processes begin with most modules loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_MODULES)
    return context
