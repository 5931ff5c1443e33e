"""Several processes compete for tasks; one that slept past its deadline writes nothing."""

import asyncio
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from tests.support.databases import create_tables, empty_url
from tests.support.racing import racing_context
from tests.support.registry_api import RegistryApi
from tests.support.task_api import create, task
from tests.support.task_racer import PATIENCE_SECONDS, TaskRacer, race

from lifesign.registry.events.verify_events import verify_log
from lifesign.registry.status_changes.lease_expiry import reap
from lifesign.storage.engine.database import open_database

PROCESSES = 3
TASKS = 12


class RealTime:
    """The system's clock, in place of the one that tests set."""

    at_s = 0.0

    def now_s(self) -> float:
        return time.time()


async def _opened(url: str) -> RegistryApi:
    """Return the API over the same database as other processes have, in real time."""
    database = open_database(url)
    if url.startswith("sqlite"):
        await create_tables(database)
    api = RegistryApi(database, RealTime())  # type: ignore[arg-type]
    await api.add_keys()
    return api


@pytest.mark.both_databases
async def test_case_1_each_task_runs_in_one_of_several_processes(database_kind: str, tmp_path: Path) -> None:
    url = empty_url(database_kind, tmp_path)
    api = await _opened(url)
    made = [(await create(api, f"task {number}"))["task_id"] for number in range(TASKS)]
    keys = [str((await api.register(f"racer-{number}"))["agent_key"]) for number in range(PROCESSES)]
    context = racing_context()
    with context.Manager() as shared, ProcessPoolExecutor(PROCESSES, mp_context=context) as racers:
        start = shared.Barrier(PROCESSES)
        running = [
            asyncio.wrap_future(racers.submit(race, url, f"racer-{number}", key, start))
            for number, key in enumerate(keys)
        ]
        done = [task_id for one in await asyncio.gather(*running) for task_id in one]
    assert sorted(done) == sorted(made)
    assert len(await api.events(type="lease.acquired")) == TASKS
    report = await api.database.read(verify_log)
    assert report.is_good, report
    await api.database.close()


async def test_case_4_holder_that_slept_past_its_deadline_cannot_write(
    database_kind: str, tmp_path: Path
) -> None:
    url = empty_url(database_kind, tmp_path)
    api = await _opened(url)
    made = await create(api)
    keys = [str((await api.register(f"racer-{number}"))["agent_key"]) for number in range(2)]
    command = [sys.executable, "-m", "tests.support.task_racer", url, "racer-0", keys[0]]
    pipe = asyncio.subprocess.PIPE
    sleeper = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        assert sleeper.stdin is not None
        assert sleeper.stdout is not None
        output = (await sleeper.stdout.readline()).decode().split()
        assert output[:2] == ["claimed", made["task_id"]]
        sleeper.send_signal(signal.SIGSTOP)
        other = TaskRacer(url, "racer-1", keys[1])
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (grant := await other.claim()) is None:
                await reap(api.database)
        sleeper.stdin.write(b"go on\n")
        sleeper.send_signal(signal.SIGCONT)
        assert (await sleeper.stdout.readline()).decode().strip() == "StaleToken"
    finally:
        sleeper.kill()
        await sleeper.wait()
    shown = await task(api, made["task_id"])
    assert (shown["status"], shown["holder"]) == ("assigned", "racer-1")
    assert grant.lease.fencing_token > int(output[2])
    (rejected,) = await api.events(type="fenced_write_rejected")
    assert rejected["payload"]["reason"] == "stale_token"
    await other.database.close()
    await api.database.close()
