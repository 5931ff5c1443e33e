import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CONNECTION_CLOSED, JSONRPCError, JSONRPCResponse

from lifesign.adapter.tools.server_line import (
    NOT_SENT,
    SERVER_ERROR,
    UNREADABLE,
    NotText,
    answered_call,
    error_in,
    read_line,
    substitute_error,
)

DEEP = "[" * 20_000 + "]" * 20_000


def test_an_answer_is_read() -> None:
    result = read_line(b'{"jsonrpc": "2.0", "id": 7, "result": {"content": []}}')
    assert isinstance(result, JSONRPCResponse)
    assert (result.id, result.result) == (7, {"content": []})


def test_half_of_a_surrogate_pair_is_read_as_the_replacement_character() -> None:
    result = read_line(rb'{"jsonrpc": "2.0", "id": 7, "result": {"content": ["\ud83d"]}}')
    assert isinstance(result, JSONRPCResponse)
    assert result.result == {"content": ["\ufffd"]}


@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc":"2.0","id":7,"result":%s}',
        '{"id": 7, "jsonrpc": "2.0", "result": %s}',
        '{"id":7,"error":%s,"jsonrpc":"2.0"}',
        '{"jsonrpc":"2.0","result":%s,"id":7}',
        '{"result":%s,"id":7,"jsonrpc":"2.0"}\r',
    ],
)
def test_invalid_answer_fails_its_call(line: str) -> None:
    for result in ('"nope"', DEEP):
        found = read_line((line % result).encode())
        assert isinstance(found, JSONRPCError)
        assert (found.id, found.error.code) == (7, UNREADABLE)


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "",
        "{}",
        '{"level": "info", "id": 7}',
        # A question of the server has a number of its own.
        '{"jsonrpc":"2.0","id":7,"method":3}',
        '{"jsonrpc":"2.0","method":3,"id":7}',
        # The number of something within.
        '{"jsonrpc":"2.0","result":{"a":1,"id":7}}',
        '{"jsonrpc":"2.0","result":"a,\\"id\\":7}',
    ],
)
def test_line_without_an_id_answers_no_call(line: str) -> None:
    assert read_line(line.encode()) is None


def test_undecodable_text_differs_from_an_invalid_message() -> None:
    with pytest.raises(NotText, match="not UTF-8"):
        read_line(b"\xff\xfe\x00\x01")


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_only_the_top_level_id_of_an_answer_counts(within: object) -> None:
    """Each of these is no JSON-RPC, for the version is missing."""
    for text in (json.dumps, lambda value: json.dumps(value, ensure_ascii=False)):
        last = read_line(text({"result": {"id": 5, "within": within}, "id": 7}).encode())
        assert isinstance(last, JSONRPCError)
        assert last.id == 7
        assert read_line(text({"result": {"within": within, "id": 5}}).encode()) is None


def test_id_at_the_beginning_of_a_truncated_line_is_found() -> None:
    assert answered_call(b'{"jsonrpc":"2.0","id":7,"result":{"content":[') == 7
    assert answered_call(b'{"jsonrpc":"2.0","result":{"content":[{"a":1,"id":7}') is None


@pytest.mark.parametrize(
    ("sent", "relayed"), [(-32_601, -32_601), (NOT_SENT, SERVER_ERROR), (CONNECTION_CLOSED, SERVER_ERROR)]
)
def test_error_of_a_server_is_never_taken_for_a_missing_answer(sent: int, relayed: int) -> None:
    body = substitute_error(7, sent, "no").model_dump_json().encode()
    for found in (error_in(body), read_line(body)):
        assert isinstance(found, JSONRPCError)
        assert (found.id, found.error.code, found.error.message) == (7, relayed, "no")


@pytest.mark.parametrize(
    "body", [b"{}", b'{"error": 3}', b'["error"', b'{"jsonrpc":"2.0","id":1,"result":{}}']
)
def test_other_bodies_are_no_errors_of_a_server(body: bytes) -> None:
    assert error_in(body) is None
