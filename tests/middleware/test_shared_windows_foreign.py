import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hand_clock import HandClock
from tests.support.properties import examples
from tests.support.recording import agent, outcomes, published, record, samples

from lifesign import AgentHealth

HEADER_BYTES = 36
"""Magic, layout version, window length, checksum."""
COUNTED = 10


class Place:
    """A state directory in which a worker died that had counted 10 answers."""

    def __init__(self, state_dir: Path) -> None:
        self.clock = HandClock()
        self.state_dir = state_dir
        self._started: list[AgentHealth] = []

    def start(self) -> AgentHealth:
        worker = agent(self.clock, state_dir=self.state_dir)
        worker.open()
        self._started.append(worker)
        return worker

    def end(self) -> None:
        for worker in self._started:
            worker.close()
        self._started.clear()

    def leave_behind(self) -> Path:
        """Have a worker count and die; return its file."""
        before = set(self.state_dir.glob("*/worker-*.window"))
        worker = agent(self.clock, state_dir=self.state_dir)
        record(worker, COUNTED)
        worker.close()
        (path,) = set(self.state_dir.glob("*/worker-*.window")) - before
        return path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "state")
    yield made
    made.end()


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _lengthen(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 1)


def _cut_to_header(path: Path) -> None:
    os.truncate(path, 4096)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _text(path: Path) -> None:
    path.write_text("# notes of an operator\n" * 100)


def _long_text(path: Path) -> None:
    path.write_bytes((b"# notes of an operator\n" * 100_000)[: path.stat().st_size])


def _replaced(path: Path) -> Path:
    path.rename(path.with_name("elsewhere"))
    return path


def _symlink(path: Path) -> None:
    _replaced(path).symlink_to("elsewhere")


def _fifo(path: Path) -> None:
    os.mkfifo(_replaced(path), 0o600)


def _directory(path: Path) -> None:
    _replaced(path).mkdir()


def _socket(path: Path) -> None:
    # A socket's path may have no more than 107 bytes.
    with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(path.parent):
        listening.bind(_replaced(path).name)


def _readable_by_all(path: Path) -> None:
    path.chmod(0o644)


def _writable_by_all(path: Path) -> None:
    path.chmod(0o666)


def _future(path: Path) -> None:
    """Write as a process whose clock is a hundred windows ahead."""
    ahead = Place(path.parents[1])
    ahead.clock.advance(100 * 86_400)
    worker = ahead.start()
    record(worker, 5)
    del worker
    ahead.end()


CORRUPT: list[Callable[[Path], None]] = [
    _cut, _lengthen, _cut_to_header, _text, _long_text, _future,
    _symlink, _fifo, _directory, _socket, _readable_by_all, _writable_by_all,
]  # fmt: skip


@pytest.mark.parametrize("corrupt", CORRUPT)
def test_foreign_file_is_moved_aside_with_a_warning_at_the_start(
    place: Place, caplog: pytest.LogCaptureFixture, corrupt: Callable[[Path], None]
) -> None:
    path = place.leave_behind()
    corrupt(path)
    worker = place.start()
    assert samples(worker) == 0
    record(worker, 3)
    # It shares with others: it did not fall back to its own memory.
    assert samples(place.start()) == 3
    assert os.path.lexists(path.with_name(path.name + ".set-aside"))
    assert [line.levelname for line in caplog.records] == ["WARNING"]
    assert path.name in caplog.text


@pytest.mark.parametrize("corrupt", CORRUPT)
def test_worker_ignores_a_corrupt_file_and_continues(place: Place, corrupt: Callable[[Path], None]) -> None:
    worker = place.start()
    corrupt(place.leave_behind())
    record(worker, 3)
    assert samples(worker) == 3
    assert published(worker).calibration is not None


def test_empty_file_of_a_killed_worker_is_used(place: Place) -> None:
    path = place.leave_behind()
    _empty(path)
    worker = place.start()
    assert samples(worker) == 0
    record(worker, 3)
    assert samples(worker) == 3
    assert path.stat().st_size > 1_000_000


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_each_flipped_byte_of_the_header_is_detected(
    place: Place, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    worker = place.start()
    path = place.leave_behind()
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 0xFF]), at)
    record(worker, 1)
    assert outcomes(worker) == {"answered": 1}
    record(place.start(), 1)
    assert outcomes(worker) == {"answered": 2}
    assert [line.levelname for line in caplog.records] == ["WARNING"]


def test_file_with_another_window_length_is_foreign(place: Place) -> None:
    """A file that was copied from the directory of another window length."""
    path = place.leave_behind()
    other = agent(place.clock, state_dir=place.state_dir, window_seconds=3600)
    record(other, 5)
    other.close()
    (copied,) = place.state_dir.glob("*-3600000ms/worker-0.window")
    path.write_bytes(copied.read_bytes())
    assert samples(place.start()) == 0


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed")


@settings(max_examples=examples(50))
@given(data=st.data(), at=st.integers(0, 1_450_000), noise=st.binary(min_size=1, max_size=4096))
def test_document_is_valid_with_any_file_content(
    fuzzed: Path, data: st.DataObject, at: int, noise: bytes
) -> None:
    place = Place(fuzzed)
    for old in fuzzed.glob("*/worker*"):
        old.unlink()
    path = place.leave_behind()
    repeats = data.draw(st.sampled_from([1, 400]))
    with path.open("r+b") as file:
        size = path.stat().st_size
        os.pwrite(file.fileno(), (noise * repeats)[: size - min(at, size)], at)
    worker = place.start()
    record(worker, 3)
    assert published(worker).calibration is not None
    counted = outcomes(worker)
    assert counted["answered"] >= 3
    place.end()
