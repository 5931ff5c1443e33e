import asyncio
import threading

from tests.support.servers import PATIENCE_SECONDS

from lifesign.serving.loop_threads import use_enough_threads

LOOKUPS = 100
"""More than the loop's own pool has threads, on most hosts."""


async def test_lookups_do_not_wait_for_each_other() -> None:
    use_enough_threads("test")
    all_run = threading.Barrier(LOOKUPS)
    await asyncio.gather(*(asyncio.to_thread(all_run.wait, PATIENCE_SECONDS) for _ in range(LOOKUPS)))
