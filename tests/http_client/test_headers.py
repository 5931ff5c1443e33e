from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.http_client.headers import (
    _CODECS,
    max_age_seconds,
    media_type,
    retry_after_seconds,
    status_links,
    text_codec,
    whole_number,
)

NOW = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        (" 60 ", 60),
        ("9" * 400, 999_999_999),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("\u0663", None),
    ],
)
def test_a_number_of_seconds_is_whole_and_bounded(text: str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["max-age=60"], 60),
        (["private, Max-Age=60"], 60),
        (["no-cache", "max-age=60"], 60),
        (['max-age="60"'], 60),
        (["s-maxage=60"], None),
        (["max-age=soon"], None),
        ([], None),
    ],
)
def test_max_age_is_found_among_the_directives(fields: list[str], expected: int | None) -> None:
    assert max_age_seconds(fields) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("120", 120),
        ("Wed, 01 Jul 2026 12:05:00 GMT", 300),
        ("Wed, 01 Jul 2026 11:00:00 GMT", 0),
        ("", None),
        ("soon", None),
        ("-1", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(text: str, expected: int | None) -> None:
    assert retry_after_seconds(text, NOW) == expected


@pytest.mark.parametrize(
    ("fields", "targets"),
    [
        (['</a>; rel="status"'], ("/a",)),
        (["</a>; rel=status"], ("/a",)),
        (['</a>; title="x"; REL="alternate Status"'], ("/a",)),
        (['</a>; rel="next", </b>; rel="status"', '<c>; rel="status"'], ("/b", "c")),
        (['</a>; rel="statuses"', "</b>", "/c; rel=status", "<"], ()),
        (['</a>; rel="x"'] * 40 + ['</b>; rel="status"'], ()),
    ],
)
def test_status_links_are_read_from_the_link_header(fields: list[str], targets: tuple[str, ...]) -> None:
    assert status_links(fields) == targets


@given(st.text())
def test_any_header_is_read_without_an_exception(text: str) -> None:
    max_age_seconds([text])
    status_links([text])
    seconds = retry_after_seconds(text, NOW)
    assert seconds is None or seconds >= 0


@pytest.mark.parametrize(
    ("field", "expected"),
    [("Text/HTML; charset=utf-8", "text/html"), ("application/json;;;", "application/json"), ("", "")],
)
def test_media_type_is_returned_without_parameters(field: str, expected: str) -> None:
    assert media_type({"Content-Type": field}) == expected
    assert media_type({}) == ""


@pytest.mark.parametrize(
    ("field", "codec"),
    [
        ("text/plain; charset=ISO-8859-1", "latin_1"),
        ('text/plain;format=flowed; Charset="windows-1252"', "cp1252"),
        ("text/plain; charset=utf-16le", "utf_16_le"),
        ("text/plain;charset=shift_jis;x=y", "shift_jis"),
        ("text/plain; charset=iso-8859-15", "iso8859_15"),
        *((f"text/plain; charset={name}", "utf_8") for name in ("UTF-8", "us-ascii", "punycode", "hex")),
        ("text/plain; charset=", "utf_8"),
        ("text/plain; xcharset=utf-16", "utf_8"),
        ("application/json", "utf_8"),
        ("", "utf_8"),
    ],
)
def test_codec_is_that_of_a_known_charset_or_utf_8(field: str, codec: str) -> None:
    assert text_codec({"Content-Type": field}) == codec


def test_every_codec_decodes_any_bytes() -> None:
    for codec in _CODECS:
        assert bytes(range(256)).decode(codec, "replace")
