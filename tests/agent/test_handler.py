import asyncio
import contextvars
import functools
import subprocess
import sys
import threading

import pytest
from tests.support.servers import PATIENCE_SECONDS

from lifesign.agent.handler import call


async def double(number: int) -> int:
    return 2 * number


async def test_a_coroutine_runs_in_the_loop_and_a_function_in_a_thread_of_its_own() -> None:
    async def where() -> int:
        return threading.get_ident()

    assert await call(where) == threading.get_ident()
    assert await call(threading.get_ident) != threading.get_ident()


async def test_handlers_result_and_exception_are_returned() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    def stop() -> None:
        raise StopIteration(1)

    assert await call(double, 2) == 4
    assert await call(functools.partial(double, 2)) == 4
    assert await call(lambda number: 3 * number, 2) == 6
    with pytest.raises(ZeroDivisionError):
        await call(fail)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await call(stop)


async def test_handler_that_exits_ends_only_its_own_call() -> None:
    async def leave() -> None:
        sys.exit(3)

    for handler in (leave, functools.partial(sys.exit, 3)):
        with pytest.raises(RuntimeError, match=r"the handler raised SystemExit\(3\)"):
            await call(handler)


async def test_interrupt_that_a_function_handler_raises_ends_only_its_own_call() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        await call(interrupt)


async def test_function_handler_gets_the_context_variables_of_its_caller() -> None:
    name = contextvars.ContextVar("name", default="nobody")
    name.set("caller")
    assert await call(name.get) == "caller"


async def test_blocking_function_blocks_no_heartbeats() -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def block() -> None:
        may_end.wait(PATIENCE_SECONDS)
        has_ended.set()

    blocking = asyncio.create_task(call(block))
    await asyncio.sleep(0)
    assert await call(double, 1) == 2
    blocking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await blocking
    may_end.set()
    assert has_ended.wait(PATIENCE_SECONDS)


def test_a_function_that_never_ends_does_not_keep_the_process() -> None:
    script = (
        "import asyncio, threading; from lifesign.agent.handler import call\n"
        "async def leave():\n"
        "    await asyncio.wait([asyncio.ensure_future(call(threading.Event().wait))], timeout=0.01)\n"
        "asyncio.run(leave())"
    )
    subprocess.run([sys.executable, "-c", script], timeout=PATIENCE_SECONDS, check=True)


def test_thread_that_outlives_the_loop_does_no_harm() -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def block() -> None:
        may_end.wait(PATIENCE_SECONDS)
        has_ended.set()

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call(block), 0.001)

    asyncio.run(leave())
    may_end.set()
    assert has_ended.wait(PATIENCE_SECONDS)
