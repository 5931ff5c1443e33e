from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import cast

import aiohttp
import pytest
from tests.support.agent_check import card, check, document, names
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    OLD_CARD_PATH,
    answer,
    as_json,
    redirect,
    serving,
)
from yarl import URL

from lifesign.client import fetch_health
from lifesign.client.health import MAX_TIMEOUT_SECONDS
from lifesign.domain.a2a.agent_card import MAX_CARD_BYTES
from lifesign.domain.a2a.announcement import announce_health
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.decision import Action
from lifesign.domain.observation.results import ResultClass
from lifesign.errors import InvalidValue
from lifesign.http_client.answer import Answer
from lifesign.http_client.bounded_get import Ask, user_agent

# ── locations ──


async def test_card_and_document_are_read_from_the_base_url() -> None:
    async with serving({CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}) as server:
        checked = await fetch_health(server.url)
    assert checked.card_url == server.url + CARD_PATH
    assert checked.health_url == server.url + HEALTH_PATH
    assert checked.card is not None
    assert checked.card.name == "An agent"
    assert (checked.card_result, checked.document_result) == (ResultClass.OK, ResultClass.OK)
    assert checked.decision.action is Action.PROCEED
    assert checked.latency_ms is not None
    assert checked.latency_ms > 0
    assert server.paths == [CARD_PATH, HEALTH_PATH]


async def test_card_at_the_path_of_older_agents_is_found() -> None:
    checked = await check({OLD_CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())})
    assert checked.card_url.endswith(OLD_CARD_PATH)
    assert checked.card_result is ResultClass.OK


async def test_an_agent_without_a_card_still_has_its_health() -> None:
    checked = await check({HEALTH_PATH: as_json(document("degraded"))})
    assert (checked.card, checked.card_result) == (None, ResultClass.NOT_AN_AGENT)
    assert "404" in checked.card_reason
    assert checked.decision.status is HealthStatus.DEGRADED


@pytest.mark.parametrize("path", ["", "/", CARD_PATH, OLD_CARD_PATH, HEALTH_PATH, "/?x=1#y"])
async def test_base_card_and_health_urls_lead_to_the_same_agent(path: str) -> None:
    replies = {CARD_PATH: as_json(card()), OLD_CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}
    checked = await check(replies, path)
    assert (checked.card_result, checked.document_result) == (ResultClass.OK, ResultClass.OK)


@pytest.mark.parametrize("path", ["/a", "/a/", "/a" + CARD_PATH, "/a" + HEALTH_PATH])
async def test_several_agents_of_one_origin_are_distinguished(path: str) -> None:
    replies = {
        "/a" + CARD_PATH: as_json(card(name="A")),
        "/a" + HEALTH_PATH: as_json(document("degraded", agent_id="a")),
        CARD_PATH: as_json(card(name="root")),
        HEALTH_PATH: as_json(document(agent_id="root")),
    }
    checked = await check(replies, path)
    assert checked.card is not None
    assert checked.document is not None
    assert (checked.card.name, checked.document.agent_id) == ("A", "a")
    assert "found_at_origin_root" not in names(checked)


@pytest.mark.parametrize("path", ["/gone", "/gone" + CARD_PATH, "/gone" + HEALTH_PATH, "/gone/card.json"])
@pytest.mark.parametrize("has_card", [True, False])
async def test_root_document_without_the_path_of_an_agent_does_not_count(
    path: str, *, has_card: bool
) -> None:
    replies = {CARD_PATH: as_json(card())} if has_card else {}
    checked = await check(replies | {HEALTH_PATH: as_json(document())}, path, detail_token="a-secret")
    assert (checked.decision.status, checked.decision.action) == (
        HealthStatus.UNKNOWN,
        Action.PROCEED_AND_MONITOR,
    )
    assert (checked.card, checked.document, checked.age_seconds) == (None, None, None)
    expected = (
        "nothing at this address; there is a document at the origin's root, but nothing there names this path"
    )
    assert checked.decision.reasons[0].endswith(expected)
    assert checked.health_url is not None
    assert "/gone" in checked.health_url
    assert "found_at_origin_root" in names(checked)
    assert ("does not name it" in checked.card_reason) is has_card


async def test_own_document_counts_if_the_root_card_is_of_another_agent() -> None:
    replies = {
        CARD_PATH: as_json(announce_health(card(), path="/state")),
        "/state": as_json(document("unhealthy")),
        "/a" + HEALTH_PATH: as_json(document(agent_id="a")),
    }
    checked = await check(replies, "/a")
    assert checked.card_result is ResultClass.NOT_AN_AGENT
    assert checked.document is not None
    assert checked.document.agent_id == "a"
    assert "found_at_origin_root" not in names(checked)


async def test_card_that_redirects_to_the_root_does_not_make_the_root_document_count() -> None:
    own = {"/a" + CARD_PATH: redirect(CARD_PATH), "/a" + OLD_CARD_PATH: redirect(CARD_PATH)}
    checked = await check(own | {CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}, "/a")
    assert checked.card_result is ResultClass.OK
    assert checked.decision.status is HealthStatus.UNKNOWN


async def test_root_card_that_contains_the_given_url_counts() -> None:
    async with serving({HEALTH_PATH: as_json(document())}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/rpc/"))
        checked = await fetch_health(server.url + "/rpc")
    assert checked.document_result is ResultClass.OK
    assert names(checked) == {"not_https"}


async def test_refused_document_reports_the_required_login() -> None:
    schemes = {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}
    gated = answer(401, WWW_Authenticate="Bearer, Basic")
    checked = await check({CARD_PATH: as_json(card(securitySchemes=schemes)), HEALTH_PATH: gated})
    assert checked.login is not None
    assert checked.login.schemes == ("bearer", "basic")
    assert checked.login.card_schemes == ("apiKey header X-API-Key",)
    assert checked.login.metadata is None


async def test_served_document_reports_no_login() -> None:
    document_with_challenge = as_json(document(), WWW_Authenticate="Bearer")
    checked = await check({CARD_PATH: as_json(card()), HEALTH_PATH: document_with_challenge})
    assert checked.login is None


async def test_health_url_of_the_card_is_requested_first() -> None:
    announced = announce_health(card(), path="/state?agent=1")
    checked = await check({CARD_PATH: as_json(announced), "/state?agent=1": as_json(document())})
    assert checked.health_url is not None
    assert checked.health_url.endswith("/state?agent=1")


async def test_link_header_of_a_card_announces_the_health_url() -> None:
    linked = as_json(card(), Link='</docs>; rel="service-doc", <../state>; title="a, b"; rel="x status"')
    checked = await check({CARD_PATH: linked, "/state": as_json(document())})
    assert checked.document_result is ResultClass.OK


async def test_a_private_key_counts_only_if_a_health_document_is_there() -> None:
    private = as_json(card(endpoints={"health": "/ping"}))
    found = await check({CARD_PATH: private, "/ping": as_json(document())})
    assert found.health_url is not None
    assert found.health_url.endswith("/ping")
    other = await check({CARD_PATH: private, "/ping": answer(500), HEALTH_PATH: as_json(document())})
    assert other.health_url is not None
    assert other.health_url.endswith(HEALTH_PATH)


async def test_given_health_url_is_used() -> None:
    checked = await check({"/my/state": as_json(document("degraded"))}, "/my/state")
    assert checked.decision.status is HealthStatus.DEGRADED


async def test_given_card_url_is_used() -> None:
    replies = {"/a/card.json": as_json(card()), "/a" + HEALTH_PATH: as_json(document())}
    checked = await check(replies, "/a/card.json")
    assert (checked.card_result, checked.document_result) == (ResultClass.OK, ResultClass.OK)


async def test_given_card_url_without_json_in_its_path_is_used() -> None:
    checked = await check({"/agents/7?v=1": as_json(card())}, "/agents/7?v=1")
    assert checked.card_result is ResultClass.OK


async def test_later_urls_do_not_replace_the_first_answer() -> None:
    checked = await check({"/rpc": answer(405), HEALTH_PATH: answer(503)}, "/rpc")
    assert checked.document_result is ResultClass.NOT_AN_AGENT
    assert "404" in checked.document_reason


# ── invalid arguments ──


@pytest.mark.parametrize(
    "url",
    [
        "", "agent.example", "/path", "ftp://agent.example", "http://", "http:///x", "http://[::1", "file:///etc",
        "http://a:0/", "http://a:99999/", "http://a b/", "http://a/\n", "http://a/\x1b[0m",
        "http://user@a/", "http://a/" + "x" * 2048, "javascript:alert(1)",
    ],
)  # fmt: skip
async def test_only_absolute_http_urls_are_taken(url: str) -> None:
    with pytest.raises(InvalidValue, match="url"):
        await fetch_health(url)


async def test_non_text_is_no_url() -> None:
    with pytest.raises(InvalidValue, match=r"^url: "):
        await fetch_health(cast("str", None))


@pytest.mark.parametrize("port", ["80", "99999"])
async def test_a_password_in_a_url_is_refused_and_not_repeated(port: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        await fetch_health(f"http://me:hunter2@agent.example:{port}/")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), MAX_TIMEOUT_SECONDS + 1])
async def test_timeout_out_of_range_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidValue, match="timeout_seconds"):
        await fetch_health("http://127.0.0.1:1", timeout_seconds=seconds)


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX-Evil: 1", "\u00e4", "x" * 5000])
async def test_invalid_token_is_refused_without_quoting_it(token: str) -> None:
    with pytest.raises(InvalidValue, match="detail_token") as refused:
        await fetch_health("http://127.0.0.1:1", detail_token=token)
    assert not token or token not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "networks"),
    [
        ("http://agent.example", ["10.0.0.0/8"]),
        ("http://10.1.0.1", []),
        ("http://192.0.2.1:8000", ["10.0.0.0/8"]),
    ],
)
async def test_token_is_not_sent_unencrypted(url: str, networks: list[str]) -> None:
    with pytest.raises(InvalidValue, match="https") as refused:
        await fetch_health(url, detail_token="a-secret", allowed_networks=networks)
    assert refused.value.name == "url"


async def test_token_may_be_sent_over_plain_http_to_an_allowed_address() -> None:
    given = {"detail_token": "a-secret", "allowed_networks": ["10.0.0.0/8"], "timeout_seconds": 0.1}
    checked = await fetch_health("http://10.1.0.1:1", **given)  # type: ignore[arg-type]
    assert checked.decision.status is HealthStatus.UNKNOWN


# ── content of the document ──


async def test_unhealthy_agent_gives_the_action_avoid() -> None:
    checked = await check({HEALTH_PATH: as_json(document("unhealthy"))})
    assert checked.decision.action is Action.AVOID
    assert checked.decision.retry_after_seconds == 300


async def test_age_is_computed_from_the_date_of_the_response() -> None:
    long_ago = datetime.now(UTC) - timedelta(days=3)
    stated = document(timestamp=(long_ago - timedelta(seconds=20)).isoformat())
    served = as_json(stated, Date=format_datetime(long_ago, usegmt=True))
    checked = await check({HEALTH_PATH: served})
    assert checked.document_result is ResultClass.OK
    assert checked.age_seconds is not None
    assert 18 < checked.age_seconds < 21
    assert "clocks_differ" in names(checked)


async def test_time_in_a_cache_counts_as_age() -> None:
    served = as_json(document(), Date=format_datetime(datetime.now(UTC), usegmt=True), Age="1000")
    checked = await check({HEALTH_PATH: served})
    assert checked.document_result is ResultClass.STALE_DOCUMENT


@pytest.mark.parametrize("date", ["", "yesterday", "Fri, 99 Nov 2026 11:02:00 GMT", "Mon, 00 Xyz"])
async def test_age_uses_the_local_clock_without_a_valid_date_header(date: str) -> None:
    checked = await check({HEALTH_PATH: as_json(document(), Date=date)})
    assert checked.document_result is ResultClass.OK


async def test_stale_document_gives_unknown_and_is_returned() -> None:
    old = document(timestamp="2020-01-01T00:00:00Z")
    checked = await check({HEALTH_PATH: as_json(old)})
    assert checked.document_result is ResultClass.STALE_DOCUMENT
    assert checked.document is not None
    assert checked.decision.action is Action.PROCEED_AND_MONITOR
    assert "old" in checked.document_reason


@pytest.mark.parametrize(("max_age", "stale"), [("max-age=600", False), ("public, MAX-AGE=60", True)])
async def test_a_long_max_age_keeps_a_document_fresh(max_age: str, *, stale: bool) -> None:
    served_at = datetime.now(UTC)
    old = document(timestamp=(served_at - timedelta(seconds=1000)).isoformat())
    checked = await check({HEALTH_PATH: as_json(old, Cache_Control=max_age)})
    assert (checked.document_result is ResultClass.STALE_DOCUMENT) is stale


# ── redirects, tokens, cookies ──


async def test_three_redirects_on_one_origin_are_followed() -> None:
    hops = {HEALTH_PATH: redirect("/1"), "/1": redirect("/2", 307), "/2": redirect("/3", 308)}
    checked = await check(hops | {"/3": as_json(document())})
    assert checked.document_result is ResultClass.OK
    assert checked.health_url is not None
    assert checked.health_url.endswith("/3")


@pytest.mark.parametrize(
    "location",
    [HEALTH_PATH, "ftp://x/", "http://", "http://u:p@127.0.0.1/", "http://[", "/" + "x" * 3000, "\xff\xfe"],
)
async def test_circular_and_invalid_redirects_are_refused(location: str) -> None:
    checked = await check({HEALTH_PATH: redirect(location)})
    expected = {ResultClass.REDIRECT_REFUSED, ResultClass.NOT_AN_AGENT}
    assert checked.document_result in (expected if location == "\xff\xfe" else {ResultClass.REDIRECT_REFUSED})


async def test_a_document_on_another_origin_is_not_followed() -> None:
    async with serving({HEALTH_PATH: as_json(document())}) as elsewhere:
        checked = await check({HEALTH_PATH: redirect(elsewhere.url + HEALTH_PATH)})
    assert checked.document_result is ResultClass.REDIRECT_REFUSED
    assert elsewhere.paths == []


async def test_a_card_may_move_to_another_origin_and_the_health_document_with_it() -> None:
    async with serving({CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}) as moved:
        replies = {CARD_PATH: redirect(moved.url + CARD_PATH, 301)}
        checked = await check(replies, detail_token="a-secret")
    assert checked.health_url == moved.url + HEALTH_PATH
    assert "authorization" not in moved.asked(HEALTH_PATH)
    assert {"card_on_other_origin", "token_not_sent"} <= names(checked)


async def test_token_is_sent_only_to_the_health_document() -> None:
    async with serving({CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}) as server:
        await fetch_health(server.url, detail_token="a-secret")
    assert "authorization" not in server.asked(CARD_PATH)
    assert server.asked(HEALTH_PATH)["authorization"] == "Bearer a-secret"


@pytest.mark.parametrize("mark", ["", "\u200e", "\u061c"])
async def test_token_that_an_agent_sends_back_is_not_shown(mark: str) -> None:
    token = "secret-of-the-document"
    sent = f"{token[:5]}{mark}{token[5:]}"
    replies = {CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document(agent_id=sent))}
    checked = await check(replies, detail_token=token)
    assert checked.document is not None
    assert checked.document.agent_id == "REMOVED-SECRET"


async def test_token_is_searched_only_in_answers_to_requests_with_it() -> None:
    token = "secret-of-the-document"
    replies = {CARD_PATH: as_json(card(name=token)), HEALTH_PATH: as_json(document())}
    checked = await check(replies, detail_token=token)
    assert checked.card is not None
    assert checked.card.name == token


async def test_a_token_never_follows_a_redirect_to_another_origin() -> None:
    async with serving({HEALTH_PATH: as_json(document())}) as elsewhere:
        replies = {HEALTH_PATH: redirect(elsewhere.url + HEALTH_PATH)}
        checked = await check(replies, detail_token="a-secret")
    assert elsewhere.heads == []
    assert checked.document_result is ResultClass.REDIRECT_REFUSED
    assert "token" in checked.document_reason


async def test_redirect_to_a_url_with_the_token_is_not_followed() -> None:
    async with serving({CARD_PATH: as_json(card())}) as server:
        server.replies |= {HEALTH_PATH: redirect("/log/a-secret"), "/log/a-secret": as_json(document())}
        checked = await fetch_health(server.url, detail_token="a-secret")
    assert "/log/a-secret" not in server.paths
    assert checked.document_result is ResultClass.REDIRECT_REFUSED
    assert "a-secret" not in repr(checked)


async def test_requests_send_a_user_agent_and_no_cookies() -> None:
    async with serving(
        {CARD_PATH: as_json(card(), Set_Cookie="track=1; Path=/"), HEALTH_PATH: as_json(document())}
    ) as server:
        await fetch_health(server.url.replace("127.0.0.1", "localhost"))
    assert "cookie" not in server.asked(HEALTH_PATH)
    assert server.asked(HEALTH_PATH)["user-agent"] == user_agent()
    assert server.asked(HEALTH_PATH)["accept"] == "application/json"


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert (await check({HEALTH_PATH: as_json(document())})).document_result is ResultClass.OK


async def test_callers_session_is_used_and_left_open() -> None:
    async with serving({HEALTH_PATH: as_json(document())}) as server, aiohttp.ClientSession() as session:
        checked = await fetch_health(server.url, session=session)
        assert checked.document_result is ResultClass.OK
        assert not session.closed


async def test_caller_with_address_rules_passes_its_own_get() -> None:
    asked: list[str] = []

    async def get(url: URL, ask: Ask) -> Answer:
        asked.append(f"{url} {ask.max_bytes}")
        return Answer(url=url, result=ResultClass.BLOCKED_ADDRESS, reason="10.0.0.5 is private (RFC 1918)")

    checked = await fetch_health("http://agent.example", get=get)
    assert asked[0] == f"http://agent.example{CARD_PATH} {MAX_CARD_BYTES}"
    assert (checked.card_result, checked.document_result) == (ResultClass.BLOCKED_ADDRESS,) * 2
    assert checked.decision.reasons == ("10.0.0.5 is private (RFC 1918)",)
