"""Calls of methods that may be coroutines or plain functions.

A plain function runs in a thread of its own, so that heartbeats continue. The thread cannot be stopped: if
its work is dropped, its result is ignored, and the process ends without waiting for it.
"""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Handler = Callable[..., Any]


async def call(handler: Handler, *arguments: Any) -> Any:
    """Call a handler and wait for it; returns its result and raises its exceptions, except SystemExit.

    SystemExit becomes a RuntimeError: a handler is not the whole agent, and others work beside it.
    """
    try:
        if inspect.iscoroutinefunction(handler):
            return await handler(*arguments)
        result = await _in_thread(handler, arguments)
        # A callable object, or a partial, whose call returns a coroutine.
        return await result if inspect.isawaitable(result) else result
    except SystemExit as error:
        raise RuntimeError(f"the handler raised {error!r}") from error


def is_own_failure(error: BaseException) -> bool:
    """Return whether code that the current task awaits has failed by itself.

    CancelledError is its failure too, for example of a future that a library cancels, unless the current task
    is cancelled. SystemExit and KeyboardInterrupt end the program.
    """
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return False
    task = asyncio.current_task()
    return isinstance(error, Exception) or (task is not None and not task.cancelling())


async def _in_thread(handler: Handler, arguments: tuple[Any, ...]) -> Any:
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = context.run(handler, *arguments)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failure = error
            # No signal reaches this thread, so that an interrupt is the handler's own.
            if isinstance(error, StopIteration | KeyboardInterrupt):
                failure = RuntimeError(f"the handler raised {error!r}")
        # The loop may be closed: then there is no caller.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, failure)

    # Not a thread of an executor, which a process waits for at its end.
    threading.Thread(target=work, name="lifesign-handler", daemon=True).start()
    return await outcome
