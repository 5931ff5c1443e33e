"""Cards of all four generations, and strategies for cards with anything in them."""

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import strategies as st

from lifesign.domain.a2a.agent_card import AgentCard, CardFinding, interpret_agent_card
from lifesign.domain.a2a.announcement import HEALTH_EXTENSION_URI, is_health_path
from lifesign.domain.parsing.lenient_json import MAX_FINDINGS

DATA = Path(__file__).parents[2].parent / "shared" / "data"

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
    for finding in card.findings:
        str(finding).encode()
    str((card.name, card.interfaces, card.skill_ids, card.auth_schemes, card.health)).encode()
    if card.health is not None and card.health.path is not None:
        assert is_health_path(card.health.path)


def corpus() -> dict[str, Path]:
    if not (DATA / "cards").is_dir():
        pytest.skip(f"NOT COMPARED with real cards: {DATA / 'cards'} is absent")
    return {path.name: path for path in (DATA / "cards").glob("*.json")}
