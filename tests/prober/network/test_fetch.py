import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import hostile_server as hostile
from tests.support.both_loops import on_both_loops
from tests.support.certificates import Authority
from tests.support.dns_server import Failure, Names
from tests.support.hostile_server import Reply, answer, as_json, kept, raw, redirect, serving
from tests.support.safe_asking import HERE, PATIENT, SHORT, USER_AGENT, asking
from tests.support.servers import free_port
from tests.support.virtual_loop import with_sockets_in_virtual_time
from yarl import URL

from lifesign.domain.net.allowed_addresses import AddressRefused, TargetUrl
from lifesign.domain.observation.results import MAX_ETAG_CHARS, ResultClass
from lifesign.errors import InvalidValue
from lifesign.http_client.address_guard import _read_alike
from lifesign.prober.network import resolver as resolver_module
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.resolver import Resolver

ETAG = '"abc"'


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


# ── one answer ──


@on_both_loops
async def test_fetched_answer_has_status_headers_timing_and_address(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.is_trusted(monkeypatch)
    reply = as_json(
        {"a": 1},
        ETag=ETAG,
        Last_Modified="Sat, 21 Nov 2026 10:00:00 GMT",
        Date="Sat, 21 Nov 2026 12:00:00 GMT",
        Cache_Control="max-age=60",
        Link='</health>; rel="status"',
        Allow="GET, POST",
    )
    names: Names = {"agent.example": HERE}
    async with serving({"/": reply}, authority.serving("agent.example")) as server, asking(names) as asker:
        fetched = await asker.get(f"https://agent.example:{server.port}/")
    assert (fetched.result, fetched.reason, fetched.status) == (ResultClass.OK, "", 200)
    assert fetched.body == b'{"a": 1}'
    assert fetched.is_json
    assert fetched.is_reached
    assert (fetched.etag, fetched.last_modified) == (ETAG, "Sat, 21 Nov 2026 10:00:00 GMT")
    assert fetched.served_at is not None
    assert fetched.max_age_seconds == 60
    assert fetched.status_links == ("/health",)
    assert fetched.allow == "GET, POST"
    assert str(fetched.address) == "127.0.0.1"
    assert fetched.certificate_expires_at is not None
    phases = fetched.phases
    assert phases is not None
    parts = (phases.dns_ms, phases.connect_ms, phases.tls_ms, phases.first_byte_ms, phases.last_byte_ms)
    # Microseconds are what is measured.
    for took_ms in (fetched.latency_ms, *parts):
        assert took_ms is None or took_ms == round(took_ms, 3)
    assert None not in parts
    assert fetched.latency_ms >= max(part for part in parts if part is not None)


@on_both_loops
async def test_event_that_is_cut_off_is_left_out() -> None:
    stream = answer(200, b"data: 1\n\ndata: half a sec", Content_Type="text/event-stream")
    async with serving({"/": stream}) as server, asking() as asker:
        fetched = await asker.get(f"{server.url}/", is_enough=lambda piece, _: b"\n\n" in piece)
    assert (fetched.body, fetched.is_part) == (b"data: 1\n\n", True)


async def test_requests_have_user_agent_and_supported_encodings() -> None:
    async with serving({"/": as_json({})}) as server, asking() as asker:
        await asker.get(f"{server.url}/", accept="application/linkset+json", headers={"A2A-Version": "1.0"})
        asked = server.asked("/")
    assert asked == {
        "host": f"127.0.0.1:{server.port}",
        "user-agent": USER_AGENT,
        "accept": "application/linkset+json",
        "accept-encoding": "gzip, deflate",
        "a2a-version": "1.0",
    }


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (200, ResultClass.OK),
        (203, ResultClass.OK),
        (204, ResultClass.NOT_AN_AGENT),
        (401, ResultClass.GATED),
        (402, ResultClass.GATED),
        (403, ResultClass.GATED),
        (404, ResultClass.NOT_AN_AGENT),
        (410, ResultClass.NOT_AN_AGENT),
        (418, ResultClass.HTTP_ERROR),
        (429, ResultClass.RATE_LIMITED),
        (503, ResultClass.HTTP_ERROR),
    ],
)
async def test_each_status_has_the_same_result_for_get_and_post(status: int, result: ResultClass) -> None:
    reply = kept(b"" if status == 204 else b"{}", status, Retry_After="120")
    async with serving({"/": reply}) as server, asking() as asker:
        fetched = await asker.get(f"{server.url}/")
        posted = await asker.post(f"{server.url}/")
    assert (fetched.result, fetched.status, fetched.retry_after_seconds) == (result, status, 120)
    assert fetched.body == (b"{}" if result is ResultClass.OK else b"")
    # The sender of a message classifies the answer and gets all of it.
    assert (posted.result, posted.status) == (result, status)
    assert posted.body == (b"" if status == 204 else b"{}")
    if result is ResultClass.HTTP_ERROR:
        assert "POST" in posted.reason


async def test_unneeded_body_is_not_read() -> None:
    async with serving({"/": hostile.drip(asyncio.Event().wait)}) as server, asking() as asker:
        fetched = await asker.get(f"{server.url}/", is_head_enough=True)
    assert (fetched.result, fetched.status, fetched.body) == (ResultClass.OK, 200, b"")


@on_both_loops
async def test_unchanged_document_is_ok_without_a_body() -> None:
    async def reply(writer: asyncio.StreamWriter, head: str) -> None:
        is_known = ETAG in head or "if-modified-since: yesterday" in head.lower()
        await (answer(304, ETag=ETAG) if is_known else as_json({}, ETag=ETAG))(writer, head)

    async with serving({"/": reply, "/304": answer(304)}) as server, asking() as asker:
        first = await asker.get(f"{server.url}/")
        assert (first.result, first.is_unchanged, first.etag) == (ResultClass.OK, False, ETAG)
        for known in ({"etag": ETAG}, {"modified_since": "yesterday"}):
            again = await asker.get(f"{server.url}/", **known)
            assert (again.result, again.is_unchanged, again.body) == (ResultClass.OK, True, b"")
        changed = await asker.get(f"{server.url}/", etag='"old"')
        assert (changed.result, changed.is_unchanged, changed.body) == (ResultClass.OK, False, b"{}")
        # Without a conditional request a 304 is invalid.
        assert (await asker.get(f"{server.url}/304")).result is ResultClass.HTTP_ERROR


async def test_overlong_etag_is_ignored() -> None:
    async with serving({"/": as_json({}, ETag=f'"{"a" * MAX_ETAG_CHARS}"')}) as server, asking() as asker:
        assert (await asker.get(f"{server.url}/")).etag is None


# ── unreachable peers ──


@on_both_loops
async def test_unreachable_host_is_classified_before_http(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver_module, "ROOT_SECONDS", 0.2)
    names: Names = {"here.example": HERE, "silent.example": Failure.SILENCE, "": Failure.SILENCE}
    short = PATIENT.model_copy(update={"dns_seconds": 0.4})
    async with asking(names) as asker, asking(names, timeouts=short) as impatient:
        refused = await asker.get(f"http://here.example:{free_port()}/")
        unknown = await asker.get("http://unknown.example/")
        unseen = await impatient.get("http://silent.example/")
        blocked = await asker.get("http://10.0.0.1/")
        assert [one.result for one in (refused, unknown, unseen, blocked)] == [
            ResultClass.REFUSED, ResultClass.DNS_FAILURE, ResultClass.INTERNAL, ResultClass.BLOCKED_ADDRESS,
        ]  # fmt: skip
        for fetched in (refused, unknown, unseen, blocked):
            assert fetched.reason
            assert not fetched.is_reached
            assert fetched.status is None
            assert fetched.is_resolver_fault is (fetched is unseen)
        assert str(refused.address) == "127.0.0.1"
        assert refused.phases is not None
        assert refused.phases.connect_ms is not None
        assert unknown.phases is not None
        assert unknown.phases.dns_ms is not None
        assert (asker.resolver.lookups, asker.resolver.faults) == (2, 0)
        assert (impatient.resolver.lookups, impatient.resolver.faults) == (1, 1)


async def test_without_remaining_time_no_request_is_sent() -> None:
    async with serving({"/": answer(200)}) as server, asking() as asker:
        fetched = await asker.get(f"{server.url}/", seconds=0)
        assert fetched.result is ResultClass.NOT_MEASURED
        assert server.connections == 0


async def test_redirects_have_one_deadline_together() -> None:
    async def late(writer: asyncio.StreamWriter, head: str) -> None:
        await asyncio.sleep(0.15)
        await redirect("/")(writer, head)

    async with serving({"/": late}) as server, asking() as asker:
        fetched = await asker.get(f"{server.url}/", seconds=0.4)
    assert fetched.result in {ResultClass.TIMEOUT, ResultClass.NOT_MEASURED}
    assert len(server.heads) <= 3


@with_sockets_in_virtual_time
async def test_a_body_may_take_longer_than_its_first_byte() -> None:
    async def late(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(1.1)
        writer.write(b"}")

    timeouts = PATIENT.model_copy(update={"first_byte_seconds": 1.0})
    async with serving({"/": late}) as server, asking(timeouts=timeouts) as asker:
        fetched = await asker.get(f"{server.url}/")
    assert (fetched.result, fetched.body) == (ResultClass.OK, b"{}")


# ── request lines and headers ──


async def test_user_agent_is_one_line() -> None:
    async with Resolver([]) as resolver:
        with pytest.raises(InvalidValue, match="user_agent"):
            Fetcher(timeouts=SHORT, user_agent="me\r\nX-B: b", resolver=resolver)


async def test_invalid_etag_is_ignored() -> None:
    reply = raw(b'HTTP/1.1 200 OK\r\nETag: "\xff"\r\nContent-Length: 0\r\n\r\n')
    async with serving({"/": reply}) as server, asking() as asker:
        fetched = await asker.get(f"{server.url}/")
        assert (fetched.result, fetched.etag) == (ResultClass.OK, None)


async def test_options_request_has_no_body_and_reads_allow() -> None:
    async with serving({"/": kept(b"", 204, Allow="POST, OPTIONS")}) as server, asking() as asker:
        fetched = await asker.ask(f"{server.url}/", method="OPTIONS")
        assert (fetched.status, fetched.allow) == (204, "POST, OPTIONS")
        assert server.heads[0].startswith("OPTIONS / HTTP/1.1\r\n")


@pytest.mark.parametrize("path", ["/a\r\nX-B: b", "/a b", "/\u00e4", "/a\0", "/\\a"])
async def test_a_path_that_was_not_encoded_is_not_sent(path: str) -> None:
    async with serving({}) as server, asking() as asker:
        fetched = await asker.ask(URL(f"{server.url}{path}", encoded=True))
        assert fetched.result is ResultClass.BLOCKED_ADDRESS
        assert server.heads == []


@given(st.text(max_size=60))
def test_any_path_stays_within_the_request_line(path: str) -> None:
    try:
        url = URL("http://a.example/").join(URL(path))
    except ValueError:
        return
    assert url.raw_path_qs.isascii()
    assert not set(url.raw_path_qs) & set(" \r\n\0")


def test_ambiguous_url_is_refused() -> None:
    other = TargetUrl("http", "b.example", 80, None)
    assert isinstance(_read_alike(URL("http://a.example/"), other), AddressRefused)
    assert isinstance(_read_alike(URL("https://b.example/"), other), AddressRefused)
    assert isinstance(_read_alike(URL("http://b.example:81/"), other), AddressRefused)
    assert _read_alike(URL("http://b.example./"), other) is other


# ── cookies, proxies and addresses ──


async def test_cookies_are_never_kept() -> None:
    replies: dict[str, Reply] = {
        "/": as_json({}, Set_Cookie="session=1; Path=/"),
        "/go": answer(302, Location="/", Set_Cookie="session=2; Path=/"),
    }
    async with serving(replies) as server, asking() as asker:
        for path in ("/go", "/"):
            await asker.get(f"{server.url}{path}")
    assert len(server.heads) == 3
    assert not any("cookie:" in head.lower() for head in server.heads)


@on_both_loops
async def test_proxies_and_credentials_of_the_environment_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving({"/": as_json({})}) as server, serving({}) as proxy, asking() as asker:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        fetched = await asker.get(f"{server.url}/")
        assert fetched.result is ResultClass.OK
        assert proxy.connections == 0
        assert "authorization" not in server.asked("/")


@on_both_loops
async def test_host_with_a_final_dot_equals_the_host_without_it() -> None:
    names: Names = {"here.example": HERE}
    async with serving({"/": kept()}, keeps_alive=True) as server, asking(names) as asker:
        for host in ("here.example", "here.example.", "HERE.example"):
            fetched = await asker.get(f"http://{host}:{server.port}/")
            assert fetched.result is ResultClass.OK
            assert server.asked("/")["host"] == f"here.example:{server.port}"
        assert server.connections == 1


async def test_addresses_of_the_other_family_are_tried_too() -> None:
    try:
        serving_six = serving({"/": kept()}, host="::1")
        async with serving_six as server, asking({"six.example": ("::1",)}) as asker:
            for host in ("[::1]", "six.example"):
                fetched = await asker.get(f"http://{host}:{server.port}/")
                assert fetched.result is ResultClass.OK, fetched
                assert str(fetched.address) == "::1"
    except OSError as error:
        pytest.skip(f"NOT RUN: this machine has no ::1 ({error})")
