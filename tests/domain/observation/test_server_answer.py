import pytest

from lifesign.domain.mcp.conversation import NO_REPLY, McpReply
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.observation.server_answer import (
    classify_failed_discovery,
    is_login_of_server,
    may_be_server,
)

METADATA = 'Bearer error="invalid_token", resource_metadata="https://a.example/x"'


@pytest.mark.parametrize(
    ("result", "status", "expected"),
    [
        ("not_an_agent", 404, True), ("not_an_agent", 200, True), ("http_error", 405, True),
        ("http_error", 500, False), ("http_error", None, False), ("gated", 401, False),
        ("timeout", None, False),
    ],
)  # fmt: skip
def test_url_without_a_card_is_checked_for_mcp_unless_its_server_fails(
    result: str, status: int | None, *, expected: bool
) -> None:
    assert may_be_server(ResultClass(result), status) is expected


@pytest.mark.parametrize(
    ("result", "challenges", "expected"),
    [
        ("gated", [METADATA], True),
        ("credentials_rejected", ["Basic", METADATA], True),
        ("gated", [], False),
        ("gated", ["Bearer"], False),
        ("gated", ['Basic resource_metadata="https://a.example/x"'], False),
        ("not_an_agent", [METADATA], False),
    ],
)
def test_only_a_bearer_challenge_with_metadata_suggests_an_mcp_server(
    result: str, challenges: list[str], *, expected: bool
) -> None:
    assert is_login_of_server(ResultClass(result), challenges) is expected


@pytest.mark.parametrize(
    ("result", "status", "reply", "expected"),
    [
        ("timeout", None, NO_REPLY, "timeout"),
        ("gated", 401, NO_REPLY, "gated"),
        ("ok", 200, McpReply(code=-32603), "invalid_document"),
        ("http_error", 400, McpReply(code=-32022), "invalid_document"),
        ("http_error", 500, NO_REPLY, "http_error"),
        ("ok", 200, NO_REPLY, "not_an_agent"),
        ("ok", 200, McpReply(result={}), "not_an_agent"),
    ],
)
def test_failed_discovery_has_the_class_of_its_answer(
    result: str, status: int | None, reply: McpReply, expected: str
) -> None:
    found, reason = classify_failed_discovery(ResultClass(result), status, "given", reply)
    assert found == expected
    is_given = expected in {"timeout", "gated", "http_error"}
    assert (reason == "given") is is_given
