"""One of several workers that share a registry's targets is killed, suspended or leaves."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from tests.support.databases import bare_url
from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.prober_worker import INTERVAL_SECONDS, KEY_VARIABLE
from tests.support.registry_process import ADMIN_KEY, prepare, registry
from tests.support.servers import PATIENCE_SECONDS, stop, until

from lifesign.client.registry import RegistryClient
from lifesign.domain.events.event_type import EventType
from lifesign.prober.definition.models import FLUSH_SECONDS

TARGETS = 120
URLS = [f"https://agent-{number}.example/" for number in range(TARGETS)]
TTL_SECONDS = 4.0
LONG_TTL_SECONDS = 20.0
"""A worker that has settled reports before it renews, which is after 12 s."""
HOLD_SECONDS = FLUSH_SECONDS
"""For so long a worker holds results at most. Until it has settled it renews sooner."""
LONG_PATIENCE_SECONDS = 120.0
"""How long is waited for what takes a lease's time, and then some on a machine that is busy with others."""
SLACK_SECONDS = 4.0
"""A busy machine may be so late; the measured times are whole intervals."""

pytestmark = [pytest.mark.fault]

T = TypeVar("T")


@dataclass
class Crew:
    """Workers of one registry."""

    url: str
    directory: Path
    stack: ExitStack
    ttl_s: float
    processes: dict[str, "subprocess.Popen[bytes]"]

    def join(self, name: str, *options: str) -> None:
        self.processes[name] = self.stack.enter_context(self._process(name, *options))

    def send(self, name: str, signal_number: int) -> None:
        os.kill(self.processes[name].pid, signal_number)

    def looks(self, name: str) -> list[tuple[str, float]]:
        """Return whom a worker looked at, and when."""
        file = self.directory / name
        lines = file.read_text().splitlines() if file.exists() else []
        return [(url, float(at_s)) for url, at_s in (line.split() for line in lines)]

    def looked_at(self, name: str, *, since_s: float) -> set[str]:
        """Return whom a worker has looked at since then."""
        return {url for url, at_s in self.looks(name) if at_s > since_s}

    def all_looks(self) -> dict[str, list[float]]:
        """Return when each target was probed, by any worker."""
        at_s: dict[str, list[float]] = {url: [] for url in URLS}
        for name in self.processes:
            for url, observed_at_of in self.looks(name):
                at_s[url].append(observed_at_of)
        return {url: sorted(many) for url, many in at_s.items()}

    def log(self) -> str:
        return (self.directory / "workers.log").read_text()

    def until_all_at_work(self) -> None:
        """Wait until each has looked at its fair share."""
        share = TARGETS / len(self.processes)
        until(
            "all are at work",
            lambda: all(len({url for url, _ in self.looks(name)}) > share / 2 for name in self.processes),
        )

    @contextmanager
    def _process(self, name: str, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
        command = [PYTHON, "-m", "tests.support.prober_worker", self.url, name]
        with (self.directory / "workers.log").open("ab") as output:
            process = PreloadedProcess(
                [*command, str(self.directory / name), str(self.ttl_s), *options],
                stdout=output,
                stderr=output,
                env={**os.environ, KEY_VARIABLE: ADMIN_KEY},
                start_new_session=True,
            )
            try:
                yield process
            finally:
                process.send_signal(signal.SIGCONT)
                stop(process)


async def _rejected(client: RegistryClient) -> int:
    page = await client.events.list(limit=1000, types=[EventType.FENCED_WRITE_REJECTED])
    return len(page.events)


async def _probers(client: RegistryClient) -> dict[str, datetime]:
    """Return who works for it, and until when it believes so."""
    living = (await client.shards.show()).probers
    return {prober.holder.rpartition("/")[2]: prober.expires_at for prober in living}


def read_registry(url: str, question: Callable[[RegistryClient], Awaitable[T]]) -> T:
    """Return the present answer of a registry."""

    async def ask() -> T:
        async with RegistryClient(url, key=ADMIN_KEY) as client:
            return await question(client)

    return asyncio.run(ask())


@contextmanager
def crew(database_url: str, directory: Path, *names: str, ttl_s: float = TTL_SECONDS) -> Iterator[Crew]:
    """Run a registry with targets, and workers that share them."""
    prepare(database_url, [])
    with registry(database_url, directory) as server, ExitStack() as stack:
        url = f"http://127.0.0.1:{server.port}"
        asyncio.run(_list_targets(url))
        running = Crew(url, directory, stack, ttl_s, {})
        for name in names:
            running.join(name)
        running.until_all_at_work()
        yield running


async def _list_targets(url: str) -> None:
    async with RegistryClient(url, key=ADMIN_KEY) as client:
        await client.directories.put("drill", URLS)


def until_renewed_after(running: Crew, name: str, seconds: float) -> None:
    """Wait until a worker has just renewed, after so long a time that it will not again for as long."""
    expiries: list[datetime] = []

    def has_renewed() -> bool:
        expires_at = read_registry(running.url, _probers)[name]
        if expires_at not in expiries:
            expiries.append(expires_at)
        return len(expiries) > 1 and (expiries[-1] - expiries[-2]).total_seconds() > seconds

    until("it renews", has_renewed, seconds=LONG_PATIENCE_SECONDS)


def longest_gap_s(looks: dict[str, list[float]], since_s: float, until_s: float) -> float:
    """Return the longest time without a probe of some target, within a span."""
    gaps = []
    for many in looks.values():
        within = [since_s, *(at_s for at_s in many if since_s < at_s < until_s), until_s]
        gaps += [later - earlier for earlier, later in pairwise(within)]
    return max(gaps)


def _kill(database_url: str, directory: Path, kills: int) -> None:
    with crew(database_url, directory, "w0", "w1", "w2", "w3") as running:
        began_s = time.time()
        # The lease's window, the time until the others ask again, and the interval.
        window_s = TTL_SECONDS * 1.63 + 2 * INTERVAL_SECONDS + SLACK_SECONDS
        for number in range(kills):
            running.send(f"w{number}", signal.SIGKILL)
            time.sleep(window_s)
            running.join(f"w{number + 4}")
            time.sleep(window_s)
        looks, ended_s = running.all_looks(), time.time()
        assert set(read_registry(running.url, _probers)) == {
            f"w{number}" for number in range(kills, kills + 4)
        }
    longest_s = longest_gap_s(looks, began_s, ended_s)
    print(  # noqa: T201 - the figures of the drill
        f"{kills} of 4 workers killed: no target unseen for longer than {longest_s:.1f} s, "
        f"{window_s:.1f} s are allowed"
    )
    assert longest_s <= window_s
    for many in looks.values():
        # No target was probed twice in one interval: a shard has one worker at a time.
        assert min(later - earlier for earlier, later in pairwise(many)) > INTERVAL_SECONDS / 3


@pytest.mark.long
def test_shards_of_killed_workers_move_and_each_target_is_probed_in_time(
    database_kind: str, tmp_path: Path
) -> None:
    _kill(bare_url(database_kind, tmp_path), tmp_path, kills=3)


@pytest.mark.long
def test_late_batch_of_a_suspended_worker_is_refused(database_kind: str, tmp_path: Path) -> None:
    with crew(bare_url(database_kind, tmp_path), tmp_path, "w0", ttl_s=LONG_TTL_SECONDS) as running:
        # It does not notice that time has passed: nothing but its tokens can stop it.
        running.join("sleepy", "sleepy")
        running.until_all_at_work()
        until_renewed_after(running, "sleepy", HOLD_SECONDS)
        time.sleep(1)
        running.send("sleepy", signal.SIGSTOP)
        stopped_at_s = time.time()
        theirs = running.looked_at("sleepy", since_s=stopped_at_s - INTERVAL_SECONDS)
        assert len(theirs) > TARGETS / 4
        until(
            "the other one has its targets",
            lambda: theirs <= running.looked_at("w0", since_s=stopped_at_s),
            seconds=LONG_PATIENCE_SECONDS,
        )
        assert read_registry(running.url, _rejected) == 0
        running.send("sleepy", signal.SIGCONT)
        resumed_at_s = time.time()
        until(
            "its late batch is refused",
            lambda: read_registry(running.url, _rejected),
            seconds=LONG_PATIENCE_SECONDS,
        )
        until("it says so", lambda: "do not count" in running.log())
        until(
            "it has its share again",
            lambda: (
                len({url for url, at_s in running.looks("sleepy") if at_s > resumed_at_s + 5}) > TARGETS / 4
            ),
            seconds=LONG_PATIENCE_SECONDS,
        )
        assert set(read_registry(running.url, _probers)) == {"w0", "sleepy"}


def test_stopped_worker_releases_its_shards_at_once(tmp_path: Path) -> None:
    with crew(bare_url("sqlite", tmp_path), tmp_path, "w0", "w1") as running:
        running.send("w1", signal.SIGTERM)
        until("it has left", lambda: set(read_registry(running.url, _probers)) == {"w0"})
        left_at_s = time.time()
        until(
            "the other one has all",
            lambda: len(running.looked_at("w0", since_s=left_at_s)) == TARGETS,
        )
        assert running.processes["w1"].wait(PATIENCE_SECONDS) == 0
        assert not read_registry(running.url, _rejected)
