import asyncio
import sys
import threading

import pytest
from tests.support import upstream_tools
from tests.support.registry_server import RegistryServer
from tests.support.servers import PATIENCE_SECONDS
from tests.support.tool_proxies import proxied, read

from lifesign.adapter.tools import upstream_server
from lifesign.adapter.tools.server_thread import ServerThread
from lifesign.domain.parsing.json_limits import is_finite

STILL_SECONDS = 20
"""A loop that does nothing for so long stands still."""


async def test_event_loop_continues_while_an_answer_is_read(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, loop, goes_on = asyncio.Event(), asyncio.get_running_loop(), threading.Event()

    def read_slowly(value: object) -> bool:
        loop.call_soon_threadsafe(begins.set)
        assert goes_on.wait(STILL_SECONDS), "the adapter's event loop is blocked"
        return is_finite(value)

    monkeypatch.setattr(upstream_server, "is_finite", read_slowly)
    command = [sys.executable, upstream_tools.__file__, "/dev/null"]
    upstreams = read(upstreams={"acme": {"command": command, "tools": {"fetch": {"usd_per_call": 0}}}})
    async with proxied(registry, "long-answers", upstreams) as work:
        calling = asyncio.create_task(work.call("fetch"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await begins.wait()
        goes_on.set()
        assert not (await calling).is_error


async def test_cancellation_reaches_the_thread() -> None:
    thread, begun, ended = ServerThread(), threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.create_task(thread.run(wait()))
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    waiting.cancel()
    assert await asyncio.to_thread(ended.wait, PATIENCE_SECONDS)
    await thread.close()


async def test_closed_thread_has_cancelled_its_rest() -> None:
    thread = ServerThread()
    waiting = asyncio.create_task(thread.run(asyncio.Event().wait()))
    await asyncio.sleep(0)
    await thread.close()
    assert not thread._thread.is_alive()
    with pytest.raises(asyncio.CancelledError):
        await waiting
