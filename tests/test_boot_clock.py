import asyncio
import time

import pytest
from tests.support.sleeping_machine import SleepingMachine
from tests.support.virtual_loop import in_virtual_time

from lifesign import boot_clock


def test_time_of_sleep_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SleepingMachine(monkeypatch)
    before_s, slept_s = boot_clock.boot_s(), boot_clock.slept_s()
    machine.sleep(1_000.0)
    assert before_s + 1_000.0 <= boot_clock.boot_s() < before_s + 1_010.0
    assert boot_clock.slept_s() - slept_s == pytest.approx(1_000.0, abs=1.0)


def test_platform_without_the_clock_uses_the_monotonic_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    before_s = time.monotonic()
    assert before_s <= boot_clock.boot_s() <= time.monotonic()
    assert boot_clock.slept_s() == pytest.approx(0.0, abs=1.0)


@in_virtual_time
async def test_timeout_without_sleep_ends_at_its_time() -> None:
    began_s = boot_clock.now_s()
    with pytest.raises(TimeoutError):
        async with boot_clock.timeout_at(began_s + 100.0):
            await asyncio.sleep(1_000)
    assert boot_clock.now_s() == pytest.approx(began_s + 100.0, abs=0.1)


@in_virtual_time
async def test_block_that_ends_in_time_continues() -> None:
    async with boot_clock.timeout_at(boot_clock.now_s() + 100.0):
        await asyncio.sleep(99)
    await asyncio.sleep(1_000)


@in_virtual_time
async def test_timeout_is_noticed_soon_after_the_machine_woke(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SleepingMachine(monkeypatch)
    began_s = asyncio.get_running_loop().time()
    asyncio.get_running_loop().call_later(7.0, machine.sleep, 3_600.0)
    with pytest.raises(TimeoutError):
        async with boot_clock.timeout_at(boot_clock.now_s() + 1_000.0):
            await asyncio.sleep(10_000)
    assert asyncio.get_running_loop().time() - began_s <= 7.0 + boot_clock.CHECK_SECONDS


@in_virtual_time
async def test_timeout_that_lies_after_the_sleep_comes_earlier_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SleepingMachine(monkeypatch)
    began_s = asyncio.get_running_loop().time()
    asyncio.get_running_loop().call_later(1.0, machine.sleep, 60.0)
    with pytest.raises(TimeoutError):
        async with boot_clock.timeout_at(boot_clock.now_s() + 100.0):
            await asyncio.sleep(10_000)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(40.0, abs=0.1)
