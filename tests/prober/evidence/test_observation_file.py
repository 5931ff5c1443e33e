import errno
import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.observation.results import (
    MAX_ETAG_CHARS,
    MAX_REASON_CHARS,
    MAX_URL_CHARS,
    LayerResult,
    Observation,
    Phases,
    ResultClass,
)
from lifesign.errors import InvalidValue
from lifesign.prober.evidence.observation_file import LOCK_TRIES, MAX_LINE_BYTES, ResultsFile, line_of

AT = datetime(2026, 7, 1, 12, tzinfo=UTC)


def observed(number: int, **members: Any) -> Observation:
    refused = LayerResult(result=ResultClass.REFUSED)
    return Observation(
        target_url=f"https://agent-{number}.example/", observed_at=AT, discovery=refused, **members
    )


def read(path: Path) -> list[Observation]:
    return [Observation.model_validate_json(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


@pytest.fixture
def file(path: Path) -> Iterator[ResultsFile]:
    opened = ResultsFile(path)
    yield opened
    opened.close()


def test_new_file_is_for_its_owner_only(file: ResultsFile, path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


# --- lines ---------------------------------------------------------------------------------------


def test_each_observation_is_one_line_that_reads_back_equal(file: ResultsFile, path: Path) -> None:
    observations = [observed(number) for number in range(3)]
    file.append(map(line_of, observations[:2]))
    file.append(map(line_of, observations[2:]))
    assert read(path) == observations


def test_line_omits_absent_members(file: ResultsFile, path: Path) -> None:
    file.append([line_of(observed(1))])
    assert json.loads(path.read_text()) == {
        "target_url": "https://agent-1.example/",
        "observed_at": "2026-07-01T12:00:00.000Z",
        "discovery": {"result": "refused", "reason": ""},
    }


def test_empty_batch_writes_no_line(file: ResultsFile, path: Path) -> None:
    file.append([])
    assert path.read_bytes() == b""


def test_text_of_a_peer_cannot_end_a_line(file: ResultsFile, path: Path) -> None:
    layer = LayerResult(result=ResultClass.HTTP_ERROR, reason="a\nb\r\u2028c\x00")
    file.append([line_of(observed(1).model_copy(update={"transport": layer}))])
    assert path.read_bytes().count(b"\n") == 1


def test_the_largest_observation_is_shorter_than_the_longest_line(file: ResultsFile, path: Path) -> None:
    numbers = dict.fromkeys(Phases.model_fields, 1234.567891)
    layer = LayerResult(
        result=ResultClass.INVALID_DOCUMENT,
        reason="\U0001f600" * MAX_REASON_CHARS,
        status_code=599,
        latency_ms=123456.789,
        phases=Phases(**numbers),
        evidence="f" * 64,
    )
    largest = Observation(
        target_url="https://" + "x" * (MAX_URL_CHARS - 8),
        observed_at=AT,
        discovery=layer,
        transport=layer,
        readiness=layer,
        message=layer,
        paths={f"/{number}" + "x" * 510: layer for number in range(8)},
        reported_agent_id="\U0001f600" * 2048,
        card_etag="\\" * MAX_ETAG_CHARS,
        certificate_expires_at=AT,
    )
    file.append([line_of(largest)])
    assert path.stat().st_size < MAX_LINE_BYTES
    assert read(path) == [largest]


def test_existing_lines_stay(path: Path) -> None:
    path.write_text("{}\n")
    opened = ResultsFile(path)
    opened.append([line_of(observed(1))])
    opened.close()
    assert path.read_text().startswith("{}\n{")


# --- a killed process, a rotated file ------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"{}\n", b"{}\n"),
        (b'{"target_', b""),
        (b'{}\n{"target_', b"{}\n"),
        (b'{}\n{"a":1}', b"{}\n"),
        (b"not ours", b"not ours\n"),
        (b"{}\nnot ours", b"{}\nnot ours\n"),
        (b"{" + b"x" * MAX_LINE_BYTES, b"{" + b"x" * MAX_LINE_BYTES + b"\n"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_partial_line_of_a_killed_process_is_removed(path: Path, before: bytes, after: bytes) -> None:
    path.write_bytes(before)
    opened = ResultsFile(path)
    opened.append([line_of(observed(1))])
    opened.close()
    written = path.read_bytes()
    assert written.startswith(after)
    assert json.loads(written[len(after) :])


def test_rotated_file_is_replaced_by_a_new_one(file: ResultsFile, path: Path, tmp_path: Path) -> None:
    file.append([line_of(observed(1))])
    path.rename(tmp_path / "results.jsonl.1")
    file.append([line_of(observed(2))])
    path.unlink()
    file.append([line_of(observed(3))])
    assert read(tmp_path / "results.jsonl.1") == [observed(1)]
    assert read(path) == [observed(3)]


def test_truncated_file_continues_at_its_start(file: ResultsFile, path: Path) -> None:
    file.append([line_of(observed(1))])
    os.truncate(path, 0)
    file.append([line_of(observed(2))])
    assert read(path) == [observed(2)]


APPENDER = """
import sys
from pathlib import Path
from lifesign.domain.observation.results import Observation
from lifesign.prober.evidence.observation_file import ResultsFile, line_of

file = ResultsFile(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
number = 0
while number < int(sys.argv[2]):
    batch = [
        Observation.model_validate_json(
            '{"agent_id": "%s-%d", "observed_at": "2026-07-01T12:00:00Z"}' % (sys.argv[3], number + at)
        )
        for at in range(20)
    ]
    file.append(map(line_of, batch))
    number += 20
"""


def appenders(path: Path, count: int) -> list[PreloadedProcess]:
    started = [
        PreloadedProcess(
            [PYTHON, "-c", APPENDER, path, str(count), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in ("a", "b", "c")
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    return started


def test_lines_of_several_processes_are_complete_and_ordered(path: Path) -> None:
    for process in appenders(path, 400):
        with process:
            assert process.wait(timeout=PATIENCE_SECONDS) == 0
    names = [str(observation.agent_id) for observation in read(path)]
    for name in ("a", "b", "c"):
        own = [given for given in names if given.startswith(name)]
        assert own == [f"{name}-{number}" for number in range(400)]


def test_killed_processes_leave_whole_lines(path: Path) -> None:
    processes = appenders(path, 10**9)
    while path.stat().st_size < 100_000 and all(process.poll() is None for process in processes):
        pass
    for process in processes:
        with process:
            process.kill()
    opened = ResultsFile(path)
    opened.append([line_of(observed(1))])
    opened.close()
    assert read(path)[-1] == observed(1)
    assert len(read(path)) > 100


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_full_disk_stores_a_batch_completely_or_not_at_all(
    file: ResultsFile, path: Path, trouble: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.append([line_of(observed(1))])
    real_write = os.write

    def write(fd: int, data: bytes) -> int:
        """Take half of it, and nothing more."""
        if len(data) < 300:
            raise OSError(trouble, os.strerror(trouble))
        return real_write(fd, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(OSError, match=os.strerror(trouble)):
            file.append([line_of(observed(number)) for number in range(10)])
    assert read(path) == [observed(1)]
    file.append([line_of(observed(2))])
    assert read(path) == [observed(1), observed(2)]


def test_removed_directory_is_reported_and_used_again_when_it_returns(path: Path) -> None:
    place = path.parent / "below"
    place.mkdir()
    opened = ResultsFile(place / "results.jsonl")
    (place / "results.jsonl").unlink()
    place.rmdir()
    with pytest.raises(OSError, match="No such file"):
        opened.append([line_of(observed(1))])
    place.mkdir()
    opened.append([line_of(observed(2))])
    assert read(place / "results.jsonl") == [observed(2)]
    opened.close()


def test_lock_that_is_never_released_times_out(path: Path) -> None:
    pauses: list[float] = []
    opened = ResultsFile(path, sleep=pauses.append)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="lock"):
            opened.append([line_of(observed(1))])
    assert len(pauses) == LOCK_TRIES
    opened.append([line_of(observed(1))])
    assert read(path) == [observed(1)]
    opened.close()


def test_closed_file_appends_nothing(file: ResultsFile) -> None:
    file.close()
    with pytest.raises(OSError, match="closed"):
        file.append([line_of(observed(1))])
    file.close()


@pytest.mark.parametrize("kind", ["directory", "fifo", "device", "absent/below"])
def test_non_file_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / kind
    if kind == "directory":
        place.mkdir()
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "device":
        place = Path("/dev/null")
    with pytest.raises(InvalidValue) as caught:
        ResultsFile(place)
    assert caught.value.name == "results.jsonl"
