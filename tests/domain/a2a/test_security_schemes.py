"""Security schemes of agent cards."""

from typing import Any

import pytest

from lifesign.domain.a2a.agent_card import interpret_agent_card
from lifesign.domain.a2a.security_schemes import MAX_SCHEMES, security_schemes


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, ()),
        ({"securitySchemes": []}, ()),
        ({"authentication": {"schemes": ["Bearer", 7]}}, ("http bearer",)),
        ({"securitySchemes": {"a": {"type": "http", "scheme": "Bearer"}}}, ("http bearer",)),
        (
            {"securitySchemes": {"a": {"type": "oauth2", "flows": {}}, "b": {"type": "mutualTLS"}}},
            ("oauth2", "mutualTLS"),
        ),
        (
            {"securitySchemes": {"a": {"type": "apiKey", "in": "query", "name": "api_key"}}},
            ("apiKey query api_key",),
        ),
        (
            {"securitySchemes": {"a": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}}}},
            ("apiKey header X-API-Key",),
        ),
        (
            {"securitySchemes": {"a": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://x"}}}},
            ("openIdConnect",),
        ),
        ({"securitySchemes": {"a": {"type": "odd"}, "b": 7, "c": {"type": ["oauth2"]}}}, ()),
        ({"securitySchemes": {"a": {"type": "apiKey", "in": "body", "name": "k"}}}, ()),
        ({"securitySchemes": {"a": {"type": "apiKey", "in": "header", "name": "X\r\nHost: evil"}}}, ()),
        ({"securitySchemes": {"a": {"type": "oauth2"}, "b": {"type": "oauth2"}}}, ("oauth2",)),
    ],
)
def test_each_security_scheme_is_described_in_one_line(
    members: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert security_schemes(members) == expected


def test_the_number_of_schemes_is_bounded() -> None:
    schemes = {f"s{number}": {"type": "http", "scheme": f"s{number}"} for number in range(100)}
    assert len(security_schemes({"securitySchemes": schemes})) == MAX_SCHEMES


def test_card_lists_its_security_schemes() -> None:
    card = interpret_agent_card({
        "name": "x", "url": "https://a.example", "skills": [], "capabilities": {},
        "securitySchemes": {"a": {"type": "oauth2"}},
    })  # fmt: skip
    assert card.security_schemes == ("oauth2",)
