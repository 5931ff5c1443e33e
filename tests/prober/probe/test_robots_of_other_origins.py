import asyncio
from typing import Any

import pytest
from tests.support.agent_check import card
from tests.support.hostile_server import (
    CARD_PATH,
    HostileServer,
    answer,
    as_json,
    redirect,
    serving,
    silence,
)
from tests.support.probing import SHORT_SECONDS, Probes, layer, probing, results
from tests.support.virtual_loop import with_sockets_in_virtual_time
from yarl import URL

from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.domain.probing.cadence import Cadence
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.robots_of_other_origins import OtherOrigins
from lifesign.prober.probe.robots_rules import RobotsRules
from lifesign.prober.probe.session import MAX_OTHER_ORIGINS

ROBOTS_PATH = "/robots.txt"
AT_S = 1_790_000_000.0
DAY_S = 86_400.0
FOLLOWING: dict[str, Any] = {"opt_out": {"robots_txt": True}}
IMPATIENT: dict[str, Any] = {"timeouts": {"first_byte_seconds": SHORT_SECONDS, "total_seconds": 1}}
PERMITS = answer(200, b"User-agent: *\nDisallow: /private/\n", Content_Type="text/plain")
CLOSED = answer(200, b"User-agent: *\nDisallow: /\n", Content_Type="text/plain")
ORIGIN = URL("https://other.example")


def host_of(server: HostileServer) -> str:
    return server.url.removeprefix("http://")


async def named(probes: Probes, other: HostileServer, at_s: float | None = None) -> Observation:
    """Return the result of a probe whose card names an interface of another origin."""
    async with serving({CARD_PATH: as_json(card(url=f"{other.url}/a2a"))}) as server:
        probes.memory = type(probes.memory)()
        return await probes.see(server.url, at_s=at_s)


# ── disallowed paths ──


async def test_interface_on_a_host_that_disallows_probes_is_not_requested() -> None:
    async with serving({ROBOTS_PATH: CLOSED, "/a2a": answer(405)}) as other, probing(**FOLLOWING) as probes:
        observation = await named(probes, other)
        assert other.paths == [ROBOTS_PATH]
        transport = layer(observation.transport)
        message = f"the robots.txt of {host_of(other)} forbids this prober"
        assert (transport.result, transport.reason) == (ResultClass.NOT_MEASURED, message)
        assert layer(observation.discovery).result is ResultClass.OK
        assert not probes.memory.is_disallowed_by_robots


async def test_redirect_to_a_host_that_disallows_probes_is_not_followed() -> None:
    async with serving({ROBOTS_PATH: CLOSED, CARD_PATH: as_json(card())}) as other:
        replies = {CARD_PATH: redirect(other.url + CARD_PATH)}
        async with serving(replies) as server, probing(**FOLLOWING) as probes:
            discovery = layer((await probes.see(server.url)).discovery)
            assert other.paths == [ROBOTS_PATH]
            assert discovery.result is ResultClass.REDIRECT_REFUSED
            assert f"robots.txt of {host_of(other)} " in discovery.reason


@pytest.mark.parametrize(
    "robots",
    [answer(404), answer(500), answer(200, b"User-agent: *\nDisallow: /private/\n"), silence],
    ids=["none", "failing", "another path", "silent"],
)
@with_sockets_in_virtual_time
async def test_interface_without_an_applicable_robots_rule_is_requested(robots: Any) -> None:
    replies = {ROBOTS_PATH: robots, "/a2a": answer(405)}
    async with serving(replies) as other, probing(**FOLLOWING, **IMPATIENT) as probes:
        assert layer((await named(probes, other)).transport).result is ResultClass.OK
        assert other.paths == [ROBOTS_PATH, "/a2a"]


async def test_retry_after_ends_the_requests_of_a_probe() -> None:
    replies = {ROBOTS_PATH: answer(429, Retry_After="100")}
    async with serving(replies) as other, probing(**FOLLOWING) as probes:
        transport = layer((await named(probes, other, AT_S)).transport)
        assert other.paths == [ROBOTS_PATH]
        assert transport.result is ResultClass.NOT_MEASURED
        assert transport.reason.startswith(f"robots.txt of {host_of(other)}: HTTP 429")
        assert probes.memory.not_before_s == pytest.approx(AT_S + 100)


async def test_unserved_interface_is_reported_as_such() -> None:
    async with serving({}) as gone:
        pass
    async with probing(**FOLLOWING) as probes:
        assert layer((await named(probes, gone)).transport).result is ResultClass.REFUSED


async def test_robots_txt_of_other_hosts_is_read_only_if_configured() -> None:
    async with serving({ROBOTS_PATH: CLOSED, "/a2a": answer(405)}) as other, probing() as probes:
        assert layer((await named(probes, other)).transport).result is ResultClass.OK
        assert other.paths == ["/a2a"]


# ── frequency ──


async def test_robots_txt_is_read_once_a_day_for_all_targets() -> None:
    replies = {ROBOTS_PATH: PERMITS, "/a2a": answer(405)}
    async with serving(replies) as other, probing(**FOLLOWING) as probes:
        for seconds in (0, 1, 3600):
            assert results(await named(probes, other, AT_S + seconds))["transport"] == "ok"
        assert other.paths.count(ROBOTS_PATH) == 1
        assert results(await named(probes, other, AT_S + DAY_S))["transport"] == "ok"
        assert other.paths.count(ROBOTS_PATH) == 2


async def test_rules_that_disallow_an_interface_are_read_again_soon_and_less_often_each_time() -> None:
    async with serving({ROBOTS_PATH: CLOSED, "/a2a": answer(405)}) as other, probing(**FOLLOWING) as probes:
        at_s, read_at_s = AT_S, []
        while at_s < AT_S + 2 * DAY_S:
            read = len(other.paths)
            assert results(await named(probes, other, at_s))["transport"] == "not_measured"
            if len(other.paths) > read:
                read_at_s.append(at_s - AT_S)
            # Known rules stay in force while the file cannot be read.
            other.replies[ROBOTS_PATH] = answer(503)
            at_s += 600
        assert read_at_s[:5] == [0, 600, 3_000, 12_600, 51_000]
        assert read_at_s[5:] == [51_000 + 82_800]
        other.replies[ROBOTS_PATH] = PERMITS
        assert results(await named(probes, other, at_s + DAY_S))["transport"] == "ok"


@pytest.mark.parametrize("is_lifted", [True, False])
async def test_file_without_rules_must_be_read_twice_to_replace_rules(*, is_lifted: bool) -> None:
    async with serving({ROBOTS_PATH: CLOSED, "/a2a": answer(405)}) as other, probing(**FOLLOWING) as probes:
        await named(probes, other, AT_S)
        other.replies[ROBOTS_PATH] = answer(200, b"<html>", Content_Type="text/html")
        assert results(await named(probes, other, AT_S + DAY_S))["transport"] == "not_measured"
        other.replies[ROBOTS_PATH] = answer(404) if is_lifted else CLOSED
        observation = await named(probes, other, AT_S + DAY_S + 600)
        assert results(observation)["transport"] == ("ok" if is_lifted else "not_measured")
        assert other.paths == [ROBOTS_PATH] * 3 + ["/a2a"] * is_lifted


async def test_number_of_origins_per_probe_is_bounded() -> None:
    async with probing(**FOLLOWING) as probes:
        visited: list[str] = []

        async def fetch(request: Any) -> Fetched:
            if request.url.path == ROBOTS_PATH:
                visited.append(str(request.url.host))
                return Fetched(url=request.url, result=ResultClass.NOT_AN_AGENT, reason="", status=404)
            whys = [
                await request.kept_out(URL(f"https://{n}.example/")) for n in range(MAX_OTHER_ORIGINS + 2)
            ]
            assert [why is None for why in whys] == [True] * MAX_OTHER_ORIGINS + [False] * 2
            return Fetched(url=request.url, result=ResultClass.REFUSED, reason="", is_reached=False)

        probes.witness.fetch = fetch  # type: ignore[method-assign]
        await probes.see("https://agent.example")
        assert len(visited) == 1 + MAX_OTHER_ORIGINS


class Reader:
    """Answers for any origin as a test sets, and counts the requests."""

    def __init__(self, body: bytes = b"User-agent: *\nDisallow: /\n", **members: Any) -> None:
        self.count = 0
        self._members: dict[str, Any] = {
            "result": ResultClass.OK,
            "reason": "",
            "status": 200,
            "body": body,
        } | members

    async def __call__(self, origin: URL) -> Fetched:
        self.count += 1
        await asyncio.sleep(0)
        return Fetched(url=origin, **self._members)


async def test_concurrent_readers_share_one_read() -> None:
    others, read = OtherOrigins(Cadence()), Reader()
    await asyncio.gather(*(others.rules(ORIGIN, AT_S, read) for _ in range(20)))
    assert read.count == 1


async def test_readings_of_concurrent_probes_count_once() -> None:
    origins, interval_s = OtherOrigins(Cadence()), Cadence().interval_s
    reads = 0

    async def read(origin: URL) -> Fetched:
        nonlocal reads
        reads += 1
        return Fetched(url=origin, result=ResultClass.OK, status=200, body=b"User-agent: *\nDisallow: /\n")

    url = ORIGIN / "a2a"
    for late_s in (5, 4, 3, 2, 1, 0):
        await origins.rules(url, AT_S - 5 + late_s, read)
    assert reads == 1
    await origins.rules(url, AT_S + 2 * interval_s, read)
    assert reads == 2


async def test_absent_answer_is_not_cached_for_the_next_caller() -> None:
    others = OtherOrigins(Cadence())
    gone = Reader(status=None, body=b"", result=ResultClass.REFUSED, is_reached=False)
    assert await others.rules(ORIGIN, AT_S, gone) == RobotsRules()
    read = Reader()
    assert await others.rules(ORIGIN, AT_S, read) != RobotsRules()
    assert read.count == 1


async def test_origin_whose_rules_were_not_requested_is_not_requested() -> None:
    others = OtherOrigins(Cadence())
    put_off = Reader(status=None, body=b"", result=ResultClass.NOT_MEASURED, reason="wait", is_put_off=True)
    assert await others.rules(ORIGIN, AT_S, put_off) == "wait"
    assert isinstance(await others.rules(ORIGIN, AT_S, Reader()), RobotsRules)


async def test_failed_reader_leaves_no_waiting_caller() -> None:
    others, read = OtherOrigins(Cadence()), Reader()

    async def fails(_origin: URL) -> Fetched:
        await asyncio.sleep(0)
        raise RuntimeError

    first = asyncio.create_task(others.rules(ORIGIN, AT_S, fails))
    await asyncio.sleep(0)
    assert await others.rules(ORIGIN, AT_S, read) != RobotsRules()
    with pytest.raises(RuntimeError):
        await first


@pytest.mark.parametrize(
    ("body", "max_kept_bytes"),
    [
        (b"User-agent: *\nDisallow: /" + b"a" * 8_000, 20_000),
        (b"User-agent: *\n" + b"".join(b"Disallow: /%d\n" % n for n in range(40)), 20_000),
        (b"User-agent: *\nDisallow: /" + b"*".join(b"%d" % n for n in range(140)), 20_000),
        (b"", 2_000),
    ],
    ids=["a long rule", "many rules", "many pieces", "no rule"],
)
async def test_kept_rules_are_bounded_in_bytes(body: bytes, max_kept_bytes: int) -> None:
    others, read = OtherOrigins(Cadence(), max_kept_bytes), Reader(body)
    for name in ("a", "b", "b", "c", "a"):
        await others.rules(URL(f"https://{name}.example"), AT_S, read)
    assert read.count == 4


async def test_clock_set_back_extends_no_waiting_time() -> None:
    others, read = OtherOrigins(Cadence()), Reader()
    await others.rules(ORIGIN, AT_S, read)
    await others.rules(ORIGIN, AT_S - DAY_S, read)
    assert read.count == 2


async def test_unanswered_robots_txt_is_requested_by_each_probe_that_waited() -> None:
    others, requested = OtherOrigins(Cadence()), 0

    async def read(origin: URL) -> Fetched:
        nonlocal requested
        requested += 1
        await asyncio.sleep(0)
        return Fetched(url=origin, result=ResultClass.TIMEOUT, reason="", is_reached=False)

    found = await asyncio.gather(*(others.rules(ORIGIN, AT_S, read) for _ in range(3)))
    assert found == [RobotsRules()] * 3
    assert requested == 3
    assert others._being_read == {}
