"""The witnesses of one prober."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.prober.worker.test_waiting_failures import failure
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from lifesign.domain.net.network_class import PUBLIC_IPV4, PUBLIC_IPV6, THIS_MACHINE, UNKNOWN_CLASS
from lifesign.domain.observation.witness_rule import Canary, WitnessPolicy
from lifesign.prober.network.host_limiter import HostLimiter, admit
from lifesign.prober.reachability.witness_requests import WitnessReply
from lifesign.prober.registry_exchange.ledger import Answered, WitnessNews
from lifesign.prober.worker.reachability_witnesses import MAX_KNOWN_HOSTS, ReachabilityWitnesses
from lifesign.prober.worker.waiting_failures import WaitingFailure, WaitingFailures

PRIVATE = "10.1.0.0/16"
FIVE = tuple(Canary(url=f"https://canary-{number}.example/") for number in range(5))
NAMED, NUMBERED = "http://canary.internal/", "http://10.1.0.9/"
INTERVAL_S = 300.0


class Bench:
    """Witnesses, whom they ask, and what became of failures."""

    def __init__(self, *, canaries: dict[str, Sequence[Canary]] | None = None, **policy: float) -> None:
        self.loop = virtual_loop()
        self.failures = WaitingFailures()
        self.asked: list[tuple[float, str, Sequence[str]]] = []
        self.silent: set[str] = set()
        self.statuses: dict[str, int] = {}
        self.is_looked_up = True
        self.unresolved: set[str] = set()
        """Witnesses whose names are not looked up, for example because they have IP addresses."""
        self.offsets_s: dict[str, float] = {}
        """Offsets of this machine's clock from those of the witnesses."""
        self.defect: Exception | None = None
        self.connects_to: str | None = None
        self.witnessed: list[tuple[float, WaitingFailure]] = []
        self.unwitnessed: list[tuple[float, WaitingFailure]] = []
        self.witnesses = ReachabilityWitnesses(
            self.failures,
            self,
            self.loop.clock,
            class_names=[PUBLIC_IPV4, PUBLIC_IPV6, PRIVATE],
            canaries=canaries or {},
            policy=WitnessPolicy(**policy),
            interval_s=INTERVAL_S,
            witnessed=self._note_witnessed,
            unwitnessed=self._note_unwitnessed,
        )

    async def ask(self, urls: Sequence[str], network_class: str, timeout_s: float) -> Sequence[WitnessReply]:
        self.asked.append((self.loop.time(), network_class, urls))
        if self.connects_to is not None:
            admit(self.connects_to)
        await asyncio.sleep(timeout_s if self.silent.intersection(urls) else 0.1)
        if self.defect is not None:
            raise self.defect
        return [
            WitnessReply(reason="silent")
            if url in self.silent
            else WitnessReply(
                status=self.statuses.get(url, 200),
                is_looked_up=self.is_looked_up and url not in self.unresolved,
                clock_offset_s=self.offsets_s.get(url),
            )
            for url in urls
        ]

    def fail(self, network_class: str = PUBLIC_IPV4, **facts: Any) -> WaitingFailure:
        failed = failure(self.loop.time(), network_class, **facts)
        self.witnesses.add(failed)
        return failed

    def answer(
        self,
        host: str,
        network_class: str = PUBLIC_IPV4,
        *,
        sent_s_ago: float = 0.1,
        scheme: str = "https",
    ) -> None:
        sent_at_s = self.loop.time() - sent_s_ago
        url = f"{scheme}://{host}/"
        answered = Answered(network_class=network_class, url=url, sent_at_s=sent_at_s)
        self.witnesses.note_answer(host, answered)

    def _note_witnessed(self, failures: Sequence[WaitingFailure]) -> None:
        self.witnessed += [(self.loop.time(), each) for each in failures]
        self.failures.asked_again -= len(failures)

    def _note_unwitnessed(self, failures: Sequence[WaitingFailure], why: str) -> None:
        assert why
        self.unwitnessed += [(self.loop.time(), each) for each in failures]


# Canaries


@in_virtual_time
async def test_canaries_are_requested_at_once_and_then_every_30_s_for_all_failures() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    began_s = bench.loop.time()
    first = bench.fail()
    await asyncio.sleep(1)
    assert [each for _, each in bench.witnessed] == [first]
    many = []
    for _ in range(1_000):
        many.append(bench.fail())
        await asyncio.sleep(0.02)
    assert len(bench.asked) == 1
    await asyncio.sleep(15)
    assert [at_s - began_s for at_s, *_ in bench.asked] == pytest.approx([0.0, 30.0])
    assert [each for _, each in bench.witnessed] == [first, *many]
    assert bench.unwitnessed == []
    assert {len(urls) for _, _, urls in bench.asked} == {5}


@in_virtual_time
async def test_hundred_thousand_failures_cause_one_witness_round_per_30_s() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    for _ in range(100):
        for _ in range(50):
            bench.fail()
        await asyncio.sleep(3)
    await asyncio.sleep(31)
    assert len(bench.asked) <= 11
    assert len(bench.witnessed) == 5_000
    assert len(bench.failures) == 0


@in_virtual_time
async def test_requests_to_canaries_use_no_permit_of_the_failed_probe() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    bench.connects_to = "192.0.2.1"
    pace: HostLimiter[int] = HostLimiter(concurrency=9, per_host=9, per_address=1, host_requests_per_second=9)
    for number in range(3):
        pace.offer("agent.example", number, bench.loop.time())
        turn = pace.take(bench.loop.time())
        assert turn is not None
        turn.begin()
        bench.fail()
        pace.end(turn, 1, bench.loop.time())
        await asyncio.sleep(31)
    assert len(bench.witnessed) == 3
    assert bench.unwitnessed == []


@pytest.mark.parametrize(("silent", "counts"), [(0, True), (2, True), (3, False), (5, False)])
def test_half_of_the_canaries_must_answer(silent: int, *, counts: bool) -> None:
    @in_virtual_time
    async def assess() -> None:
        bench = Bench(canaries={PUBLIC_IPV4: FIVE})
        bench.silent = {canary.url for canary in FIVE[:silent]}
        bench.fail()
        await asyncio.sleep(4)
        assert (len(bench.witnessed), len(bench.unwitnessed)) == ((1, 0) if counts else (0, 1))

    assess()


@in_virtual_time
async def test_canary_with_an_unexpected_status_does_not_count() -> None:
    canaries = [Canary(url="http://10.1.0.1/", status=401), Canary(url="http://10.1.0.2/")]
    bench = Bench(canaries={PRIVATE: canaries})
    bench.statuses = {"http://10.1.0.1/": 200, "http://10.1.0.2/": 503}
    bench.fail(PRIVATE)
    await asyncio.sleep(1)
    assert (len(bench.witnessed), len(bench.unwitnessed)) == (0, 1)
    bench.statuses["http://10.1.0.1/"] = 401
    await asyncio.sleep(30)
    bench.fail(PRIVATE)
    await asyncio.sleep(1)
    assert (len(bench.witnessed), len(bench.unwitnessed)) == (1, 1)


@in_virtual_time
async def test_target_answers_are_no_witnesses_in_a_class_with_canaries() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    bench.silent = {canary.url for canary in FIVE}
    bench.fail()
    for number in range(20):
        await asyncio.sleep(0.1)
        bench.answer(f"host-{number}.example")
    await asyncio.sleep(4)
    assert (len(bench.witnessed), len(bench.unwitnessed)) == (0, 1)


@in_virtual_time
async def test_a_failure_without_a_witness_never_counts_later() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    bench.silent = {canary.url for canary in FIVE}
    first = bench.fail()
    await asyncio.sleep(10)
    bench.silent.clear()
    second = bench.fail()
    await asyncio.sleep(60)
    assert [each for _, each in bench.unwitnessed] == [first]
    assert [each for _, each in bench.witnessed] == [second]


@in_virtual_time
async def test_each_network_class_has_its_own_witnesses() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE, PUBLIC_IPV6: FIVE})
    four, six = bench.fail(PUBLIC_IPV4), bench.fail(PUBLIC_IPV6)
    await asyncio.sleep(1)
    assert {network_class for _, network_class, _ in bench.asked} == {PUBLIC_IPV4, PUBLIC_IPV6}
    assert {each for _, each in bench.witnessed} == {four, six}


@pytest.mark.parametrize(
    ("offsets_s", "is_confirmed"),
    [([], False), ([31.0, -31.0], False), ([5_184_000.0] * 5, False), ([5_184_000.0, -30.0], True)],
)
def test_date_failure_needs_a_canary_with_the_same_time(
    offsets_s: list[float], *, is_confirmed: bool
) -> None:
    @in_virtual_time
    async def ask() -> None:
        bench = Bench(canaries={PUBLIC_IPV4: FIVE})
        bench.offsets_s = {canary.url: offset_s for canary, offset_s in zip(FIVE, offsets_s, strict=False)}
        date, other = bench.fail(is_date_failure=True), bench.fail()
        await asyncio.sleep(1)
        assert {each for _, each in bench.witnessed} == ({date, other} if is_confirmed else {other})
        assert [each for _, each in bench.unwitnessed] == ([] if is_confirmed else [date])

    ask()


@in_virtual_time
async def test_tls_failure_needs_a_canary_over_tls() -> None:
    """A proxy shows a certificate that this machine does not trust."""
    canaries = [Canary(url="http://10.1.0.1/"), Canary(url="https://10.1.0.2/")]
    bench = Bench(canaries={PRIVATE: canaries})
    bench.silent = {"https://10.1.0.2/"}
    tls, other = bench.fail(PRIVATE, is_tls_failure=True), bench.fail(PRIVATE)
    await asyncio.sleep(5)
    assert [each for _, each in bench.witnessed] == [other]
    assert [each for _, each in bench.unwitnessed] == [tls]
    bench.silent = {"http://10.1.0.1/"}
    again = bench.fail(PRIVATE, is_tls_failure=True)
    await asyncio.sleep(40)
    assert [each for _, each in bench.witnessed] == [other, again]


@in_virtual_time
async def test_tls_failure_needs_a_target_that_answers_over_tls() -> None:
    bench = Bench()
    tls, other = bench.fail(PRIVATE, is_tls_failure=True), bench.fail(PRIVATE)
    await asyncio.sleep(1)
    bench.answer("10.1.0.1", PRIVATE, scheme="http")
    assert [each for _, each in bench.witnessed] == [other]
    bench.answer("10.1.0.2", PRIVATE)
    assert [each for _, each in bench.witnessed] == [other, tls]


@in_virtual_time
async def test_name_failure_needs_a_resolved_canary() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    bench.is_looked_up = False
    name, other = bench.fail(is_name_failure=True), bench.fail()
    await asyncio.sleep(1)
    assert [each for _, each in bench.witnessed] == [other]
    assert [each for _, each in bench.unwitnessed] == [name]


@pytest.mark.parametrize(
    ("hosts", "unresolved", "is_proved"),
    [
        (("a.example", "b.example", "c.example"), 1, True),
        (("a.example", "b.example", "c.example"), 2, False),
        (("10.1.0.1", "10.1.0.2", "c.example"), 2, True),
        (("10.1.0.1", "10.1.0.2", "[fd00::1]"), 3, False),
    ],
)
def test_name_failure_needs_half_of_the_canaries_with_names(
    hosts: tuple[str, ...], unresolved: int, *, is_proved: bool
) -> None:
    """Name servers may fail for some zones only."""

    @in_virtual_time
    async def ask() -> None:
        canaries = [Canary(url=f"http://{host}/") for host in hosts]
        bench = Bench(canaries={PRIVATE: canaries})
        bench.unresolved = {canary.url for canary in canaries[:unresolved]}
        name, other = bench.fail(PRIVATE, is_name_failure=True), bench.fail(PRIVATE)
        await asyncio.sleep(1)
        assert {each for _, each in bench.witnessed} == ({name, other} if is_proved else {other})

    ask()


@in_virtual_time
async def test_unexpected_error_in_a_witness_request_counts_as_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    bench.defect = ZeroDivisionError("a defect")
    bench.fail()
    await asyncio.sleep(1)
    assert len(bench.unwitnessed) == 1
    # The traceback ends with the line that names the defect.
    assert "ZeroDivisionError: a defect" in caplog.text


@in_virtual_time
async def test_canary_without_a_first_answer_is_an_error_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    bench.silent = {FIVE[0].url}
    await bench.witnesses.ask_canaries()
    (error,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert FIVE[0].url in error.getMessage()
    bench.silent.clear()
    await asyncio.sleep(31)
    bench.fail()
    await asyncio.sleep(1)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


# Other targets


@in_virtual_time
async def test_the_next_answer_of_another_target_is_a_witness() -> None:
    bench = Bench()
    failed = bench.fail()
    await asyncio.sleep(0.5)
    # It was sent before the failure.
    bench.answer("a.example", sent_s_ago=0.6)
    assert bench.witnessed == []
    bench.answer("b.example", PUBLIC_IPV6)
    assert bench.witnessed == []
    bench.answer("b.example", sent_s_ago=0.4)
    assert [each for _, each in bench.witnessed] == [failed]
    await asyncio.sleep(60)
    assert bench.asked == []


@in_virtual_time
async def test_three_latest_answering_targets_are_requested_as_witnesses() -> None:
    bench = Bench()
    for number in range(6):
        bench.answer(f"{number}.example")
        await asyncio.sleep(10)
    bench.silent = {"https://5.example/", "https://4.example/"}
    bench.witnesses.note_failure("3.example", PUBLIC_IPV4)
    failed = bench.fail()
    began_s = bench.loop.time()
    await asyncio.sleep(4.9)
    assert bench.asked == []
    await asyncio.sleep(4)
    assert bench.asked == [
        (began_s + 5.0, PUBLIC_IPV4, ["https://5.example/", "https://4.example/", "https://2.example/"])
    ]
    assert [each for _, each in bench.witnessed] == [failed]


@in_virtual_time
async def test_assigned_witnesses_are_requested_once_if_fewer_targets_answered() -> None:
    bench = Bench()
    bench.answer("own.example")
    handed_out = [(PUBLIC_IPV4, f"https://other-{number}.example/") for number in range(3)]
    bench.witnesses.apply_witness_news(WitnessNews(handed_out=handed_out))
    bench.silent = {"https://own.example/"}
    bench.fail()
    await asyncio.sleep(9)
    (round_,) = bench.asked
    assert len(round_[2]) == 3
    assert round_[2][0] == "https://own.example/"
    assert len(bench.witnessed) == 1
    await asyncio.sleep(60)
    bench.fail()
    await asyncio.sleep(9)
    # One of them was not asked yet.
    assert len(bench.asked[1][2]) == 2
    assert not set(bench.asked[1][2][1:]) & set(round_[2][1:])


@in_virtual_time
async def test_class_without_any_answer_has_no_witness() -> None:
    bench = Bench()
    failed = bench.fail()
    await asyncio.sleep(6)
    assert [each for _, each in bench.unwitnessed] == [failed]
    assert (bench.asked, bench.witnesses.unreached_classes) == ([], ())


@in_virtual_time
async def test_witness_target_is_requested_at_most_every_30_s() -> None:
    bench = Bench()
    bench.answer("a.example")
    for _ in range(100):
        bench.fail()
        await asyncio.sleep(1)
    await asyncio.sleep(40)
    gaps = [later - earlier for (earlier, *_), (later, *_) in zip(bench.asked, bench.asked[1:], strict=False)]
    assert min(gaps) >= 30
    assert len(bench.witnessed) == 100


@in_virtual_time
async def test_public_class_needs_tls_for_an_answer() -> None:
    bench = Bench()
    bench.witnesses.note_known("a.example", PUBLIC_IPV4, "http://a.example/", 5.0)
    bench.witnesses.apply_witness_news(WitnessNews(handed_out=[(PUBLIC_IPV4, "http://b.example/")]))
    bench.witnesses.note_known("c", PRIVATE, "http://c/", 5.0)
    bench.fail()
    bench.fail(PRIVATE)
    await asyncio.sleep(9)
    assert [urls for *_, urls in bench.asked] == [["http://c/"]]


@in_virtual_time
async def test_targets_that_answered_this_worker_come_first() -> None:
    bench = Bench()
    for number in (3, 5, 4):
        bench.witnesses.note_known(f"{number}.example", PUBLIC_IPV4, f"https://{number}.example/", number)
    bench.answer("new.example")
    bench.fail()
    await asyncio.sleep(9)
    assert bench.asked[0][2] == ["https://new.example/", "https://5.example/", "https://4.example/"]


@in_virtual_time
async def test_new_prober_uses_assigned_witnesses_despite_invented_hosts() -> None:
    bench = Bench()
    now_s = bench.loop.clock.wall_s()
    for number in range(MAX_KNOWN_HOSTS):
        url = f"https://invented-{number}.example/"
        bench.witnesses.note_known(f"invented-{number}.example", PUBLIC_IPV4, url, now_s)
        bench.silent.add(url)
    assert (await bench.witnesses.witness_report()).wanted[PUBLIC_IPV4] == 3
    bench.witnesses.apply_witness_news(WitnessNews(handed_out=[(PUBLIC_IPV4, "https://good.example/")]))
    failed = bench.fail()
    await asyncio.sleep(9)
    assert [each for _, each in bench.witnessed] == [failed]


@in_virtual_time
async def test_silent_witnesses_do_not_prevent_requests_to_others() -> None:
    bench = Bench()
    now_s = bench.loop.clock.wall_s()
    for number in range(3):
        bench.witnesses.note_known(f"good{number}", PUBLIC_IPV4, f"https://good{number}.example/", now_s - 60)
    # The report of another prober was invented.
    for number in range(3):
        url = f"https://evil{number}.example/"
        bench.witnesses.note_known(f"evil{number}", PUBLIC_IPV4, url, 1e300)
        bench.silent.add(url)
    failures = []
    for _ in range(3):
        failures.append(bench.fail())
        await asyncio.sleep(60)
    asked = [{url.removeprefix("https://")[:4] for url in urls} for _, _, urls in bench.asked]
    assert asked == [{"evil"}, {"good"}, {"good"}]
    assert [each for _, each in bench.witnessed] == failures[1:]
    # A moment that lies ahead is now: who answers this prober is asked first.
    bench.answer("later.example")
    bench.fail()
    await asyncio.sleep(60)
    assert bench.asked[-1][2][0] == "https://later.example/"


@in_virtual_time
async def test_bounded_number_of_latest_answering_hosts_is_stored() -> None:
    bench = Bench()
    for number in range(2 * MAX_KNOWN_HOSTS):
        bench.witnesses.note_known(f"old {number}", PUBLIC_IPV4, f"https://old-{number}.example/", number)
        bench.answer(f"new {number}")
    state = bench.witnesses._classes[PUBLIC_IPV4]
    assert list(state.known) == [f"new {number}" for number in range(MAX_KNOWN_HOSTS, 2 * MAX_KNOWN_HOSTS)]


# Mass silence


@in_virtual_time
async def test_targets_of_a_class_in_mass_silence_are_no_witnesses() -> None:
    bench = Bench()
    bench.answer("a.example")
    failed = bench.fail()
    bench.witnesses.apply_witness_news(WitnessNews(silent_classes=frozenset({PUBLIC_IPV4})))
    assert [each for _, each in bench.unwitnessed] == [failed]
    assert bench.witnesses.is_silent(PUBLIC_IPV4)
    later = bench.fail()
    await asyncio.sleep(1)
    bench.answer("b.example")
    await asyncio.sleep(10)
    assert [each for _, each in bench.unwitnessed] == [failed, later]
    assert bench.witnessed == []


@in_virtual_time
async def test_mass_silence_changes_nothing_where_there_are_canaries() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    bench.witnesses.apply_witness_news(WitnessNews(silent_classes=frozenset({PUBLIC_IPV4})))
    bench.fail()
    await asyncio.sleep(1)
    assert len(bench.witnessed) == 1


# Contents of a claim


@in_virtual_time
async def test_reached_classes_are_unknown_before_targets_are_read() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    witness_report = await bench.witnesses.witness_report()
    assert witness_report.reached_classes is None
    assert witness_report.wanted == {PUBLIC_IPV6: 3, PRIVATE: 3}
    assert witness_report.interval_s == INTERVAL_S


@in_virtual_time
async def test_reached_classes_are_those_of_answering_witnesses() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    bench.witnesses.has_read_targets = True
    bench.answer("six.example", PUBLIC_IPV6)
    bench.witnesses.note_known("ten", PRIVATE, "http://ten/", 1.0)
    witness_report = await bench.witnesses.witness_report()
    assert set(witness_report.reached_classes or ()) == {PUBLIC_IPV4, PUBLIC_IPV6, PRIVATE}
    # The report of another worker may be invented: it lowers no number.
    assert witness_report.wanted == {PUBLIC_IPV6: 2, PRIVATE: 3}
    # Once more within the interval, nothing is asked.
    rounds = len(bench.asked)
    assert rounds == 2
    await bench.witnesses.witness_report()
    assert len(bench.asked) == rounds
    bench.silent = {canary.url for canary in FIVE}
    await asyncio.sleep(INTERVAL_S + 1)
    witness_report = await bench.witnesses.witness_report()
    assert set(witness_report.reached_classes or ()) == {PUBLIC_IPV6, PRIVATE}
    assert bench.witnesses.unreached_classes == (PUBLIC_IPV4,)


@in_virtual_time
async def test_class_without_own_targets_uses_the_assigned_witnesses() -> None:
    bench = Bench()
    bench.witnesses.has_read_targets = True
    bench.answer("four.example")
    assert (await bench.witnesses.witness_report()).reached_classes == [PUBLIC_IPV4]
    bench.witnesses.apply_witness_news(WitnessNews(handed_out=[(PUBLIC_IPV6, "https://six.example/")]))
    bench.answer("four.example")
    assert set((await bench.witnesses.witness_report()).reached_classes or ()) == {PUBLIC_IPV4, PUBLIC_IPV6}
    # It stays so while there is nothing to ask.
    await asyncio.sleep(2 * INTERVAL_S)
    bench.answer("four.example")
    assert set((await bench.witnesses.witness_report()).reached_classes or ()) == {PUBLIC_IPV4, PUBLIC_IPV6}
    bench.silent = {"https://six.example/"}
    bench.witnesses.apply_witness_news(WitnessNews(handed_out=[(PUBLIC_IPV6, "https://six.example/")]))
    await asyncio.sleep(31)
    bench.answer("four.example")
    assert (await bench.witnesses.witness_report()).reached_classes == [PUBLIC_IPV4]


@in_virtual_time
async def test_witness_round_for_a_claim_also_resolves_waiting_failures() -> None:
    bench = Bench()
    bench.witnesses.has_read_targets = True
    bench.witnesses.note_known("a.example", PUBLIC_IPV4, "https://a.example/", 1.0)
    bench.fail()
    await bench.witnesses.witness_report()
    assert (len(bench.asked), len(bench.witnessed)) == (1, 1)


@in_virtual_time
async def test_missing_network_class_counts_as_public_and_an_unknown_one_has_no_witness() -> None:
    bench = Bench()
    for known in (PRIVATE, THIS_MACHINE, UNKNOWN_CLASS):
        assert bench.witnesses.class_for(known) == known
    assert [bench.witnesses.is_without_witness(each) for each in (PRIVATE, UNKNOWN_CLASS)] == [False, True]
    assert bench.witnesses.class_for(None) == PUBLIC_IPV4
    bench.answer("six.example", PUBLIC_IPV6)
    assert bench.witnesses.class_for(None) == PUBLIC_IPV6
    # Answers of this network class are not kept.
    bench.answer("a.example", "10.9.0.0/16")
    bench.witnesses.note_known("b.example", "10.9.0.0/16", "http://b.example/", 1.0)
    bench.witnesses.note_failure("b.example", "10.9.0.0/16")
    bench.witnesses.apply_witness_news(WitnessNews(handed_out=[("10.9.0.0/16", "http://b.example/")]))
    assert "10.9.0.0/16" not in (await bench.witnesses.witness_report()).wanted


@pytest.mark.parametrize(
    ("silent", "unresolved", "network_class"),
    [
        ((), (), PUBLIC_IPV4),
        ((NAMED, NUMBERED), (), PRIVATE),
        ((NAMED,), (), PRIVATE),
        ((), (NAMED,), PRIVATE),
        ((NUMBERED,), (), PUBLIC_IPV4),
    ],
)
def test_name_without_a_class_may_be_one_of_a_network_whose_canaries_fail(
    silent: Sequence[str], unresolved: Sequence[str], network_class: str
) -> None:
    """Without a VPN, names of its zone resolve nowhere, and public canaries still answer."""

    @in_virtual_time
    async def assess() -> None:
        private = [Canary(url=NAMED), Canary(url=NUMBERED)]
        bench = Bench(canaries={PUBLIC_IPV4: FIVE, PUBLIC_IPV6: FIVE, PRIVATE: private})
        bench.silent, bench.unresolved = {*silent, FIVE[0].url}, {*unresolved, NUMBERED}
        await bench.witnesses.ask_canaries()
        assert bench.witnesses.class_for(None) == network_class
        bench.silent, bench.unresolved = {FIVE[0].url}, {NUMBERED}
        await asyncio.sleep(INTERVAL_S)
        bench.fail(PRIVATE)
        await asyncio.sleep(5)
        assert bench.witnesses.class_for(None) == PUBLIC_IPV4

    assess()


@in_virtual_time
async def test_network_with_canaries_without_names_says_nothing_about_names() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE, PRIVATE: [Canary(url=NUMBERED)]})
    bench.unresolved = {NUMBERED}
    await bench.witnesses.ask_canaries()
    assert bench.witnesses.class_for(None) == PUBLIC_IPV4


@in_virtual_time
async def test_running_witness_requests_are_cancelled() -> None:
    bench = Bench(canaries={PUBLIC_IPV4: FIVE})
    bench.silent = {FIVE[0].url}
    bench.fail()
    await asyncio.sleep(0.01)
    await bench.witnesses.close()
    await asyncio.sleep(60)
    assert (bench.witnessed, bench.unwitnessed) == ([], [])


@in_virtual_time
async def test_target_with_tls_and_one_with_a_name_are_always_requested() -> None:
    """A failure of TLS or of a name needs such a witness, and it may not be among the newest."""
    bench = Bench()
    for number, url in enumerate(
        ("https://10.1.0.1/", "http://a.example/", *(f"http://10.1.0.{n}/" for n in (2, 3, 4)))
    ):
        answered = Answered(network_class=PRIVATE, url=url, sent_at_s=bench.loop.time())
        bench.witnesses.note_answer(f"host-{number}", answered)
        await asyncio.sleep(1)
    bench.fail(PRIVATE, is_tls_failure=True)
    await asyncio.sleep(60)
    assert len(bench.witnessed) == 1
    assert {*bench.asked[0][2]} == {"https://10.1.0.1/", "http://a.example/", "http://10.1.0.4/"}
