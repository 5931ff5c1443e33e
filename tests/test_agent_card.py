"""Which fields of an A2A card do we read, how leniently, and how is health announced in it?"""

import copy
import json
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.types import AgentCard as SdkAgentCard
from google.protobuf.json_format import MessageToDict, ParseDict  # type: ignore[import-untyped]  # the SDK brings no stubs
from hypothesis import given
from hypothesis import strategies as st

from agent_health.agent_card import (
    MAX_CARD_BYTES,
    MAX_EXTENSIONS,
    MAX_FINDINGS,
    MAX_INTERFACES,
    MAX_SKILLS,
    MAX_TEXT_CHARS,
    MAX_URL_CHARS,
    AgentCard,
    AgentInterface,
    CardFinding,
    CardKind,
    interpret_agent_card,
    read_agent_card,
)
from agent_health.card_announcement import (
    HEALTH_EXTENSION_URI,
    HealthAnnouncement,
    announce_health,
    is_health_path,
)
from agent_health.errors import InvalidSetting

DATA = Path(__file__).parents[1].parent / "shared" / "data"
EXPECTATIONS = Path(__file__).with_name("card_expectations.json")

SKILLS: list[dict[str, Any]] = [{"id": "add", "name": "Add", "description": "Adds numbers", "tags": ["sum"]}]
ABOUT: dict[str, Any] = {
    "name": "Adder",
    "description": "Adds numbers",
    "version": "2.4.0",
    "provider": {"organization": "Sums Ltd", "url": "https://sums.test"},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": SKILLS,
}
CARD_01: dict[str, Any] = {
    **ABOUT,
    "url": "https://sums.test/a2a",
    "authentication": {"schemes": ["bearer"]},
    "capabilities": {"streaming": True, "pushNotifications": True},
}
CARD_02: dict[str, Any] = {
    **ABOUT,
    "url": "https://sums.test/a2a",
    "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}},
    "supportsAuthenticatedExtendedCard": True,
    "capabilities": {"streaming": True, "extensions": [{"uri": "https://sums.test/ext", "required": True}]},
}
CARD_03: dict[str, Any] = {
    **ABOUT,
    "protocolVersion": "0.3.0",
    "url": "https://sums.test/a2a",
    "preferredTransport": "JSONRPC",
    "additionalInterfaces": [
        {"url": "https://sums.test/a2a", "transport": "JSONRPC"},
        {"url": "https://sums.test/rest", "transport": "HTTP+JSON"},
    ],
    "capabilities": {"streaming": False},
    "signatures": [{"protected": "e30", "signature": "c2ln"}],
}
CARD_10: dict[str, Any] = {
    **ABOUT,
    "supportedInterfaces": [
        {
            "url": "https://sums.test/a2a",
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
            "tenant": "t1",
        },
        {"url": "https://sums.test/grpc", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
    ],
    "capabilities": {"streaming": True, "extendedAgentCard": True},
}
CARDS = {"0.1": CARD_01, "0.2": CARD_02, "0.3": CARD_03, "1.0": CARD_10}
every_generation = pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)


def without(card: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in card.items() if key not in keys}


def findings(card: AgentCard) -> list[str]:
    return [f"{finding.name} {finding.pointer}".rstrip() for finding in card.findings]


def findings_in(value: object) -> list[str]:
    return findings(interpret_agent_card(value))


# --- the four generations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", CARDS)
def test_a_proper_card_of_each_generation_has_nothing_odd_in_it(generation: str) -> None:
    card = read_agent_card(json.dumps(CARDS[generation]).encode())
    assert (card.kind, card.generation, findings(card)) == (CardKind.CARD, generation, [])
    assert (card.name, card.version, card.provider) == ("Adder", "2.4.0", "Sums Ltd")
    assert card.description == "Adds numbers"
    assert card.skill_ids == ("add",)
    assert card.interfaces[0].url == "https://sums.test/a2a"
    assert card.is_usable
    assert card.health is None


def test_a_01_card_names_its_auth_schemes_and_no_protocol_version() -> None:
    card = interpret_agent_card(CARD_01)
    assert card.interfaces == (AgentInterface("https://sums.test/a2a", "JSONRPC", None),)
    assert card.auth_schemes == ("bearer",)
    assert (card.streaming, card.push_notifications, card.has_extended_card) == (True, True, False)


def test_a_02_card_has_security_schemes_extensions_and_an_extended_card() -> None:
    card = interpret_agent_card(CARD_02)
    assert card.auth_schemes == ("key",)
    assert card.has_extended_card
    (extension,) = card.extensions
    assert (extension.uri, extension.required, extension.description) == ("https://sums.test/ext", True, None)
    assert extension.params == {}


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


def test_a_10_card_with_03_fields_merged_in_is_10_and_names_no_interface_twice() -> None:
    older = {"url": "https://sums.test/a2a", "protocolVersion": "0.3", "preferredTransport": "JSONRPC"}
    twin = {"url": "https://sums.test/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "0.3.0"}
    card = interpret_agent_card(
        CARD_10 | older | {"supportedInterfaces": [*CARD_10["supportedInterfaces"], twin]}
    )
    assert card.generation == "1.0"
    assert [interface.protocol_version for interface in card.interfaces] == ["1.0", "1.0", "0.3.0"]
    assert findings(card) == ["mixed_generations /url"]


def test_the_generation_of_a_card_without_version_is_told_by_its_newest_member() -> None:
    assert interpret_agent_card(without(CARD_03, "protocolVersion")).generation == "0.3"
    assert interpret_agent_card(without(CARD_03, "protocolVersion", "signatures")).generation == "0.3"
    assert interpret_agent_card(without(CARD_01, "authentication")).generation is None


# --- one finding each -------------------------------------------------------------------------------------

ODD_CARDS: dict[str, tuple[object, list[str]]] = {
    "no name": (without(CARD_03, "name"), ["name_missing /name"]),
    "no description": (without(CARD_03, "description"), ["description_missing /description"]),
    "no version": (without(CARD_03, "version"), ["version_missing /version"]),
    "no skills": (without(CARD_03, "skills"), ["skills_missing /skills"]),
    "a skill without id": (CARD_03 | {"skills": [{"name": "Add"}]}, ["skill_without_id /skills/0/id"]),
    "a skill that is text": (CARD_03 | {"skills": ["add"]}, ["wrong_type /skills/0"]),
    "no organisation": (
        CARD_03 | {"provider": {"name": "Sums"}},
        ["provider_without_organization /provider/organization"],
    ),
    "no capabilities": (without(CARD_03, "capabilities"), ["capabilities_missing /capabilities"]),
    "a list of capabilities": (CARD_03 | {"capabilities": ["add"]}, ["capabilities_is_a_list /capabilities"]),
    "capabilities as text": (CARD_03 | {"capabilities": "add"}, ["wrong_type /capabilities"]),
    "a flag as text": (
        CARD_03 | {"capabilities": {"streaming": "yes"}},
        ["wrong_type /capabilities/streaming"],
    ),
    "null": (CARD_03 | {"provider": None}, ["null_for_absent /provider"]),
    "a name that is a number": (CARD_03 | {"name": 7}, ["wrong_type /name"]),
    "an auth scheme that is no text": (
        CARD_01 | {"authentication": {"schemes": [1, "bearer"]}},
        ["wrong_type /authentication/schemes/0"],
    ),
    "no protocol version where one is due": (
        without(CARD_03, "protocolVersion"),
        ["protocol_version_missing /protocolVersion"],
    ),
    "a protocol version from nowhere": (
        CARD_03 | {"protocolVersion": "7.5"},
        ["protocol_version_unknown /protocolVersion"],
    ),
    "the version of 1.0 on the shape of 0.3": (
        CARD_03 | {"protocolVersion": "1.0"},
        ["protocol_version_contradicts_shape /protocolVersion"],
    ),
    "0.1's authentication in 0.3": (
        CARD_03 | {"authentication": {"schemes": ["bearer"]}},
        ["mixed_generations /authentication"],
    ),
    "an interface without version": (
        CARD_10 | {"supportedInterfaces": [{"url": "https://sums.test/", "protocolBinding": "GRPC"}]},
        ["protocol_version_missing /supportedInterfaces/0/protocolVersion"],
    ),
    "an interface without binding": (
        CARD_10 | {"supportedInterfaces": [{"url": "https://sums.test/", "protocolVersion": "1.0"}]},
        ["binding_missing /supportedInterfaces/0/protocolBinding"],
    ),
    "an interface without URL": (
        CARD_10 | {"supportedInterfaces": [{"protocolBinding": "GRPC", "protocolVersion": "1.0"}]},
        ["url_missing /supportedInterfaces/0/url", "url_missing /url"],
    ),
    "a binding in small letters": (
        CARD_03 | {"preferredTransport": "jsonrpc"},
        ["binding_respelled /preferredTransport"],
    ),
    "a foreign binding": (CARD_03 | {"preferredTransport": "stdio"}, ["unknown_binding /preferredTransport"]),
    "no URL": (without(CARD_03, "url", "additionalInterfaces"), ["url_missing /url"]),
    "an empty URL": (without(CARD_03, "additionalInterfaces") | {"url": ""}, ["url_missing /url"]),
    "a template": (CARD_01 | {"url": "https://{tenant}.sums.test/a2a"}, ["url_is_a_template /url"]),
    "credentials": (CARD_01 | {"url": "https://me:secret@sums.test/"}, ["url_has_credentials /url"]),
    "another scheme": (CARD_01 | {"url": "grpc://sums.test:50051"}, ["unknown_scheme /url"]),
    "localhost": (CARD_01 | {"url": "http://localhost:8000/a2a"}, ["url_on_localhost /url"]),
    "a loopback address": (CARD_01 | {"url": "http://127.8.0.1/"}, ["url_on_localhost /url"]),
    "IPv6 loopback": (CARD_01 | {"url": "http://[::1]:80/"}, ["url_on_localhost /url"]),
    "an endless URL": (CARD_01 | {"url": "https://a.test/" + "a" * MAX_URL_CHARS}, ["too_long /url"]),
    "an endless description": (
        CARD_01 | {"description": "a" * (MAX_TEXT_CHARS + 1)},
        ["too_long /description"],
    ),
    "a bell in the name": (CARD_01 | {"name": "Add\x07er"}, ["unprintable_characters /name"]),
    "half a character in the name": (CARD_01 | {"name": "\ud800"}, ["unprintable_characters /name"]),
    "extensions beside capabilities": (
        CARD_03 | {"extensions": []},
        ["extensions_outside_capabilities /extensions"],
    ),
    "an extension without URI": (
        CARD_03 | {"capabilities": {"extensions": [{"required": False}]}},
        ["extension_without_uri /capabilities/extensions/0/uri"],
    ),
    "a list": ([CARD_03], ["not_a_card"]),
    "a number": (7, ["not_a_card"]),
    "an empty object": ({}, ["not_a_card"]),
    "a list of agents": ({"agents": [CARD_03], "total": 1}, ["not_a_card"]),
    "an AGNTCY record": (
        {
            "name": "adder",
            "schema_version": "0.8.0",
            "skills": [{"id": 10201}],
            "locators": [],
            "modules": [],
        },
        ["not_a_card"],
    ),
    "an MCP initialize result": ({"protocolVersion": "2025-06-18", "capabilities": {}}, ["not_a_card"]),
}


@pytest.mark.parametrize(("odd", "expected"), ODD_CARDS.values(), ids=ODD_CARDS)
def test_every_oddity_is_named_and_placed(odd: object, expected: list[str]) -> None:
    assert findings_in(odd) == expected


@pytest.mark.parametrize(
    "url",
    ["sums.test/a2a", "localhost:8080", "/a2a", "//sums.test/", "https:///a2a", "https://[::1/", "https://a.test:99999/",
     "https://a b.test/", "https://a.test\\@b.test/", "https://a.test/\n", "https://", " "],
)  # fmt: skip
def test_a_url_that_is_not_absolute_is_kept_but_never_called(url: str) -> None:
    card = interpret_agent_card(CARD_01 | {"url": url})
    assert findings(card)[0] == "url_not_absolute /url"
    assert len(card.interfaces) == 1
    assert not card.is_usable


def test_a_finding_about_credentials_does_not_repeat_them() -> None:
    card = interpret_agent_card(CARD_01 | {"url": "https://me:secret@sums.test/"})
    assert "secret" not in str(card.findings)
    assert not card.is_usable


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


def test_an_a2a_endpoint_is_used_beside_another_url_but_after_it() -> None:
    card = interpret_agent_card(CARD_01 | {"a2aEndpoint": "https://sums.test/x"})
    assert [interface.url for interface in card.interfaces] == [
        "https://sums.test/a2a",
        "https://sums.test/x",
    ]
    assert findings(card) == ["url_under_private_key /a2aEndpoint"]


def test_a_registry_record_is_read_like_a_card() -> None:
    record = CARD_03 | {"wellKnownURI": "https://sums.test/.well-known/agent-card.json", "registryTags": []}
    card = interpret_agent_card(record)
    assert card.kind == CardKind.REGISTRY_RECORD
    assert card.interfaces == interpret_agent_card(CARD_03).interfaces


# --- bytes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"", "not_json"),
        (b"<!DOCTYPE html><title>404</title>", "not_json"),
        (b'{"name": NaN}', "not_json"),
        (b'{"n": ' + b"9" * 5000 + b"}", "not_json"),
        (b"\xff\xfe{\x00}\x00", "not_utf8"),
        (b"[" * 200_000, "too_deep"),
        (b'{"a":' * 100_000, "too_deep"),
        (b" " * (MAX_CARD_BYTES + 1), "too_large"),
    ],
    ids=["nothing", "HTML", "NaN", "a number without end", "UTF-16", "deep list", "deep object", "too much"],
)
def test_what_is_not_json_is_told_apart(raw: bytes, name: str) -> None:
    card = read_agent_card(raw)
    assert (card.kind, findings(card)) == (CardKind.NOT_JSON, [name])
    assert not card.is_usable


def test_a_byte_order_mark_is_forgiven() -> None:
    card = read_agent_card(b"\xef\xbb\xbf" + json.dumps(CARD_03).encode())
    assert (card.kind, findings(card)) == (CardKind.CARD, ["byte_order_mark"])


def test_text_reads_like_bytes() -> None:
    assert read_agent_card(json.dumps(CARD_10)) == read_agent_card(json.dumps(CARD_10).encode())


def test_every_list_is_bounded_and_says_so() -> None:
    interface = {"protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    card = interpret_agent_card(
        CARD_10
        | {
            "supportedInterfaces": [{"url": f"https://a.test/{n}", **interface} for n in range(10_000)],
            "capabilities": {"extensions": [{"uri": f"urn:{n}"} for n in range(10_000)]},
            "skills": [{"id": str(n)} for n in range(10_000)],
            "securitySchemes": {str(n): {} for n in range(10_000)},
        }
    )
    assert (len(card.interfaces), len(card.extensions)) == (MAX_INTERFACES, MAX_EXTENSIONS)
    assert (len(card.skill_ids), len(card.auth_schemes)) == (MAX_SKILLS, 64)
    assert sorted(findings(card)) == [
        "too_many_items /capabilities/extensions",
        "too_many_items /securitySchemes",
        "too_many_items /skills",
        "too_many_items /supportedInterfaces",
    ]


def test_the_findings_are_bounded_and_the_last_one_says_so() -> None:
    named = findings_in(CARD_10 | {"skills": [7] * 1000})
    assert len(named) == MAX_FINDINGS
    assert named[-1] == "too_many_findings"


# --- health -----------------------------------------------------------------------------------------------


def with_extension(**entry: Any) -> dict[str, Any]:
    return CARD_03 | {"capabilities": {"extensions": [{"uri": HEALTH_EXTENSION_URI, **entry}]}}


def test_the_health_extension_is_read() -> None:
    card = interpret_agent_card(with_extension(params={"path": "/adder/health", "schema_version": "0.1.0"}))
    assert card.health == HealthAnnouncement("/adder/health", None, "0.1.0", "extension")
    assert findings(card) == []


@pytest.mark.parametrize(
    "path",
    ["https://evil.test/health", "//evil.test/health", "/\\evil.test", "health", "", "/a b", "/a\nb", "/a#b",
     "/{id}/health", "/" + "a" * 2048, 7, ["/health"]],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_ignored(path: object) -> None:
    card = interpret_agent_card(with_extension(params={"path": path}))
    assert card.health == HealthAnnouncement(None, None, None, "extension")
    assert findings(card) == ["health_path_is_not_a_path /capabilities/extensions/0/params/path"]


def test_health_without_a_path_is_announced_all_the_same() -> None:
    card = interpret_agent_card(with_extension())
    assert card.health == HealthAnnouncement(None, None, None, "extension")
    assert findings(card) == ["health_path_missing /capabilities/extensions/0/params/path"]


def test_a_schema_version_that_is_none_is_ignored() -> None:
    card = interpret_agent_card(with_extension(params={"path": "/h", "schema_version": 1}))
    assert card.health == HealthAnnouncement("/h", None, None, "extension")
    assert findings(card) == ["wrong_type /capabilities/extensions/0/params/schema_version"]


def test_health_that_is_required_or_announced_twice_is_named() -> None:
    entry = {"uri": HEALTH_EXTENSION_URI, "params": {"path": "/one"}, "required": True}
    other = {"uri": HEALTH_EXTENSION_URI, "params": {"path": "/two"}}
    card = interpret_agent_card(CARD_03 | {"capabilities": {"extensions": ["x", entry, other]}})
    assert card.health is not None
    assert card.health.path == "/one"
    assert findings(card) == [
        "wrong_type /capabilities/extensions/0",
        "duplicate_health_extension /capabilities/extensions/2",
        "required_health_extension /capabilities/extensions/1/required",
    ]


@pytest.mark.parametrize(
    ("private", "pointer", "path", "url"),
    [
        ({"endpoints": {"health": "GET /api/health"}}, "/endpoints/health", "/api/health", None),
        ({"endpoints": {"health": "/healthz"}}, "/endpoints/health", "/healthz", None),
        ({"health_check": "https://status.test/h"}, "/health_check", None, "https://status.test/h"),
        ({"healthUrl": "https://status.test/h"}, "/healthUrl", None, "https://status.test/h"),
    ],
)
def test_health_under_a_private_key_is_read_and_named(
    private: dict[str, Any], pointer: str, path: str | None, url: str | None
) -> None:
    card = interpret_agent_card(CARD_01 | private)
    assert card.health == HealthAnnouncement(path, url, None, "private_key")
    assert findings(card) == [f"health_under_private_key {pointer}"]


@pytest.mark.parametrize("value", ["ok", True, {"status": "ok"}, None, "//evil.test/", "mailto:a@b.test"])
def test_what_is_no_place_announces_no_health(value: object) -> None:
    assert interpret_agent_card(CARD_01 | {"health": value}).health is None


def test_the_extension_stands_over_a_private_key() -> None:
    card = interpret_agent_card(announce_health(CARD_01 | {"health_check": "/private"}))
    assert card.health is not None
    assert card.health.source == "extension"
    assert findings(card) == []


# --- announcing -------------------------------------------------------------------------------------------


@every_generation
def test_announcing_adds_one_extension_and_nothing_else(card: dict[str, Any]) -> None:
    before = copy.deepcopy(card)
    announced = announce_health(card, path="/adder/health")
    assert card == before
    entry = announced["capabilities"]["extensions"][-1]
    assert entry["uri"] == HEALTH_EXTENSION_URI
    assert entry["required"] is False
    assert entry["params"] == {"path": "/adder/health", "schema_version": "0.1.0"}
    assert set(entry) == {"uri", "description", "required", "params"}
    announced["capabilities"]["extensions"].pop()
    if "extensions" not in card["capabilities"]:
        del announced["capabilities"]["extensions"]
    assert announced == before


@every_generation
def test_what_was_announced_reads_back(card: dict[str, Any]) -> None:
    read = read_agent_card(json.dumps(announce_health(card)))
    assert read.health == HealthAnnouncement("/.well-known/agent-health", None, "0.1.0", "extension")
    assert findings(read) == []
    assert read.interfaces == interpret_agent_card(card).interfaces


def test_announcing_again_replaces_the_entry_in_its_place() -> None:
    ours, other = {"uri": HEALTH_EXTENSION_URI}, {"uri": "urn:other"}
    announced = announce_health({"capabilities": {"extensions": [ours, other, ours, "x"]}}, path="/new")
    first, *rest = announced["capabilities"]["extensions"]
    assert first["params"]["path"] == "/new"
    assert rest == [other, "x"]


@pytest.mark.parametrize("absent", [{}, {"capabilities": None}, {"capabilities": {"extensions": None}}])
def test_announcing_creates_what_is_absent(absent: dict[str, Any]) -> None:
    assert len(announce_health(absent)["capabilities"]["extensions"]) == 1


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ({"capabilities": ["add"]}, "card.capabilities"),
        ({"capabilities": "add"}, "card.capabilities"),
        ({"capabilities": {"extensions": {"x402": {}}}}, "card.capabilities.extensions"),
    ],
)
def test_announcing_refuses_a_card_that_cannot_take_it(card: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        announce_health(card)
    assert refused.value.name == name


@pytest.mark.parametrize("path", ["health", "//evil.test/", "https://sums.test/health", "/a\r\nb"])
def test_announcing_refuses_a_path_that_leads_elsewhere(path: str) -> None:
    with pytest.raises(InvalidSetting, match="path"):
        announce_health(CARD_10, path=path)


# --- anything at all --------------------------------------------------------------------------------------

KEYS = sorted(
    {
        "extensions",
        "params",
        "path",
        "uri",
        "endpoint",
        "endpoints",
        "interfaces",
        "health",
        "schemes",
        "a2aEndpoint",
    }
    | {key for card in CARDS.values() for key in (*card, *card["capabilities"])}
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.sampled_from(["https://sums.test/", "http://[::1", "1.0", "0.3.0", HEALTH_EXTENSION_URI, "\ud800"])
)  # fmt: skip
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=8)
    ),
    max_leaves=30,
)
CARDS_WITH_SURPRISES = st.builds(
    lambda card, surprises, gone: without(card | surprises, *gone),
    st.sampled_from(list(CARDS.values())),
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5),
    st.sets(st.sampled_from(KEYS), max_size=3),
)
PATHS = st.from_regex(r"(/[A-Za-z0-9._~%-]{1,10}){1,4}(\?[a-z=&]{0,10})?", fullmatch=True)


def assert_sound(card: AgentCard) -> None:
    assert {finding.name for finding in card.findings} <= set(get_args(CardFinding))
    assert len(card.findings) <= MAX_FINDINGS
    assert card.is_usable == any(interface.is_callable for interface in card.interfaces)
    for finding in card.findings:
        str(finding).encode()
    str((card.name, card.interfaces, card.skill_ids, card.auth_schemes, card.health)).encode()
    if card.health is not None and card.health.path is not None:
        assert is_health_path(card.health.path)


@given(JSON | CARDS_WITH_SURPRISES)
def test_any_json_gives_a_card_or_says_that_it_is_none(value: object) -> None:
    assert_sound(interpret_agent_card(value))


@given(st.binary() | st.text())
def test_any_bytes_and_any_text_give_an_answer(raw: bytes | str) -> None:
    assert_sound(read_agent_card(raw))


@given(CARDS_WITH_SURPRISES, st.data())
def test_a_card_with_broken_bytes_gives_an_answer(card: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(json.dumps(card).encode())
    for _ in range(data.draw(st.integers(0, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    assert_sound(read_agent_card(bytes(raw)))


@given(CARDS_WITH_SURPRISES, PATHS)
def test_announcing_twice_is_announcing_once_and_leaves_the_rest(card: dict[str, Any], path: str) -> None:
    try:
        announced = announce_health(card, path=path)
    except InvalidSetting as refusal:
        assert refusal.name.startswith("card.capabilities")  # noqa: PT017 - either way out is allowed
        return
    assert announce_health(announced, path=path) == announced
    assert without(announced, "capabilities") == without(card, "capabilities")
    capabilities = card.get("capabilities") or {}
    assert without(announced["capabilities"], "extensions") == without(capabilities, "extensions")
    others = [entry for entry in capabilities.get("extensions") or [] if not is_ours(entry)]
    assert [entry for entry in announced["capabilities"]["extensions"] if not is_ours(entry)] == others


def is_ours(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("uri") == HEALTH_EXTENSION_URI


@given(st.sampled_from(list(CARDS.values())), st.dictionaries(st.sampled_from(sorted(ABOUT)), JSON), PATHS)
def test_what_is_announced_is_read_back_from_any_card(
    card: dict[str, Any], surprises: dict[str, Any], path: str
) -> None:
    surprising = card | surprises
    announced = interpret_agent_card(announce_health(surprising, path=path))
    if announced.kind is not CardKind.CARD:
        return
    assert announced.health is not None
    assert announced.health.path == path
    assert announced.interfaces == interpret_agent_card(surprising).interfaces


# --- real cards -------------------------------------------------------------------------------------------


def corpus() -> dict[str, Path]:
    if not (DATA / "cards").is_dir():
        pytest.skip(f"NO REAL CARDS WERE READ: the corpus is not at {DATA / 'cards'}")
    return {path.name: path for path in (DATA / "cards").glob("*.json")}


def expectations() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = json.loads(EXPECTATIONS.read_text(encoding="utf-8"))
    return rows


def test_every_real_card_has_an_expectation_and_every_expectation_a_card() -> None:
    assert sorted(corpus()) == sorted(expectations())


@pytest.mark.parametrize("name", expectations())
def test_a_real_card_is_read_as_a_person_reads_it(name: str) -> None:
    path = corpus().get(name)
    if path is None:
        pytest.fail(f"{name} is expected and not in the corpus")
    card = read_agent_card(path.read_bytes())
    assert_sound(card)
    assert {
        "kind": card.kind.value,
        "generation": card.generation,
        "interfaces": len(card.interfaces),
        "first_host": urlsplit(card.interfaces[0].url).hostname if card.interfaces else None,
        "findings": findings(card),
    } == expectations()[name]


def test_every_real_card_can_announce_health_or_says_why_not() -> None:
    for name, path in corpus().items():
        card = read_agent_card(path.read_bytes())
        if card.kind not in {CardKind.CARD, CardKind.REGISTRY_RECORD}:
            continue
        value = json.loads(path.read_bytes())
        if isinstance(value["capabilities"], list):
            with pytest.raises(InvalidSetting):
                announce_health(value)
            continue
        announced = interpret_agent_card(announce_health(value, path="/h"))
        assert announced.health == HealthAnnouncement("/h", None, "0.1.0", "extension"), name
        assert announced.interfaces == card.interfaces, name


# --- the real SDK -----------------------------------------------------------------------------------------


def captured_card(path: str) -> bytes:
    file = DATA / "captures" / path
    if not file.is_file():
        pytest.skip(f"NO CAPTURED CARD WAS READ: {file} is absent")
    return file.read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")[2]


def test_the_card_that_sdk_13_serves_is_10_with_03_merged_in() -> None:
    card = read_agent_card(captured_card("01-card.response.http"))
    assert (card.kind, card.generation, card.streaming) == (CardKind.CARD, "1.0", True)
    assert [(one.url, one.binding, one.protocol_version) for one in card.interfaces] == [
        ("http://127.0.0.1:9999/", "JSONRPC", "1.0"),
        ("http://127.0.0.1:9999/rest", "HTTP+JSON", "1.0"),
        ("http://127.0.0.1:9999/", "JSONRPC", "0.3"),
    ]
    assert [finding.name for finding in card.findings] == ["mixed_generations"] + ["url_on_localhost"] * 4
    assert [extension.uri for extension in card.extensions] == ["https://example.com/ext/agent-health/v1"]


def test_the_card_that_sdk_0326_serves_is_03() -> None:
    card = read_agent_card(captured_card("a2a-sdk-0.3.26/01-card.response.http"))
    assert (card.kind, card.generation, card.skill_ids) == (CardKind.CARD, "0.3", ("echo",))
    assert [(one.url, one.binding, one.protocol_version) for one in card.interfaces] == [
        ("http://127.0.0.1:9200/", "JSONRPC", "0.3.0"),
        ("http://127.0.0.1:9200/rest", "HTTP+JSON", "0.3.0"),
    ]
    assert {finding.name for finding in card.findings} == {"url_on_localhost"}


def test_the_sdk_parses_an_announced_10_card_strictly_and_keeps_the_announcement() -> None:
    announced = announce_health(CARD_10, path="/adder/health")
    message = ParseDict(announced, SdkAgentCard(), ignore_unknown_fields=False)
    assert MessageToDict(message.capabilities.extensions[0].params) == {
        "path": "/adder/health",
        "schema_version": "0.1.0",
    }
    assert not message.capabilities.extensions[0].required
    assert (
        read_agent_card(json.dumps(MessageToDict(message))).health == interpret_agent_card(announced).health
    )


@every_generation
def test_the_sdk_client_still_reads_an_announced_card(card: dict[str, Any]) -> None:
    bare = parse_agent_card(copy.deepcopy(card))
    announced = parse_agent_card(copy.deepcopy(announce_health(card)))
    assert announced.capabilities.extensions.pop().uri == HEALTH_EXTENSION_URI
    assert announced == bare
