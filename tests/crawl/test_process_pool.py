import asyncio
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.crawl_acting import STANDING, act
from tests.support.servers import PATIENCE_SECONDS

from lifesign.crawl import process_pool as module
from lifesign.crawl.errors import CrawlStopped
from lifesign.crawl.process import run_loop
from lifesign.crawl.process_pool import WorkerStatuses, probe_all
from lifesign.crawl.progress_display import line_of
from lifesign.crawl.run import worth_starting
from lifesign.crawl.worker_config import WorkerConfig, WorkerStatus, worker_name
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import SHARDS
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.errors import PassDelayed


def shares(tmp_path: Path, count: int = 2) -> list[WorkerConfig]:
    """Shares whose database names a file: the actions of these tests' processes are in `act`."""
    definition = ProbeDefinition.for_urls(["http://127.0.0.1:1"])
    return [
        WorkerConfig(
            definition=definition, worker=f"worker-{number}", since_s=None, database=str(tmp_path / "place")
        )
        for number in range(count)
    ]


def cast(tmp_path: Path, *roles: str) -> list[WorkerConfig]:
    for number, role in enumerate(roles):
        (tmp_path / f"place-worker-{number}").write_text(role)
    return shares(tmp_path, len(roles))


class Heard:
    """Messages of the processes."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.progress: dict[str, object] = {}
        self.died: list[str] = []
        self.news = asyncio.Event()

    def report(self, worker: str, status: WorkerStatus) -> None:
        if status.progress is not None:
            self.progress[worker] = status.progress
        if status.line is not None:
            self.lines.append(status.line)
        self.news.set()

    async def until_lines(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.lines) < count:
                self.news.clear()
                await self.news.wait()


@pytest.fixture
def on_signal(monkeypatch: pytest.MonkeyPatch) -> Heard:
    monkeypatch.setattr(module, "MAX_EARLY_DEATHS", 2)
    monkeypatch.setattr(module, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(module, "MAX_WAIT_SECONDS", 0.01)
    return Heard()


async def test_process_that_was_stopped_is_not_complete(tmp_path: Path, on_signal: Heard) -> None:
    parts = cast(tmp_path, "finish", "unfinished")
    assert not await probe_all(parts, asyncio.Event(), on_signal.report, on_signal.died.append, act)


async def test_dead_process_is_replaced_and_the_pass_completes(tmp_path: Path, on_signal: Heard) -> None:
    parts = cast(tmp_path, "finish", "die once")
    assert await probe_all(parts, asyncio.Event(), on_signal.report, on_signal.died.append, act)
    assert on_signal.progress == {"worker-0": STANDING, "worker-1": STANDING}
    assert on_signal.died == ["worker-1"]
    (line,) = on_signal.lines
    assert re.match(r"worker-1 .*\(signal 9\).* 0\.01 s$", line)


async def test_successor_knows_the_users_of_servers_that_a_dead_process_found(
    tmp_path: Path, on_signal: Heard
) -> None:
    parts = cast(tmp_path, "finish", "learn and die")
    assert await probe_all(parts, asyncio.Event(), on_signal.report, on_signal.died.append, act)
    assert "port 7: [1000, None]" in on_signal.lines


def test_long_message_is_received_as_a_whole(tmp_path: Path, on_signal: Heard) -> None:
    parts = cast(tmp_path, "finish", "long message")
    assert run_loop(probe_all(parts, asyncio.Event(), on_signal.report, on_signal.died.append, act))
    assert [len(line) for line in on_signal.lines] == [5_000_000]


async def test_process_that_dies_repeatedly_ends_the_crawl(tmp_path: Path, on_signal: Heard) -> None:
    parts = cast(tmp_path, "sleep", "die always")
    with pytest.raises(CrawlStopped, match=r"\bworker-1 .*\b2 times"):
        await probe_all(parts, asyncio.Event(), on_signal.report, on_signal.died.append, act)
    assert any(re.match(r"worker-1 .*\(exit code 1\).* 0\.01 s$", line) for line in on_signal.lines)


async def test_process_that_can_store_nothing_is_not_replaced(tmp_path: Path, on_signal: Heard) -> None:
    parts = cast(tmp_path, "sleep", "held up")
    with pytest.raises(PassDelayed) as delayed:
        await probe_all(parts, asyncio.Event(), on_signal.report, on_signal.died.append, act)
    assert (delayed.value.seconds, delayed.value.why) == (120, "the disk is full")
    assert on_signal.died == []


async def test_processes_that_ignore_sigterm_are_killed(
    tmp_path: Path, on_signal: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.1)
    parts = cast(tmp_path, "sleep", "ignore")
    stop = asyncio.Event()
    crawling = asyncio.create_task(probe_all(parts, stop, on_signal.report, on_signal.died.append, act))
    await on_signal.until_lines(2)
    stop.set()
    assert not await crawling
    assert on_signal.died == []


def test_sums_of_a_dead_process_are_kept() -> None:
    statuses = WorkerStatuses(total=200)
    wrong = replace(STANDING, with_failed_assertions=2)
    statuses.note("a", replace(wrong, unanswered=5, missed=3000, given_up=4))
    statuses.note("b", replace(wrong, unanswered=2, missed=400))
    statuses.keep_totals("a")
    statuses.keep_totals("unknown")
    statuses.note("a", replace(STANDING, probed=1, classes={ResultClass.OK: 1}))
    state = statuses.state
    assert (state.probed, state.total, state.unanswered) == (21, 200, 7)
    assert state.note == "4 targets with failed assertions; 4 results were lost; 3,400 due probes missed"
    assert state.results == {ResultClass.OK: 9, ResultClass.REFUSED: 12}


def test_monitoring_faults_of_workers_are_in_the_progress_line() -> None:
    statuses = WorkerStatuses(total=None)
    statuses.note("a", replace(STANDING, is_ledger_unreachable=True, held=70, given_up=5, missed=3))
    unreached = ("public_ipv6", "public_ipv4")
    slow = replace(STANDING, slowness="the event loop is 1.2 s late", unreached_classes=unreached)
    statuses.note("b", replace(slow, start_error_p99_ms=1200.0))
    assert statuses.state.note == (
        "results cannot be stored: 70 are waiting; 5 results were lost; timeouts are not measured: "
        "the event loop is 1.2 s late; no witness answers in public_ipv4, public_ipv6: failures there are "
        "not measured; started up to 1,200 ms late (p99); 3 due probes missed"
    )


def test_endless_crawl_counts_each_target_once() -> None:
    statuses = WorkerStatuses(total=None)
    often = replace(STANDING, probed=300, classes={ResultClass.OK: 300})
    statuses.note("a", replace(often, latest={ResultClass.OK: 20, None: 1}))
    statuses.note("b", replace(often, latest={ResultClass.OK: 10, ResultClass.REFUSED: 4}))
    state = statuses.state
    assert (state.probed, state.results) == (600, {ResultClass.OK: 30, ResultClass.REFUSED: 4, None: 1})
    statuses.keep_totals("a")
    assert statuses.state.results == {ResultClass.OK: 10, ResultClass.REFUSED: 4}


def test_share_of_targets_elsewhere_is_reported() -> None:
    statuses = WorkerStatuses(total=None, workers=2)
    half = replace(STANDING, shards=SHARDS // 2, has_begun=True)
    statuses.note("a", half)
    assert statuses.elsewhere == 0, "the other worker has not begun"
    statuses.note("b", replace(half, shards=0, has_begun=False))
    assert statuses.elsewhere == 0, "the other worker has not claimed shards"
    statuses.note("b", replace(half, shards=0, targets=0))
    assert statuses.state.note.startswith("512 of 1,024 shards belong")
    assert "489 s" in statuses.state.note
    statuses.listed = 117
    assert statuses.state.note.startswith("512 of 1,024 shards with 17 targets")
    statuses.note("b", half)
    assert "shards" not in statuses.state.note


def test_number_of_starting_processes_is_reported_until_all_run() -> None:
    begun = replace(STANDING, shards=342, has_begun=True, latest={None: 100})
    statuses = WorkerStatuses(total=None, workers=3, is_alone=True, listed=300)
    assert statuses.state.note == "3 of 3 processes are starting"
    assert line_of(statuses.state, None).startswith("0 probes; 300 targets; ")
    statuses.note("a", begun)
    statuses.note("b", begun)
    statuses.note("c", replace(begun, shards=340, has_begun=False, latest={}))
    assert statuses.state.note.startswith("1 of 3 processes is starting")
    assert "; 300 targets: 200 never probed; 1 of 3" in line_of(statuses.state, None)
    statuses.note("c", replace(begun, shards=340, latest={None: 99}))
    assert "; 299 targets: 299 never probed; started" in line_of(statuses.state, None)
    statuses.keep_totals("c")
    assert statuses.state.note.startswith("1 of 3 processes is starting")


def test_only_worker_reports_no_shards_of_others() -> None:
    statuses = WorkerStatuses(total=None, workers=1, is_alone=True)
    assert "starting" not in statuses.state.note, "no other worker can be starting"
    statuses.note("a", replace(STANDING, shards=SHARDS - 340, has_begun=True))
    assert (statuses.elsewhere, "shards" in statuses.state.note) == (0, False)


def test_pass_starts_only_as_many_processes_as_needed() -> None:
    assert worth_starting(4, 0, 500) == worth_starting(4, 500, 500) == 1
    assert [worth_starting(4, targets, 500) for targets in (501, 1_500, 1_501, 2_000_000)] == [2, 3, 4, 4]
    assert worth_starting(2, 12, 2) == 2, "each process probes few targets at once"
    assert worth_starting(4, 2_000, 100_000) == 2, "each process handles many targets"


def test_reported_results_are_counted_across_process_deaths() -> None:
    statuses = WorkerStatuses(total=None)
    statuses.note("a", replace(STANDING, reported=3))
    statuses.keep_totals("a")
    statuses.note("a", replace(STANDING, reported=2))
    assert statuses.reported == 5


def test_single_worker_keeps_its_name_after_restarts() -> None:
    assert worker_name(3, is_alone=True) == "worker-3"


def test_two_crawls_with_one_host_name_and_process_id_have_different_worker_names() -> None:
    script = (
        "import os; os.getpid = lambda: 1\n"
        "from lifesign.crawl.worker_config import worker_name\n"
        "print(worker_name(3, is_alone=False), worker_name(3, is_alone=False))"
    )
    names = [subprocess.check_output([sys.executable, "-c", script], text=True).split() for _ in range(2)]
    assert [len(set(each)) for each in names] == [1, 1], "a crawl releases its shards by the same name"
    assert names[0] != names[1]
