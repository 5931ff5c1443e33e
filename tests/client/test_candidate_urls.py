import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.agent_check import card
from yarl import URL

from lifesign.client.candidate_urls import (
    Announced,
    announced_health,
    health_places,
    parse_agent_url,
    root_health_url,
    server_health_url,
)
from lifesign.domain.a2a.agent_card import interpret_agent_card
from lifesign.domain.a2a.announcement import announce_health
from lifesign.errors import InvalidValue

ORIGIN = "https://agent.example"
CARD = "/.well-known/agent-card.json"
OLD_CARD = "/.well-known/agent.json"
HEALTH = "/.well-known/agent-health"


def paths_of_cards(path: str) -> list[str]:
    return [url.path for url in parse_agent_url(ORIGIN + path).card_urls]


def paths_of_health(path: str, found: str | None = None, announced: str | None = None) -> list[str]:
    card_url = None if found is None else URL(ORIGIN + found)
    result = Announced(None if announced is None else URL(ORIGIN + announced), None)
    places = health_places(parse_agent_url(ORIGIN + path), card_url, result)
    assert all(place.url.origin() == URL(ORIGIN) for place in places)
    return [place.url.path for place in places]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", [CARD, OLD_CARD]),
        ("/", [CARD, OLD_CARD]),
        (OLD_CARD, [OLD_CARD, CARD]),
        (HEALTH, [CARD, OLD_CARD]),
        ("/a/", ["/a" + CARD, "/a" + OLD_CARD, "/a/", CARD, OLD_CARD]),
        ("/?agent=7", [CARD, OLD_CARD, "/"]),
        ("/a/b" + HEALTH, ["/a/b" + CARD, "/a/b" + OLD_CARD, CARD, OLD_CARD]),
        ("/a/card.json", ["/a/card.json", "/a" + CARD, "/a" + OLD_CARD, CARD, OLD_CARD]),
    ],
)
def test_cards_are_requested_below_the_prefix_and_then_at_the_root(path: str, expected: list[str]) -> None:
    assert paths_of_cards(path) == expected


@pytest.mark.parametrize(
    ("path", "base"),
    [
        (CARD, ""),
        ("/a" + CARD, "/a"),
        ("/a" + OLD_CARD, "/a"),
        ("/a" + HEALTH, "/a"),
        ("/a/", "/a"),
        # A gateway may forward all that begins with `/a` to one agent.
        ("/a.json", "/a"),
        ("/a.well-known/agent.json", "/a.well-known/agent"),
        ("/a/card.json", "/a/card"),
        # Without a name, the path of the folder would be left.
        ("/.json", "/.json"),
        ("/a/.json", "/a/.json"),
        ("/" + CARD, "/" + CARD),
        # The query may choose the agent.
        (f"{CARD}?agent=b", "?agent=b"),
        ("/a?agent=b", "/a?agent=b"),
        ("/a.json?x=1", "/a?x=1"),
    ],
)
def test_owner_of_a_card_need_not_own_its_folder(path: str, base: str) -> None:
    assert parse_agent_url(ORIGIN + path).base == ORIGIN + base


@pytest.mark.parametrize(
    ("path", "found", "announced", "expected"),
    [
        ("", None, None, [HEALTH]),
        ("", CARD, None, [HEALTH]),
        ("", CARD, "/state", ["/state", HEALTH]),
        ("/a", None, None, ["/a" + HEALTH, "/a", HEALTH]),
        ("/a", "/a" + CARD, "/state", ["/state", "/a" + HEALTH, "/a", HEALTH]),
        # The root's card may be another agent's: paths under the own prefix come first.
        ("/a", CARD, "/state", ["/a" + HEALTH, "/a", "/state", HEALTH]),
        ("/a" + CARD, "/a" + CARD, None, ["/a" + HEALTH, HEALTH]),
        ("/a" + HEALTH, None, None, ["/a" + HEALTH, HEALTH]),
        ("/a" + HEALTH, "/a" + CARD, "/state", ["/a" + HEALTH, "/state", HEALTH]),
    ],
)
def test_health_is_requested_at_its_announced_url_and_then_below_the_prefix(
    path: str, found: str | None, announced: str | None, expected: list[str]
) -> None:
    assert paths_of_health(path, found, announced) == expected


def test_query_is_kept_only_for_the_given_url() -> None:
    place = parse_agent_url(ORIGIN + HEALTH + "?agent=1")
    assert [str(found.url) for found in health_places(place, None)] == [
        ORIGIN + HEALTH + "?agent=1",
        ORIGIN + HEALTH,
    ]


@pytest.mark.parametrize(
    ("links", "private", "expected", "elsewhere"),
    [
        ((), None, None, None),
        (("/state",), None, ORIGIN + "/state", None),
        (("https://other.example/state",), None, None, "https://other.example/state"),
        (("https://other.example/x", "/state"), None, ORIGIN + "/state", "https://other.example/x"),
        (("http://agent.example/state",), None, None, "http://agent.example/state"),
        (("https://me:secret@agent.example/", "javascript:1", "", "https://["), None, None, None),
        ((), "/ping", ORIGIN + "/ping", None),
        ((), ORIGIN + "/ping", ORIGIN + "/ping", None),
        ((), "https://other.example/ping", None, "https://other.example/ping"),
        (("/state",), "/ping", ORIGIN + "/state", None),
    ],
)  # fmt: skip
def test_health_url_on_another_origin_than_the_card_is_ignored(
    links: tuple[str, ...], private: str | None, expected: str | None, elsewhere: str | None
) -> None:
    members = card(endpoints={"health": private}) if private else card()
    announced = announced_health(interpret_agent_card(members), URL(ORIGIN + CARD), links)
    assert (announced.url and str(announced.url), announced.elsewhere) == (expected, elsewhere)


@pytest.mark.parametrize(
    ("links", "expected", "passed_over"),
    [
        ((), HEALTH, None),
        ((HEALTH,), HEALTH, None),
        # A mounted agent whose card forgot the prefix; who serves the document knows it.
        (("/travel" + HEALTH,), "/travel" + HEALTH, HEALTH),
        (("https://other.example/state", "https://me:secret@agent.example/state"), HEALTH, None),
    ],
)
def test_link_header_overrides_the_card_extension(
    links: tuple[str, ...], expected: str, passed_over: str | None
) -> None:
    announced = announced_health(
        interpret_agent_card(announce_health(card(capabilities={}))), URL(ORIGIN + CARD), links
    )
    assert str(announced.url) == ORIGIN + expected
    assert announced.passed_over == passed_over


@given(st.text() | st.text().map("http://".__add__) | st.text().map("https://a/".__add__))
@example("http://[::1]@")
@example("http://[::1:]")
@example("http://agent.example:0/")
def test_base_url_is_normalised_or_refused(url: str) -> None:
    try:
        place = parse_agent_url(url)
    except InvalidValue:
        return
    assert place.url.scheme in {"http", "https"}
    assert place.url.raw_host
    assert place.url.raw_user is None
    assert 1 <= len(place.card_urls) <= 5
    assert 1 <= len(health_places(place, None)) <= 5
    assert {(found.scheme, found.raw_host, found.port) for found in place.card_urls} == {
        (place.url.scheme, place.url.raw_host, place.url.port)
    }


@pytest.mark.parametrize(
    ("endpoint", "health"),
    [
        ("https://a.example/mcp", "https://a.example/.well-known/agent-health"),
        ("https://a.example/a/mcp/?key=1#x", "https://a.example/a/.well-known/agent-health"),
        ("https://a.example", "https://a.example/.well-known/agent-health"),
        ("http://[::1]:8000/a/b/sse", "http://[::1]:8000/a/b/.well-known/agent-health"),
    ],
)
def test_health_document_of_an_mcp_server_is_next_to_its_endpoint(endpoint: str, health: str) -> None:
    assert str(server_health_url(URL(endpoint, encoded=True))) == health
    origin = health.split("/a/", maxsplit=1)[0].removesuffix("/.well-known/agent-health")
    assert str(root_health_url(URL(endpoint, encoded=True))) == f"{origin}/.well-known/agent-health"
