import codecs
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.directories import document, listed, read, skipped

from lifesign.prober.directories.format_parser import (
    Kind,
    Listed,
    NotReadable,
    Skipped,
)
from lifesign.prober.directories.plain_list import (
    MAX_LINE_CHARS,
    MAX_ROW_CHARS,
    SAMPLE_BYTES,
    SAMPLE_LINES,
    PlainList,
    is_empty_list,
    is_url_or_domain,
)
from lifesign.prober.directories.target_collection import Gathered

EXAMPLE = ["https://a.example/"]

PLAIN = PlainList()
A, B, C = "https://a.example/", "https://b.example/.well-known/agent-card.json", "c.example"


def urls(content: object, content_type: str = "") -> list[str]:
    return [url for url, _, _ in listed(read(PLAIN, content, content_type))]


# ── text ──


def test_text_has_one_url_or_domain_per_line() -> None:
    assert urls(f"{A}\n{B}\n{C}\n") == [A, B, C]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end_ends_a_line(end: str) -> None:
    assert urls(end.join([A, B, C])) == [A, B, C]


def test_comments_white_space_and_a_byte_order_mark_are_ignored() -> None:
    text = f"\ufeff# my agents\n\n  {A}  # the first\n\t{C}\t\n#{B}\nhttps://d.example/#part\n"
    assert urls(text) == [A, C, "https://d.example/#part"]


def test_line_without_url_is_reported() -> None:
    assert urls(f"{A}\nnot a url\n{B}") == [A, "not a url", B]


@pytest.mark.parametrize("length", [MAX_LINE_CHARS + 1, MAX_ROW_CHARS, MAX_ROW_CHARS + 1, 1_000_000])
def test_overlong_line_is_skipped_and_reported_shortened(length: int) -> None:
    page = PLAIN.read(document(f"{A}\n{'a' * length}\n{B}\n"))
    entries = list(page.entries)
    assert [entry.url for entry in entries if isinstance(entry, Listed)] == [A, B]
    [left_out] = [entry for entry in entries if isinstance(entry, Skipped)]
    assert (left_out.reason, len(left_out.what)) == ("unreadable", min(length, MAX_ROW_CHARS + 1))


def test_invalid_utf_8_affects_only_its_line() -> None:
    lines = urls(A.encode() + b"\nhttps://caf\xe9.example/\n" + C.encode())
    assert lines == [A, "https://caf\ufffd.example/", C]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n\n",
        "Service Unavailable",
        "Not Found\nThe page that you asked for is not there.\n",
        "<html><body>https://a.example/</body></html>",
        "<?xml version='1.0'?><urlset/>",
        "User-agent: *\nDisallow: /\n",
        "name: census\ncontact: mailto:ops@example.org\n",
        "\0\0\0\0",
        "hello",
    ],
)
def test_other_text_is_no_list_by_content_or_by_name(text: str) -> None:
    assert not PLAIN.recognises(document(text))
    with pytest.raises(NotReadable, match="expected"):
        PLAIN.read(document(text))


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE], ids=["little", "big"])
@pytest.mark.parametrize(
    "text",
    [
        f"{A}\r\n{C}\r\n",
        f"name\turl\r\nM\u00fcller\t{A}\r\n\U0001f600\t{C}\r\n",
        f'{{"name": "M\u00fcller", "url": "{A}"}}\n{{"url": "{C}"}}\n',
    ],
    ids=["lines", "columns", "jsonl"],
)
def test_utf_16_is_recognized_by_its_byte_order_mark(mark: bytes, text: str) -> None:
    encoded = mark + text.encode("utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be")
    assert PLAIN.recognises(document(encoded))
    assert urls(encoded) == [A, C]


@pytest.mark.parametrize("text", [A, f"{A}\n" * 100_000, "[", "\U0001f600" * 20_000])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32"])
def test_text_in_utf_16_without_its_mark_and_in_utf_32_is_refused(text: str, encoding: str) -> None:
    encoded = text.encode(encoding)
    assert not PLAIN.recognises(document(encoded))
    assert not PLAIN.recognises(document(encoded, "text/csv"))


def test_list_with_an_invalid_first_line_needs_a_named_format() -> None:
    text = "\n".join([*["out of order"] * (SAMPLE_LINES - 1), A])
    assert not PLAIN.recognises(document(text))
    assert len(list(PLAIN.read(document(text)).entries)) == SAMPLE_LINES


@pytest.mark.parametrize("text", ["a.example", "localhost:8000", "https://agent/", "[::1]:80", "10.0.0.1"])
def test_host_with_a_dot_or_a_port_is_a_target(text: str) -> None:
    assert is_url_or_domain(text)


@pytest.mark.parametrize("text", ["agent", "", "1.5", "a b.example", "mailto:a@b.example", "ftp://a.example"])
def test_word_or_other_scheme_is_no_url(text: str) -> None:
    assert not is_url_or_domain(text)


# ── CSV ──


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("name,url,owner", Kind.UNKNOWN),
        ("Name;URL;Owner", Kind.UNKNOWN),
        ("title\tDomain\towner", Kind.UNKNOWN),
        ("name|card_url|url", Kind.A2A_CARD),
        ("name,wellKnownURI,url", Kind.A2A_CARD),
    ],
)
def test_csv_columns_are_recognized_by_name(header: str, kind: Kind) -> None:
    delimiter = next(mark for mark in ",;\t|" if mark in header)
    rows = [header, delimiter.join(["One", A, "x"]), delimiter.join(["Two", C, "y"])]
    assert listed(read(PLAIN, "\n".join(rows))) == [(A, "One", kind), (C, "Two", kind)]


def test_first_column_with_urls_is_used_without_column_names() -> None:
    assert urls("1,google.example,x.example\n2,b.example,y.example\n") == ["google.example", "b.example"]


def test_a_comma_in_a_url_is_no_column() -> None:
    assert urls("https://a.example/x,y\nhttps://b.example/1,2\n") == [
        "https://a.example/x,y",
        "https://b.example/1,2",
    ]


def test_declared_csv_is_read_as_csv() -> None:
    assert urls("https://a.example/,One\nhttps://b.example/,Two\n", "text/csv") == [
        "https://a.example/",
        "https://b.example/",
    ]


def test_quoted_cells_may_hold_delimiters_quotes_and_line_ends() -> None:
    text = f'url,name\n{A},"One, the ""first""\nof all"\n{B},Two\n'
    assert listed(read(PLAIN, text)) == [
        (A, 'One, the "first"\nof all', Kind.UNKNOWN),
        (B, "Two", Kind.UNKNOWN),
    ]


def test_row_without_url_is_reported() -> None:
    page = read(PLAIN, f"name,url\nOne,{A}\nTwo,\nThree\nFour,{B}\n")
    assert skipped(page) == [("Two", "no_url"), ("Three", "no_url")]


def test_csv_without_any_url_is_no_list() -> None:
    with pytest.raises(NotReadable):
        PLAIN.read(document("name,colour\nOne,red\n", "text/csv"))


@pytest.mark.parametrize("name", ["x" * 140_000, f'"{"x" * 70_000}\n{"x" * 70_000}"'], ids=["line", "lines"])
@pytest.mark.parametrize("before", [1, SAMPLE_LINES])
def test_a_long_csv_field_is_refused_by_the_limit_of_a_row(name: str, before: int) -> None:
    text = "url,name\n" + f"{A},One\n" * before + f"{B},{name}\n"
    line = before + 2 + name.count("\n")
    with pytest.raises(NotReadable, match=f"line {line}: a row has more than {MAX_ROW_CHARS} characters"):
        list(PLAIN.read(document(text)).entries)


@pytest.mark.parametrize("cells", ["," * MAX_ROW_CHARS, f'{"," * 60_000}"\n",' * 6], ids=["line", "lines"])
def test_csv_with_a_row_that_is_too_long_is_refused(cells: str) -> None:
    rows = f"{A},One\n" * SAMPLE_LINES
    with pytest.raises(NotReadable, match=f"more than {MAX_ROW_CHARS} characters"):
        list(PLAIN.read(document(f"url,name\n{rows}{cells}\n")).entries)
    page = PLAIN.read(document(f"url,name\n{rows * 1_000}{B},Two\n"))
    assert len(list(page.entries)) == 1_000 * SAMPLE_LINES + 1


# ── JSON and JSONL ──


def test_json_lists_texts_or_objects() -> None:
    items = [
        A,
        {"url": B, "name": "Two"},
        {"domain": C},
        {"agent_card_url": B, "url": A},
        {"name": "Five"},
        6,
    ]
    page = read(PLAIN, items)
    assert listed(page) == [
        (A, None, Kind.UNKNOWN),
        (B, "Two", Kind.UNKNOWN),
        (C, None, Kind.UNKNOWN),
        (B, None, Kind.A2A_CARD),
    ]
    assert skipped(page) == [("Five", "no_url"), ("", "unreadable")]
    assert page.items == 6


@pytest.mark.parametrize("key", ["urls", "targets", "domains", "hosts", "agents"])
def test_list_within_an_object_is_read(key: str) -> None:
    assert urls({"updated": "today", key: [A, C]}) == [A, C]


@pytest.mark.parametrize("key", ["next", "cursor", "nextPageToken", "has_more", "_links"])
def test_page_with_a_next_page_is_no_plain_list(key: str) -> None:
    assert not PLAIN.recognises(document({"agents": [A], key: "more"}))
    assert urls({"agents": [A], key: None}) == [A]


def test_stated_length_of_a_list_is_read() -> None:
    assert read(PLAIN, {"agents": [A], "total": 219}).total == 219


@pytest.mark.parametrize(
    ("text", "content_type"),
    [
        ("", ""),
        ("", "text/csv"),
        ("", "application/json"),
        ("\ufeff\n", ""),
        (" " * SAMPLE_BYTES + "\n\n", ""),
        ("[]", ""),
        ("{}", "application/json"),
        ('{"agents": [], "total": 0}', ""),
        ("[]\n", "application/jsonl"),
        ("# no entries\n", ""),
        ("\ufeff\n  # no entries\n# yet", ""),
        ("url,name\n", ""),
        ("# ours\nURL;Name\n\n", ""),
        ("url\n", "text/csv"),
        ("name\tdomain", "text/tab-separated-values"),
        ("# no entries\n", "text/csv"),
        ("# no entries\n", "application/jsonl"),
        ("#" + "x" * SAMPLE_BYTES, ""),
    ],
)
def test_empty_list_is_refused_in_every_form(text: str, content_type: str) -> None:
    listed = document(text.encode(), content_type)
    assert not PlainList().recognises(listed)
    with pytest.raises(NotReadable):
        PlainList().read(listed)
    assert is_empty_list(listed)


@pytest.mark.parametrize(
    ("text", "content_type"),
    [
        ("url\n", ""),
        ("name,colour\n", ""),
        ("out of order, come back later", "text/csv"),
        ("# a page\n", "text/html"),
        ("#" + "x" * SAMPLE_BYTES + "\nnone of ours\n", ""),
        ('{"error": "out of order"}', "application/json"),
        ("a.example", ""),
        ('["a.example"]', ""),
    ],
)
def test_other_content_is_not_an_empty_list(text: str, content_type: str) -> None:
    assert not is_empty_list(document(text.encode(), content_type))


@pytest.mark.parametrize("value", [[1, 2], [None], [[A]], [{"x": 1}], {"x": [A]}, {"url": A}, ["a word"]])
def test_other_json_is_no_list(value: object) -> None:
    assert not PLAIN.recognises(document(value))
    with pytest.raises(NotReadable):
        PLAIN.read(document(value))


def test_jsonl_has_a_text_or_an_object_per_line() -> None:
    lines = [
        json.dumps({"url": A, "name": "One"}),
        json.dumps(B),
        "{broken",
        "[]",
        "",
        json.dumps({"id": "x"}),
        json.dumps(C),
    ]
    page = read(PLAIN, "\n".join(lines))
    assert listed(page) == [(A, "One", Kind.UNKNOWN), (B, None, Kind.UNKNOWN), (C, None, Kind.UNKNOWN)]
    assert skipped(page) == [("{broken", "unreadable"), ("[]", "unreadable"), ("x", "no_url")]


def test_single_jsonl_line_is_recognized_by_media_type() -> None:
    # Without it, it is a JSON object, and could be anything.
    content = json.dumps({"url": A}) + "\n" + json.dumps({"url": B})
    assert urls(content, "application/jsonl") == [A, B]


@pytest.mark.parametrize("line", [json.dumps({"url": A, "x": "y" * MAX_LINE_CHARS}), "[" * 5_000])
def test_jsonl_line_that_is_too_long_or_too_deep_is_skipped(line: str) -> None:
    page = read(PLAIN, f"{json.dumps({'url': A})}\n{line}")
    assert len(listed(page)) == 1
    assert [reason for _, reason in skipped(page)] == ["unreadable"]


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
@example(b"#")
def test_any_text_is_read_or_refused(body: bytes) -> None:
    made = document(body)
    is_recognised = PLAIN.recognises(made)
    try:
        gathered = Gathered()
        gathered.add(PLAIN.read(made).entries)
    except NotReadable:
        # Content recognized by its first lines may still break later, as CSV does.
        return
    assert not is_recognised or gathered.items
