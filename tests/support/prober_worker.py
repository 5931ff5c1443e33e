"""A worker process for drills that kill and suspend it.

A real worker and a real registry; only the targets are invented: they all answer at once, and each probe is
noted in a file. Its monotonic clock may be one that pauses with the process, as on a laptop.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from tests.support.probed_world import World, definition_of

from lifesign.client.registry import RegistryClient
from lifesign.prober.network.clock import Clock
from lifesign.prober.registry_exchange.ledger import ProbeReport, TargetEntry
from lifesign.prober.registry_exchange.registry_ledger import RegistryLedger
from lifesign.prober.worker.main_loop import ProbeWorker

INTERVAL_SECONDS = 3.0
KEY_VARIABLE = "LIFESIGN_REGISTRY_KEY"
MAX_STEP_SECONDS = 0.5
"""A sleepy clock goes on by no more than this between two looks at it."""
LOOK_SECONDS = 0.1
"""Between two looks at it, of a process that lives: an idle loop would take its own waits for sleep."""


class Noted(World):
    """Notes when it looked at whom."""

    def __init__(self, file: Path) -> None:
        super().__init__(Clock(), definition.cadence.policy(), takes_s=0.005)
        self._file = file.open("a")

    async def probe(self, entry: TargetEntry, at_s: float) -> ProbeReport:
        report = await super().probe(entry, at_s)
        self._file.write(f"{entry.url} {at_s:.3f}\n")
        self._file.flush()
        self.looks.clear()
        return report


class SleepyClock:
    """Stands still while its process does."""

    def __init__(self) -> None:
        self._last_s = self._now_s = time.monotonic()

    def __call__(self) -> float:
        now_s = time.monotonic()
        self._now_s += min(now_s - self._last_s, MAX_STEP_SECONDS)
        self._last_s = now_s
        return self._now_s


definition = definition_of(
    cadence={
        "allow_fast_cadence": True,
        "interval_seconds": INTERVAL_SECONDS,
        "confirm_after_seconds": 1.0,
        "card_every_seconds": 10.0,
    }
)


async def look_at_clock() -> None:
    while True:  # noqa: ASYNC110 - what is wanted is the waking
        await asyncio.sleep(LOOK_SECONDS)


async def work(url: str, name: str, looks: Path, ttl_s: float, clock: Clock) -> None:
    stop = asyncio.Event()
    looking = asyncio.create_task(look_at_clock())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with RegistryClient(url, key=os.environ[KEY_VARIABLE]) as client:
        worker = ProbeWorker(
            RegistryLedger(client),
            Noted(looks),
            definition,
            worker_name=name,
            clock=clock,
            shard_ttl_s=ttl_s,
        )
        await worker.run(stop)
    looking.cancel()


def main() -> None:
    url, name, looks, ttl_seconds, *options = sys.argv[1:]
    clock = Clock()
    with asyncio.Runner() as runner:
        if "sleepy" in options:
            sleepy = SleepyClock()
            clock = Clock(monotonic_s=sleepy, boot_s=sleepy)
            # The event loop's timers stop as well while the machine sleeps.
            runner.get_loop().time = sleepy  # type: ignore[method-assign]  # a loop on a machine that sleeps
        runner.run(work(url, name, Path(looks), float(ttl_seconds), clock))


if __name__ == "__main__":
    main()
