import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from lifesign.agent.signal_handling import catching_signals, restore_handlers

FORKING = multiprocessing.get_context("fork")
PATIENCE_S = 60.0


def _wait(is_ready: Any) -> None:
    is_ready.set()
    time.sleep(PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_signal_to_the_process_drains(number: int) -> None:
    reasons: asyncio.Queue[str] = asyncio.Queue()
    with catching_signals(reasons.put_nowait):
        os.kill(os.getpid(), number)
        reason = await asyncio.wait_for(reasons.get(), PATIENCE_S)
    assert reason.startswith(signal.Signals(number).name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("interval_s", [0.0, 0.05])
async def test_signal_that_a_web_server_raises_again_counts_once(
    number: signal.Signals, interval_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.serving.ending_signals.REPEAT_SECONDS", 0.0)
    reasons: list[str] = []

    async def serve() -> None:
        """Do what uvicorn does."""
        former = signal.signal(number, lambda *_: captured.append(number))
        while not captured:  # noqa: ASYNC110 - uvicorn polls
            await asyncio.sleep(interval_s)
        signal.signal(number, former)
        signal.raise_signal(captured.pop())

    captured: list[signal.Signals] = []
    with catching_signals(reasons.append):
        serving = asyncio.create_task(serve())
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), number)
        await serving
        await asyncio.sleep(0.05)
        assert len(reasons) == 1
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.05)
    assert len(reasons) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_that_a_wrapper_passes_on_counts_once(number: signal.Signals) -> None:
    reasons: list[str] = []
    with catching_signals(reasons.append):
        for _ in range(2):
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)
    assert len(reasons) == 1


async def test_handlers_that_a_web_server_replaced_are_restored() -> None:
    reasons: list[str] = []
    with catching_signals(reasons.append):
        assert not restore_handlers()
        # As hypercorn does.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, int)
        assert restore_handlers()
        # The event loop gets this signal too.
        signal.signal(signal.SIGTERM, lambda *_: None)
        assert not restore_handlers()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
    assert len(reasons) == 1
    assert not restore_handlers()


async def test_closed_terminal_drains_once() -> None:
    reasons: list[str] = []
    with catching_signals(reasons.append):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.05)
    assert len(reasons) == 1
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


async def test_hangup_that_the_program_handles_is_left_to_it() -> None:
    reasons: list[str] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catching_signals(reasons.append):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.05)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert reasons == []


async def test_signal_drains_all_agents_of_a_loop_that_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifesign.serving.ending_signals.REPEAT_SECONDS", 0.0)
    reasons: asyncio.Queue[int] = asyncio.Queue()
    with catching_signals(lambda _: reasons.put_nowait(1)):
        with catching_signals(lambda _: reasons.put_nowait(2)):
            os.kill(os.getpid(), signal.SIGTERM)
            both = [await asyncio.wait_for(reasons.get(), PATIENCE_S) for _ in range(2)]
        os.kill(os.getpid(), signal.SIGTERM)
        one = await asyncio.wait_for(reasons.get(), PATIENCE_S)
    assert (both, one) == ([1, 2], 1)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("call", [lambda function: function(), None], ids=["in the loop", "in a thread"])
async def test_signal_to_a_forked_child_ends_it_and_does_not_drain(
    number: int, call: Callable[[Callable[[], int | None]], int | None] | None
) -> None:
    reasons: list[str] = []

    def fork_and_signal() -> int | None:
        is_ready = FORKING.Event()
        child = FORKING.Process(target=_wait, args=(is_ready,))
        child.start()
        assert child.pid is not None
        if number == signal.SIGINT:
            # Before that, Python may ignore its exception.
            is_ready.wait(PATIENCE_S)
        os.kill(child.pid, number)
        child.join(PATIENCE_S / 2)
        return child.exitcode

    with catching_signals(reasons.append):
        ended = await asyncio.to_thread(fork_and_signal) if call is None else call(fork_and_signal)
        await asyncio.sleep(0.05)
    assert ended == (-number if number == signal.SIGTERM else 1)
    assert reasons == []
