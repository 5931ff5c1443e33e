import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from tests.support.servers import PATIENCE_SECONDS

from lifesign.serving.ending_signals import (
    REPEAT_SECONDS,
    EndRequests,
    ending_signals,
    finishing,
    run_until_signal,
)

SPEAKS_AFTERWARDS = """
import sys
from lifesign.serving.ending_signals import redirect_closed_terminal
print("begun", flush=True)
sys.stdin.readline()
if sys.argv[1] == "left":
    redirect_closed_terminal()
sys.stderr.write("and what came of it\\n")
"""


@pytest.fixture
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals_as_before")
def test_closed_terminal_ends_a_command_unless_it_runs_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert set(ending_signals()) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert set(ending_signals()) == {signal.SIGINT, signal.SIGTERM}


def test_signals_within_a_second_are_one_request_to_end() -> None:
    now = [100.0]
    requests = EndRequests(lambda: now[0])
    assert requests.is_new(signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert not requests.is_new(number)
    now[0] += REPEAT_SECONDS
    assert not requests.is_new(signal.SIGHUP)
    assert requests.is_new(signal.SIGTERM)
    assert not requests.is_new(signal.SIGTERM)


@pytest.mark.parametrize(("how", "code"), [("left", {0}), ("kept", {1, 120})])
def test_output_to_a_closed_terminal_is_dropped(how: str, code: set[int]) -> None:
    terminal, other_side = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SPEAKS_AFTERWARDS, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=other_side,
    ) as process:
        os.close(other_side)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        os.close(terminal)
        process.communicate(b"\n", timeout=PATIENCE_SECONDS)
    assert process.returncode in code


def test_result_of_work_without_a_signal_is_returned() -> None:
    async def work() -> int:
        return 7

    assert run_until_signal(work()) == 7


@pytest.mark.usefixtures("_signals_as_before")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_process_after_the_finally_blocks(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[object] = []
    # The process only ends if the signal has its default action.
    monkeypatch.setattr(signal, "raise_signal", lambda sent: order.extend([sent, signal.getsignal(sent)]))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(PATIENCE_SECONDS)
        finally:
            await asyncio.sleep(0)
            order.append("stored")

    with pytest.raises(asyncio.CancelledError):
        run_until_signal(work())
    assert order == ["stored", number, signal.SIG_DFL]


@pytest.mark.usefixtures("_signals_as_before")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_finishing", [True, False])
def test_second_signal_ends_the_process_unless_work_must_be_finished(
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    *,
    is_finishing: bool,
) -> None:
    order: list[object] = []
    monkeypatch.setattr(signal, "raise_signal", order.append)
    monkeypatch.setattr("lifesign.serving.ending_signals.REPEAT_SECONDS", 0.0)

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(PATIENCE_SECONDS)
        finally:
            with finishing("canary") if is_finishing else nullcontext():
                os.kill(os.getpid(), number)
                await asyncio.sleep(0)
            order.append("stored")

    with pytest.raises(asyncio.CancelledError):
        run_until_signal(work())
    assert order == (["stored", number] if is_finishing else [number, "stored", number])
    assert ("canary" in capfd.readouterr().err) is is_finishing
    assert signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}


@pytest.mark.usefixtures("_signals_as_before")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_repeated_signal_lets_the_process_finish(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[object] = []
    monkeypatch.setattr(signal, "raise_signal", order.append)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(PATIENCE_SECONDS)
        finally:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0)
            order.append("stored")

    with pytest.raises(asyncio.CancelledError):
        run_until_signal(work())
    assert order == ["stored", number]


def test_cancellation_without_a_signal_is_raised() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_until_signal(work())


def test_work_in_a_thread_runs_without_signal_handlers() -> None:
    async def main() -> int:
        return await asyncio.to_thread(run_until_signal, asyncio.sleep(0, result=7))

    assert asyncio.run(main()) == 7
