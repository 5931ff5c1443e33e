import json

import pytest

from lifesign.domain.parsing.bounded_json import MAX_MARKS, NotJson, TooComplex, parse_bounded, parse_or_none


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
def test_longer_integer_is_null_to_pythons_own_parser(digits: int, number: int | None) -> None:
    # The lone surrogate is one that only Python's own parser takes.
    assert parse_bounded(rb'{"n":%s,"text":"\ud800"}' % (b"1" * digits)) == {"n": number, "text": "\ud800"}
