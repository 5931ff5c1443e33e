"""Login that a target asks for, and its OAuth metadata."""

import json
from typing import Any

import pytest

from lifesign.domain.observation.login import (
    MAX_SCOPES,
    MAX_SERVERS,
    Login,
    MetadataResult,
    OAuthMetadata,
    login_of,
    read_metadata,
)

ENDPOINT, ORIGIN, SERVER = "https://agent.example/a2a", "https://agent.example", "https://login.example"


def read(**members: Any) -> OAuthMetadata | None:
    whole = {"resource": ENDPOINT, "authorization_servers": [SERVER]} | members
    return read_metadata(json.dumps(whole).encode(), [ENDPOINT, ORIGIN])


@pytest.mark.parametrize(
    "resource", [ENDPOINT, f"{ENDPOINT}/", ORIGIN, f"{ORIGIN}/", "HTTPS://AGENT.example:443/a2a"]
)
def test_metadata_of_the_target_or_its_origin_is_ok(resource: str) -> None:
    found = read(resource=resource, scopes_supported=["read"])
    assert found == OAuthMetadata(result=MetadataResult.OK, authorization_servers=(SERVER,), scopes=("read",))


@pytest.mark.parametrize(
    "members",
    [
        {"resource": "https://other.example/a2a"},
        {"resource": "https://agent.example:444/a2a"},
        {"resource": "https://agent.example/other"},
        {"resource": "https://agent.example:x/"},
        {"resource": None},
        {"authorization_servers": []},
        {"authorization_servers": "https://login.example"},
        {"authorization_servers": [7, "x" * 5000]},
    ],
)
def test_metadata_that_breaks_a_rule_is_invalid(members: dict[str, Any]) -> None:
    found = read(**members)
    assert found is not None
    assert (found.result, bool(found.reason)) == (MetadataResult.INVALID, True)


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b"\xff", b"[" * 100_000])
def test_body_without_a_json_object_is_no_metadata(body: bytes) -> None:
    assert read_metadata(body, [ENDPOINT]) is None


def test_lists_are_bounded() -> None:
    found = read(authorization_servers=[SERVER] * 100, scopes_supported=["s"] * 100)
    assert found is not None
    assert (len(found.authorization_servers), len(found.scopes)) == (MAX_SERVERS, MAX_SCOPES)


def test_unprintable_characters_are_replaced() -> None:
    found = read(authorization_servers=["https://\u202elogin.example"])
    assert found is not None
    assert found.authorization_servers == ("https://\ufffdlogin.example",)


def test_login_is_unchanged_after_json() -> None:
    login = login_of(['Bearer realm="x", Basic', "Bearer"], ("oauth2",), read())
    assert login.schemes == ("bearer", "basic")
    assert Login.model_validate_json(login.model_dump_json()) == login
    assert all(part in login.text for part in ("bearer", "oauth2", SERVER))
    assert not login_of([], ()).text
    elsewhere = login_of(["Bearer"], (), origin="https://rpc.example")
    assert Login.model_validate_json(elsewhere.model_dump_json()) == elsewhere
    assert "https://rpc.example" in elsewhere.text


@pytest.mark.parametrize(
    ("metadata", "shown", "hidden"),
    [
        ({"scopes_supported": ["read", "write"]}, ["ok", SERVER, "read write"], []),
        ({"scopes_supported": []}, ["ok", SERVER], ["scopes"]),
        ({"authorization_servers": []}, ["invalid", "authorization_servers"], ["from"]),
    ],
)
def test_login_shows_where_tokens_come_from(
    metadata: dict[str, Any], shown: list[str], hidden: list[str]
) -> None:
    text = login_of(["Bearer"], (), read(**metadata)).text
    assert all(part in text for part in shown)
    assert not any(part in text for part in hidden)
