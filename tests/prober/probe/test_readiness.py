from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
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
from tests.support.probing import SHORT_SECONDS, Bodies, layer, probing, results, see
from tests.support.virtual_loop import with_sockets_in_virtual_time

from lifesign.domain.a2a.announcement import announce_health
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.results import Observation, ResultClass

WITHOUT_TRANSPORT: dict[str, Any] = {"ask": {"transport": False}}
IMPATIENT: dict[str, Any] = {"timeouts": {"first_byte_seconds": SHORT_SECONDS, "total_seconds": 1}}
OK, STALE = ResultClass.OK, ResultClass.STALE_DOCUMENT


def written(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def http_date(moment: datetime) -> str:
    return format_datetime(moment.astimezone(UTC), usegmt=True)


async def found(
    replies: dict[str, Reply], path: str = "/", **settings: Any
) -> tuple[Observation, HostileServer]:
    """Return the result of a probe of card and document, and the server."""
    async with serving(replies) as server:
        return await see(server.url + path, **(WITHOUT_TRANSPORT | settings)), server


# ── location of the document ──


async def test_health_document_is_read_and_its_relevant_members_are_kept() -> None:
    calibration = {
        "response_ratio": 0.6, "error_ratio": 0.4, "latency_p50_ms": 12, "latency_p99_ms": 250.5,
        "measurement_window_seconds": 3600, "sample_count": 100,
    }  # fmt: skip
    body = document("degraded", agent_id="urn:a", calibration=calibration)
    health = as_json(body, Cache_Control="max-age=60", Date=http_date(datetime.now(UTC)))
    observation, server = await found({CARD_PATH: as_json(card()), HEALTH_PATH: health})
    assert results(observation) == {"discovery": "ok", "readiness": "ok"}
    seen = observation.document
    assert seen is not None
    assert (seen.status, seen.response_ratio, seen.sample_count) == (HealthStatus.DEGRADED, 0.6, 100)
    assert (seen.error_ratio, seen.latency_p50_ms, seen.latency_p99_ms) == (0.4, 12, 250.5)
    assert (seen.max_age_s, seen.is_stale) == (60, False)
    assert seen.timestamp == datetime.fromisoformat(body["timestamp"])
    assert seen.age_s is not None
    assert abs(seen.age_s) < 60
    assert observation.reported_agent_id == "urn:a"
    assert server.paths == [CARD_PATH, HEALTH_PATH]


async def test_health_document_is_a_liveness_signal_without_a_card() -> None:
    observation, _ = await found({HEALTH_PATH: as_json(document())})
    assert results(observation) == {"discovery": "not_an_agent", "readiness": "ok"}
    assert observation.is_liveness_signal


async def test_health_url_of_the_card_is_requested_first_and_stored() -> None:
    announced = as_json(announce_health(card(), path="/state?agent=1"))
    replies = {CARD_PATH: announced, "/state?agent=1": as_json(document("unhealthy"))}
    async with serving(replies) as server, probing(**WITHOUT_TRANSPORT) as probes:
        first = await probes.see(server.url)
        assert probes.memory.health_url == server.url + "/state?agent=1"
        assert server.paths == [CARD_PATH, "/state?agent=1"]
        server.heads.clear()
        again = await probes.see(server.url)
        assert server.paths == ["/state?agent=1"]
    assert layer(first.readiness).result is layer(again.readiness).result is OK


async def test_link_header_of_the_card_announces_the_health_url() -> None:
    linked = as_json(card(), Link='</a/state>; rel="status"')
    observation, _ = await found({CARD_PATH: linked, "/a/state": as_json(document())})
    assert layer(observation.readiness).result is OK


async def test_health_announced_on_another_origin_is_not_followed() -> None:
    async with serving({HEALTH_PATH: as_json(document())}) as elsewhere:
        link = f'<{elsewhere.url}{HEALTH_PATH}>; rel="status"'
        observation, _ = await found({CARD_PATH: as_json(card(), Link=link)})
        assert elsewhere.paths == []
    assert layer(observation.readiness).result is ResultClass.NOT_AN_AGENT


async def test_a_document_that_redirects_to_another_origin_is_not_followed() -> None:
    async with serving({HEALTH_PATH: as_json(document())}) as elsewhere:
        replies = {CARD_PATH: as_json(card()), HEALTH_PATH: redirect(elsewhere.url + HEALTH_PATH)}
        observation, _ = await found(replies)
        assert elsewhere.paths == []
    assert layer(observation.readiness).result is ResultClass.REDIRECT_REFUSED


async def test_several_agents_of_one_origin_are_distinguished() -> None:
    replies: dict[str, Reply] = {CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document(agent_id="root"))}
    for name in ("a", "b"):
        replies[f"/{name}{CARD_PATH}"] = as_json(card(name=name))
    replies["/a" + HEALTH_PATH] = as_json(document("degraded", agent_id="a"))
    async with serving(replies) as server:
        for path in ("/a", "/a/", "/a" + CARD_PATH, "/a" + HEALTH_PATH):
            observation = await see(server.url + path, **WITHOUT_TRANSPORT)
            assert (observation.reported_agent_id, layer(observation.readiness).result) == ("a", OK)
        # The other has no document of its own, and the origin's may belong to any agent.
        observation = await see(server.url + "/b", **WITHOUT_TRANSPORT)
        assert (observation.reported_agent_id, layer(observation.readiness).result) == (
            None,
            ResultClass.NOT_AN_AGENT,
        )


async def test_root_health_document_counts_if_the_root_card_names_the_target() -> None:
    async with serving({HEALTH_PATH: as_json(document())}) as server, probing(**WITHOUT_TRANSPORT) as probes:
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/rpc"))
        assert layer((await probes.see(server.url + "/rpc")).readiness).result is OK
        assert server.paths[-2:] == [CARD_PATH, HEALTH_PATH]
        assert probes.memory.health_url == server.url + HEALTH_PATH


async def test_health_under_a_private_key_counts_only_if_a_document_exists() -> None:
    private = as_json(card(endpoints={"health": "/ping"}))
    replies = {CARD_PATH: private, "/ping": answer(500), HEALTH_PATH: as_json(document())}
    observation, server = await found(replies)
    assert layer(observation.readiness).result is OK
    assert server.paths == [CARD_PATH, "/ping", HEALTH_PATH]


async def test_default_health_paths_are_tried_only_when_the_card_is_read() -> None:
    async with serving({"/a" + CARD_PATH: as_json(card())}) as server, probing(ask={}) as probes:
        server.replies["/a" + CARD_PATH] = as_json(card(url=server.url + "/rpc"), ETag='"1"')
        server.replies["/rpc"] = answer(405)
        await probes.see(server.url + "/a")
        assert server.paths[2:] == ["/a" + HEALTH_PATH, "/a"]
        server.heads.clear()
        observation = await probes.see(server.url + "/a")
        assert server.paths == ["/rpc", "/a" + HEALTH_PATH]
        assert layer(observation.readiness).result is ResultClass.NOT_AN_AGENT
        assert observation.is_liveness_signal


async def test_moved_health_document_is_found_with_the_next_card() -> None:
    async with serving({CARD_PATH: as_json(card())}) as server, probing(**WITHOUT_TRANSPORT) as probes:
        server.replies["/one"] = as_json(document())
        server.replies[CARD_PATH] = as_json(announce_health(card(), path="/one"))
        await probes.see(server.url)
        server.replies["/two"] = server.replies.pop("/one")
        server.replies[CARD_PATH] = as_json(announce_health(card(), path="/two"))
        first = await probes.see(server.url)
        assert results(first) == {"readiness": "not_an_agent", "discovery": "ok"}
        assert probes.memory.health_url == server.url + "/two"
        again = await probes.see(server.url)
        assert layer(again.readiness).result is OK


# ── content ──


@pytest.mark.parametrize(
    ("reply", "expected", "why"),
    [
        (answer(404), "not_an_agent", "HTTP 404"),
        (answer(200, b"<p>up", Content_Type="text/html"), "not_an_agent", "'text/html'"),
        (as_json({"status": "UP"}), "not_an_agent", "another kind"),
        (as_json(document("excellent")), "invalid_document", "/health/status"),
        (as_json(document(schema_version="1.0.0")), "invalid_document", "/schema_version"),
        (as_json(document(timestamp="2026-07-01T12:00:00")), "invalid_document", "/timestamp"),
        (answer(200, b'{"a', Content_Type="application/json"), "invalid_document", "not JSON"),
        (answer(401), "gated", "HTTP 401"),
        (answer(402), "gated", "HTTP 402"),
        (answer(429), "rate_limited", "HTTP 429"),
        (answer(503), "http_error", "HTTP 503"),
        (as_json(document(extensions={"a.b": "x" * 5000})), "too_large", "4096"),
    ],
)  # fmt: skip
async def test_gated_broken_and_absent_documents_differ(reply: Reply, expected: str, why: str) -> None:
    replies = {CARD_PATH: as_json(card()), HEALTH_PATH: reply}
    observation, _ = await found(replies, limits={"max_document_bytes": 4096})
    readiness = layer(observation.readiness)
    assert (readiness.result.value, why in readiness.reason) == (expected, True), readiness.reason
    assert observation.document is None
    assert observation.is_liveness_signal, "a served card is a liveness signal"


@pytest.mark.parametrize(
    ("age_s", "max_age_s", "is_stale"),
    [
        (0, None, False), (890, None, False), (910, None, True), (1990, 1000, False), (2010, 1000, True),
        (7190, 86_400, False), (7210, 86_400, True), (-290, None, False), (-310, None, True),
    ],
)  # fmt: skip
async def test_document_age_follows_the_clock_of_its_server(
    age_s: float,
    max_age_s: int | None,
    is_stale: bool,  # noqa: FBT001 - a column of the table
) -> None:
    # Their clock is wrong by years, and does not matter.
    served_at = datetime(2031, 3, 4, 5, 6, 7, tzinfo=UTC)
    body = document(timestamp=written(served_at - timedelta(seconds=age_s)))
    headers = {"Date": http_date(served_at)}
    if max_age_s is not None:
        headers["Cache_Control"] = f"max-age={max_age_s}"
    observation, _ = await found({CARD_PATH: as_json(card()), HEALTH_PATH: as_json(body, **headers)})
    assert layer(observation.readiness).result is (STALE if is_stale else OK)
    assert observation.document is not None
    assert (observation.document.is_stale, observation.document.age_s) == (is_stale, age_s)
    assert ("old" in layer(observation.readiness).reason) == (is_stale and age_s > 0)
    assert ("future" in layer(observation.readiness).reason) == (is_stale and age_s < 0)


async def test_document_age_uses_the_local_clock_without_a_date_header() -> None:
    now_s = 1_790_000_000.0
    for age_s, expected in ((880, OK), (920, STALE), (-320, STALE)):
        moment = datetime.fromtimestamp(now_s - age_s, UTC)
        replies = {CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document(timestamp=written(moment)))}
        async with serving(replies) as server, probing(**WITHOUT_TRANSPORT) as probes:
            observation = await probes.see(server.url, at_s=now_s)
        assert layer(observation.readiness).result is expected
        assert observation.document is not None
        assert observation.document.age_s is None


async def test_stale_document_hides_no_failure() -> None:
    old = document(timestamp="2020-01-01T00:00:00Z")
    observation, _ = await found({HEALTH_PATH: as_json(old)})
    assert results(observation) == {"discovery": "not_an_agent", "readiness": "stale_document"}
    assert not observation.is_liveness_signal


async def test_stale_document_that_was_renewed_is_a_liveness_signal() -> None:
    async with serving({}) as server, probing(**WITHOUT_TRANSPORT) as probes:
        for second, is_alive in ((10, False), (20, True), (20, False), (15, False), (16, True)):
            old = document(timestamp=f"2020-01-01T00:00:{second}Z")
            server.replies[HEALTH_PATH] = as_json(old)
            observation = await probes.see(server.url)
            assert observation.is_liveness_signal is is_alive
            assert observation.is_measured_failure is not is_alive


async def test_document_time_that_no_memory_can_store_is_dropped() -> None:
    late = as_json(document(timestamp="9999-12-31T23:59:59Z"))
    async with serving({HEALTH_PATH: late}) as server, probing(**WITHOUT_TRANSPORT) as probes:
        report = await probes.report(server.url)
        assert (report.memory.health_url, report.memory.document_at_s) == (server.url + HEALTH_PATH, None)


async def test_findings_of_a_valid_document_are_named_with_evidence() -> None:
    bodies = Bodies()
    odd = as_json(document(decay=None, calibration=None))
    async with (
        serving({CARD_PATH: as_json(card()), HEALTH_PATH: odd}) as server,
        probing(bodies, **WITHOUT_TRANSPORT) as probes,
    ):
        readiness = layer((await probes.see(server.url)).readiness)
        assert (readiness.result, readiness.reason) == (OK, "valid, but odd: null_for_absent")
        assert readiness.evidence in bodies.kept
        server.replies[HEALTH_PATH] = as_json(document())
        readiness = layer((await probes.see(server.url)).readiness)
        assert (readiness.reason, readiness.evidence) == ("", None)
        for broken in (as_json(document("excellent")), as_json(document(timestamp="2020-01-01T00:00:00Z"))):
            server.replies[HEALTH_PATH] = broken
            assert layer((await probes.see(server.url)).readiness).evidence in bodies.kept
        server.replies[HEALTH_PATH] = as_json({"password": "hunter2"})
        assert layer((await probes.see(server.url)).readiness).evidence is None


# ── silent agents ──


@with_sockets_in_virtual_time
async def test_silent_target_gets_no_further_requests() -> None:
    observation, server = await found({CARD_PATH: silence, HEALTH_PATH: silence}, **IMPATIENT)
    assert results(observation) == {"discovery": "timeout"}
    assert server.paths == [CARD_PATH]


@with_sockets_in_virtual_time
async def test_known_agent_is_probed_although_its_card_times_out() -> None:
    replies = {CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}
    async with serving(replies) as server, probing(**WITHOUT_TRANSPORT, **IMPATIENT) as probes:
        await probes.see(server.url)
        server.replies[CARD_PATH] = silence
        assert probes.memory.card_read_at_s is not None
        observation = await probes.see(server.url, at_s=probes.memory.card_read_at_s + 172_800)
        assert results(observation)["discovery"] == "timeout"
        assert layer(observation.readiness).result in {OK, STALE}
