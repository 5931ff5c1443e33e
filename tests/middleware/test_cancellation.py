import asyncio
from collections.abc import Callable

import pytest

from lifesign.middleware.cancellation import is_from_outside


class Panic(BaseException):
    """What pyo3 raises for a panic of a library in Rust."""


class Cancelled(BaseException):
    """What trio raises; tests run on asyncio."""


# As trio 0.35 names it, whose file is `trio._core._exceptions`.
Cancelled.__module__ = "trio"


class ClosedResourceError(Exception):
    """What trio raises for an error of the app."""


ClosedResourceError.__module__ = "trio"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (asyncio.CancelledError(), True),
        (GeneratorExit(), True),
        (KeyboardInterrupt(), True),
        (Cancelled(), True),
        (ClosedResourceError(), False),
        (BaseExceptionGroup("", [GeneratorExit(), asyncio.CancelledError()]), True),
        (BaseExceptionGroup("", [GeneratorExit(), ValueError()]), False),
        (SystemExit(), False),
        (Panic(), False),
        (ValueError(), False),
        (TimeoutError(), False),
    ],
)
def test_cancellation_outside_of_a_task_is_external(error: BaseException, *, expected: bool) -> None:
    assert is_from_outside(error) is expected


async def caught(app: Callable[[], object]) -> bool:
    try:
        await app()  # type: ignore[misc]
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return is_from_outside(error)
    raise AssertionError


async def test_cancellation_of_the_request_task_is_external() -> None:
    task = asyncio.create_task(caught(asyncio.Event().wait))
    await asyncio.sleep(0)
    task.cancel()
    assert await task is True


async def test_cancellation_of_an_awaited_future_is_the_apps_own() -> None:
    async def app() -> None:
        shared = asyncio.get_running_loop().create_future()
        shared.cancel()
        await shared

    assert await caught(app) is False


async def test_timeout_within_the_app_is_the_apps_own() -> None:
    async def app() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    assert await caught(app) is False


async def test_timeout_around_the_app_is_external() -> None:
    seen: list[bool] = []

    async def around() -> None:
        async with asyncio.timeout(0):
            seen.append(await caught(asyncio.Event().wait))

    await around()
    assert seen == [True]
