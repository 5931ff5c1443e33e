"""Interfaces of agent cards of all generations, also of hostile ones."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cards import CARD_01, CARD_03, CARD_10, CARDS_WITH_SURPRISES, corpus, every_generation
from tests.support.properties import examples

from lifesign.domain.published_interface.card_interface import card_interface, read_card_interface
from lifesign.domain.published_interface.comparison import compare
from lifesign.domain.published_interface.published import MAX_INTERFACE_BYTES, check_interface

SCHEMES_03 = {
    "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "login": {
        "type": "oauth2",
        "flows": {"clientCredentials": {"tokenUrl": "https://t.test", "scopes": {"r": ""}}},
    },
    "basic": {"type": "http", "scheme": "Basic"},
    "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://o.test"},
    "tls": {"type": "mutualTLS"},
}
SCHEMES_10 = {
    "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
    "login": {
        "oauth2SecurityScheme": {
            "flows": {"clientCredentials": {"tokenUrl": "https://t.test", "scopes": {"r": ""}}}
        }
    },
    "basic": {"httpAuthSecurityScheme": {"scheme": "basic"}},
    "oidc": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://o.test"}},
    "tls": {"mtlsSecurityScheme": {}},
}


def shuffled(value: Any, chance: random.Random) -> Any:
    """Return a JSON value with its lists and its members in another order."""
    if isinstance(value, dict):
        members = [(key, shuffled(item, chance)) for key, item in value.items()]
        return dict(chance.sample(members, len(members)))
    if isinstance(value, list):
        return [shuffled(item, chance) for item in chance.sample(value, len(value))]
    return value


@every_generation
@settings(max_examples=examples(50))
@given(chance=st.randoms(use_true_random=False))
def test_order_of_lists_and_members_is_ignored(card: dict[str, Any], chance: random.Random) -> None:
    card = card | {"securitySchemes": SCHEMES_03, "security": [{"key": []}, {"login": ["r", "w"], "tls": []}]}
    assert card_interface(shuffled(card, chance)).digest == card_interface(card).digest


@settings(max_examples=examples(100))
@given(CARDS_WITH_SURPRISES)
def test_any_card_gives_a_bounded_interface_that_equals_itself(card: dict[str, Any]) -> None:
    interface = card_interface(card)
    assert len(interface.text) <= MAX_INTERFACE_BYTES
    assert check_interface(json.loads(interface.text)) == interface.form
    assert compare(interface.form, card_interface(card).form).changes == ()


def test_real_cards_equal_themselves_when_served_in_another_order() -> None:
    for name, path in corpus().items():
        interface = read_card_interface(path.read_bytes())
        if interface is not None:
            card = json.loads(path.read_bytes())
            again = card_interface(dict(reversed(card.items())))
            assert again.digest == interface.digest, name


@pytest.mark.parametrize(
    "change",
    [
        {"signatures": [{"protected": "x", "signature": "y"}]},
        {"iconUrl": "https://sums.test/icon.png"},
        {"version": "9.9.9"},
        {"lastUpdated": "2026-11-27T00:00:00Z"},
        {"defaultOutputModes": ["text/plain", "text/plain"]},
    ],
)
def test_signatures_dates_and_repetitions_do_not_change_the_digest(change: dict[str, Any]) -> None:
    assert card_interface(CARD_10 | change).digest == card_interface(CARD_10).digest


def test_schemes_and_requirements_of_03_and_10_have_the_same_form() -> None:
    older = CARD_03 | {"securitySchemes": SCHEMES_03, "security": [{"key": []}, {"login": ["r"]}]}
    newer = older | {
        "securitySchemes": SCHEMES_10,
        "security": None,
        "securityRequirements": [{"schemes": {"login": {"list": ["r"]}}}, {"schemes": {"key": {"list": []}}}],
    }
    assert card_interface(older).digest == card_interface(newer).digest
    assert card_interface(newer).form["security_schemes"]["tls"] == {"type": "mutualTLS"}


def test_schemes_of_01_are_requirements() -> None:
    form = card_interface(CARD_01).form
    assert form["security"] == {"bearer": {"bearer": True}}
    assert form["security_schemes"] == {"bearer": {"type": "http"}}


def test_invalid_parts_of_a_card_count_as_absent() -> None:
    plain = CARD_03 | {
        "security": [{"key": ["r"]}],
        "capabilities": {"extensions": [{"uri": "u", "required": True}]},
    }
    spoiled = plain | {
        "security": [{"key": ["r", 7]}, "key", None],
        "capabilities": {
            "extensions": [
                {"uri": "u", "required": True},
                {"uri": 7, "required": True},
                {"required": True},
                "u",
            ]
        },
    }
    assert card_interface(spoiled).form == card_interface(plain).form


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://sums.test/rpc", "HTTPS://Sums.test.:443/rpc"),
        ("https://sums.test", "https://sums.test/"),
        ("http://sums.test:8080/", "http://Sums.test.:8080"),
        ("http://sums.test:80/rpc", "http://sums.test/rpc"),
        ("https://sums.test:80/rpc", "https://Sums.test:80/rpc"),
        ("http://me:pass@sums.test:80/?key=1", "http://me:pass@SUMS.test?key=1"),
    ],
)
def test_spellings_of_a_url_are_one_place(one: str, other: str) -> None:
    assert card_interface(CARD_03 | {"url": one}).digest == card_interface(CARD_03 | {"url": other}).digest


@pytest.mark.parametrize(
    "url", ["https://me:hidden@sums.test:99999/", "https://me:hidden@sums.test/?k=hidden"]
)
def test_user_and_query_of_a_url_are_not_shown(url: str) -> None:
    assert "hidden" not in card_interface(CARD_03 | {"url": url}).text


def test_places_to_call_are_named_by_binding_version_tenant_and_url() -> None:
    assert card_interface(CARD_10).form["interfaces"].keys() == {
        "JSONRPC 1.0 t1 https://sums.test/a2a",
        "GRPC 1.0 https://sums.test/grpc",
    }


def test_user_and_query_of_a_url_are_compared_without_being_stored() -> None:
    texts = [
        card_interface(CARD_03 | {"url": f"https://user:word@sums.test/a2a?token={token}"}).text
        for token in ("hidden-1", "hidden-2")
    ]
    assert texts[0] != texts[1]
    assert not any(secret in text for secret in ("hidden", "user:word") for text in texts)


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"{", b"[" * 100_000, b"null"])
def test_non_object_has_no_interface(body: bytes) -> None:
    assert read_card_interface(body) is None


def test_byte_order_mark_changes_nothing() -> None:
    body = json.dumps(CARD_03).encode()
    plain, marked = read_card_interface(body), read_card_interface(b"\xef\xbb\xbf" + body)
    assert plain is not None
    assert plain == marked


def test_card_of_a_megabyte_has_a_bounded_interface() -> None:
    skills = [{"id": f"{place}-{'i' * 90}", "description": "d" * 700} for place in range(1_000)]
    schemes = {
        f"{place}{'n' * 90}": {"type": "apiKey", "in": "header", "name": "x" * 900} for place in range(200)
    }
    places = [
        {"url": f"https://sums.test/{place}{'u' * 900}", "protocolBinding": "GRPC"} for place in range(64)
    ]
    card = CARD_10 | {"skills": skills, "securitySchemes": schemes, "supportedInterfaces": places}
    interface = card_interface(card)
    assert len(interface.text) <= MAX_INTERFACE_BYTES
    changed = card_interface(card | {"skills": [*skills[:-1], skills[-1] | {"description": "another"}]})
    assert changed.digest != interface.digest
