import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.prober.directories.catalog_links import MAX_POINTERS, agentmaps, linked_catalogs

HOME = "https://a.example/robots.txt"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"Agentmap: https://b.example/ard.json", ["https://b.example/ard.json"]),
        (b"User-agent: *\r\nDisallow: /\r\nAGENTMAP:/x.json # our agents\r\n", ["https://a.example/x.json"]),
        (b"Agentmap: /x\nagentmap: /x\nAgentmap: /y", ["https://a.example/x", "https://a.example/y"]),
        (b"# Agentmap: /x\nMy-Agentmap: /y\nAgentmap:\nAgentmap: ftp://a.example/\n", []),
        (b"Agentmap: http://[\n", []),
        (b"\xff\x00Agentmap: /x", []),
    ],
)
def test_catalog_urls_are_read_from_robots_txt(body: bytes, expected: list[str]) -> None:
    assert list(agentmaps(body, HOME)) == expected


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ('<link rel="ard" href="/x.json">', ["https://a.example/x.json"]),
        ("<LINK REL='icon ARD' HREF='https://b.example/x'/>", ["https://b.example/x"]),
        ('<a rel="ard" href="/x"><link rel="icon" href="/y"><link rel="ard">', []),
        ('<!-- <link rel="ard" href="/x"> -->', []),
        ('<link rel="ard" href="/a?b=1&amp;c">', ["https://a.example/a?b=1&c"]),
        ("<link\nhref=/x.json\nrel = ard>", ["https://a.example/x.json"]),
        ('<![\0<link rel="ard" href="/x">', ["https://a.example/x"]),
        ('<linked rel="ard" href="/x"><link data-rel="ard" href="/x"><link rel="ard" xhref="/x">', []),
        ('<link rel="ard" href="javascript:x"><link rel="ard" href="">', []),
    ],
)
def test_catalog_urls_are_read_from_the_links_of_a_page(page: str, expected: list[str]) -> None:
    assert list(linked_catalogs(page.encode(), "https://a.example/")) == expected


def test_number_of_pointers_is_bounded() -> None:
    numbers = range(MAX_POINTERS + 5)
    assert len(agentmaps(b"\n".join(b"Agentmap: /%d" % number for number in numbers), HOME)) == MAX_POINTERS
    page = "".join(f'<link rel="ard" href="/{number}">' for number in numbers)
    assert len(linked_catalogs(page.encode(), HOME)) == MAX_POINTERS


@given(st.binary(max_size=300))
@settings(max_examples=examples(200))
def test_any_bytes_are_read_without_an_exception(body: bytes) -> None:
    for whole in (body, b"Agentmap: " + body, b'<link rel="ard" href="' + body + b'">'):
        agentmaps(whole, HOME)
        linked_catalogs(whole, HOME)
