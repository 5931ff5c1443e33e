import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.parsing.bounded_json import (
    MAX_MARKS,
    MAX_MARKS_AGAIN,
    NotJson,
    TooComplex,
    has_more_marks,
    parse_bounded,
    parse_or_none,
)


@pytest.mark.parametrize("raw", [b"[" * 200_000, b'{"a":' * 200_000, b"[" * 50_000 + b"]" * 50_000])
def test_too_deep_nesting_differs_from_invalid_json(raw: bytes) -> None:
    with pytest.raises(TooComplex):
        parse_bounded(raw)
    assert parse_or_none(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b"{'a': 1}",
        b"<html>",
        b"\xff",
        b'"\xff"',
        b"[1] [2]",
        b"tru",
        # Python's text of numbers that JSON does not have.
        b'{"jsonrpc": "2.0", "result": {"score": NaN}}',
        b'{"jsonrpc": "2.0", "result": {"score": -Infinity}}',
    ],
)
def test_invalid_json_is_reported(raw: bytes) -> None:
    with pytest.raises(NotJson):
        parse_bounded(raw)
    assert parse_or_none(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"jsonrpc": "2.0", "result": {"text": "\ud800"}}',
        b'{"jsonrpc": "2.0", "result": {"text": "\xed\xa0\x80"}}',
        b'{"jsonrpc": "2.0", "result": {"score": 1e999}}',
        b'{"jsonrpc": "2.0", "result": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'\xef\xbb\xbf{"jsonrpc": "2.0", "result": 1}',
    ],
)
def test_json_that_python_accepts_is_accepted(raw: bytes) -> None:
    assert parse_bounded(raw) == json.loads(raw)


@pytest.mark.parametrize("item", [b"{}", b"[]", b"1"])
def test_body_with_too_many_brackets_and_commas_is_not_parsed(item: bytes) -> None:
    def listed(items: int) -> bytes:
        return b"[" + b",".join([item] * items) + b" " * MAX_MARKS + b"]"

    of_each = 1 if item == b"1" else 2
    assert len(parse_bounded(listed(MAX_MARKS // of_each))) == MAX_MARKS // of_each
    with pytest.raises(TooComplex):
        parse_bounded(listed(MAX_MARKS // of_each + 1))


@pytest.mark.parametrize(("digits", "number"), [(20, 11_111_111_111_111_111_111), (21, None)])
def test_too_long_integer_is_parsed_as_null_by_the_slow_parser(digits: int, number: int | None) -> None:
    # The lone surrogate is one that only Python's own parser takes.
    assert parse_bounded(rb'{"n":%s,"text":"\ud800"}' % (b"1" * digits)) == {"n": number, "text": "\ud800"}


@pytest.fixture
def _no_second_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(json, "loads", refuse)


MANY_MEMBERS = b",".join(rb'"\n%d":"\u00e9"' % number for number in range(MAX_MARKS - 10))


@pytest.mark.parametrize("end", [b"", b"!", b"}}", b',"a":NaN}', b',"a":1,}', rb',"a":"\x"}', b',"a":"\n"}'])
@pytest.mark.usefixtures("_no_second_parser")
def test_long_body_that_is_no_json_is_read_once(end: bytes) -> None:
    """Each of the two parsers takes up to 10 ms for it."""
    with pytest.raises(NotJson):
        parse_bounded(b"{" + MANY_MEMBERS + end)


@pytest.mark.parametrize("end", [rb',"a":"\ud800"}', b',"a":' + b"[" * 205 + b"]" * 205 + b"}"])
@pytest.mark.usefixtures("_no_second_parser")
def test_long_body_that_would_be_read_twice_is_too_complex(end: bytes) -> None:
    with pytest.raises(TooComplex):
        parse_bounded(b"{" + MANY_MEMBERS + end)


@pytest.mark.parametrize("end", [rb',"a":"\ud800"}', b',"a":' + b"[" * 205 + b"]" * 205 + b"}"])
def test_shorter_body_may_be_read_twice(end: bytes) -> None:
    members = b",".join(rb'"\n%d":"\u00e9"' % number for number in range(MAX_MARKS_AGAIN - 300))
    assert parse_bounded(b"{" + members + end)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=15,
)
MOST_ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "latin-1"]
TORN = [
    "", "x", ",", "}", "]", '"', "\\", "\\ud800", "NaN", "-Infinity", "1e999", "0", "01", "\x00", "\n", "tru",
    "\ufeff",
]  # fmt: skip


@given(VALUES, st.sampled_from(MOST_ENCODINGS), st.sampled_from(TORN), st.integers(0, 200), st.integers(0, 3))
def test_both_parsers_agree_on_what_is_no_json(
    value: object, encoding: str, torn: str, at: int, cut: int
) -> None:
    text = json.dumps(value, ensure_ascii=False)
    raw = (text[:at] + torn + text[at + cut :]).encode(encoding, "replace")
    try:
        json.loads(raw, parse_float=str, parse_constant=_refuse)
    except ValueError:
        with pytest.raises(NotJson):
            parse_bounded(raw)
    else:
        parse_bounded(raw)


def _refuse(name: str) -> None:
    raise ValueError(name)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"a": [1]}', False),
        (b'{"a": [1, 2]}', True),
        (rb'{"a": ",[{,\",[{\\", "b": 1}', False),
        (rb'{"a": "\\", "b": [1]}', True),
        (b'["a", "b", "c"]', True),
        (b'[{"a": "b", "c": "d"', True),
    ],
)
def test_marks_outside_strings_are_counted(raw: bytes, expected: bool) -> None:  # noqa: FBT001
    assert has_more_marks(raw, 2) is expected


@given(st.dictionaries(st.text(), st.lists(st.text() | st.integers())), st.integers(0, 9))
def test_number_of_quotes_alone_decides_only_if_there_are_more_marks(value: Any, most: int) -> None:
    plain = json.loads(json.dumps(value), object_pairs_hook=lambda pairs: [("", item) for _, item in pairs])

    def marks(value: Any) -> int:
        if not isinstance(value, list | tuple):
            return 0
        return max(1, len(value)) + sum(marks(inner[1] if type(inner) is tuple else inner) for inner in value)

    assert has_more_marks(json.dumps(value).encode(), most) is (marks(plain) > most)
