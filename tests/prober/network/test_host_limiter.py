"""Rate limits per host and per address."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.prober.network import host_limiter as pace_module
from lifesign.prober.network.host_limiter import (
    MAX_VISIT_WAIT_SECONDS,
    AddressBusy,
    HostLimiter,
    Permit,
    admit,
    book_visit,
)


def pace_of(**limits: Any) -> HostLimiter[str]:
    return HostLimiter(
        **{"concurrency": 100, "per_host": 2, "per_address": 3, "host_requests_per_second": 1000.0, **limits}
    )


def take_all(pace: HostLimiter[str], now_s: float) -> list[Permit[str]]:
    turns = []
    while (turn := pace.take(now_s)) is not None:
        turns.append(turn)
    return turns


def items(turns: list[Permit[str]]) -> list[str]:
    return [turn.item for turn in turns]


def test_concurrent_probes_are_limited_and_the_rest_waits_in_order() -> None:
    pace = pace_of(concurrency=2)
    for name in "abc":
        pace.offer(name, name, 0.0)
    first = take_all(pace, 0.0)
    assert (items(first), pace.in_flight, pace.waiting) == (["a", "b"], 2, 1)
    pace.end(first[0], 1, 1.0)
    assert items(take_all(pace, 1.0)) == ["c"]


def test_urgent_request_is_first_in_its_queues() -> None:
    pace = pace_of(concurrency=2, per_host=1)
    for name in ("a 0", "a 1", "b 0"):
        pace.offer(name[0], name, 0.0)
    for name in ("a 2", "a 3", "c 0"):
        pace.offer(name[0], name, 0.0, is_urgent=True)
    assert pace.waiting == 6
    first = take_all(pace, 0.0)
    assert items(first) == ["c 0", "a 0"]
    taken, now_s = [], 10.0
    while first:
        turn = first.pop()
        taken.append(turn.item)
        now_s += 1.0
        pace.end(turn, 1, now_s)
        first += take_all(pace, now_s)
    assert [item for item in taken if item[0] == "a"] == ["a 0", "a 2", "a 3", "a 1"]
    assert (pace.waiting, pace.in_flight) == (0, 0)


def test_busy_host_delays_only_its_own_targets() -> None:
    pace = pace_of()
    for number in range(5):
        pace.offer("slow", f"slow {number}", number * 0.01)
    pace.offer("other", "other", 0.05)
    first = take_all(pace, 1.0)
    assert sorted(items(first)) == ["other", "slow 0", "slow 1"]
    slow = [turn for turn in first if turn.host == "slow"]
    pace.end(slow[0], 1, 2.0)
    assert items(take_all(pace, 2.0)) == ["slow 2"]
    assert pace.waiting == 2


def test_request_rate_of_a_host_is_limited_for_any_requests_per_probe() -> None:
    pace = pace_of(per_host=1, host_requests_per_second=5.0)
    for name in ("first", "second", "third"):
        pace.offer("host", name, 0.0)
    (turn,) = take_all(pace, 0.0)
    pace.end(turn, 4, 0.1)
    assert take_all(pace, 0.1) == []
    assert pace.next_at_s() == pytest.approx(0.8)
    assert take_all(pace, 0.79) == []
    (turn,) = take_all(pace, 0.81)
    assert turn.item == "second"
    # A slow probe has paid for its requests by the time that it took.
    pace.end(turn, 4, 5.0)
    assert items(take_all(pace, 5.0)) == ["third"]


def test_probes_of_one_host_begin_at_different_times() -> None:
    pace = pace_of(per_host=2, host_requests_per_second=5.0)
    pace.offer("host", "first", 0.0)
    pace.offer("host", "second", 0.0)
    assert items(take_all(pace, 0.0)) == ["first"]
    assert pace.next_at_s() == pytest.approx(0.2)
    assert items(take_all(pace, 0.2)) == ["second"]


def test_permit_without_a_request_does_not_count_for_its_host() -> None:
    pace = pace_of(per_host=1, host_requests_per_second=0.1)
    pace.offer("host", "first", 0.0)
    (turn,) = take_all(pace, 0.0)
    pace.end(turn, 0, 0.0)
    pace.offer("host", "second", 0.0)
    assert items(take_all(pace, 0.0)) == ["second"]


def test_full_address_delays_only_its_own_targets() -> None:
    pace = pace_of(per_address=1)
    for name in ("a", "b", "c", "elsewhere"):
        pace.offer(name, name, 0.0)
    a, b, c, elsewhere = take_all(pace, 0.0)
    pace.admit(a, "192.0.2.1")
    pace.admit(elsewhere, "192.0.2.2")
    for turn in (b, c):
        with pytest.raises(AddressBusy) as busy:
            pace.admit(turn, "192.0.2.1")
        pace.put_off(turn, busy.value)
    assert (take_all(pace, 1.0), pace.in_flight, pace.waiting) == ([], 2, 2)
    pace.end(a, 1, 2.0)
    (turn,) = take_all(pace, 2.0)
    assert turn.item == "b"
    # The place in the queue is reserved: a later request cannot take it.
    pace.offer("d", "d", 2.0)
    (newcomer,) = take_all(pace, 2.0)
    with pytest.raises(AddressBusy):
        pace.admit(newcomer, "192.0.2.1")
    pace.admit(turn, "192.0.2.1")
    pace.end(turn, 1, 3.0)
    assert items(take_all(pace, 3.0)) == ["c"]


def test_urgent_request_is_first_in_the_queue_of_its_address() -> None:
    pace = pace_of(per_address=1)
    pace.offer("a", "a", 0.0)
    (turn,) = take_all(pace, 0.0)
    pace.admit(turn, "192.0.2.1")
    for name in ("b", "c urgent", "d urgent", "e"):
        pace.offer(name, name, 0.0, is_urgent="urgent" in name)
        (waiting,) = take_all(pace, 0.0)
        pace.put_off(waiting, AddressBusy("192.0.2.1"))
        assert take_all(pace, 0.0) == []
    order = []
    for now_s in range(1, 5):
        pace.end(turn, 1, now_s)
        (turn,) = take_all(pace, now_s)
        pace.admit(turn, "192.0.2.1")
        order.append(turn.item)
    assert order == ["c urgent", "d urgent", "b", "e"]


def test_deferred_target_starts_only_when_its_address_is_free() -> None:
    pace = pace_of(per_address=1)
    pace.offer("a", "a", 0.0)
    pace.offer("b", "b", 0.0)
    a, b = take_all(pace, 0.0)
    pace.admit(a, "192.0.2.1")
    pace.put_off(b, AddressBusy("192.0.2.1"))
    pace.end(a, 1, 1.0)
    (b,) = take_all(pace, 1.0)
    pace.admit(b, "192.0.2.1")
    pace.offer("c", "c", 1.0)
    (c,) = take_all(pace, 1.0)
    pace.admit(c, "192.0.2.3")
    pace.end(b, 1, 2.0)
    # The next time its address is known before it is looked up, and has its fill.
    pace.offer("a2", "a2", 2.0)
    (other,) = take_all(pace, 2.0)
    pace.admit(other, "192.0.2.1")
    pace.offer("b", "b again", 2.0)
    assert take_all(pace, 2.0) == []
    pace.end(other, 1, 3.0)
    assert items(take_all(pace, 3.0)) == ["b again"]


def test_host_with_a_new_address_is_not_delayed_by_its_former_address() -> None:
    pace = pace_of(per_address=1)
    pace.offer("a", "a", 0.0)
    pace.offer("b", "b", 0.0)
    a, b = take_all(pace, 0.0)
    pace.admit(a, "192.0.2.1")
    pace.put_off(b, AddressBusy("192.0.2.1"))
    pace.end(a, 1, 1.0)
    (b,) = take_all(pace, 1.0)
    pace.admit(b, "192.0.2.9")
    pace.end(b, 1, 2.0)
    pace.offer("c", "c", 3.0)
    (c,) = take_all(pace, 3.0)
    pace.admit(c, "192.0.2.1")
    pace.offer("b", "b", 4.0)
    assert items(take_all(pace, 4.0)) == ["b"]


def test_number_of_remembered_busy_hosts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "MAX_CROWDED_HOSTS", 2)
    pace = pace_of(per_address=1)
    for name in "abcd":
        pace.offer(name, name, 0.0)
    first, *others = take_all(pace, 0.0)
    pace.admit(first, "192.0.2.1")
    for turn in others:
        pace.put_off(turn, AddressBusy("192.0.2.1"))
    assert list(pace._crowded) == ["c", "d"]
    # An evicted target is started and learns it again.
    assert items(take_all(pace, 0.0)) == ["b"]


async def test_connection_is_counted_for_the_permit_of_its_task() -> None:
    pace = pace_of(per_address=1)
    for name in "ab":
        pace.offer(name, name, 0.0)

    async def connect(turn: Permit[str]) -> str:
        turn.begin()
        await asyncio.sleep(0)
        try:
            # The permit also applies in a task that a library creates.
            await asyncio.create_task(_connect())
        except AddressBusy as busy:
            return busy.address
        return "connected"

    async def _connect() -> None:
        admit("192.0.2.1")
        admit("192.0.2.1")

    ended = await asyncio.gather(*(connect(turn) for turn in take_all(pace, 0.0)))
    assert sorted(ended) == ["192.0.2.1", "connected"]


def test_every_address_is_admitted_outside_a_permit() -> None:
    for _ in range(100):
        admit("192.0.2.1")


async def test_visits_of_a_host_have_its_request_rate_and_delay_none_of_its_targets() -> None:
    pace = pace_of(host_requests_per_second=5.0)
    pace.offer("own", "own", 0.0)
    (turn,) = take_all(pace, 0.0)
    turn.begin()
    waits = [book_visit("visited", 0.0, 60.0) for _ in range(60)]
    accepted = [wait_s for wait_s in waits if wait_s is not None]
    assert accepted == pytest.approx([0.2 * number for number in range(51)])
    assert accepted[-1] == pytest.approx(MAX_VISIT_WAIT_SECONDS)
    assert waits[51:] == [None] * 9
    assert book_visit("visited", 9.0, 1.0) is None
    assert book_visit("visited", 9.5, 1.0) == pytest.approx(0.7)
    # The probe's own host is limited by its permits, and other hosts wait for nobody.
    assert [book_visit(host, 0.0, 60.0) for host in ("own", "own", "another")] == [0.0, 0.0, 0.0]
    pace.offer("visited", "visited", 0.0)
    assert items(take_all(pace, 0.0)) == ["visited"]


async def test_hosts_that_were_visited_long_ago_are_removed() -> None:
    pace = pace_of(host_requests_per_second=5.0)
    pace.offer("own", "own", 0.0)
    (turn,) = take_all(pace, 0.0)
    turn.begin()
    for number in range(100):
        book_visit(f"visited {number}", number / 10, 60.0)
    assert list(pace._next_visit_s) == ["visited 98", "visited 99"]


def test_visits_without_a_permit_do_not_wait() -> None:
    assert [book_visit("visited", 0.0, 60.0) for _ in range(100)] == [0.0] * 100


def test_idle_hosts_and_addresses_are_removed() -> None:
    pace = pace_of(host_requests_per_second=5.0)
    for number in range(100):
        pace.offer(f"host {number}", "x", 0.0)
    for turn in take_all(pace, 0.0):
        pace.admit(turn, "192.0.2.1") if turn.host == "host 0" else None
        pace.end(turn, 3, 0.1)
    assert take_all(pace, 100.0) == []
    assert (pace._hosts, pace._at_address, pace._timers, pace._lines) == ({}, {}, [], {})


@settings(max_examples=examples(40))
@given(st.data())
def test_state_machine_exceeds_no_limit_and_starves_no_target(data: st.DataObject) -> None:
    pace = pace_of(concurrency=6, per_host=2, per_address=2, host_requests_per_second=10.0)
    address_of = {host: f"192.0.2.{number % 3}" for number, host in enumerate("abcdefgh")}
    waiting: Counter[str] = Counter()
    under_way: list[tuple[Permit[str], bool]] = []
    now_s = offered = 0.0
    started: Counter[str] = Counter()
    for _ in range(data.draw(st.integers(10, 60))):
        now_s += data.draw(st.sampled_from([0.0, 0.01, 0.15]))
        if data.draw(st.booleans()):
            host = data.draw(st.sampled_from("abcdefgh"))
            pace.offer(host, host, now_s)
            waiting[host] += 1
            offered += 1
        _start(pace, under_way, address_of, now_s, started)
        is_time_to_end = data.draw(st.booleans())
        if under_way and is_time_to_end:
            turn, _ = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            pace.end(turn, data.draw(st.integers(0, 4)), now_s)
        _check_limits(under_way, address_of)
    for _ in range(500):
        now_s += 0.1
        _start(pace, under_way, address_of, now_s, started)
        _check_limits(under_way, address_of)
        while under_way:
            pace.end(under_way.pop()[0], 2, now_s)
    assert started.total() == offered
    assert (pace.waiting, pace.in_flight, pace._hosts, pace._at_address) == (0, 0, {}, {})


def _start(
    pace: HostLimiter[str],
    under_way: list[tuple[Permit[str], bool]],
    address_of: dict[str, str],
    now_s: float,
    started: Counter[str],
) -> None:
    while (turn := pace.take(now_s)) is not None:
        try:
            pace.admit(turn, address_of[turn.host])
        except AddressBusy as busy:
            pace.put_off(turn, busy)
        else:
            started[turn.host] += 1
            under_way.append((turn, True))


def _check_limits(under_way: list[tuple[Permit[str], bool]], address_of: dict[str, str]) -> None:
    hosts = Counter(turn.host for turn, _ in under_way)
    addresses = Counter(address_of[turn.host] for turn, _ in under_way)
    assert len(under_way) <= 6
    assert max(hosts.values(), default=0) <= 2
    assert max(addresses.values(), default=0) <= 2
