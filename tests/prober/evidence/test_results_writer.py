import fcntl
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.prober.evidence.test_observation_file import observed, read
from tests.support.servers import PATIENCE_SECONDS, until

from lifesign.prober.evidence import results_writer
from lifesign.prober.evidence.observation_file import ResultsFile, line_of
from lifesign.prober.evidence.results_writer import ResultsWriter


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_writer, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(results_writer, "CLOSE_SECONDS", 0.2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


@pytest.fixture
def file(path: Path) -> ResultsFile:
    return ResultsFile(path, sleep=lambda _: None)


@pytest.fixture
def locked(path: Path, file: ResultsFile) -> Iterator[None]:
    """Lock the file for another process, so that no line can be written."""
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        yield


def test_lines_are_written_in_order(path: Path, file: ResultsFile) -> None:
    writer = ResultsWriter(file)
    for number in range(3):
        writer.add([observed(number), observed(number + 10)])
    writer.close()
    assert read(path) == [observed(number) for number in (0, 10, 1, 11, 2, 12)]


def test_lines_wait_until_the_file_can_be_written(
    path: Path, file: ResultsFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(results_writer, "LINES_AT_ONCE", 2)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writer = ResultsWriter(file)
        for number in range(5):
            writer.add([observed(number)])
        until("the fault is logged", lambda: caplog.records)
    until("all is written", lambda: path.read_bytes().count(b"\n") == 5)
    writer.add([observed(5)])
    writer.close()
    assert read(path) == [observed(number) for number in range(6)]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


@pytest.mark.usefixtures("locked")
def test_oldest_lines_are_dropped_and_counted(
    file: ResultsFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(results_writer, "MAX_WAITING_BYTES", 3 * len(line_of(observed(1))))
    writer = ResultsWriter(file)
    for number in range(10):
        writer.add([observed(number)])
    until("the fault is logged", lambda: caplog.records)
    assert writer._waiting_bytes <= results_writer.MAX_WAITING_BYTES
    writer.close()
    assert "lacks 10 results" in caplog.text


def test_disk_that_does_not_answer_delays_nothing(
    file: ResultsFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_write = threading.Event()

    def hang(_: Iterable[bytes]) -> None:
        assert may_write.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(file, "append", hang)
    writer = ResultsWriter(file)
    writer.add([observed(1)])
    writer.add([observed(2)])
    writer.close()
    assert "lacks 2 results" in caplog.text
    may_write.set()
