import multiprocessing

import pytest
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.events.event_type import EventType
from lifesign.registry.request_handling.work_counts import (
    MAX_PATHS,
    LogState,
    SharedCounts,
    WorkCounts,
    WorkKind,
    shared_counts,
)

PATHS = [("GET", "/a"), ("POST", "/a")]


def count_in_a_process(shared: SharedCounts, times: int) -> None:
    counts = WorkCounts(shared)
    counts.set_paths(PATHS)
    for _ in range(times):
        counts.note_request(counts.place_of("GET", "/a"), 200, 0.5)
        counts.note(WorkKind.RATE_LIMITED)


def run_process(shared: SharedCounts, times: int) -> None:
    process = multiprocessing.get_context("spawn").Process(target=count_in_a_process, args=(shared, times))
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0


def test_counts_of_processes_are_summed_and_continued_after_a_restart() -> None:
    shared = shared_counts(1)
    counts = WorkCounts(shared)
    counts.set_paths(PATHS)
    counts.note(WorkKind.RATE_LIMITED, 5)
    # There is one row for both: the second one takes over that of the first.
    for times in (2, 3):
        run_process(shared, times)
    sums = counts.sums()
    assert sums.work(WorkKind.RATE_LIMITED) == 10
    assert sums.processes == 1
    by_path = {(of.method, of.path): of for of in sums.paths()}
    of = by_path["GET", "/a"]
    assert dict(of.by_status) == {"2xx": 5, "4xx": 0, "5xx": 0}
    # A counter's increase needs the time before the first probe.
    assert dict(by_path["POST", "/a"].by_status) == {"2xx": 0, "4xx": 0, "5xx": 0}
    assert not any(by_path["POST", "/a"].buckets)
    assert of.seconds == pytest.approx(2.5)
    assert counts.is_first


def test_missing_row_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    shared = shared_counts(1)
    first, second = WorkCounts(shared), WorkCounts(shared)
    third = WorkCounts(shared)
    for counts in (first, second, third):
        counts.note(WorkKind.SWEEPS)
    assert first.sums().work(WorkKind.SWEEPS) == 2
    assert third.sums().processes == 1
    assert "are not counted" in caplog.text


def test_a_duration_is_in_one_bucket_and_its_bound_belongs_to_it() -> None:
    counts = WorkCounts()
    counts.set_paths(PATHS)
    for seconds in (0.001, 0.0011, 99.0):
        counts.note_request(counts.place_of("POST", "/a"), 503, seconds)
    (of,) = (of for of in counts.sums().paths() if of.method == "POST")
    assert [place for place, count in enumerate(of.buckets) if count] == [0, 1, 12]
    assert dict(of.by_status) == {"2xx": 0, "4xx": 0, "5xx": 3}


def test_unserved_requests_share_one_counter() -> None:
    counts = WorkCounts()
    counts.set_paths(PATHS)
    assert counts.place_of("GET", "/b") == counts.place_of("BREW", "/a") == 0


def test_latest_read_of_the_log_counts() -> None:
    counts = WorkCounts()
    assert counts.sums().log is None
    state = LogState(checked_at_s=1_763_640_000.5, is_sound=False, sequence=7)
    counts.note_log(state)
    assert counts.sums().log == state


async def test_counters_cover_all_paths_of_the_server() -> None:
    # Processes of other tests load this file too, and need no server.
    from lifesign.registry.app import Registry, create_app  # noqa: PLC0415
    from lifesign.registry.settings import RegistrySettings  # noqa: PLC0415

    registry = Registry(RegistrySettings.read(database="sqlite://", dialects=["openintent"]))
    create_app(registry)
    assert len(registry.counts._paths) < MAX_PATHS / 2
    await registry.database.close()


def test_events_are_counted_by_type_and_from_zero_on() -> None:
    assert WorkCounts().sums().events() == dict.fromkeys(EventType, 0)
    assert len(EventType) > 40
