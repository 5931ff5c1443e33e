import asyncio
import socket

import pytest
from tests.support.both_loops import on_both_loops
from tests.support.dns_server import Alias, Answer, Failure, Names, Turns, dns_serving
from tests.support.open_files import no_more_than, open_files

from lifesign.prober.network import lookup_width
from lifesign.prober.network import resolver as resolver_module
from lifesign.prober.network.dns_lookup import NameAnswer, Report
from lifesign.prober.network.resolver import NoAddress, Resolver

HERE: Answer = ("127.0.0.1",)
SHORT_S = 0.4


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "ROOT_SECONDS", 0.2)


def texts(found: object) -> list[str]:
    assert isinstance(found, tuple), found
    return [str(address) for address in found]


def is_fault(found: object) -> bool:
    assert isinstance(found, NoAddress), found
    assert found.reason
    return found.is_resolver_fault


# ── names ──


@on_both_loops
async def test_name_has_the_addresses_of_its_server() -> None:
    names: Names = {
        "both.example": ("192.0.2.1", "2001:db8::1", "192.0.2.2"),
        "alias.example": Alias("far.example"),
        "far.example": Alias("end.example"),
        "end.example": ("192.0.2.9",),
        "six.example": ("2001:db8::6",),
    }
    async with dns_serving(names) as dns, Resolver([dns.address]) as resolver:
        assert set(texts(await resolver.resolve("both.example"))) == {"192.0.2.1", "192.0.2.2", "2001:db8::1"}
        assert texts(await resolver.resolve("alias.example")) == ["192.0.2.9"]
        assert texts(await resolver.resolve("six.example")) == ["2001:db8::6"]


async def test_both_families_are_queried_whatever_the_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    def private(connected: socket.socket) -> tuple[str, int]:
        return ("fd00::2" if connected.family is socket.AF_INET6 else "192.168.1.5", 0)

    both = ("192.0.2.1", "fd00::1")
    async with dns_serving({"both.example": both}) as dns:
        monkeypatch.setattr(socket.socket, "connect", lambda *_: None)
        monkeypatch.setattr(socket.socket, "getsockname", private)
        async with Resolver([dns.address]) as resolver:
            assert set(texts(await resolver.resolve("both.example"))) == set(both)


@on_both_loops
async def test_name_without_an_address_fails_the_target() -> None:
    names: Names = {"empty.example": Failure.NO_DATA, "dangling.example": Alias("gone.example")}
    async with dns_serving(names) as dns, Resolver([dns.address]) as resolver:
        for name in ("unknown.example", "empty.example", "dangling.example"):
            assert not is_fault(await resolver.resolve(name))
        assert resolver.faults == 0


@on_both_loops
async def test_localhost_is_loopback_without_a_query() -> None:
    async with dns_serving({"localhost": ("192.0.2.1",)}) as dns, Resolver([dns.address]) as resolver:
        for name in ("localhost", "a.localhost"):
            assert set(texts(await resolver.resolve(name))) <= {"127.0.0.1", "::1"}
        assert dns.asked.total() == 0


async def test_name_is_resolved_without_search_domains() -> None:
    async with dns_serving({}) as dns, Resolver([dns.address]) as resolver:
        assert not is_fault(await resolver.resolve("short"))
        assert set(dns.asked) == {"short"}


# ── cache ──


async def test_a_name_is_remembered_as_long_as_its_answer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    names: Names = {"a.example": Turns(("192.0.2.1",), ("192.0.2.2",))}
    async with dns_serving(names, ttl_s=0) as dns, Resolver([dns.address]) as resolver:
        assert texts(await resolver.resolve("a.example")) == ["192.0.2.1"]
        assert texts(await resolver.resolve("a.example")) == ["192.0.2.1"]
        assert resolver.lookups == 1
    monkeypatch.setattr(resolver_module, "MIN_TTL_SECONDS", 0)
    async with dns_serving(names, ttl_s=0) as dns, Resolver([dns.address]) as resolver:
        assert texts(await resolver.resolve("a.example")) == ["192.0.2.1"]
        assert texts(await resolver.resolve("a.example")) == ["192.0.2.2"]
        assert resolver.lookups == 2


async def test_dns_answers_are_cached_up_to_a_maximum_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "MIN_TTL_SECONDS", 0)
    monkeypatch.setattr(resolver_module, "MAX_TTL_SECONDS", 0)
    async with dns_serving({"a.example": HERE}, ttl_s=10**6) as dns, Resolver([dns.address]) as resolver:
        await resolver.resolve("a.example")
        assert resolver.remembered("a.example") is None


async def test_negative_dns_answer_is_cached_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dns_serving({}) as dns, Resolver([dns.address]) as resolver:
        await resolver.resolve("a.example")
        assert isinstance(resolver.remembered("a.example"), NoAddress)
        monkeypatch.setattr(resolver_module, "NO_ADDRESS_SECONDS", 0)
        await resolver.resolve("b.example")
        assert resolver.remembered("b.example") is None


async def test_oldest_names_are_removed_from_the_dns_cache_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "MAX_NAMES", 2)
    names: Names = {f"{letter}.example": HERE for letter in "abc"}
    async with dns_serving(names) as dns, Resolver([dns.address]) as resolver:
        for name in names:
            await resolver.resolve(name)
        assert [resolver.remembered(name) is None for name in names] == [True, False, False]


@on_both_loops
async def test_answer_without_records_is_not_repeated_from_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "NO_ADDRESS_SECONDS", 0)
    names: Names = {"a.example": Turns(Failure.NO_DATA, HERE), "b.example": HERE}
    async with dns_serving(names) as dns, Resolver([dns.address]) as resolver:
        assert isinstance(await resolver.resolve("a.example"), NoAddress)
        assert texts(await resolver.resolve("b.example")) == ["127.0.0.1"]
        assert texts(await resolver.resolve("a.example")) == ["127.0.0.1"]
        await asyncio.gather(*resolver._retiring)


@on_both_loops
async def test_c_ares_is_restarted_only_for_names_that_it_has_answered() -> None:
    names: Names = {f"n{number}.example": HERE for number in range(20)}
    async with dns_serving(names) as dns, Resolver([dns.address]) as resolver:
        channels = set()
        for _ in range(2):
            for name in names:
                await resolver.resolve(name)
                channels.add(id(resolver._channel))
            resolver._kept.clear()
        assert len(channels) == 2
        assert dns.asked["n0.example"] == 4
        await asyncio.gather(*resolver._retiring)


@on_both_loops
async def test_only_addresses_found_before_a_failure_are_forgotten() -> None:
    names: Names = {"a.example": Turns(("192.0.2.1",), ("192.0.2.2",))}
    async with dns_serving(names) as dns, Resolver([dns.address]) as resolver:
        before_s = asyncio.get_running_loop().time() - 1
        wrong = await resolver.resolve("a.example")
        for failed_at_s in (None, before_s):
            await resolver.look_up_again("a.example", failed_at_s)
            assert resolver.remembered("a.example") == wrong
        await resolver.look_up_again("a.example", asyncio.get_running_loop().time())
        assert texts(await resolver.resolve("a.example")) == ["192.0.2.2"]
        await asyncio.gather(*resolver._retiring)


@pytest.mark.parametrize("later", [("192.0.2.2",), Failure.SILENCE, Failure.SERVFAIL, Failure.NXDOMAIN])
@on_both_loops
async def test_addresses_are_replaced_only_by_others(
    later: Answer | Failure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver_module, "MIN_TTL_SECONDS", 0.0)
    monkeypatch.setattr(resolver_module, "RENEWAL_SECONDS", SHORT_S)
    names: Names = {"a.example": ("192.0.2.1",)}
    async with dns_serving(names) as dns, Resolver([dns.address], timeout_s=SHORT_S) as resolver:
        await resolver.look_up_again("a.example")
        assert resolver.remembered("a.example") is None
        await resolver.resolve("a.example")
        dns.names["a.example"] = later
        await resolver.look_up_again("a.example")
        expected = "192.0.2.2" if later == ("192.0.2.2",) else "192.0.2.1"
        assert texts(resolver.remembered("a.example")) == [expected]
        assert resolver.faults == 0
        await asyncio.gather(*resolver._retiring)


@on_both_loops
async def test_name_with_many_callers_is_resolved_once() -> None:
    async with dns_serving({"a.example": HERE}) as dns, Resolver([dns.address]) as resolver:
        leaving = asyncio.create_task(resolver.resolve("a.example"))
        others = [asyncio.create_task(resolver.resolve("a.example")) for _ in range(50)]
        await asyncio.sleep(0)
        # The first caller leaves; the others get their answer all the same.
        leaving.cancel()
        for found in await asyncio.gather(*others):
            assert texts(found) == ["127.0.0.1"]
        # One question for each family.
        assert dns.asked["a.example"] == 2


@on_both_loops
async def test_concurrent_lookups_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_width, "MAX_LOOKUPS_AT_ONCE", 3)
    names: Names = {f"n{number}.example": Failure.SILENCE for number in range(20)}
    async with dns_serving(names) as dns, Resolver([dns.address], timeout_s=2) as resolver:
        # Callers that wait for the same name share the answer.
        asking = [asyncio.create_task(resolver.resolve(name)) for name in [*names, *names]]
        while len(dns.asked) < 3:  # noqa: ASYNC110 - it is others who ask
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert len(dns.asked) == 3
        for name in names:
            dns.names[name] = HERE
        found = await asyncio.gather(*asking)
        assert [texts(one) for one in found] == [["127.0.0.1"]] * 40
        # One question for each family; the first three were asked once more, unless a question came late.
        asked = sorted(dns.asked.values())
        assert asked[:17] == [2] * 17
        assert set(asked[17:]) <= {3, 4}


@on_both_loops
async def test_names_without_a_server_do_not_delay_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_width, "MAX_LOOKUPS_AT_ONCE", 3)
    monkeypatch.setattr(resolver_module, "SLOT_SECONDS", 0.01)
    names: Names = {f"n{number}.example": Failure.SILENCE for number in range(20)}
    async with (
        dns_serving({**names, "good.example": HERE}) as dns,
        Resolver([dns.address], timeout_s=2) as resolver,
    ):
        silent = [asyncio.create_task(resolver.resolve(name)) for name in names]
        good = asyncio.create_task(resolver.resolve("good.example"))
        await asyncio.wait([good, *silent], return_when=asyncio.FIRST_COMPLETED)
        assert good.done()
        assert not any(task.done() for task in silent)
        await asyncio.gather(*silent)


async def test_name_for_which_nobody_waits_any_more_is_not_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_width, "MAX_LOOKUPS_AT_ONCE", 1)
    names: Names = {"silent.example": Failure.SILENCE, "good.example": HERE}
    async with dns_serving(names) as dns, Resolver([dns.address], timeout_s=1) as resolver:
        first = asyncio.create_task(resolver.resolve("silent.example"))
        await asyncio.sleep(0)
        late = await resolver.resolve("late.example", asyncio.get_running_loop().time() + 0.05)
        assert isinstance(late, NoAddress)
        assert late.is_given_up
        assert texts(await resolver.resolve("good.example"))
        await first
        assert dns.asked["late.example"] == 0


async def test_lookups_without_an_answer_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "MAX_UNANSWERED", 3)
    monkeypatch.setattr(resolver_module, "SLOT_SECONDS", 0.0)
    names: Names = {f"n{number}.example": Failure.SILENCE for number in range(20)}
    async with dns_serving(names) as dns, Resolver([dns.address], timeout_s=2) as resolver:
        asking = [asyncio.create_task(resolver.resolve(name)) for name in names]
        await asyncio.sleep(0.1)
        assert len(dns.asked) == 3
        for name in names:
            dns.names[name] = HERE
        found = await asyncio.gather(*asking)
        assert [texts(one) for one in found] == [["127.0.0.1"]] * 20


@pytest.mark.parametrize(
    ("root", "expected"), [(Failure.NO_DATA, False), (Turns(HERE, HERE, Failure.SILENCE), True)]
)
async def test_name_server_that_drops_a_query_for_the_root_is_overloaded(
    root: Answer | Turns, *, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_width, "LOOKUPS_PER_SAMPLE", 1)
    names = {"lost.example": Failure.SILENCE, "good.example": HERE, "": root}
    async with dns_serving(names) as dns, Resolver([dns.address], timeout_s=3) as resolver:
        lost, good = await asyncio.gather(resolver.resolve("lost.example"), resolver.resolve("good.example"))
        assert texts(good)
        assert is_fault(lost) is expected


@on_both_loops
async def test_c_ares_is_restarted_before_its_cache_grows() -> None:
    names: Names = {f"n{number}.example": HERE for number in range(60)}
    async with dns_serving(names) as dns, Resolver([dns.address]) as resolver:
        resolver._lookups_left = 10
        first = resolver._channel
        found = await asyncio.gather(*(resolver.resolve(name) for name in names))
        assert [texts(one) for one in found] == [["127.0.0.1"]] * 60
        assert resolver._channel is not first
        await asyncio.gather(*resolver._retiring)


@on_both_loops
async def test_c_ares_is_restarted_after_many_queries_of_few_names() -> None:
    names: Names = {f"n{number}.example": tuple(f"192.0.2.{n}" for n in range(200)) for number in range(3)}
    async with dns_serving(names) as dns, Resolver([dns.address]) as resolver:
        resolver._records_left = 300
        first = resolver._channel
        channels = []
        for name in names:
            assert texts(await resolver.resolve(name))
            channels.append(resolver._channel)
        assert channels[:2] == [first, first]
        assert channels[2] is not first
        await asyncio.gather(*resolver._retiring)


# ── faults of names and of name servers ──


@on_both_loops
async def test_silent_name_server_fails_no_target() -> None:
    names: Names = {"": Failure.SILENCE, "a.example": Failure.SILENCE}
    async with dns_serving(names) as dns, Resolver([dns.address], timeout_s=SHORT_S) as resolver:
        assert is_fault(await resolver.resolve("a.example"))
        assert (resolver.lookups, resolver.faults) == (1, 1)


@on_both_loops
async def test_exhausted_time_is_no_failure_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "ROOT_SECONDS", 5)
    names: Names = {"a.example": Failure.SILENCE, "": Failure.SILENCE, "good.example": HERE}
    async with dns_serving(names) as dns, Resolver([dns.address], timeout_s=SHORT_S) as resolver:
        now_s = asyncio.get_running_loop().time()
        for left_s in (-1, 0.05, SHORT_S + 0.05):
            found = await resolver.resolve("a.example", now_s + left_s)
            assert isinstance(found, NoAddress)
            assert (found.is_given_up, found.is_resolver_fault) == (True, False)
            now_s = asyncio.get_running_loop().time()
        assert resolver.faults == 0
        assert texts(await resolver.resolve("good.example", now_s + 5))


@on_both_loops
async def test_lost_dns_query_is_repeated() -> None:
    # c-ares asks twice, and waits for the second answer less than a second once it knows the server.
    names: dict[str, Answer | Turns] = {
        "lost.example": Turns(Failure.SILENCE, Failure.SILENCE, Failure.SILENCE, HERE)
    }
    async with dns_serving(names) as dns, Resolver([dns.address], timeout_s=4) as resolver:
        for number in range(5):
            await resolver.resolve(f"unknown{number}.example")
        assert texts(await resolver.resolve("lost.example")) == ["127.0.0.1"]
        assert resolver.faults == 0


async def test_lost_dns_query_is_repeated_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    class Channel:
        """Loses the first query for `lost.example`, and never answers any other."""

        def __init__(self) -> None:
            self.asked: list[str] = []

        def look_up(self, host: str, report: Report) -> None:
            self.asked.append(host)
            if self.asked == ["lost.example"]:
                lost = NameAnswer(unclear="lost", is_lost=True)
                asyncio.get_running_loop().call_later(0.001, report, lost)

        def close(self) -> None:
            """Do nothing."""

    channel = Channel()
    monkeypatch.setattr(resolver_module, "open_channel", lambda *_: channel)
    monkeypatch.setattr(lookup_width, "MAX_LOOKUPS_AT_ONCE", 1)
    monkeypatch.setattr(resolver_module, "SLOT_SECONDS", 0.01)
    names = ["lost.example", *(f"n{number}.example" for number in range(9))]
    async with Resolver() as resolver:
        tasks = [asyncio.create_task(resolver.resolve(name)) for name in names]
        while len(channel.asked) < 5:  # noqa: ASYNC110 - it is others who ask
            await asyncio.sleep(0.01)
    await asyncio.gather(*tasks)
    assert channel.asked[:5].count("lost.example") == 2


@on_both_loops
async def test_unreachable_name_server_fails_no_target() -> None:
    async with dns_serving({}) as dns:
        gone = dns.address
    async with Resolver([gone], timeout_s=SHORT_S) as resolver:
        assert is_fault(await resolver.resolve("a.example"))


@pytest.mark.parametrize("failure", [Failure.SERVFAIL, Failure.REFUSED, Failure.SILENCE, Failure.GARBAGE])
async def test_unserved_name_is_its_own_failure_while_our_resolver_works(failure: Failure) -> None:
    names: Names = {"lame.example": failure, "": Failure.NO_DATA}
    async with dns_serving(names) as dns, Resolver([dns.address], timeout_s=SHORT_S) as resolver:
        assert not is_fault(await resolver.resolve("lame.example"))
        assert dns.asked[""] == 1
        assert resolver.faults == 0


async def test_success_of_another_name_shows_that_the_name_server_works() -> None:
    names: Names = {"lame.example": Failure.SILENCE, "good.example": HERE, "": Failure.SILENCE}
    async with dns_serving(names) as dns, Resolver([dns.address], timeout_s=SHORT_S) as resolver:
        lame, good = await asyncio.gather(resolver.resolve("lame.example"), resolver.resolve("good.example"))
        assert texts(good)
        assert not is_fault(lame)
        assert dns.asked[""] == 0


async def test_name_server_without_answers_fails_no_target() -> None:
    names: Names = {f"n{number}.example": Failure.SERVFAIL for number in range(30)}
    others: Names = {"": Failure.NO_DATA, "good.example": HERE}
    async with (
        dns_serving({**names, **others}) as dns,
        Resolver([dns.address], timeout_s=SHORT_S) as resolver,
    ):
        faults = [is_fault(await resolver.resolve(name)) for name in names]
        few = resolver_module.MAX_UNCLEAR_NAMES - 1
        assert faults == [False] * few + [True] * (30 - few)
        # A resolved name ends the fault.
        assert texts(await resolver.resolve("good.example"))
        assert not is_fault(await resolver.resolve("n0.example"))


async def test_many_unresolvable_names_are_their_own_fault_if_a_witness_is_looked_up() -> None:
    names: Names = {f"n{number}.example": Failure.SERVFAIL for number in range(30)}
    others: Names = {"": Failure.NO_DATA}
    async with (
        dns_serving({**names, **others}) as dns,
        Resolver([dns.address], timeout_s=SHORT_S) as resolver,
    ):
        resolver.note_looked_up("canary.example")
        assert not any([is_fault(await resolver.resolve(name)) for name in names])
        below = [name for name in dns.asked if name.endswith(".canary.example")]
        assert 1 <= len(below) <= 30 // (resolver_module.MAX_UNCLEAR_NAMES - 1)
        # Without its upstream server, the name server may still answer for the root.
        dns.elsewhere = Failure.SERVFAIL
        assert all([is_fault(await resolver.resolve(name)) for name in names][-10:])
        # The question about the root, asked for the first of them, is no proof for the last.
        resolver.note_looked_up("canary.example")
        together = await asyncio.gather(*map(resolver.resolve, names))
        assert is_fault(together[-1])


async def test_one_unresolvable_name_is_no_fault_of_the_name_server() -> None:
    names: Names = {"lame.example": Failure.SERVFAIL, "": Failure.NO_DATA}
    async with dns_serving(names) as dns, Resolver([dns.address], timeout_s=SHORT_S) as resolver:
        for _ in range(2 * resolver_module.MAX_UNCLEAR_NAMES):
            assert not is_fault(await resolver.resolve("lame.example"))


async def test_second_name_server_replaces_a_failed_one() -> None:
    async with dns_serving({}) as dns:
        gone = dns.address
    async with dns_serving({"a.example": HERE}) as dns, Resolver([gone, dns.address]) as resolver:
        assert texts(await resolver.resolve("a.example")) == ["127.0.0.1"]


async def test_c_ares_is_restarted_regularly_while_no_server_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver_module, "RENEW_SECONDS", 0)
    async with dns_serving({}) as dns:
        gone = dns.address
    async with Resolver([gone], timeout_s=SHORT_S) as resolver:
        first = resolver._channel
        assert is_fault(await resolver.resolve("a.example"))
        assert resolver._channel is not first


# ── closing ──


@on_both_loops
async def test_closed_resolver_fails_its_queries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookup_width, "MAX_LOOKUPS_AT_ONCE", 1)
    names: Names = {"a.example": Failure.SILENCE, "": Failure.SILENCE}
    async with dns_serving(names) as dns:
        before = open_files()
        resolver = Resolver([dns.address])
        asking = asyncio.create_task(resolver.resolve("a.example"))
        waiting = asyncio.create_task(resolver.resolve("b.example"))
        await asyncio.sleep(0.05)
        await resolver.close()
        assert is_fault(await asking)
        assert is_fault(await waiting)
        # c-ares closes its sockets in a thread of its own.
        await no_more_than(before)
