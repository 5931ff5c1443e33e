"""The space that evidence takes on disk, and which of it is removed first."""

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.prober.evidence import evidence_quota
from lifesign.prober.evidence.evidence_quota import (
    AGE_STEP_S,
    BLOCK_BYTES,
    HIGH_WATER_RATIO,
    LOW_WATER_RATIO,
    MAX_LEFTOVER_S,
    EvidenceQuota,
    Swept,
    _eviction_plan,
    bytes_on_disk,
)

NOW_S = 1_800_000_000.0
KEEP_S = 86_400.0


@pytest.fixture
def quota(tmp_path: Path) -> Iterator[EvidenceQuota]:
    opened = EvidenceQuota(tmp_path, max_bytes=100 * BLOCK_BYTES, keep_s=KEEP_S)
    yield opened
    opened.close()


def put(directory: Path, number: int, *, age_s: float, name: str | None = None) -> Path:
    """Write a file that takes one block, seen so long ago."""
    path = directory / f"{number % 256:02x}" / (name or f"{number:062x}.gz")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    return path


def test_file_size_is_counted_in_whole_blocks() -> None:
    assert [bytes_on_disk(size) for size in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]


def test_damaged_count_is_corrected_by_a_sweep(quota: EvidenceQuota, tmp_path: Path) -> None:
    (tmp_path / ".tally").write_bytes(b"\xff" * 8)
    (tmp_path / "0c").touch()
    assert not quota.take(BLOCK_BYTES)
    assert quota.is_short
    put(tmp_path, 1, age_s=0)
    assert quota.sweep(NOW_S) == Swept(0, 0, BLOCK_BYTES)
    assert quota.take(BLOCK_BYTES)
    assert quota.used_bytes() == 2 * BLOCK_BYTES


def test_taken_space_counts_for_all_processes(quota: EvidenceQuota, tmp_path: Path) -> None:
    other = EvidenceQuota(tmp_path, max_bytes=100 * BLOCK_BYTES, keep_s=KEEP_S)
    assert quota.take(60 * BLOCK_BYTES)
    assert other.take(40 * BLOCK_BYTES)
    assert not quota.take(BLOCK_BYTES)
    assert quota.used_bytes() == other.used_bytes() == 100 * BLOCK_BYTES
    other.give_back(BLOCK_BYTES)
    assert quota.take(BLOCK_BYTES)
    other.close()


def test_quota_is_short_before_it_is_full(quota: EvidenceQuota) -> None:
    assert quota.take(int(100 * HIGH_WATER_RATIO) * BLOCK_BYTES)
    assert not quota.is_short
    assert quota.take(BLOCK_BYTES)
    assert quota.is_short


def test_sweep_corrects_a_wrong_count(quota: EvidenceQuota, tmp_path: Path) -> None:
    for number in range(7):
        put(tmp_path, number, age_s=0)
    for wrong in (0, 3 * BLOCK_BYTES, 50 * BLOCK_BYTES):
        quota.give_back(quota.used_bytes())
        quota.take(wrong)
        assert quota.sweep(NOW_S) == Swept(0, 0, 7 * BLOCK_BYTES)
        assert quota.used_bytes() == 7 * BLOCK_BYTES


def test_old_records_are_removed_with_minute_precision(quota: EvidenceQuota, tmp_path: Path) -> None:
    young = [put(tmp_path, number, age_s=number * 60) for number in range(3)]
    edge = put(tmp_path, 3, age_s=KEEP_S - AGE_STEP_S)
    put(tmp_path, 4, age_s=KEEP_S + AGE_STEP_S)
    assert quota.sweep(NOW_S) == Swept(1, BLOCK_BYTES, 4 * BLOCK_BYTES)
    assert all(path.exists() for path in [*young, edge])


def test_sweep_removes_only_as_many_of_the_oldest_as_needed(quota: EvidenceQuota, tmp_path: Path) -> None:
    paths = [put(tmp_path, number, age_s=number * 60) for number in range(97)]
    assert quota.sweep(NOW_S) == Swept(12, 12 * BLOCK_BYTES, 85 * BLOCK_BYTES)
    assert [path.exists() for path in paths] == [True] * 85 + [False] * 12


def test_sweep_of_one_minute_removes_no_more_than_needed(quota: EvidenceQuota, tmp_path: Path) -> None:
    for number in range(97):
        put(tmp_path, number, age_s=0)
    assert quota.sweep(NOW_S) == Swept(12, 12 * BLOCK_BYTES, 85 * BLOCK_BYTES)


def test_evidence_within_the_limit_is_kept(quota: EvidenceQuota, tmp_path: Path) -> None:
    for number in range(95):
        put(tmp_path, number, age_s=number)
    assert quota.sweep(NOW_S) == Swept(0, 0, 95 * BLOCK_BYTES)


def test_temporary_files_of_a_killed_process_are_removed(quota: EvidenceQuota, tmp_path: Path) -> None:
    left = put(tmp_path, 1, age_s=MAX_LEFTOVER_S + AGE_STEP_S, name="." + "0" * 32)
    under_way = put(tmp_path, 1, age_s=MAX_LEFTOVER_S - AGE_STEP_S, name="." + "1" * 32)
    assert quota.sweep(NOW_S) == Swept(0, 0, 0)
    assert (left.exists(), under_way.exists()) == (False, True)


@pytest.mark.parametrize("name", ["notes.txt", "0" * 62, "0" * 61 + ".gz", ".hidden", "A" * 62 + ".gz"])
def test_files_of_others_are_neither_counted_nor_removed(
    quota: EvidenceQuota, tmp_path: Path, name: str
) -> None:
    foreign = put(tmp_path, 1, age_s=10 * KEEP_S, name=name)
    (tmp_path / "other").mkdir()
    elsewhere = put(tmp_path / "other", 2, age_s=10 * KEEP_S)
    assert quota.sweep(NOW_S) == Swept(0, 0, 0)
    assert foreign.exists()
    assert elsewhere.exists()


def test_one_process_sweeps_at_a_time(quota: EvidenceQuota, tmp_path: Path) -> None:
    with (tmp_path / ".sweep").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert quota.sweep(NOW_S) is None
    assert quota.sweep(NOW_S) == Swept(0, 0, 0)


def test_locked_counter_is_not_waited_for(
    quota: EvidenceQuota, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with (tmp_path / ".tally").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert quota.take(BLOCK_BYTES)
    assert len(pauses) == evidence_quota.LOCK_TRIES
    assert sum(pauses) <= 0.02
    assert quota.used_bytes() == BLOCK_BYTES


def test_a_sweep_that_is_stopped_leaves_the_count_as_it_is(quota: EvidenceQuota, tmp_path: Path) -> None:
    put(tmp_path, 1, age_s=10 * KEEP_S)
    quota.take(5 * BLOCK_BYTES)
    quota.stop()
    assert quota.sweep(NOW_S) == Swept(0, 0, 0)
    assert quota.used_bytes() == 5 * BLOCK_BYTES


@given(
    st.dictionaries(st.integers(0, 50), st.integers(1, 200), max_size=30),
    st.integers(1, 2000),
    st.integers(0, 60),
)
def test_eviction_plan_removes_the_oldest_first_and_no_more_than_needed(
    sizes: dict[int, int], max_bytes: int, too_old: int
) -> None:
    first, going = _eviction_plan(sizes, max_bytes, too_old)
    assert first >= too_old
    left = sum(size for step, size in sizes.items() if step >= first) - going
    young = sum(size for step, size in sizes.items() if step >= too_old)
    if young <= max_bytes * HIGH_WATER_RATIO:
        assert (first, going) == (too_old, 0)
    else:
        assert left == pytest.approx(max_bytes * LOW_WATER_RATIO)
        assert 0 <= going <= sizes[first]
