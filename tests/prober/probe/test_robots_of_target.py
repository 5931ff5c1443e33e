import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.agent_check import card, document
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    HostileServer,
    Reply,
    answer,
    as_json,
    redirect,
    serving,
    silence,
)
from tests.support.probing import (
    SHORT_SECONDS,
    Played,
    Probes,
    always,
    definition,
    entry,
    fetched_as,
    layer,
    probing,
    results,
    see,
)
from tests.support.virtual_loop import with_sockets_in_virtual_time

from lifesign.domain.observation.results import InconclusiveReason, Observation, ResultClass
from lifesign.domain.probing.cadence import Cadence, next_probe_at_s
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.request import Request
from lifesign.prober.probe.robots_of_target import check_robots_rules
from lifesign.prober.probe.session import ProbeSession

ROBOTS_PATH = "/robots.txt"
DAY_S = 86_400.0
CADENCE = Cadence()
FOLLOWING: dict[str, Any] = {"opt_out": {"robots_txt": True}, "ask": {"transport": False}}
IMPATIENT: dict[str, Any] = {"timeouts": {"first_byte_seconds": SHORT_SECONDS, "total_seconds": 1}}
CLOSED = b"User-agent: *\nDisallow: /\n"
PERMITS = answer(200, b"User-agent: *\nDisallow: /private/\n", Content_Type="text/plain")
KEEPS_OUT = answer(200, b"User-agent: lifesign-prober\nDisallow: /\n", Content_Type="text/plain")


def agent(robots: Reply) -> dict[str, Reply]:
    """An agent behind this robots.txt; its document is fresh."""
    return {ROBOTS_PATH: robots, CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}


async def probe_behind_robots(robots: Reply, **settings: Any) -> tuple[Observation, HostileServer, Probes]:
    """Return the result of a probe of an agent behind this robots.txt."""
    async with serving(agent(robots)) as server, probing(**(FOLLOWING | settings)) as probes:
        return await probes.see(server.url), server, probes


async def test_host_that_disallows_probes_gets_only_a_robots_txt_request() -> None:
    observation, server, probes = await probe_behind_robots(KEEPS_OUT)
    assert server.paths == [ROBOTS_PATH]
    discovery = layer(observation.discovery)
    assert discovery.result is ResultClass.NOT_MEASURED
    assert "robots.txt" in discovery.reason
    assert observation.inconclusive_reason is InconclusiveReason.NOT_ALLOWED
    assert not observation.is_measured_failure
    assert probes.memory.is_disallowed_by_robots


def endless(line: bytes, **headers: str) -> Reply:
    """Rules that close everything, and then lines without an end."""

    async def reply(writer: asyncio.StreamWriter, _head: str) -> None:
        fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{fields}\r\n".encode())
        pieces = packed(line) if headers else repeated(line)
        async for piece in pieces:
            writer.write(piece)
            await writer.drain()
            # Without a pending write, drain does not wait either.
            await asyncio.sleep(0)

    return reply


async def repeated(line: bytes) -> AsyncIterator[bytes]:
    yield CLOSED
    while True:
        yield line * 1000


async def packed(line: bytes) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(wbits=31)
    async for piece in repeated(line):
        yield packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)


def unfinished(body: bytes, *, is_held_open: bool) -> Reply:
    """A file of which this part comes, and nothing more, be the connection open or not."""

    async def reply(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 400000\r\n\r\n")
        writer.write(body)
        await writer.drain()
        if is_held_open:
            await asyncio.Event().wait()

    return reply


@pytest.mark.parametrize(
    "robots",
    [
        answer(200, CLOSED + b"# more\n" * 150_000),
        answer(200, gzip.compress(CLOSED + b"# more\n" * 300_000), Content_Encoding="gzip"),
        answer(200, gzip.compress(CLOSED + b"# more\n" * 300_000), Content_Encoding="x-gzip"),
        endless(b"# more\n"),
        endless(b"# more\n", Content_Encoding="gzip"),
        unfinished(CLOSED + b"# more", is_held_open=True),
        unfinished(CLOSED + b"# more", is_held_open=False),
    ],
    ids=[
        "a megabyte",
        "packed",
        "packed by the alias",
        "endless",
        "endless and packed",
        "too slow",
        "broken off",
    ],
)
@with_sockets_in_virtual_time
async def test_beginning_of_an_incomplete_robots_txt_counts(robots: Reply) -> None:
    observation, server, probes = await probe_behind_robots(robots, **IMPATIENT)
    assert results(observation) == {"discovery": "not_measured"}
    assert server.paths == [ROBOTS_PATH]
    assert probes.memory.is_disallowed_by_robots


async def test_file_with_unrequested_coding_is_ignored() -> None:
    async with serving(agent(KEEPS_OUT)) as server, probing(**FOLLOWING) as probes:
        await probes.see(server.url, at_s=1_790_000_000.0)
        server.replies[ROBOTS_PATH] = answer(200, b"xyz", Content_Encoding="compress")
        observation = await probes.see(server.url, at_s=1_790_000_000.0 + DAY_S)
        assert results(observation) == {"discovery": "not_measured"}


async def redirected(place: str) -> tuple[Observation, HostileServer, Probes]:
    """Return the result of a probe whose card is redirected on a host that closes /private/."""
    answers = agent(PERMITS) | {CARD_PATH: redirect(place), place: as_json(card())}
    async with serving(answers) as server, probing(**FOLLOWING) as probes:
        return await probes.see(server.url), server, probes


async def test_redirect_to_a_disallowed_path_is_not_followed() -> None:
    observation, server, probes = await redirected("/private/card")
    assert "/private/card" not in server.paths
    discovery = layer(observation.discovery)
    assert discovery.result is ResultClass.REDIRECT_REFUSED
    assert "its robots.txt" in discovery.reason
    assert probes.memory.is_disallowed_by_robots


async def test_redirect_that_robots_txt_allows_is_followed() -> None:
    observation, server, probes = await redirected("/public/card")
    assert "/public/card" in server.paths
    assert layer(observation.discovery).result is ResultClass.OK
    assert not probes.memory.is_disallowed_by_robots


@pytest.mark.parametrize(
    "robots",
    [
        answer(404),
        answer(403),
        answer(500),
        answer(200, b"User-agent: *\nDisallow: /private/\n"),
        answer(200, b"<html>", Content_Type="text/html"),
        answer(200, b"User-agent: *\nDisallow: /\n\nUser-agent: lifesign-prober\nAllow: /\n"),
        redirect("ftp://127.0.0.1/"),
    ],
)
async def test_agent_without_an_applicable_robots_rule_is_probed(robots: Reply) -> None:
    observation, server, probes = await probe_behind_robots(robots)
    assert server.paths[0] == ROBOTS_PATH
    assert results(observation) == {"discovery": "ok", "readiness": "ok"}
    assert not probes.memory.is_disallowed_by_robots


async def test_robots_txt_is_read_about_once_a_day() -> None:
    async with serving(agent(KEEPS_OUT)) as server, probing(**FOLLOWING) as probes:
        now_s = 1_790_000_000.0
        await probes.see(server.url, at_s=now_s)
        server.replies[ROBOTS_PATH] = PERMITS
        assert results(await probes.see(server.url, at_s=now_s + 1)) == {"discovery": "not_measured"}
        assert server.paths == [ROBOTS_PATH]
        assert results(await probes.see(server.url, at_s=now_s + DAY_S))["discovery"] == "ok"
        await probes.see(server.url, at_s=now_s + DAY_S + 1)
        assert server.paths.count(ROBOTS_PATH) == 2


async def test_known_rules_apply_while_robots_txt_is_unreadable() -> None:
    async with serving(agent(KEEPS_OUT)) as server, probing(**FOLLOWING) as probes:
        await probes.see(server.url, at_s=1_790_000_000.0)
        server.replies[ROBOTS_PATH] = answer(503)
        observation = await probes.see(server.url, at_s=1_790_000_000.0 + DAY_S)
        assert results(observation) == {"discovery": "not_measured"}
        # Such a file is read as seldom as one that disallows the target.
        assert probes.memory.disallowed_in_row == 2


def next_look_s(probes: Probes, url: str) -> float:
    """Return when the target is due after its last probe."""
    memory = probes.memory
    assert memory.probed_at_s is not None
    return next_probe_at_s(entry(url).subject_id, memory, CADENCE, memory.probed_at_s)


async def test_agent_behind_a_gateway_that_disallows_probes_is_probed_again_soon() -> None:
    async with serving(agent(PERMITS)) as server, probing(**FOLLOWING) as probes:
        await probes.see(server.url, at_s=1_790_000_000.0)
        assert probes.memory.alive_at_s is not None
        server.replies[ROBOTS_PATH] = KEEPS_OUT
        at_s = 1_790_000_000.0 + DAY_S
        for most_s in (600, 2_400, 9_600):
            server.heads.clear()
            assert results(await probes.see(server.url, at_s=at_s)) == {"discovery": "not_measured"}
            assert server.paths == [ROBOTS_PATH]
            at_s, before_s = next_look_s(probes, server.url), at_s
            # The first reading was not at a tick.
            assert at_s - before_s <= most_s + CADENCE.interval_s / 2
        server.replies[ROBOTS_PATH] = PERMITS
        assert results(await probes.see(server.url, at_s=at_s))["discovery"] == "ok"
        assert (probes.memory.is_disallowed_by_robots, probes.memory.disallowed_in_row) == (False, 0)


@pytest.mark.parametrize("is_lifted", [True, False])
@pytest.mark.parametrize("portal", [answer(404), answer(200, b"<html>", Content_Type="text/html")])
async def test_robots_txt_without_rules_must_be_read_twice_to_end_a_disallow(
    portal: Reply, *, is_lifted: bool
) -> None:
    async with serving(agent(KEEPS_OUT)) as server, probing(**FOLLOWING) as probes:
        await probes.see(server.url, at_s=1_790_000_000.0)
        server.replies[ROBOTS_PATH] = portal
        first_s = 1_790_000_000.0 + DAY_S
        assert results(await probes.see(server.url, at_s=first_s)) == {"discovery": "not_measured"}
        assert server.paths == [ROBOTS_PATH] * 2
        second_s = next_look_s(probes, server.url)
        assert second_s - first_s <= 2.5 * CADENCE.interval_s
        server.replies[ROBOTS_PATH] = portal if is_lifted else KEEPS_OUT
        observation = await probes.see(server.url, at_s=second_s)
        assert (layer(observation.discovery).result is ResultClass.OK) is is_lifted
        assert server.paths.count(ROBOTS_PATH) == 3
        assert (len(server.paths) > 3) is is_lifted


async def test_redirect_that_stays_disallowed_is_requested_less_often_each_time() -> None:
    async with serving(agent(PERMITS)) as server, probing(**FOLLOWING) as probes:
        await probes.see(server.url, at_s=1_790_000_000.0)
        server.replies[CARD_PATH] = redirect("/private/card")
        for number in (1, 2, 3):
            # The document is missing: the card is read, which may name another one.
            server.replies[HEALTH_PATH] = answer(404)
            await probes.see(server.url, at_s=1_790_000_000.0 + number * DAY_S)
            assert probes.memory.disallowed_in_row == number
        assert "/private/card" not in server.paths


async def test_recheck_reads_robots_txt_again_and_nothing_else_while_it_disallows() -> None:
    async with serving(agent(KEEPS_OUT)) as server, probing(**FOLLOWING) as probes:
        at_s = 1_790_000_000.0
        await probes.see(server.url, at_s=at_s)
        kept_out = await probes.see(server.url, at_s=at_s + 60, recheck_at_s=at_s + 55)
        assert results(kept_out) == {"discovery": "not_measured"}
        assert server.paths == [ROBOTS_PATH] * 2
        server.replies[ROBOTS_PATH] = answer(404)
        # The last probe has answered that recheck.
        await probes.see(server.url, at_s=at_s + 120, recheck_at_s=at_s + 55)
        assert server.paths == [ROBOTS_PATH] * 2
        observation = await probes.see(server.url, at_s=at_s + 120, recheck_at_s=at_s + 121)
        assert results(observation)["discovery"] == "ok"


async def test_agent_with_a_disallowed_interface_is_not_probed_at_all() -> None:
    rules = answer(200, b"User-agent: *\nDisallow: /rpc\n")
    async with serving(agent(rules) | {"/rpc": answer(405)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/rpc"))
        async with probing(**(FOLLOWING | {"ask": {}})) as probes:
            observation = await probes.see(server.url)
            assert results(observation) == {"discovery": "ok", "transport": "not_measured", "readiness": "ok"}
            assert "its robots.txt" in layer(observation.transport).reason
            assert "/rpc" not in server.paths
            assert probes.memory.is_disallowed_by_robots
            assert results(await probes.see(server.url)) == {"discovery": "not_measured"}


async def test_unreachable_target_is_down_and_not_opted_out() -> None:
    async with serving({}) as server:
        url = server.url
    async with probing(**FOLLOWING) as probes:
        observation = await probes.see(url)
        assert results(observation) == {"discovery": "refused"}
        assert observation.is_measured_failure
        assert probes.memory.robots_read_at_s is None
        assert len(probes.witness.requests) == 1
    health_only = FOLLOWING | {"ask": {"card": False, "transport": False}}
    assert results(await see(url, **health_only)) == {"readiness": "refused"}


async def unfinished_head(writer: asyncio.StreamWriter, _head: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    await writer.drain()
    await asyncio.Event().wait()


@pytest.mark.parametrize("robots", [silence, unfinished_head])
@pytest.mark.parametrize("place", [CARD_PATH, HEALTH_PATH])
@with_sockets_in_virtual_time
async def test_timeout_of_robots_txt_does_not_prevent_the_probe(robots: Reply, place: str) -> None:
    async with serving(agent(robots)) as server, probing(**(FOLLOWING | IMPATIENT)) as probes:
        others = {CARD_PATH, HEALTH_PATH} - {place}
        server.replies |= dict.fromkeys(others, answer(404))
        observation = await probes.see(server.url)
        assert observation.result is ResultClass.OK
        await probes.see(server.url)
        # An unreadable robots.txt is not requested again for a day.
        assert server.paths.count(ROBOTS_PATH) == 1


@with_sockets_in_virtual_time
async def test_known_rules_apply_while_robots_txt_is_silent() -> None:
    async with serving(agent(KEEPS_OUT)) as server, probing(**(FOLLOWING | IMPATIENT)) as probes:
        await probes.see(server.url, at_s=1_790_000_000.0)
        server.replies[ROBOTS_PATH] = silence
        observation = await probes.see(server.url, at_s=1_790_000_000.0 + DAY_S)
        assert results(observation) == {"discovery": "not_measured"}
        assert server.paths == [ROBOTS_PATH, ROBOTS_PATH]


@with_sockets_in_virtual_time
async def test_silent_target_gets_requests_for_robots_txt_and_card() -> None:
    silent = dict.fromkeys((ROBOTS_PATH, CARD_PATH, HEALTH_PATH), silence)
    async with serving(silent) as server, probing(**(FOLLOWING | IMPATIENT)) as probes:
        observation = await probes.see(server.url)
        assert results(observation) == {"discovery": "timeout"}
        assert server.paths == [ROBOTS_PATH, CARD_PATH]


@pytest.mark.parametrize("result", [ResultClass.OK, ResultClass.TIMEOUT])
async def test_probe_without_time_after_robots_txt_reports_it(result: ResultClass) -> None:
    def late(request: Request) -> Fetched:
        visit.deadline_s = 0.0
        return fetched_as(request, result)

    visit = ProbeSession(
        Played(robots=late), definition(**FOLLOWING), None, entry("https://agent.example/"), 0.0
    )
    away = layer(await check_robots_rules(visit, CADENCE))
    assert away.result is ResultClass.NOT_MEASURED
    assert "no time" in away.reason


async def test_target_without_a_timely_connection_is_down() -> None:
    unreached = always(ResultClass.TIMEOUT, is_reached=False)
    visit = ProbeSession(
        Played(robots=unreached), definition(**FOLLOWING), None, entry("https://agent.example/"), 0.0
    )
    assert layer(await check_robots_rules(visit, CADENCE)).result is ResultClass.TIMEOUT


async def test_rate_limited_target_gets_no_further_requests() -> None:
    observation, server, _ = await probe_behind_robots(answer(429, Retry_After="100"))
    assert results(observation) == {"discovery": "rate_limited"}
    assert server.paths == [ROBOTS_PATH]


async def test_robots_txt_is_read_only_if_configured() -> None:
    unchecked_sessions = {"opt_out": {"robots_txt": False}}
    observation, server, _ = await probe_behind_robots(KEEPS_OUT, **unchecked_sessions)
    assert results(observation) == {"discovery": "ok", "readiness": "ok"}
    assert ROBOTS_PATH not in server.paths
