"""Exceptions that end a request from outside of the app: its caller no longer waits."""

import asyncio

_FROM_OUTSIDE = (GeneratorExit, KeyboardInterrupt)


def is_from_outside(error: BaseException) -> bool:
    """Return whether an exception was thrown into the app from outside: a cancellation or an interrupt.

    Call it in the task that runs the app. A CancelledError of an app whose task nobody cancelled is the app's
    own, as of a shared connection that was closed. So is any other BaseException, such as `sys.exit()` or the
    panic of a library written in Rust: servers answer them with 500.
    """
    if isinstance(error, asyncio.CancelledError):
        task = _current_task()
        return task is None or task.cancelling() > 0
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_from_outside, error.exceptions))
    # Trio, which is not imported here, raises `trio.Cancelled`.
    return isinstance(error, _FROM_OUTSIDE) or _is_of_trio(type(error))


def _is_of_trio(kind: type[BaseException]) -> bool:
    return kind.__name__ == "Cancelled" and kind.__module__.partition(".")[0] == "trio"


def _current_task() -> "asyncio.Task[object] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        # Another event loop, or none.
        return None
