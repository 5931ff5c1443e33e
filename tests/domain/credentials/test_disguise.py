import json
from base64 import b64encode, encodebytes
from collections.abc import Callable
from time import process_time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.credentials.test_secret import SECRETS

from lifesign.domain.credentials.disguise import MIN_FOUND_BYTES, find_disguised, needles_of
from lifesign.domain.credentials.secret import MAX_SECRET_CHARS, Scrubber

ESCAPES: list[Callable[[str], str]] = [
    lambda character: character,
    lambda character: f"%{ord(character):02x}",
    lambda character: f"%{ord(character):02X}",
    lambda character: f"\\u{ord(character):04x}",
    lambda character: f"\\u{ord(character):04X}",
    lambda character: f"\\x{ord(character):02x}",
    lambda character: "\\" + character if character in '"\\/' else character,
    lambda character: f"%25{ord(character):02x}",
    lambda character: f"\\\\u{ord(character):04x}",
    lambda character: "+" if character == " " else character,
]
PLAIN = 'canary "quoted" and\\back/slash+plus'


def found(data: bytes, secret: str = PLAIN) -> list[bytes]:
    """Return the parts of some bytes in which a secret is."""
    raw = secret.encode()
    spans = find_disguised(data, needles_of([raw]), [raw.hex().encode()])
    return [data[begin:end] for begin, end in spans]


@given(secret=SECRETS, ways=st.lists(st.sampled_from(ESCAPES[:7]), min_size=60, max_size=60))
def test_any_mix_of_escapes_is_found_as_a_whole(secret: str, ways: list[Callable[[str], str]]) -> None:
    text = "".join(way(character) for character, way in zip(secret, ways, strict=False))
    # A backslash as it is would begin an escape.
    if "\\" in secret.replace("\\\\", "") or len(secret.replace(" ", "")) < MIN_FOUND_BYTES or "%" in secret:
        return
    [part] = found(b"<" + text.encode() + b">", secret) or [b""]
    assert part.replace(b" ", b"") == text.encode().replace(b" ", b"")


@given(ways=st.lists(st.sampled_from(ESCAPES), min_size=len(PLAIN), max_size=len(PLAIN)))
def test_no_mix_of_escapes_remains(ways: list[Callable[[str], str]]) -> None:
    text = "".join(way(character) for character, way in zip(PLAIN, ways, strict=True))
    data = f'{{"name": "{text}"}}'.encode()
    cleaned = Scrubber([PLAIN]).clean(data)
    if "\\b" not in text and ways[7] is ways[11]:
        assert cleaned != data
    assert len(cleaned) <= len(data)


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(PLAIN),
        json.dumps(json.dumps(PLAIN)),
        json.dumps(json.dumps(PLAIN).replace("/", "\\/")),
        json.dumps(json.dumps(PLAIN)).replace("c", "\\u0063"),
        quote(json.dumps(PLAIN), safe=""),
        quote(quote(PLAIN, safe=""), safe=""),
        json.dumps(PLAIN.encode().hex(" ")),
        PLAIN.encode().hex("\n", 8).upper(),
        "".join(f"\\x{byte:02x}" for byte in PLAIN.encode()),
    ],
)
def test_nested_and_wrapped_forms_are_found(data: str) -> None:
    assert len(found(data.encode())) == 1


@pytest.mark.parametrize("offset", range(3))
@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: encodebytes(text).decode(),
        lambda text: json.dumps(encodebytes(text).decode()),
        lambda text: json.dumps(encodebytes(text).decode()).replace("/", "\\/").replace("+", "\\u002b"),
        lambda text: quote(b64encode(text).decode(), safe=""),
        lambda text: quote(encodebytes(text).decode().replace("\n", "\r\n"), safe=""),
    ],
)
def test_wrapped_and_escaped_base64_is_removed(wrap: Callable[[bytes], str], offset: int) -> None:
    secret = "canary?>-of-a-length-that-needs-more-than-one-line-of-base64/" * 2
    data = wrap(b"x" * offset + secret.encode() + b"and the rest").encode()
    cleaned = Scrubber([secret]).clean(data)
    assert len(cleaned) < len(data) - len(secret)
    assert b"REMOVED-SECRET" in cleaned


def test_spans_are_those_of_the_escaped_text_alone() -> None:
    assert found(b"a\\u0063anary-1 b", "canary-1") == [b"\\u0063anary-1"]
    assert found(b"a%63anary-%31%62", "canary-1") == [b"%63anary-%31"]
    assert found(b"canary-1canary-%31", "canary-1") == [b"canary-1canary-%31"]
    assert found(b"nothing %41 of \\u0041 it", "canary-1") == []


def test_what_is_left_of_a_secret_that_looks_escaped_is_not_searched_for() -> None:
    assert needles_of([b"%41%41%41"]) == {b"%41%41%41"}
    assert found(b"AAA \\u002541%41\\u002541", "%41%41%41") == []
    assert found(b"AAA \\u002541\\u002541\\u002541", "%41%41%41") == [b"\\u002541\\u002541\\u002541"]
    assert Scrubber(["%41%41%41"]).clean(b"AAA %41%41%41") == b"AAA REMOVED-S"


@pytest.mark.parametrize(
    ("secret", "unit"),
    [
        ("a" * (MAX_SECRET_CHARS - 1) + "b", b"%" + b"a" * 65_535),
        ("a" * (MAX_SECRET_CHARS - 1) + "b", b"%61"),
        ("ab" * (MAX_SECRET_CHARS // 2), b"\\u0061b "),
        ("a" * MAX_SECRET_CHARS, b"%2561"),
    ],
)
def test_a_long_repetitive_secret_takes_no_quadratic_time(secret: str, unit: bytes) -> None:
    data = unit * (1_048_576 // len(unit))
    began_s = process_time()
    Scrubber([secret]).clean(data)
    # It takes 0.3 to 3 s. A search that begins anew at each byte takes minutes.
    assert process_time() - began_s < 15
