from typing import Any

import pytest

from lifesign.domain.mcp.conversation import NO_REPLY, McpReply
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.observation.tool_answer import URL_ELICITATION_REQUIRED, classify_tool_answer


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"content": []}, ResultClass.OK),
        ({"structuredContent": {}}, ResultClass.OK),
        ({"resultType": "input_required"}, ResultClass.OK),
        ({"content": [], "isError": False}, ResultClass.OK),
        ({"content": [], "isError": True}, ResultClass.HTTP_ERROR),
        ({"isError": True}, ResultClass.HTTP_ERROR),
        ({"content": [], "isError": 1}, ResultClass.HTTP_ERROR),
        ({"content": [], "isError": "true"}, ResultClass.HTTP_ERROR),
        ({"content": [], "isError": None}, ResultClass.HTTP_ERROR),
        ({"content": "x"}, ResultClass.INVALID_DOCUMENT),
        ({}, ResultClass.INVALID_DOCUMENT),
    ],
)
def test_tool_call_result_is_classified(result: dict[str, Any], expected: ResultClass) -> None:
    answer = classify_tool_answer(McpReply(result=result))
    assert answer is not None
    assert answer.result is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-32602, ResultClass.HTTP_ERROR),
        (-32603, ResultClass.HTTP_ERROR),
        (0, ResultClass.HTTP_ERROR),
        (URL_ELICITATION_REQUIRED, ResultClass.OK),
    ],
)
def test_tool_call_error_is_classified(code: int, expected: ResultClass) -> None:
    answer = classify_tool_answer(McpReply(code=code))
    assert answer is not None
    assert answer.result is expected


def test_text_of_a_failed_tool_is_quoted_up_to_a_limit() -> None:
    content = [{"type": "text", "text": "down\n" + "x" * 10_000}]
    answer = classify_tool_answer(McpReply(result={"content": content, "isError": True}))
    assert answer is not None
    assert "down" in answer.reason
    assert answer.reason.isprintable()
    assert len(answer.reason) < 200


def test_without_a_reply_the_http_answer_decides() -> None:
    assert classify_tool_answer(NO_REPLY) is None
