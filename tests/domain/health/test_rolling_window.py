from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.properties import examples

from lifesign.domain.health.inspection import Inspection
from lifesign.domain.health.latency_histogram import BIN_COUNT, LatencyHistogram, bin_of
from lifesign.domain.health.outcome import Outcome
from lifesign.domain.health.rolling_window import (
    SLOTS_PER_WINDOW,
    WINDOW_BYTES,
    WindowReader,
    WindowTotals,
    WindowWriter,
    count_lost,
    is_plausible,
    newest_slot_end_ns,
)

SECOND_NS = 1_000_000_000
WINDOW_NS = 300 * SECOND_NS
SLOT_NS = WINDOW_NS // SLOTS_PER_WINDOW
ROWS = 2 * SLOTS_PER_WINDOW
ROW_LANES = 1 + len(Outcome) + 1 + len(Inspection)
START_NS = 10_000 * WINDOW_NS + 7 * SLOT_NS
"""In a row and a histogram that are not the first."""
STREAMS = len(Outcome)
INSPECTIONS = STREAMS + 1
A_MILLISECOND_NS = 1_000_000


class Sample(NamedTuple):
    """One interaction in the naive model."""

    at_ns: int
    outcome: Outcome
    latency_ns: int
    first_byte_ns: int | None = None

    @property
    def inspection(self) -> Inspection:
        """Another one for each outcome, so that the model needs no more to draw."""
        return Inspection(self.outcome % len(Inspection))


def new_block() -> memoryview:
    return memoryview(bytearray(WINDOW_BYTES))


def write(writer: WindowWriter, sample: Sample) -> None:
    """Count a sample in the order of the recorder: the histogram already contains it."""
    if sample.at_ns >= writer.ends_ns:
        writer.open_slot(sample.at_ns)
    writer.latencies[bin_of(sample.latency_ns)] += 1
    if sample.first_byte_ns is not None:
        writer.first_bytes[bin_of(sample.first_byte_ns)] += 1
        writer.counts[STREAMS] += 1
    writer.counts[INSPECTIONS + sample.inspection] += 1
    writer.counts[sample.outcome] += 1


def written(*samples: Sample) -> memoryview:
    block = new_block()
    writer = WindowWriter(block, WINDOW_NS, samples[0].at_ns)
    for sample in samples:
        write(writer, sample)
    return block


def answered(at_ns: int, latency_ns: int = A_MILLISECOND_NS) -> Sample:
    return Sample(at_ns, Outcome.ANSWERED, latency_ns)


def read(blocks: Sequence[memoryview], now_ns: int) -> WindowTotals:
    return WindowReader(WINDOW_NS).totals(blocks, now_ns)


def facts(totals: WindowTotals) -> dict[str, Any]:
    """Return the totals, with the filled bins of histograms."""
    return {
        "current": totals.current[:],
        "previous": totals.previous[:],
        "inspections": totals.inspections[:],
        "previous_inspections": totals.previous_inspections[:],
        "latencies": filled_bins(totals.latencies),
        "first_bytes": filled_bins(totals.first_bytes),
    }


def filled_bins(histogram: LatencyHistogram) -> dict[int, int]:
    return {index: count for index, count in enumerate(histogram.bins().cast("Q").tolist()) if count}


def expected(samples: Sequence[Sample], now_ns: int) -> dict[str, Any]:
    """Return the result of a naive reader, which keeps every sample."""
    current, previous = [0] * len(Outcome), [0] * len(Outcome)
    inspections, previous_inspections = [0] * len(Inspection), [0] * len(Inspection)
    latencies: dict[int, int] = {}
    first_bytes: dict[int, int] = {}
    for sample in samples:
        age_slots = now_ns // SLOT_NS - sample.at_ns // SLOT_NS
        if age_slots < SLOTS_PER_WINDOW:
            current[sample.outcome] += 1
            inspections[sample.inspection] += 1
            index = bin_of(sample.latency_ns)
            latencies[index] = latencies.get(index, 0) + 1
            if sample.first_byte_ns is not None:
                index = bin_of(sample.first_byte_ns)
                first_bytes[index] = first_bytes.get(index, 0) + 1
        elif age_slots < 2 * SLOTS_PER_WINDOW:
            previous[sample.outcome] += 1
            previous_inspections[sample.inspection] += 1
    return {
        "current": current,
        "previous": previous,
        "inspections": inspections,
        "previous_inspections": previous_inspections,
        "latencies": latencies,
        "first_bytes": first_bytes,
    }


# --- two windows ------------------------------------------------------------------------------------------


def test_size_of_a_window_belongs_to_the_layout_of_window_files() -> None:
    """If it changes, `_LAYOUT_VERSION` of `shared_windows` must change too."""
    assert WINDOW_BYTES == 1_494_784


@given(st.integers(0, WINDOW_NS), st.integers(0, 3 * WINDOW_NS))
@example(0, WINDOW_NS - SLOT_NS)
@example(SLOT_NS - 1, WINDOW_NS)
@example(0, 2 * WINDOW_NS - SLOT_NS)
@example(0, 2 * WINDOW_NS)
def test_sample_leaves_its_window_up_to_one_slot_early(phase_ns: int, age_ns: int) -> None:
    at_ns = START_NS + phase_ns
    totals = read([written(answered(at_ns))], at_ns + age_ns)
    if age_ns <= WINDOW_NS - SLOT_NS:
        assert sum(totals.current) == 1
    if age_ns >= WINDOW_NS:
        assert sum(totals.current) == 0
    if WINDOW_NS <= age_ns <= 2 * WINDOW_NS - SLOT_NS:
        assert sum(totals.previous) == 1
    if age_ns >= 2 * WINDOW_NS:
        assert sum(totals.previous) == 0
    assert sum(totals.current) + sum(totals.previous) <= 1


def test_latencies_leave_with_their_samples() -> None:
    block = written(Sample(START_NS, Outcome.ANSWERED, A_MILLISECOND_NS, first_byte_ns=1000))
    assert read([block], START_NS + WINDOW_NS - SLOT_NS).latencies.percentiles_ms(0.5)
    after = read([block], START_NS + WINDOW_NS)
    assert after.latencies.percentiles_ms(0.5) == ()
    assert after.first_bytes.percentiles_ms(0.5) == ()


def test_each_outcome_has_its_own_counter() -> None:
    samples = [Sample(START_NS, outcome, 1) for outcome in Outcome for _ in range(outcome + 1)]
    assert read([written(*samples)], START_NS).current == [outcome + 1 for outcome in Outcome]


def test_block_without_writer_contributes_nothing() -> None:
    assert facts(read([new_block()], START_NS)) == expected([], START_NS)
    assert facts(read([], START_NS)) == expected([], START_NS)


def test_restarted_worker_adds_to_its_earlier_counts() -> None:
    block = written(answered(START_NS))
    write(WindowWriter(block, WINDOW_NS, START_NS + 1), answered(START_NS + 1))
    assert read([block], START_NS + 1).current[Outcome.ANSWERED] == 2


def test_window_that_is_not_divisible_by_24_slots_counts_correctly() -> None:
    window_ns = 301 * SECOND_NS + 7
    block = new_block()
    writer = WindowWriter(block, window_ns, START_NS)
    write(writer, answered(START_NS))
    reader = WindowReader(window_ns)
    assert sum(reader.totals([block], START_NS + window_ns * 22 // 24).current) == 1
    assert sum(reader.totals([block], START_NS + window_ns).current) == 0


@pytest.mark.parametrize("idle_ns", [SLOT_NS, WINDOW_NS, 3 * WINDOW_NS, 10**6 * SLOT_NS])
def test_idle_time_of_any_length_clears_one_row_and_two_histograms(idle_ns: int) -> None:
    block = new_block()
    lanes = block.cast("Q")
    writer = WindowWriter(block, WINDOW_NS, START_NS)
    lanes[:] = memoryview(bytes([255]) * WINDOW_BYTES).cast("Q")
    writer.open_slot(START_NS + idle_ns)
    touched = sum(lane != 2**64 - 1 for lane in lanes.tolist())
    assert touched == ROW_LANES + 2 * BIN_COUNT


def test_old_samples_do_not_reappear_after_idle_time() -> None:
    block = written(*(answered(START_NS + slot * SLOT_NS) for slot in range(ROWS)))
    for idle_windows in (2, 3, 1000):
        now_ns = START_NS + ROWS * SLOT_NS + idle_windows * WINDOW_NS
        assert facts(read([block], now_ns)) == expected([], now_ns)


def test_writer_opens_no_slot_before_the_current_one_has_ended() -> None:
    for at_ns in (START_NS, START_NS + SLOT_NS - 1):
        assert WindowWriter(new_block(), WINDOW_NS, at_ns).ends_ns == START_NS + SLOT_NS


def test_lost_requests_count_as_unfinished_in_the_newest_slot() -> None:
    newest_ns = START_NS + 5 * SLOT_NS
    block = written(answered(START_NS), answered(newest_ns))
    count_lost(block, 3)
    # The older slot has left the window.
    totals = read([block], newest_ns + WINDOW_NS - SLOT_NS)
    assert (totals.current[Outcome.ANSWERED], totals.current[Outcome.UNFINISHED]) == (1, 3)
    assert totals.previous[Outcome.UNFINISHED] == 0


def test_lost_requests_change_no_block_without_a_slot() -> None:
    block = new_block()
    count_lost(block, 3)
    assert block == new_block()


def test_the_end_of_the_newest_slot_is_known() -> None:
    assert newest_slot_end_ns(new_block(), WINDOW_NS) == 0
    block = written(answered(START_NS), answered(START_NS + 5 * SLOT_NS))
    end_ns = newest_slot_end_ns(block, WINDOW_NS)
    assert START_NS + 5 * SLOT_NS < end_ns <= START_NS + 6 * SLOT_NS


# --- several workers and the reader's cache ---------------------------------------------------------------


def test_the_blocks_of_all_workers_are_summed() -> None:
    samples = [
        [Sample(START_NS + worker * SLOT_NS, Outcome(worker), (worker + 1) * A_MILLISECOND_NS, 1000)]
        for worker in range(5)
    ]
    now_ns = START_NS + 5 * SLOT_NS
    blocks = [written(*part) for part in samples]
    assert facts(read(blocks, now_ns)) == expected([sample for part in samples for sample in part], now_ns)


def test_a_reader_sees_at_once_what_is_written_to_an_open_slot() -> None:
    block = new_block()
    writer, reader = WindowWriter(block, WINDOW_NS, START_NS), WindowReader(WINDOW_NS)
    for count in range(1, 4):
        write(writer, answered(START_NS))
        assert sum(reader.totals([block], START_NS).current) == count


def test_write_that_ends_after_its_slot_is_counted() -> None:
    block = new_block()
    writer, reader = WindowWriter(block, WINDOW_NS, START_NS), WindowReader(WINDOW_NS)
    just_after_ns = START_NS + SLOT_NS + SECOND_NS // 2
    assert sum(reader.totals([block], just_after_ns).current) == 0
    write(writer, answered(START_NS))
    assert sum(reader.totals([block], just_after_ns).current) == 1
    assert sum(reader.totals([block], START_NS + 2 * SLOT_NS).current) == 1


def test_new_or_removed_worker_changes_the_totals_at_once() -> None:
    old = START_NS - 3 * SLOT_NS  # in a closed slot, whose sum is kept
    one, other = written(answered(old)), written(answered(old), answered(old))
    reader = WindowReader(WINDOW_NS)
    assert sum(reader.totals([one], START_NS).current) == 1
    assert sum(reader.totals([one, other], START_NS).current) == 3
    assert sum(reader.totals([one, one], START_NS).current) == 2
    assert sum(reader.totals([other], START_NS).current) == 2
    assert sum(reader.totals([], START_NS).current) == 0


def test_worker_is_not_mistaken_for_the_former_owner_of_its_block() -> None:
    """Window files hand out a new view of their block at every reading."""
    old = START_NS - 3 * SLOT_NS
    one, other = written(answered(old)), written(answered(old), answered(old))
    reader = WindowReader(WINDOW_NS)
    for _ in range(10):
        assert sum(reader.totals([one[:]], START_NS).current) == 1
        assert sum(reader.totals([other[:]], START_NS).current) == 2


def test_a_reader_whose_clock_is_a_moment_behind_counts_no_latency_twice() -> None:
    first = [answered(START_NS, 5 * A_MILLISECOND_NS)] * 10
    latest = [answered(START_NS + WINDOW_NS, A_MILLISECOND_NS)] * 5
    totals = read([written(*first, *latest)], START_NS + WINDOW_NS - 1)
    assert filled_bins(totals.latencies)[bin_of(A_MILLISECOND_NS)] == 5


@pytest.mark.parametrize("ahead_slots", [SLOTS_PER_WINDOW + 1, 2 * (SLOTS_PER_WINDOW + 1)])
def test_histogram_that_a_later_slot_has_taken_is_not_counted_for_the_earlier_one(ahead_slots: int) -> None:
    # The clock was set back: the later slot lies two slots and more ahead of the reader.
    first = [answered(START_NS, 5 * A_MILLISECOND_NS)] * 10
    later = [answered(START_NS + ahead_slots * SLOT_NS, A_MILLISECOND_NS)] * 5
    totals = read([written(*first, *later)], START_NS + (SLOTS_PER_WINDOW - 1) * SLOT_NS)
    assert totals.current[Outcome.ANSWERED] == 10
    assert filled_bins(totals.latencies) == {}


def test_totals_can_be_added_and_cleared() -> None:
    now_ns = START_NS + WINDOW_NS
    samples = [Sample(START_NS, Outcome.RAISED, 5), Sample(now_ns, Outcome.ANSWERED, A_MILLISECOND_NS, 7)]
    totals = WindowTotals()
    for _ in range(2):
        totals.add(read([written(*samples)], now_ns))
    assert facts(totals) == expected(samples * 2, now_ns)
    totals.clear()
    assert facts(totals) == expected([], now_ns)


STEPS_NS = st.one_of(
    st.integers(0, SLOT_NS),
    st.sampled_from([SLOT_NS, SECOND_NS, WINDOW_NS - SLOT_NS, WINDOW_NS, 2 * WINDOW_NS, 100 * WINDOW_NS]),
    st.integers(0, 3 * WINDOW_NS),
)


class Workers(RuleBasedStateMachine):
    """Workers write, time is wound by hand, and one reader must always agree with the naive one."""

    @initialize(start_ns=st.integers(0, 10**18))
    def begin(self, start_ns: int) -> None:
        self.now_ns = start_ns
        self.samples: list[Sample] = []
        self.blocks: list[memoryview] = []
        self.writers: list[WindowWriter] = []
        self.reader = WindowReader(WINDOW_NS)
        self.a_worker_starts()

    @precondition(lambda self: len(self.blocks) < 3)
    @rule()
    def a_worker_starts(self) -> None:
        self.blocks.append(new_block())
        self.writers.append(WindowWriter(self.blocks[-1], WINDOW_NS, self.now_ns))

    @rule(worker=st.integers(0, 2))
    def replace_a_worker_that_reuses_the_block(self, worker: int) -> None:
        worker %= len(self.blocks)
        self.writers[worker] = WindowWriter(self.blocks[worker], WINDOW_NS, self.now_ns)

    @rule(
        worker=st.integers(0, 2),
        outcome=st.sampled_from(Outcome),
        latency_ns=st.integers(0, 3600 * SECOND_NS),
        first_byte_ns=st.none() | st.integers(0, SECOND_NS),
        times=st.integers(1, 3),
    )
    def some_interactions_end(
        self, *, worker: int, outcome: Outcome, latency_ns: int, first_byte_ns: int | None, times: int
    ) -> None:
        for _ in range(times):
            self.samples.append(Sample(self.now_ns, outcome, latency_ns, first_byte_ns))
            write(self.writers[worker % len(self.writers)], self.samples[-1])

    @rule(step_ns=STEPS_NS)
    def time_passes(self, step_ns: int) -> None:
        self.now_ns += step_ns

    @invariant()
    def reader_agrees_with_a_simple_sum(self) -> None:
        assert facts(self.reader.totals(self.blocks, self.now_ns)) == expected(self.samples, self.now_ns)

    @invariant()
    def what_was_written_is_plausible(self) -> None:
        assert all(is_plausible(block, WINDOW_NS, self.now_ns) for block in self.blocks)


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=examples(60), stateful_step_count=30)


# --- killed writers ---------------------------------------------------------------------------------------


class Recorded:
    """A block that notes every lane that is written, in order."""

    def __init__(self, lanes: memoryview, log: list[tuple[int, int]], first: int = 0) -> None:
        self._lanes, self._log, self._first = lanes, log, first

    def cast(self, _kind: str) -> "Recorded":
        return self

    def __len__(self) -> int:
        return len(self._lanes)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Recorded(self._lanes[place], self._log, self._first + place.indices(len(self))[0])
        return self._lanes[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        places = range(*place.indices(len(self))) if isinstance(place, slice) else [place]
        for lane, content in zip(places, value if isinstance(place, slice) else [value], strict=True):
            self._log.append((self._first + lane, content))
            self._lanes[lane] = content


def killed_at_each_step(before: memoryview, writes: list[tuple[int, int]]) -> list[memoryview]:
    """Return the block after each write; of the long series of zeros only some."""
    lanes = memoryview(bytearray(before)).cast("Q")
    states = [memoryview(bytearray(lanes.cast("B")))]
    for step, (lane, content) in enumerate(writes):
        lanes[lane] = content
        if step < 3 * ROW_LANES or step > len(writes) - 5 or step % 499 == 0:
            states.append(memoryview(bytearray(lanes.cast("B"))))
    return states


def test_a_writer_that_is_killed_while_it_opens_a_slot_leaves_a_valid_window() -> None:
    samples = [
        Sample(START_NS + slot * SLOT_NS, Outcome.ANSWERED, A_MILLISECOND_NS, 1000) for slot in range(ROWS)
    ]
    block = written(*samples)
    now_ns = START_NS + ROWS * SLOT_NS
    log: list[tuple[int, int]] = []
    work: Any = Recorded(memoryview(bytearray(block)).cast("Q"), log)
    WindowWriter(work, WINDOW_NS, now_ns)
    assert len(log) == ROW_LANES + 1 + 2 * BIN_COUNT
    for state in killed_at_each_step(block, log):
        assert facts(read([state], now_ns)) == expected(samples, now_ns)
        assert is_plausible(state, WINDOW_NS, now_ns)
        sample = answered(now_ns)
        write(WindowWriter(state, WINDOW_NS, now_ns), sample)
        assert facts(read([state], now_ns)) == expected([*samples, sample], now_ns)


def test_a_writer_that_is_killed_while_it_counts_loses_at_most_what_it_was_counting() -> None:
    samples = [answered(START_NS)] * 3
    block = written(*samples)
    log: list[tuple[int, int]] = []
    work: Any = Recorded(memoryview(bytearray(block)).cast("Q"), log)
    writer = WindowWriter(work, WINDOW_NS, START_NS)
    lost = Sample(START_NS, Outcome.TASK_FAILED, A_MILLISECOND_NS, 1000)
    write(writer, lost)
    states = killed_at_each_step(block, log)
    assert len(states) == 1 + len(log) == 6
    for state in states:
        totals = read([state], START_NS)
        assert totals.current in (
            expected(samples, START_NS)["current"],
            expected([*samples, lost], START_NS)["current"],
        )
        assert sum(totals.current) <= sum(filled_bins(totals.latencies).values()) <= sum(totals.current) + 1
        assert is_plausible(state, WINDOW_NS, START_NS)
    assert facts(read([states[-1]], START_NS)) == expected([*samples, lost], START_NS)


# --- validation of stored windows -------------------------------------------------------------------------


def test_new_block_passes_the_plausibility_check() -> None:
    assert is_plausible(new_block(), WINDOW_NS, START_NS)


@given(st.integers(0, ROWS - 1), st.integers(0, 2**64 - 1))
@example(0, 2**64 - 1)
@example(0, 1)
def test_slot_tag_in_the_wrong_row_is_refused(row: int, tag: int) -> None:
    block = new_block()
    block.cast("Q")[row * ROW_LANES] = tag
    newest = START_NS // SLOT_NS
    could_be_written = tag == 0 or ((tag - 1) % ROWS == row and tag - 1 <= newest + SLOTS_PER_WINDOW)
    assert is_plausible(block, WINDOW_NS, START_NS) is could_be_written


@given(st.integers(-ROWS, 10 * ROWS), st.integers(0, 10**6))
@example(SLOTS_PER_WINDOW, 5)
@example(SLOTS_PER_WINDOW + 1, 5)
def test_slot_tag_in_its_row_is_refused_only_if_far_in_the_future(ahead: int, now_slot: int) -> None:
    slot = max(now_slot + ahead, 0)
    block = written(answered(slot * SLOT_NS))
    assert is_plausible(block, WINDOW_NS, now_slot * SLOT_NS) is (slot <= now_slot + SLOTS_PER_WINDOW)


@given(st.binary(min_size=8, max_size=8 * ROW_LANES), st.integers(0, WINDOW_BYTES // 8 - ROW_LANES))
def test_any_block_content_is_read_without_an_exception(noise: bytes, lane: int) -> None:
    block = written(answered(START_NS))
    block[8 * lane : 8 * lane + len(noise)] = noise
    assert is_plausible(block, WINDOW_NS, START_NS) in {True, False}
    newest_slot_end_ns(block, WINDOW_NS)


@pytest.mark.parametrize("section", ["counts", "latencies", "first_bytes"])
def test_impossible_counts_are_refused(section: str) -> None:
    block = written(answered(START_NS))
    lanes = getattr(WindowWriter(block, WINDOW_NS, START_NS), section)
    lanes[0] = 2**63
    assert not is_plausible(block, WINDOW_NS, START_NS)


@pytest.mark.parametrize("at_ns", [0, START_NS])
@pytest.mark.parametrize(
    ("section", "more", "is_good"),
    # Maximum number of interactions per slot, and of killed threads.
    [
        ("counts", 2**40 - 1, True),
        ("counts", 2**40, False),
        ("latencies", 64, True),
        ("latencies", 65, False),
    ],
)
def test_counts_beyond_a_limit_are_refused(*, at_ns: int, section: str, more: int, is_good: bool) -> None:
    block = written(answered(at_ns))
    getattr(WindowWriter(block, WINDOW_NS, at_ns), section)[0] += more
    assert is_plausible(block, WINDOW_NS, at_ns) is is_good


def test_written_counts_stay_plausible() -> None:
    block = written(
        *(answered(START_NS + slot * SLOT_NS) for slot in range(ROWS) for _ in range(1 + slot * 7))
    )
    for later_slots in range(3 * ROWS):
        assert is_plausible(block, WINDOW_NS, START_NS + (ROWS - 1 + later_slots) * SLOT_NS)


@pytest.mark.parametrize("back_slots", [1, 2, SLOTS_PER_WINDOW])
def test_samples_stay_plausible_after_the_clock_was_set_back(back_slots: int) -> None:
    block = written(
        *(answered(START_NS + slot * SLOT_NS) for slot in range(ROWS) for _ in range(1 + slot * 7))
    )
    assert is_plausible(block, WINDOW_NS, START_NS + (ROWS - 1 - back_slots) * SLOT_NS)
