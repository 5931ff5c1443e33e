"""A crawl in the process of the test."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.crawl_acting import STANDING
from tests.support.crawling import Shown

from lifesign.crawl import directory_import
from lifesign.crawl import run as module
from lifesign.crawl.backend import LocalBackend, open_local_backend
from lifesign.crawl.run import MAX_READINGS, Crawl, stopped_by_signals
from lifesign.crawl.worker_config import WorkerConfig, WorkerStatus
from lifesign.errors import InvalidValue
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.directories import ListSource, read_directory
from lifesign.serving.ending_signals import finishing

Report = Callable[[str, WorkerStatus], None]


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[LocalBackend]:
    async with open_local_backend(f"sqlite:///{tmp_path}/crawl.db") as opened:
        yield opened


def defined(directory: Path, **settings: Any) -> ProbeDefinition:
    given = {"name": "test", "networks": {"allow": ["127.0.0.0/8"]}, **settings}
    return ProbeDefinition.model_validate(given, context={"directory": directory})


def write_list(directory: Path) -> None:
    (directory / "agents.txt").write_text("http://127.0.0.1:1/\n")


async def test_directory_that_could_not_be_read_is_read_again_before_its_time(
    home: LocalBackend, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text("http://127.0.0.1:2/\n")
    shown = Shown()
    definition = defined(tmp_path, directories=[{"file": "agents.txt"}, {"file": "other.txt"}])
    crawl = Crawl(definition, home, shown, asyncio.Event())
    async with crawl._importer(is_continuous=True) as importer:
        await crawl._retry(importer)
        assert shown.lines == []
        await crawl._read_directories(importer)
        shown.lines.clear()
        # The same fault again is not reported.
        await crawl._retry(importer)
        assert shown.lines == []
        write_list(tmp_path)
        await crawl._retry(importer)
    assert shown.lines == ["agents.txt: 1 target"]
    assert not crawl.outcomes["agents.txt"].has_failed


def wrap_reading(monkeypatch: pytest.MonkeyPatch, wait: Callable[[str], Awaitable[object]]) -> None:
    """Wait for this before each reading of a file of the given name."""

    async def read(listed: ListSource, *arguments: Any, **named: Any) -> Any:
        assert listed.file is not None
        async with asyncio.timeout(10):
            await wait(listed.file.name)
        return await read_directory(listed, *arguments, **named)

    monkeypatch.setattr(directory_import, "read_directory", read)


async def test_slow_directory_does_not_delay_the_others(
    home: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.txt").write_text("http://127.0.0.1:2/\n")
    write_list(tmp_path)
    definition = defined(tmp_path, directories=[{"file": "slow.txt"}, {"file": "agents.txt"}])
    has_begun = asyncio.Event()

    async def wait(name: str) -> None:
        if name == "agents.txt":
            has_begun.set()
        await has_begun.wait()

    wrap_reading(monkeypatch, wait)
    crawl = Crawl(definition, home, Shown(), asyncio.Event())
    async with crawl._importer(is_continuous=False) as importer:
        await crawl._read_directories(importer)
    assert {outcome.text for outcome in crawl.outcomes.values()} == {
        "slow.txt: 1 target",
        "agents.txt: 1 target",
    }


async def test_only_a_few_directories_are_read_at_once(
    home: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"list-{number}.txt" for number in range(2 * MAX_READINGS)]
    for name in names:
        (tmp_path / name).write_text(f"http://127.0.0.1/{name}\n")
    definition = defined(tmp_path, directories=[{"file": name} for name in names])
    barrier = asyncio.Barrier(MAX_READINGS)

    async def wait(_: str) -> None:
        assert barrier.n_waiting < MAX_READINGS
        await barrier.wait()

    wrap_reading(monkeypatch, wait)
    shown = Shown()
    crawl = Crawl(definition, home, shown, asyncio.Event())
    async with crawl._importer(is_continuous=False) as importer:
        await crawl._read_directories(importer)
    assert all(" reading " in line for line in shown.lines[:MAX_READINGS])
    assert " reading " not in shown.lines[MAX_READINGS]
    assert len(crawl.outcomes) == len(names)


async def test_unusable_key_file_ends_the_readings_beside_it(
    home: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_list(tmp_path)
    keyed = {"url": "https://a.example/list.json", "key_file": "missing.key"}
    definition = defined(tmp_path, directories=[{"file": "agents.txt"}, keyed], contact="mailto:a@b.example")
    wrap_reading(monkeypatch, lambda _: asyncio.Event().wait())
    crawl = Crawl(definition, home, Shown(), asyncio.Event())
    async with crawl._importer(is_continuous=False) as importer:
        with pytest.raises(InvalidValue, match=r"missing\.key"):
            await crawl._read_directories(importer)
        assert importer.step is None


async def test_pass_probes_each_target_once_and_the_next_one_again(
    home: LocalBackend, tmp_path: Path
) -> None:
    write_list(tmp_path)
    definition = defined(tmp_path, directories=[{"file": "agents.txt"}], targets=["http://127.0.0.1:2/"])
    for _ in range(2):
        shown = Shown()
        crawled = await Crawl(definition, home, shown, asyncio.Event()).once(processes=1)
        assert (crawled.is_done, crawled.probed, crawled.failed) == (True, 2, ())
        assert shown.state.total == shown.state.probed == 2
        assert any("targets list" in line for line in shown.lines)


async def test_pass_without_a_readable_list_probes_nothing(home: LocalBackend, tmp_path: Path) -> None:
    definition = defined(tmp_path, directories=[{"file": "agents.txt"}])
    crawled = await Crawl(definition, home, Shown(), asyncio.Event()).once(processes=1)
    assert (crawled.probed, crawled.failed) == (0, ("agents.txt",))


async def test_messages_of_the_processes_are_shown(
    home: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def probe_all(
        shares: Sequence[WorkerConfig], _stop: asyncio.Event, report: Report, *_: object, **__: object
    ) -> bool:
        first, second = (share.worker for share in shares)
        report(first, WorkerStatus(progress=replace(STANDING, unanswered=2)))
        report(second, WorkerStatus(line=f"{second} died"))
        report(second, WorkerStatus(logged="WARNING canary"))
        return True

    monkeypatch.setattr(module, "probe_all", probe_all)
    shown = Shown()
    crawled = await Crawl(
        defined(tmp_path, targets=["http://127.0.0.1:1/"]), home, shown, asyncio.Event()
    ).watch(processes=2)
    assert crawled.probed == shown.state.probed == STANDING.probed
    assert {"worker-2 died", "WARNING canary"} <= {*shown.lines}
    assert any(line.startswith("2 look-ups ") for line in shown.lines)


async def test_defect_of_a_part_beside_the_crawl_is_logged(
    home: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def tend() -> None:
        raise RuntimeError("canary")

    monkeypatch.setattr(home, "tend", tend)
    write_list(tmp_path)
    definition = defined(tmp_path, directories=[{"file": "agents.txt"}])
    with caplog.at_level(logging.ERROR, "lifesign"):
        crawled = await Crawl(definition, home, Shown(), asyncio.Event()).once(processes=1)
    assert crawled.is_done
    assert "RuntimeError: canary" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_signal_stops_the_crawl_once(number: signal.Signals) -> None:
    stop = asyncio.Event()
    lines: list[str] = []
    usual = signal.getsignal(signal.SIGINT)
    with stopped_by_signals(stop, lines.append):
        os.kill(os.getpid(), number)
        await stop.wait()
        # A wrapper passes on a signal that the whole process group gets.
        os.kill(os.getpid(), number)
        # The shell and the kernel each send one.
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(lines) == 1
    assert signal.getsignal(signal.SIGINT) in {usual, signal.default_int_handler}


async def test_second_signal_does_not_end_a_crawl_that_must_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    monkeypatch.setattr("lifesign.serving.ending_signals.REPEAT_SECONDS", 0.0)
    stop = asyncio.Event()
    with stopped_by_signals(stop, lambda _line: None):
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        with finishing("canary"):
            os.kill(os.getpid(), signal.SIGTERM)
            assert raised == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert raised == [signal.SIGTERM]


async def test_no_handler_is_set_in_another_thread() -> None:
    def inside() -> bool:
        with stopped_by_signals(asyncio.Event(), print):
            return True

    usual = signal.getsignal(signal.SIGTERM)
    assert await asyncio.to_thread(inside)
    assert signal.getsignal(signal.SIGTERM) is usual
