"""Runs a test on asyncio's own event loop and on uvloop, whose sockets and TLS differ."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

RUN = {"asyncio": asyncio.run, "uvloop": uvloop.run}


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make two tests of one."""

    @functools.wraps(test)
    def run(*, loop: str, **arguments: Any) -> None:
        RUN[loop](test(**arguments))

    parameters = [
        *inspect.signature(test).parameters.values(),
        inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY),
    ]
    # Pytest reads this to find the fixtures.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    both: Callable[..., None] = pytest.mark.parametrize("loop", RUN)(run)
    return both
