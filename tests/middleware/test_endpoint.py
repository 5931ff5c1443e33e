import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.asgi_client import Answer, ask
from tests.support.hand_clock import HandClock
from tests.support.properties import examples
from tests.support.scripted import app_of, final, outcomes, start

from lifesign import AgentHealthMiddleware, Outcome
from lifesign.domain.health.document import HealthDocument
from lifesign.domain.health.document_builder import self_report

HEALTH = "/.well-known/agent-health"
FORM = b"application/health+json"
# The counts that make a status (draft 4.3), and what both forms say of it.
STATUSES = {
    "healthy": ({Outcome.ANSWERED: 20}, "pass", 200),
    "degraded": ({Outcome.ANSWERED: 15, Outcome.RAISED: 5}, "warn", 200),
    "unhealthy": ({Outcome.ANSWERED: 5, Outcome.RAISED: 15}, "fail", 503),
    "unknown": ({Outcome.ANSWERED: 9}, "warn", 200),
}


def agent(status: str = "healthy", clock: HandClock | None = None, **given_: Any) -> AgentHealthMiddleware:
    clock = clock or HandClock()
    app = app_of([start(), final(b"the app")], clock)
    middleware = AgentHealthMiddleware(app, agent_id="https://agent.test", clock=clock.clock, **given_)
    for outcome, count in STATUSES[status][0].items():
        for _ in range(count):
            middleware.health.record(outcome, latency_ms=20)
    return middleware


async def get(
    app: AgentHealthMiddleware, headers: dict[str, str | bytes] | None = None, method: str = "GET"
) -> Answer:
    pairs = [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in (headers or {}).items()
    ]
    return await ask(app, HEALTH, method=method, headers=pairs)


@pytest.mark.parametrize("status", STATUSES)
async def test_health_document_is_200_for_each_status(status: str) -> None:
    answer = await get(agent(status))
    assert answer.status == 200
    assert answer.header("content-type") == "application/json"
    assert answer.header("content-length") == str(len(answer.body))
    assert HealthDocument.model_validate_json(answer.body).health.status == status


@pytest.mark.parametrize("status", STATUSES)
async def test_health_json_form_has_its_own_http_status(status: str) -> None:
    _, result, http_status = STATUSES[status]
    answer = await get(agent(status), {"accept": FORM})
    assert answer.status == http_status
    assert answer.header("content-type") == FORM.decode()
    assert answer.header("content-length") == str(len(answer.body))
    assert answer.json()["status"] == result
    assert answer.json()["serviceId"] == "https://agent.test"


@pytest.mark.parametrize("status", ["healthy", "unhealthy"])
@pytest.mark.parametrize("accept", [b"application/json", FORM])
async def test_each_format_has_cors_and_vary_headers(status: str, accept: bytes) -> None:
    answer = await get(agent(status), {"accept": accept})
    assert answer.header("access-control-allow-origin") == "*"
    assert answer.header("vary") == "Accept, Authorization"
    assert answer.header("cache-control") == "max-age=60"


@pytest.mark.parametrize("accept", [b"application/json", FORM])
@pytest.mark.parametrize("status", STATUSES)
async def test_head_is_get_without_the_body(status: str, accept: bytes) -> None:
    middleware = agent(status)
    got = await get(middleware, {"accept": accept})
    head = await get(middleware, {"accept": accept}, "HEAD")
    assert (head.status, head.headers, head.body) == (got.status, got.headers, b"")


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "QUERY", "get", ""]
)
async def test_other_methods_get_405_with_allow(method: str) -> None:
    middleware = agent("unknown")
    before = outcomes(middleware)
    answer = await get(middleware, method=method)
    assert answer.status == 405
    assert sorted((answer.header("allow") or "").replace(" ", "").split(",")) == ["GET", "HEAD"]
    assert answer.body != b"the app"
    assert outcomes(middleware) == before


# Content negotiation (RFC 9110 12.5.1).


@pytest.mark.parametrize(
    ("accept", "is_form"),
    [
        ("application/health+json", True),
        ("Application/Health+JSON", True),
        ("  application/health+json  ", True),
        ("application/health+json;q=1", True),
        ("application/health+json; q=0.1", True),
        ("application/health+json;Q=0.5", True),
        ("application/health+json, application/json;q=0.9", True),
        ("application/json;q=0.4,application/health+json;q=0.5", True),
        ("application/health+json;v=1;q=0.5", True),
        ("text/html,application/health+json", True),
        ("application/health+json, */*;q=0.1", True),
        ("application/health+json, */*", True),
        ("*/*, application/health+json", True),
        ("application/health+json;q=0.5, application/*;q=0.5", True),
        ("application/health+json;q=0.5, application/*;q=0.4, */*", True),
        ("application/health+json;q=0.5, application/json;q=0.4, */*", True),
        ("application/health+json;q=0.5, text/*", True),
        ("", False),
        ("*/*", False),
        ("application/*", False),
        ("application/json", False),
        ("text/html", False),
        ("application/json, application/health+json", False),
        ("application/health+json;q=0.4, application/json;q=0.5", False),
        ("application/health+json;q=0.1, */*", False),
        ("*/*;q=0.2, application/health+json;q=0.1", False),
        ("application/health+json;q=0.5, application/*", False),
        ("application/health+json;q=0.5, application/*;q=0.6, */*;q=0.1", False),
        ("application/health+json;q=0.5, application/json;q=0.6, */*;q=0.1", False),
        ("application/health+json;q=0, */*;q=0", False),
        ("application/health+json;q=0", False),
        ("application/health+json;q=0.0, */*", False),
        ("application/health+jsonx", False),
        ("x-application/health+json", False),
        ("application/health+json;q=", False),
        ("application/health+json;q=high", False),
        ("application/health+json;q=nan", False),
        (",,;;,=;q", False),
        ("application/health+json" + ",x/y" * 20_000, False),
    ],
)
async def test_accept_header_selects_the_format_by_exact_name(accept: str, is_form: bool) -> None:  # noqa: FBT001
    answer = await get(agent(), {"accept": accept})
    assert answer.header("content-type") == (FORM.decode() if is_form else "application/json")


async def test_several_accept_headers_are_combined() -> None:
    headers = [(b"accept", b"application/health+json;q=0.5"), (b"accept", b"application/json")]
    for pairs in (headers, headers[::-1]):
        answer = await ask(agent(), HEALTH, headers=pairs)
        assert answer.header("content-type") == "application/json"


# Caching.


async def test_max_age_counts_down_to_the_refresh() -> None:
    clock = HandClock()
    middleware = agent(clock=clock, refresh_seconds=10)
    seen = []
    for _ in range(25):
        answer = await get(middleware)
        seen.append((answer.header("cache-control"), answer.json()["timestamp"]))
        clock.advance(1)
    ages = [int((caching or "").removeprefix("max-age=")) for caching, _ in seen]
    begin = ages.index(max(ages))
    assert ages[begin : begin + 12] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 10, 9]
    # A document that is fresh by its age never changes.
    for at, age in enumerate(ages):
        assert len({timestamp for _, timestamp in seen[at : at + age]}) == 1


async def test_max_age_is_between_zero_and_the_refresh_interval() -> None:
    clock = HandClock()
    middleware = agent(clock=clock, refresh_seconds=1)
    for _ in range(50):
        caching = (await get(middleware)).header("cache-control")
        assert caching in {"max-age=0", "max-age=1"}
        clock.advance(0.3)


async def test_document_bytes_are_unchanged_within_the_refresh_interval() -> None:
    clock = HandClock()
    middleware = agent(clock=clock)
    first = await get(middleware)
    for _ in range(59):
        clock.advance(1)
        await ask(middleware, "/ask")
        again = await get(middleware)
        assert (again.body, again.header("etag")) == (first.body, first.header("etag"))
    clock.advance(1)
    last = await get(middleware)
    assert last.json()["calibration"]["sample_count"] == first.json()["calibration"]["sample_count"] + 59
    assert last.header("etag") != first.header("etag")


async def test_thousands_of_concurrent_requests_compute_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*args: Any, **given_: Any) -> HealthDocument:
        made.append(args)
        return self_report(*args, **given_)

    monkeypatch.setattr("lifesign.middleware.health_reporter.self_report", counted)
    clock = HandClock()
    middleware = agent(clock=clock)
    for times in (1, 2):
        clock.advance(60)
        answers = await asyncio.gather(*[get(middleware) for _ in range(2_000)])
        assert len({answer.body for answer in answers}) == 1
        assert len(made) == times


@pytest.mark.parametrize(
    "spelling", ["{tag}", "W/{tag}", '"x", {tag}', 'W/"x",W/{tag} , "y"', "*", " {tag} "]
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_matching_etag_gets_304(spelling: str, method: str) -> None:
    middleware = agent()
    first = await get(middleware)
    tag = first.header("etag") or ""
    assert tag.startswith('"')
    answer = await get(middleware, {"if-none-match": spelling.format(tag=tag)}, method)
    assert answer.status == 304
    assert answer.body == b""
    kept = ("etag", "cache-control", "vary", "access-control-allow-origin")
    assert [answer.header(name) for name in kept] == [first.header(name) for name in kept]
    assert answer.header("content-length") in {None, str(len(first.body))}


@pytest.mark.parametrize(
    "broken",
    ['"x"', "", '"', "W/", "W/*", "{bare}", "{tag}x", '"*"', ",,,", "{tag}" * 500],
)
async def test_other_entity_tag_gets_the_document(broken: str) -> None:
    middleware = agent()
    first = await get(middleware)
    tag = first.header("etag") or ""
    asked = broken.format(tag=tag, bare=tag.strip('"'))
    answer = await get(middleware, {"if-none-match": asked})
    assert (answer.status, answer.body) == (200, first.body)


async def test_each_format_has_its_own_etag() -> None:
    middleware = agent()
    plain, form = await get(middleware), await get(middleware, {"accept": FORM})
    assert plain.header("etag") != form.header("etag")
    asked: dict[str, str | bytes] = {"accept": FORM, "if-none-match": plain.header("etag") or ""}
    assert (await get(middleware, asked)).status == 200
    assert (await get(middleware, asked | {"if-none-match": form.header("etag") or ""})).status == 304


async def test_failure_is_sent_again_although_its_etag_matches() -> None:
    """A 304 would hide the 503 from a checker that looks at the status alone."""
    middleware = agent("unhealthy")
    tag = (await get(middleware, {"accept": FORM})).header("etag") or ""
    assert (await get(middleware, {"accept": FORM, "if-none-match": tag})).status == 503


# Any request.

NAMES = st.sampled_from([b"accept", b"authorization", b"if-none-match", b"range", b"x"])
VALUES = st.one_of(
    st.binary(max_size=60),
    st.text('abehlnopqstij*/+=;,.W" 0159-', max_size=60).map(str.encode),
    st.sampled_from([b"Bearer ", b"bearer \xff", b"Basic Og==", b"*", FORM + b";q=\xb2", b"," * 5000]),
    st.lists(st.sampled_from([FORM, b"application/json", b"q=0.5", b"q=-1", b"q=1e999", b"*/*"]))
    .map(b";".join),
)  # fmt: skip
COARSE = {"detail": "coarse", "detail_token": "x" * 16}


@settings(max_examples=examples(300))
@given(
    pairs=st.lists(st.tuples(NAMES, VALUES), max_size=6),
    method=st.sampled_from(["GET", "HEAD", "POST"]),
    query=st.binary(max_size=20),
    given_=st.sampled_from([{}, COARSE]),
)
async def test_any_request_gets_a_valid_health_response(
    pairs: list[tuple[bytes, bytes]], method: str, query: bytes, given_: dict[str, Any]
) -> None:
    middleware = AgentHealthMiddleware(app_of([], HandClock()), agent_id="agent", **given_)
    answer = await ask(middleware, HEALTH, method=method, headers=pairs, query_string=query)
    expected = {405} if method == "POST" else {200, 304, 401} if given_ else {200, 304}
    assert answer.status in expected
    if answer.body:
        assert isinstance(json.loads(answer.body), dict)


async def test_header_lines_of_one_name_are_combined() -> None:
    """Joining them one by one once took minutes for so many, on the event loop."""
    lines = [(b"accept", b"application/json" * 10)] * 100_000 + [(b"a", b"b")] * 100_000
    assert (await ask(agent(), HEALTH, headers=lines)).status == 200
