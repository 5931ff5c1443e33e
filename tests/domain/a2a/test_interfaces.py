from typing import Any

import pytest
from tests.support.cards import CARD_01, CARD_03, CARD_10, findings, findings_in, without

from lifesign.domain.a2a.agent_card import interpret_agent_card
from lifesign.domain.a2a.interfaces import MAX_URL_CHARS, AgentInterface, major_minor, url_fault


def test_a_03_card_lists_its_main_url_first_and_once() -> None:
    card = interpret_agent_card(CARD_03)
    assert card.interfaces == (
        AgentInterface("https://sums.test/a2a", "JSONRPC", "0.3.0"),
        AgentInterface("https://sums.test/rest", "HTTP+JSON", "0.3.0"),
    )
    assert card.is_signed


def test_a_10_card_gives_version_and_tenant_per_interface() -> None:
    card = interpret_agent_card(CARD_10)
    assert card.interfaces == (
        AgentInterface("https://sums.test/a2a", "JSONRPC", "1.0", "t1"),
        AgentInterface("https://sums.test/grpc", "GRPC", "1.0"),
    )
    assert card.has_extended_card


def test_card_of_10_with_03_members_is_10_and_lists_each_interface_once() -> None:
    older = {"url": "https://sums.test/a2a", "protocolVersion": "0.3", "preferredTransport": "JSONRPC"}
    twin = {"url": "https://sums.test/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "0.3.0"}
    card = interpret_agent_card(
        CARD_10 | older | {"supportedInterfaces": [*CARD_10["supportedInterfaces"], twin]}
    )
    assert card.generation == "1.0"
    assert [interface.protocol_version for interface in card.interfaces] == ["1.0", "1.0", "0.3.0"]
    assert findings(card) == ["mixed_generations /url"]


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        pytest.param(
            CARD_10 | {"supportedInterfaces": [{"url": "https://sums.test/", "protocolBinding": "GRPC"}]},
            ["protocol_version_missing /supportedInterfaces/0/protocolVersion"],
            id="an interface without version",
        ),
        pytest.param(
            CARD_10 | {"supportedInterfaces": [{"url": "https://sums.test/", "protocolVersion": "1.0"}]},
            ["binding_missing /supportedInterfaces/0/protocolBinding"],
            id="an interface without binding",
        ),
        pytest.param(
            CARD_10 | {"supportedInterfaces": [{"protocolBinding": "GRPC", "protocolVersion": "1.0"}]},
            ["url_missing /supportedInterfaces/0/url", "url_missing /url"],
            id="an interface without URL",
        ),
        pytest.param(
            CARD_03 | {"preferredTransport": "jsonrpc"},
            ["binding_respelled /preferredTransport"],
            id="a binding in small letters",
        ),
        pytest.param(
            CARD_03 | {"preferredTransport": "stdio"},
            ["unknown_binding /preferredTransport"],
            id="a foreign binding",
        ),
        pytest.param(
            without(CARD_03, "url", "additionalInterfaces"),
            ["url_missing /url"],
            id="no URL",
        ),
        pytest.param(
            without(CARD_03, "additionalInterfaces") | {"url": ""},
            ["url_missing /url"],
            id="an empty URL",
        ),
        pytest.param(
            CARD_01 | {"url": "https://{tenant}.sums.test/a2a"},
            ["url_is_a_template /url"],
            id="a template",
        ),
        pytest.param(
            CARD_01 | {"url": "https://me:secret@sums.test/"},
            ["url_has_credentials /url"],
            id="credentials",
        ),
        pytest.param(
            CARD_01 | {"url": "grpc://sums.test:50051"},
            ["unknown_scheme /url"],
            id="another scheme",
        ),
        pytest.param(
            CARD_01 | {"url": "http://localhost:8000/a2a"},
            ["url_on_localhost /url"],
            id="localhost",
        ),
        pytest.param(
            CARD_01 | {"url": "http://127.8.0.1/"},
            ["url_on_localhost /url"],
            id="a loopback address",
        ),
        pytest.param(
            CARD_01 | {"url": "http://[::1]:80/"},
            ["url_on_localhost /url"],
            id="IPv6 loopback",
        ),
        pytest.param(
            CARD_01 | {"url": "https://a.test/" + "a" * MAX_URL_CHARS},
            ["too_long /url"],
            id="an endless URL",
        ),
    ],
)
def test_each_invalid_interface_is_a_finding_with_name_and_pointer(odd: object, expected: list[str]) -> None:
    assert findings_in(odd) == expected


@pytest.mark.parametrize(
    "url",
    ["sums.test/a2a", "localhost:8080", "/a2a", "//sums.test/", "https:///a2a", "https://[::1/", "https://a.test:99999/",
     "https://a b.test/", "https://a.test\\@b.test/", "https://a.test/\n", "https://", " "],
)  # fmt: skip
def test_relative_url_is_kept_but_never_called(url: str) -> None:
    card = interpret_agent_card(CARD_01 | {"url": url})
    assert findings(card)[0] == "url_not_absolute /url"
    assert len(card.interfaces) == 1
    assert not card.interfaces[0].is_callable


def test_a_finding_about_credentials_does_not_repeat_them() -> None:
    card = interpret_agent_card(CARD_01 | {"url": "https://me:secret@sums.test/"})
    assert "secret" not in str(card.findings)
    assert not card.interfaces[0].is_callable


@pytest.mark.parametrize(
    ("private", "pointer"),
    [
        ({"endpoint": "https://sums.test/x"}, "/endpoint"),
        ({"serviceUrl": "https://sums.test/x"}, "/serviceUrl"),
        ({"apiEndpoint": "https://sums.test/x"}, "/apiEndpoint"),
        ({"endpoints": {"docs": "https://sums.test/docs", "a2a": "https://sums.test/x"}}, "/endpoints/a2a"),
        ({"endpoints": ["https://sums.test/x"]}, "/endpoints/0"),
        ({"interfaces": [{"type": "a2a", "url": "https://sums.test/x"}]}, "/interfaces/0/url"),
    ],
)
def test_a_url_under_a_private_key_is_used_if_there_is_no_other(
    private: dict[str, Any], pointer: str
) -> None:
    card = interpret_agent_card(without(CARD_01, "url") | private)
    assert card.interfaces == (AgentInterface("https://sums.test/x", None, None),)
    assert findings(card) == [f"url_under_private_key {pointer}"]
    assert interpret_agent_card(CARD_01 | private).interfaces == interpret_agent_card(CARD_01).interfaces


def test_a2a_endpoint_member_is_listed_after_the_main_url() -> None:
    card = interpret_agent_card(CARD_01 | {"a2aEndpoint": "https://sums.test/x"})
    assert [interface.url for interface in card.interfaces] == [
        "https://sums.test/a2a",
        "https://sums.test/x",
    ]
    assert findings(card) == ["url_under_private_key /a2aEndpoint"]


def test_interface_of_03_without_a_url_is_skipped_with_a_finding() -> None:
    card = interpret_agent_card(CARD_03 | {"additionalInterfaces": [{"transport": "GRPC"}]})
    assert [interface.url for interface in card.interfaces] == ["https://sums.test/a2a"]
    assert findings(card) == ["url_missing /additionalInterfaces/0/url"]


def test_a_private_url_that_is_too_long_is_not_used() -> None:
    card = interpret_agent_card(
        without(CARD_01, "url") | {"endpoint": "https://a.test/" + "a" * MAX_URL_CHARS}
    )
    assert card.interfaces == ()
    assert findings(card) == ["url_under_private_key /endpoint", "too_long /endpoint", "url_missing /url"]


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("https://sums.test/a2a", None),
        ("http://sums.test:8080", None),
        ("https://{tenant}.sums.test/", "url_is_a_template"),
        ("sums.test/a2a", "url_not_absolute"),
        ("https://sums.test:0/", "url_not_absolute"),
        ("https://sums.test/\ufffd", "url_not_absolute"),
        ("grpc://sums.test", "unknown_scheme"),
        ("https://me@sums.test/", "url_has_credentials"),
    ],
)
def test_only_an_absolute_web_url_can_be_called(url: str, fault: str | None) -> None:
    assert url_fault(url) == fault
    assert AgentInterface(url, None, None).is_callable is (fault is None)


@pytest.mark.parametrize(
    ("version", "short"), [("0.3.0", "0.3"), ("1.0", "1.0"), ("latest", "latest"), ("", ""), (None, None)]
)
def test_a_protocol_version_is_compared_by_its_first_two_numbers(
    version: str | None, short: str | None
) -> None:
    assert major_minor(version) == short
