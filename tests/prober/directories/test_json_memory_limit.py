import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.prober.directories import json_memory_limit
from lifesign.prober.directories.json_memory_limit import (
    MAX_DEPTH,
    MAX_JSON_BYTES,
    MAX_PARSED_BYTES,
    read_json,
)


def nested(levels: int) -> list[Any] | None:
    """Return a list in lists, with null in the innermost one."""
    value: list[Any] | None = None
    for _ in range(levels + 1):
        value = [value]
    return value


def cut(value: Any, depth: int) -> Any:
    """Return a JSON value with null in place of the lists and objects below `depth` levels."""
    if isinstance(value, list):
        return [cut(item, depth - 1) for item in value] if depth else None
    if isinstance(value, dict):
        return {key: cut(item, depth - 1) for key, item in value.items()} if depth else None
    return value


@given(st.dictionaries(st.text(), st.integers()) | st.lists(st.none() | st.booleans() | st.text()))
def test_objects_and_lists_are_read(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert read_json(text.encode(errors="replace"))[1] == ""
    assert read_json(json.dumps(value).encode()) == (value, "")


def test_byte_order_mark_and_white_space_are_ignored() -> None:
    assert read_json(b'\xef\xbb\xbf \r\n\t{"a": 1}') == ({"a": 1}, "")


@pytest.mark.parametrize(
    "body", [b"", b"null", b"1", b'"text"', b"true", b"https://a.example/", b"<html>", b" "]
)
def test_scalar_json_is_not_parsed(body: bytes) -> None:
    assert read_json(body) == (None, "neither a JSON object nor a JSON list")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"{", "not JSON"),
        (b'{"a": 1}\n{"a": 2}', "not JSON"),
        (b'{"a": \xff}', "not UTF-8 from byte 6 on"),
        (b"[" * 100_000, "not JSON"),
        (b"[" * 100_000 + b"]", "not JSON"),
    ],
)
def test_invalid_json_is_reported(body: bytes, fault: str) -> None:
    value, result = read_json(body)
    assert value is None
    assert fault in result


@pytest.mark.parametrize(
    ("entry", "read"),
    [
        (b"[" * 2_000 + b"]" * 2_000, nested(MAX_DEPTH - 2)),
        (b'{"a":' * 20_000 + b"0" + b"}" * 20_000, ...),
        (b'{"a": [' * 20_000 + b'"]}\\"[{" , "b"' + b"]}" * 20_000, ...),
        (b"9" * 5_000, None),
        (b"-" + b"9" * 5_000, None),
    ],
    ids=["lists", "objects", "brackets in texts", "number", "negative number"],
)
def test_entry_that_the_parser_would_refuse_does_not_hide_the_others(entry: bytes, read: object) -> None:
    others = [{"url": "https://a.example/"}, 'b ] } \\" { [', "\\", 12, [[], {}]]
    first, last = (json.dumps(others[::step]).encode()[1:-1] for step in (1, -1))
    value, fault = read_json(b"[" + first + b"," + entry + b"," + last + b"]")
    assert fault == ""
    assert value[:5] == others
    assert value[6:] == others[::-1]
    assert read is ... or value[5] == read


@given(
    st.recursive(
        st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=50,
    ),
    st.integers(0, 6),
)
def test_only_values_below_the_depth_become_null(value: object, depth: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_memory_limit, "MAX_DEPTH", depth)
        text = json_memory_limit._without_deep_values(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == cut(value, depth)


@pytest.mark.parametrize(
    ("element", "count"),
    [
        (b"{},", 2_500_000),
        (b'{"":0},', 1_900_000),
        (b'"ab",', 6_000_000),
        (b"1.5,", 15_000_000),
        (b" ", MAX_JSON_BYTES),
        (b'"\\u20ac",', 4_500_000),
    ],
    ids=["objects", "members", "texts", "numbers", "nothing", "escapes"],
)
def test_oversized_text_is_not_parsed(element: bytes, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"[" + element * count + b"0]"
    monkeypatch.delattr(json, "loads")
    value, result = read_json(body)
    assert value is None
    assert result.startswith(f"more JSON than is read: {len(body)} bytes")
    assert result.endswith(f", {MAX_JSON_BYTES if len(body) > MAX_JSON_BYTES else MAX_PARSED_BYTES} at most")


@pytest.mark.parametrize(
    "entry", [b'{"url":"https://agent.example/","name":"One"}', b'"https://agent.example/"']
)
def test_list_of_100000_entries_is_within_the_memory_limit(entry: bytes) -> None:
    value, fault = read_json(b"[" + b",".join([entry] * 100_000) + b"]")
    assert (len(value), fault) == (100_000, "")
