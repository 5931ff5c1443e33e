import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cards import (
    CARD_01,
    CARD_02,
    CARD_03,
    CARD_10,
    CARDS,
    CARDS_WITH_SURPRISES,
    DATA,
    JSON,
    assert_sound,
    corpus,
    findings,
    findings_in,
    without,
)

from lifesign.domain.a2a.agent_card import (
    MAX_CARD_BYTES,
    MAX_EXTENSIONS,
    MAX_SKILLS,
    CardKind,
    interpret_agent_card,
    read_agent_card,
)
from lifesign.domain.a2a.interfaces import MAX_INTERFACES, AgentInterface
from lifesign.domain.parsing.lenient_json import MAX_FINDINGS, MAX_TEXT_CHARS

EXPECTATIONS = Path(__file__).parents[2] / "card_expectations.json"

# --- the four versions of the card format -----------------------------------------------------------------


@pytest.mark.parametrize("generation", CARDS)
def test_valid_card_of_each_protocol_version_has_no_findings(generation: str) -> None:
    card = read_agent_card(json.dumps(CARDS[generation]).encode())
    assert (card.kind, card.generation, findings(card)) == (CardKind.CARD, generation, [])
    assert (card.name, card.version, card.provider) == ("Adder", "2.4.0", "Sums Ltd")
    assert card.description == "Adds numbers"
    assert card.skill_ids == ("add",)
    assert card.interfaces[0].url == "https://sums.test/a2a"
    assert card.interfaces[0].is_callable
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


def test_card_without_a_version_gets_the_version_of_its_newest_member() -> None:
    assert interpret_agent_card(without(CARD_03, "protocolVersion")).generation == "0.3"
    assert interpret_agent_card(without(CARD_03, "protocolVersion", "signatures")).generation == "0.3"
    assert interpret_agent_card(without(CARD_01, "authentication")).generation is None


def test_a_registry_record_is_read_like_a_card() -> None:
    record = CARD_03 | {"wellKnownURI": "https://sums.test/.well-known/agent-card.json", "registryTags": []}
    card = interpret_agent_card(record)
    assert card.kind == CardKind.REGISTRY_RECORD
    assert card.interfaces == interpret_agent_card(CARD_03).interfaces


# --- single findings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        pytest.param(
            without(CARD_03, "name"),
            ["name_missing /name"],
            id="no name",
        ),
        pytest.param(
            without(CARD_03, "description"),
            ["description_missing /description"],
            id="no description",
        ),
        pytest.param(
            without(CARD_03, "version"),
            ["version_missing /version"],
            id="no version",
        ),
        pytest.param(
            without(CARD_03, "skills"),
            ["skills_missing /skills"],
            id="no skills",
        ),
        pytest.param(
            CARD_03 | {"skills": [{"name": "Add"}]},
            ["skill_without_id /skills/0/id"],
            id="a skill without id",
        ),
        pytest.param(
            CARD_03 | {"skills": ["add"]},
            ["wrong_type /skills/0"],
            id="a skill that is text",
        ),
        pytest.param(
            CARD_03 | {"provider": {"name": "Sums"}},
            ["provider_without_organization /provider/organization"],
            id="no organisation",
        ),
        pytest.param(
            without(CARD_03, "capabilities"),
            ["capabilities_missing /capabilities"],
            id="no capabilities",
        ),
        pytest.param(
            CARD_03 | {"capabilities": ["add"]},
            ["capabilities_is_a_list /capabilities"],
            id="a list of capabilities",
        ),
        pytest.param(
            CARD_03 | {"capabilities": "add"},
            ["wrong_type /capabilities"],
            id="capabilities as text",
        ),
        pytest.param(
            CARD_03 | {"capabilities": {"streaming": "yes"}},
            ["wrong_type /capabilities/streaming"],
            id="a flag as text",
        ),
        pytest.param(
            CARD_03 | {"provider": None},
            ["null_for_absent /provider"],
            id="null",
        ),
        pytest.param(
            CARD_03 | {"name": 7},
            ["wrong_type /name"],
            id="a name that is a number",
        ),
        pytest.param(
            CARD_01 | {"authentication": {"schemes": [1, "bearer"]}},
            ["wrong_type /authentication/schemes/0"],
            id="an auth scheme that is no text",
        ),
        pytest.param(
            without(CARD_03, "protocolVersion"),
            ["protocol_version_missing /protocolVersion"],
            id="no protocol version where one is due",
        ),
        pytest.param(
            CARD_03 | {"protocolVersion": "7.5"},
            ["protocol_version_unknown /protocolVersion"],
            id="a protocol version from nowhere",
        ),
        pytest.param(
            CARD_03 | {"protocolVersion": "1.0"},
            ["protocol_version_contradicts_shape /protocolVersion"],
            id="the version of 1.0 on the shape of 0.3",
        ),
        pytest.param(
            CARD_03 | {"authentication": {"schemes": ["bearer"]}},
            ["mixed_generations /authentication"],
            id="0.1's authentication in 0.3",
        ),
        pytest.param(
            CARD_01 | {"description": "a" * (MAX_TEXT_CHARS + 1)},
            ["too_long /description"],
            id="an endless description",
        ),
        pytest.param(
            CARD_01 | {"name": "Add\x07er"},
            ["unprintable_characters /name"],
            id="a bell in the name",
        ),
        pytest.param(
            CARD_01 | {"name": "\ud800"},
            ["unprintable_characters /name"],
            id="half a character in the name",
        ),
        pytest.param(
            CARD_03 | {"extensions": []},
            ["extensions_outside_capabilities /extensions"],
            id="extensions beside capabilities",
        ),
        pytest.param(
            CARD_03 | {"capabilities": {"extensions": [{"required": False}]}},
            ["extension_without_uri /capabilities/extensions/0/uri"],
            id="an extension without URI",
        ),
        pytest.param(
            [CARD_03],
            ["not_a_card"],
            id="a list",
        ),
        pytest.param(
            7,
            ["not_a_card"],
            id="a number",
        ),
        pytest.param(
            {},
            ["not_a_card"],
            id="an empty object",
        ),
        pytest.param(
            {"agents": [CARD_03], "total": 1},
            ["not_a_card"],
            id="a list of agents",
        ),
        pytest.param(
            {
                "name": "adder",
                "schema_version": "0.8.0",
                "skills": [{"id": 10201}],
                "locators": [],
                "modules": [],
            },
            ["not_a_card"],
            id="an AGNTCY record",
        ),
        pytest.param(
            {"protocolVersion": "2025-06-18", "capabilities": {}},
            ["not_a_card"],
            id="an MCP initialize result",
        ),
    ],
)
def test_each_card_defect_is_a_finding_with_name_and_pointer(odd: object, expected: list[str]) -> None:
    assert findings_in(odd) == expected


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
def test_invalid_json_is_reported_as_such(raw: bytes, name: str) -> None:
    card = read_agent_card(raw)
    assert (card.kind, findings(card)) == (CardKind.NOT_JSON, [name])
    assert not card.interfaces


def test_byte_order_mark_is_accepted_with_a_finding() -> None:
    card = read_agent_card(b"\xef\xbb\xbf" + json.dumps(CARD_03).encode())
    assert (card.kind, findings(card)) == (CardKind.CARD, ["byte_order_mark"])


def test_card_text_and_card_bytes_give_the_same_card() -> None:
    assert read_agent_card(json.dumps(CARD_10)) == read_agent_card(json.dumps(CARD_10).encode())


def test_each_truncated_list_of_a_card_is_a_finding() -> None:
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


def test_last_finding_reports_that_findings_were_cut() -> None:
    named = findings_in(CARD_10 | {"skills": [7] * 1000})
    assert len(named) == MAX_FINDINGS
    assert named[-1] == "too_many_findings"


# --- arbitrary documents ----------------------------------------------------------------------------------


@given(JSON | CARDS_WITH_SURPRISES)
def test_any_json_is_a_card_or_is_refused(value: object) -> None:
    assert_sound(interpret_agent_card(value))


@given(st.binary() | st.text())
def test_reading_any_bytes_or_text_gives_a_consistent_card(raw: bytes | str) -> None:
    assert_sound(read_agent_card(raw))


@given(CARDS_WITH_SURPRISES, st.data())
def test_a_card_with_broken_bytes_gives_an_answer(card: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(json.dumps(card).encode())
    for _ in range(data.draw(st.integers(0, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    assert_sound(read_agent_card(bytes(raw)))


# --- real cards -------------------------------------------------------------------------------------------


def expectations() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = json.loads(EXPECTATIONS.read_text(encoding="utf-8"))
    return rows


def test_every_real_card_has_an_expectation_and_every_expectation_a_card() -> None:
    assert sorted(corpus()) == sorted(expectations())


@pytest.mark.parametrize("name", expectations())
def test_captured_card_gives_the_expectation_that_a_person_wrote(name: str) -> None:
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


# --- cards of the real SDK -------------------------------------------------------------------------------


def captured_card(path: str) -> bytes:
    file = DATA / "captures" / path
    if not file.is_file():
        pytest.skip(f"NOT COMPARED with a captured card: {file} is absent")
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
