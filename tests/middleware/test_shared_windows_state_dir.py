import contextlib
import errno
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.hand_clock import HandClock
from tests.support.preloaded import PYTHON, run
from tests.support.recording import agent, published, record, samples
from tests.support.scripted import PLAIN, Server, final, play, start
from tests.support.small_disk import fill, mounted

from lifesign import AgentHealth
from lifesign.domain.health.document import HealthStatus
from lifesign.errors import InvalidValue

MEBIBYTE = 1 << 20


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A separate disk, mounted with options such as `size=1m`."""
    with contextlib.ExitStack() as stack:
        yield lambda options: stack.enter_context(mounted(tmp_path / "disk", options))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]


def expect_private_counting(health: AgentHealth, caplog: pytest.LogCaptureFixture) -> None:
    record(health, 20)
    assert samples(health) == 20
    assert published(health).health.status is HealthStatus.HEALTHY
    (warning,) = warnings(caplog)
    assert "state directory" in warning


# --- full disk --------------------------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.parametrize("size", ["8k", "64k", "200k", "1m"])
def test_worker_on_a_full_disk_counts_in_memory_with_a_warning(
    disk: Callable[[str], Path], clock: HandClock, caplog: pytest.LogCaptureFixture, size: str
) -> None:
    place = disk(f"size={size}")
    health = agent(clock, state_dir=place / "state")
    expect_private_counting(health, caplog)
    # An oversized value leaves nothing behind that another process might trust.
    assert list(place.glob("*/*/worker-*.window")) == []
    health.close()


@pytest.mark.fault
async def test_no_request_fails_for_a_full_disk(
    disk: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    played = await play([start(200, PLAIN), final(b"answer")], server=Server(), state_dir=disk("size=1m"))
    assert played.error is None
    assert [message["type"] for message in played.server.sent] == [
        "http.response.start",
        "http.response.body",
    ]
    assert played.outcomes == {"answered": 1}
    assert len(warnings(caplog)) == 1
    played.middleware.health.close()


@pytest.mark.fault
def test_disk_that_fills_up_later_does_not_affect_counting(
    disk: Callable[[str], Path], clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    place = disk("size=8m")
    one, other = (agent(clock, state_dir=place / "state") for _ in range(2))
    record(one, 1)
    record(other, 1)
    assert fill(place) > MEBIBYTE
    for _ in range(60):
        # Every slot of both windows, and all bins of a slot.
        for magnitude in range(-3, 7):
            one.record(latency_ms=10.0**magnitude, first_byte_ms=10.0**magnitude)
            other.record("server_fault", latency_ms=10.0**magnitude)
        clock.advance(3600)
        assert published(one).calibration == published(other).calibration
    assert samples(one) == samples(other) >= 23 * 20
    assert warnings(caplog) == []
    # A new worker has no space; the existing data continue.
    late = agent(clock, state_dir=place / "state")
    expect_private_counting(late, caplog)
    for health in (one, other, late):
        health.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_failed_allocation_leaves_no_partial_file(
    tmp_path: Path,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    allocated: list[int] = []

    def refuse(fd: int, offset: int, size: int) -> None:
        allocated.append(size)
        if size > MEBIBYTE:
            raise OSError(number, os.strerror(number))
        os.ftruncate(fd, offset + size)

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    health = agent(clock, state_dir=tmp_path)
    expect_private_counting(health, caplog)
    assert os.strerror(number) in caplog.text
    assert list(tmp_path.glob("*/worker-*.window")) == []
    assert max(allocated) > MEBIBYTE
    health.close()


# --- read-only and foreign directories --------------------------------------------------------------------


@pytest.mark.fault
def test_read_only_disk_before_the_first_request_fails_no_request(
    disk: Callable[[str], Path], clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    place = disk("size=8m")
    health = agent(clock, state_dir=place / "state")
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    expect_private_counting(health, caplog)
    health.close()


@pytest.mark.fault
@pytest.mark.parametrize("is_made", [True, False])
def test_agent_starts_on_a_disk_remounted_read_only(
    disk: Callable[[str], Path], clock: HandClock, caplog: pytest.LogCaptureFixture, *, is_made: bool
) -> None:
    """Yesterday it was well: whether the directory is there already makes no difference."""
    place = disk("size=8m")
    if is_made:
        (place / "state").mkdir(mode=0o700)
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    health = agent(clock, state_dir=place / "state")
    expect_private_counting(health, caplog)


START_AS_NOBODY = """
import os, sys
from lifesign import AgentHealth
from lifesign.errors import InvalidValue
os.setgid(65534)
os.setuid(65534)
try:
    AgentHealth(agent_id="agent", state_dir=sys.argv[1])
except InvalidValue as error:
    print(error.name)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root may become another user")
@pytest.mark.parametrize("mode", [0o555, 0o111, 0o666, 0o700])
@pytest.mark.parametrize("below", ["", "state"])
def test_directory_without_permission_is_refused_at_the_start(tmp_path: Path, mode: int, below: str) -> None:
    for parent in tmp_path.parents[:3]:
        if parent.name.startswith("pytest"):
            parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(mode)
    result = run("-c", START_AS_NOBODY, place / below, program=PYTHON)
    assert result.stdout == "state_dir\n", result.stderr


@pytest.mark.parametrize("wrong", ["a file", "below a file", "a dangling link"])
def test_invalid_directory_is_refused_at_the_start(tmp_path: Path, clock: HandClock, wrong: str) -> None:
    path = tmp_path / "state"
    if wrong == "a dangling link":
        path.symlink_to("nowhere")
    else:
        path.write_text("notes")
    with pytest.raises(InvalidValue, match="state_dir") as refused:
        agent(clock, state_dir=path / "below" if wrong == "below a file" else path)
    assert refused.value.name == "state_dir"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_directories_and_files_are_private(tmp_path: Path, clock: HandClock, umask: int) -> None:
    before = os.umask(umask)
    try:
        health = agent(clock, state_dir=tmp_path / "state")
        record(health, 1)
    finally:
        os.umask(before)
    found = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in found if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in found if path.is_file()} == {0o600}
    assert {path.name for path in found if path.is_file()} == {"board", "worker-0.window"}
    health.close()


def test_own_directory_readable_by_others_becomes_private(tmp_path: Path, clock: HandClock) -> None:
    health = agent(clock, state_dir=tmp_path)
    record(health, 1)
    health.close()
    (directory,) = tmp_path.iterdir()
    directory.chmod(0o755)
    again = agent(clock, state_dir=tmp_path)
    assert samples(again) == 1
    assert directory.stat().st_mode & 0o777 == 0o700
    again.close()


@pytest.mark.parametrize("is_on_grid", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_status_is_unknown_once_the_files_were_removed(
    tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture, *, is_on_grid: bool, replaced: bool
) -> None:
    """A worker that has not read the file of a failing one must not publish only its own good answers."""
    failing, good = agent(clock, state_dir=tmp_path), agent(clock, state_dir=tmp_path)
    failing.publisher.is_on_grid = good.publisher.is_on_grid = is_on_grid
    record(failing, 20, "server_fault")
    record(good, 1)
    assert samples(failing) == 21
    shutil.rmtree(tmp_path)
    if replaced:
        tmp_path.write_text("notes")
    clock.advance(120)
    record(good, 20)
    for worker in (good, failing, good):
        assert worker.document().health.status is HealthStatus.UNKNOWN
        assert published(worker).health.status is HealthStatus.UNKNOWN
        clock.advance(120)
    assert len(warnings(caplog)) == 2
    failing.close()
    good.close()


def _link(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))
    directory.symlink_to("moved")


def _dangling_link(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))
    directory.symlink_to("nowhere")


def _file(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))
    directory.write_text("notes")


def _of_another_user(directory: Path) -> None:
    if os.geteuid():
        pytest.skip("NOT RUN: only root may give a directory to another user")
    os.chown(directory, 65_534, 65_534)


@pytest.mark.parametrize("make", [_link, _dangling_link, _file, _of_another_user])
def test_unsafe_directory_of_an_agent_is_not_used(
    tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture, make: Callable[[Path], Any]
) -> None:
    health = agent(clock, state_dir=tmp_path)
    record(health, 5)
    health.close()
    (directory,) = tmp_path.iterdir()
    make(directory)
    again = agent(clock, state_dir=tmp_path)
    expect_private_counting(again, caplog)
    again.close()


def test_directory_name_reveals_nothing_of_the_agent(tmp_path: Path, clock: HandClock) -> None:
    """And an agent cannot choose a path by its name."""
    health = agent(clock, agent_id="../../secret/agent", state_dir=tmp_path / "state")
    record(health, 1)
    (directory,) = (tmp_path / "state").iterdir()
    assert "secret" not in directory.name
    assert directory.parent == tmp_path / "state"
    health.close()
