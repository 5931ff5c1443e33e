import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.types import AgentCapabilities, AgentExtension, AgentInterface
from a2a.types import AgentCard as SdkAgentCard
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.support.cards import (
    ABOUT,
    CARD_01,
    CARD_03,
    CARD_10,
    CARDS,
    CARDS_WITH_SURPRISES,
    JSON,
    PATHS,
    corpus,
    every_generation,
    findings,
    without,
)
from tests.support.servers import REPOSITORY

from lifesign.domain.a2a.agent_card import CardKind, interpret_agent_card, read_agent_card
from lifesign.domain.a2a.announcement import (
    HEALTH_EXTENSION_URI,
    CardRegistration,
    HealthAnnouncement,
    announce_health,
)
from lifesign.errors import InvalidValue

# --- reading ----------------------------------------------------------------------------------------------


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
def test_health_path_to_another_host_is_ignored_with_a_finding(path: object) -> None:
    card = interpret_agent_card(with_extension(params={"path": path}))
    assert card.health == HealthAnnouncement(None, None, None, "extension")
    assert findings(card) == ["health_path_is_not_a_path /capabilities/extensions/0/params/path"]


def test_health_extension_without_a_path_counts_with_a_finding() -> None:
    card = interpret_agent_card(with_extension())
    assert card.health == HealthAnnouncement(None, None, None, "extension")
    assert findings(card) == ["health_path_missing /capabilities/extensions/0/params/path"]


def test_invalid_schema_version_is_ignored() -> None:
    card = interpret_agent_card(with_extension(params={"path": "/h", "schema_version": 1}))
    assert card.health == HealthAnnouncement("/h", None, None, "extension")
    assert findings(card) == ["wrong_type /capabilities/extensions/0/params/schema_version"]


def test_required_or_duplicate_health_extension_is_a_finding() -> None:
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
def test_health_under_a_private_key_is_read_with_a_finding(
    private: dict[str, Any], pointer: str, path: str | None, url: str | None
) -> None:
    card = interpret_agent_card(CARD_01 | private)
    assert card.health == HealthAnnouncement(path, url, None, "private_key")
    assert findings(card) == [f"health_under_private_key {pointer}"]


@pytest.mark.parametrize("value", ["ok", True, {"status": "ok"}, None, "//evil.test/", "mailto:a@b.test"])
def test_invalid_url_announces_no_health(value: object) -> None:
    assert interpret_agent_card(CARD_01 | {"health": value}).health is None


def test_extension_outranks_a_private_key() -> None:
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
def test_announcement_reads_back(card: dict[str, Any]) -> None:
    read = read_agent_card(json.dumps(announce_health(card)))
    assert read.health == HealthAnnouncement("/.well-known/agent-health", None, "0.1.0", "extension")
    assert findings(read) == []
    assert read.interfaces == interpret_agent_card(card).interfaces


def test_second_announcement_replaces_the_first_at_its_position() -> None:
    ours, other = {"uri": HEALTH_EXTENSION_URI}, {"uri": "urn:other"}
    announced = announce_health({"capabilities": {"extensions": [ours, other, ours, "x"]}}, path="/new")
    first, *rest = announced["capabilities"]["extensions"]
    assert first["params"]["path"] == "/new"
    assert rest == [other, "x"]


@pytest.mark.parametrize("absent", [{}, {"capabilities": None}, {"capabilities": {"extensions": None}}])
def test_announcing_creates_absent_capabilities_and_extensions(absent: dict[str, Any]) -> None:
    assert len(announce_health(absent)["capabilities"]["extensions"]) == 1


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ([CARD_03], "card"),
        ({"capabilities": ["add"]}, "card.capabilities"),
        ({"capabilities": "add"}, "card.capabilities"),
        ({"capabilities": {"extensions": {"x402": {}}}}, "card.capabilities.extensions"),
    ],
)
def test_announcing_refuses_a_card_with_malformed_capabilities(card: Any, name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        announce_health(card)
    assert refused.value.name == name


@pytest.mark.parametrize("path", ["health", "//evil.test/", "https://sums.test/health", "/a\r\nb"])
def test_announcing_refuses_a_path_to_another_host(path: str) -> None:
    with pytest.raises(InvalidValue, match="path"):
        announce_health(CARD_10, path=path)


@given(CARDS_WITH_SURPRISES, PATHS)
def test_announcing_is_idempotent_and_changes_no_other_member(card: dict[str, Any], path: str) -> None:
    try:
        announced = announce_health(card, path=path)
    except InvalidValue as refusal:
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
def test_announcement_is_read_back_from_any_card(
    card: dict[str, Any], surprises: dict[str, Any], path: str
) -> None:
    surprising = card | surprises
    announced = interpret_agent_card(announce_health(surprising, path=path))
    if announced.kind is not CardKind.CARD:
        return
    assert announced.health is not None
    assert announced.health.path == path
    assert announced.interfaces == interpret_agent_card(surprising).interfaces


# --- cards of the SDKs ------------------------------------------------------------------------------------

OURS_03 = {
    "uri": HEALTH_EXTENSION_URI,
    "description": "Serves the agent's health document (draft-liang-agent-health-state)",
    "required": False,
    "params": {"path": "/h", "schema_version": "0.1.0"},
}


def message_card(**capabilities: Any) -> Any:
    return SdkAgentCard(
        name="n",
        capabilities=AgentCapabilities(streaming=True, **capabilities),
        supported_interfaces=[AgentInterface(url="https://agent.test/")],
    )


@pytest.mark.parametrize(
    "card",
    [
        message_card(),
        SdkAgentCard(name="n"),
        message_card(extensions=[AgentExtension(uri="urn:x", required=True)]),
    ],
)
def test_announcing_in_a_card_of_sdk_1_equals_announcing_in_its_dict(card: Any) -> None:
    before = MessageToDict(card)
    announced = announce_health(card, path="/h")
    assert type(announced) is SdkAgentCard
    assert MessageToDict(card) == before
    assert announced == ParseDict(announce_health(before, path="/h"), SdkAgentCard())
    assert announce_health(announced, path="/h") == announced


def test_second_announcement_in_a_card_of_sdk_1_replaces_the_first() -> None:
    ours, other = AgentExtension(uri=HEALTH_EXTENSION_URI, required=True), AgentExtension(uri="urn:other")
    ours.params.update({"path": "/old", "left": 1})
    announced = announce_health(message_card(extensions=[ours, other, ours]), path="/new")
    first, *rest = MessageToDict(announced)["capabilities"]["extensions"]
    assert first["params"] == {"path": "/new", "schema_version": "0.1.0"}
    assert "required" not in first
    assert rest == [{"uri": "urn:other"}]


# --- matching a registered agent ----

REGISTERED = {"registry": "https://registry.example", "agent_id": "agent-1"}


@pytest.mark.parametrize("card", [CARD_01, CARD_03, CARD_10])
def test_a_card_names_the_registered_agent(card: dict[str, Any]) -> None:
    announced = interpret_agent_card(announce_health(card, **REGISTERED))
    assert announced.health is not None
    assert announced.health.registration == CardRegistration(**REGISTERED)
    assert "registration_invalid" not in str(announced.findings)
    again = interpret_agent_card(announce_health(announce_health(card, **REGISTERED)))
    assert again.health is not None
    assert again.health.registration is None


def test_registration_in_a_card_of_sdk_1_equals_registration_in_its_dict() -> None:
    announced = announce_health(message_card(), **REGISTERED)
    (entry,) = MessageToDict(announced)["capabilities"]["extensions"]
    assert {name: entry["params"][name] for name in REGISTERED} == REGISTERED


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"registry": "https://registry.example"}, "agent_id"),
        ({"agent_id": "agent-1"}, "registry"),
        ({"registry": "ftp://registry.example", "agent_id": "agent-1"}, "registry"),
        ({"registry": "https://registry.example", "agent_id": "an agent"}, "agent_id"),
    ],
)
def test_announcing_refuses_an_incomplete_registration(given: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        announce_health(CARD_03, **given)
    assert refused.value.name == name


@pytest.mark.parametrize(
    "params",
    [
        {"registry": "https://registry.example"},
        {"agent_id": "agent-1"},
        {"registry": 5, "agent_id": "agent-1"},
        {"registry": "https://registry.example/ ", "agent_id": "agent-1"},
        {"registry": "https://r.example/" + "a" * 2048, "agent_id": "agent-1"},
        {"registry": "https://registry.example", "agent_id": "a" * 129},
        {"registry": "https://registry.example", "agent_id": "agent-1\n"},
    ],
)
def test_unreadable_registration_is_ignored_with_a_finding(params: dict[str, Any]) -> None:
    card = interpret_agent_card(with_extension(params={"path": "/health", **params}))
    assert card.health is not None
    assert card.health.registration is None
    assert findings(card) == ["registration_invalid /capabilities/extensions/0/params"]


OF_SDK_03 = """
import json, sys
from a2a.types import AgentCapabilities, AgentCard, AgentExtension
from lifesign.domain.a2a.announcement import announce_health

def card(**more):
    members = dict(name="n", description="d", version="1", url="https://agent.test/", skills=[])
    modes = dict(default_input_modes=["text"], default_output_modes=["text"])
    return AgentCard(**members, **modes, capabilities=AgentCapabilities(streaming=True, **more))

ours = AgentExtension(uri=sys.argv[1], required=True, params={"path": "/old"})
other = AgentExtension(uri="urn:other", params={"a": [1]})
written = []
for given in (card(), card(extensions=[other]), card(extensions=[ours, other, ours])):
    before = given.model_dump(by_alias=True, exclude_none=True)
    announced = announce_health(given, path="/h")
    assert type(announced) is AgentCard
    assert all(type(one) is AgentExtension for one in announced.capabilities.extensions)
    assert given.model_dump(by_alias=True, exclude_none=True) == before
    assert announce_health(announced, path="/h") == announced
    as_dict = AgentCard.model_validate(announce_health(before, path="/h"))
    assert announced.model_dump() == as_dict.model_dump()
    written.append(announced.capabilities.model_dump(by_alias=True, exclude_none=True))
print(json.dumps(written))
"""


def run_with_sdk_03(python: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", OF_SDK_03, HEALTH_EXTENSION_URI],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": str(REPOSITORY / "src")},
    )


def test_announcing_in_a_card_of_sdk_0_3_equals_announcing_in_its_dict() -> None:
    """In its own environment, as the two lines of the SDK exclude one another."""
    python = REPOSITORY / ".venv-a2a03" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"NOT TESTED: {python} is absent; `make test` makes it")
    ended = run_with_sdk_03(python)
    assert ended.returncode == 0, ended.stderr
    other = {"uri": "urn:other", "params": {"a": [1]}}
    assert json.loads(ended.stdout) == [
        {"extensions": [OURS_03], "streaming": True},
        {"extensions": [other, OURS_03], "streaming": True},
        {"extensions": [OURS_03, other], "streaming": True},
    ]


class Model(BaseModel):
    """A pydantic model that is no card."""

    capabilities: Any = None


@pytest.mark.parametrize(
    ("card", "name"),
    [
        (SdkAgentCard, "card"),
        (AgentCapabilities(), "card"),
        ("card", "card"),
        (None, "card"),
        (object(), "card"),
        (Model(), "card.capabilities"),
        (Model(capabilities=Model()), "card.capabilities"),
        (Model(capabilities={}), "card.capabilities"),
    ],
)
def test_error_about_an_invalid_card_does_not_quote_the_card(card: Any, name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        announce_health(card)
    assert refused.value.name == name
    assert len(str(refused.value)) < 200


# --- real cards and the real SDK --------------------------------------------------------------------------


def test_announcing_in_a_captured_card_works_or_names_the_invalid_member() -> None:
    for name, path in corpus().items():
        card = read_agent_card(path.read_bytes())
        if card.kind not in {CardKind.CARD, CardKind.REGISTRY_RECORD}:
            continue
        value = json.loads(path.read_bytes())
        if isinstance(value["capabilities"], list):
            with pytest.raises(InvalidValue):
                announce_health(value)
            continue
        announced = interpret_agent_card(announce_health(value, path="/h"))
        assert announced.health == HealthAnnouncement("/h", None, "0.1.0", "extension"), name
        assert announced.interfaces == card.interfaces, name


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
