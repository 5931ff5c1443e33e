import json
import re
from base64 import b64encode, encodebytes
from collections.abc import Callable, Sequence
from hashlib import sha256
from html import escape
from itertools import product
from textwrap import wrap
from time import process_time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.credentials.test_secret import SECRETS
from tests.support.repetitions import in_faults

from lifesign.domain.credentials import disguise
from lifesign.domain.credentials.disguise import (
    MAX_ENTITIES,
    MAX_LEVELS,
    WORK_FACTOR,
    Disguises,
    needles_of,
    without_json_escapes,
)
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


MARK = b"\xff"


def removed(data: bytes, secret: str, replacement: bytes) -> bytes:
    """Return some bytes in which a secret is replaced."""
    raw = secret.encode()
    cleaned = Disguises([raw, raw.hex().encode()]).removed_from(data, lambda _length: replacement)
    assert cleaned is not None
    return cleaned


def found(data: bytes, secret: str = PLAIN) -> list[bytes]:
    """Return the parts of some bytes in which a secret is."""
    parts, at = [], 0
    first, *rest = removed(data, secret, MARK).split(MARK)
    at = len(first)
    for piece in rest:
        end = data.index(piece, at) if piece else len(data)
        parts.append(data[at:end])
        at = end + len(piece)
    return parts


# A secret that begins with a digit may be found from the last digit of its first escape on, such as of `%30`;
# one that ends with `u` or `x`, in any case, may be found up to this letter of its last escape (`\u0075`).
@given(
    secret=SECRETS.filter(
        lambda secret: (
            not set(secret) & set("%&=;\\ ") and not secret[0].isdigit() and secret[-1] not in "uxUX"
        )
    ),
    ways=st.lists(st.sampled_from(ESCAPES[:7]), min_size=60, max_size=60),
)
def test_any_mix_of_escapes_is_found_as_a_whole(secret: str, ways: list[Callable[[str], str]]) -> None:
    text = "".join(way(character) for character, way in zip(secret, ways, strict=False))
    assert removed(b"<" + text.encode() + b">", secret, MARK) == b"<" + MARK + b">"


@given(
    secret=SECRETS,
    ways=st.lists(st.sampled_from(ESCAPES[:7]), min_size=60, max_size=60),
    before=st.binary(),
)
def test_cleaned_text_contains_no_escaped_secret(
    secret: str, ways: list[Callable[[str], str]], before: bytes
) -> None:
    text = "".join(way(character) for character, way in zip(secret, ways, strict=False))
    cleaned = Scrubber([secret]).clean(before + text.encode())
    assert not Disguises([secret.encode()]).are_in(cleaned)


@given(ways=st.lists(st.sampled_from(ESCAPES), min_size=len(PLAIN), max_size=len(PLAIN)))
def test_no_mix_of_escapes_remains(ways: list[Callable[[str], str]]) -> None:
    text = "".join(way(character) for character, way in zip(PLAIN, ways, strict=True))
    data = f'{{"name": "{text}"}}'.encode()
    cleaned = Scrubber([PLAIN]).clean(data)
    # A form has plus signs for all spaces or for none.
    first, second = (at for at, character in enumerate(PLAIN) if character == " ")
    if "\\b" not in text and (ways[first] is ESCAPES[9]) == (ways[second] is ESCAPES[9]):
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
        escape(PLAIN),
        escape(json.dumps(PLAIN)),
        json.dumps(escape(escape(PLAIN))),
        PLAIN.replace('"', "&#34;").replace("+", "&#043;"),
        "".join(f"&#{byte};" for byte in PLAIN.encode()),
        "".join(f"&#x{byte:X};" for byte in PLAIN.encode()),
        "".join(f"&#x00{byte:02x};" for byte in PLAIN.encode()),
        quote("".join(f"&#{byte};" for byte in PLAIN.encode())),
        PLAIN.replace("+", "&plus;").replace("/", "&sol;").replace("\\", "&bsol;").replace(" ", "&Tab; "),
        "".join(f"&#x{byte:06x};" if byte % 2 else chr(byte) for byte in PLAIN.encode()),
        "".join(f"&#{byte:07d};" if byte % 2 else chr(byte) for byte in PLAIN.encode()),
        "\0".join(PLAIN),
        quote("\0".join(PLAIN)),
        "%00".join(PLAIN),
        "".join(f"%%{byte:02x}" for byte in PLAIN.encode()),
    ],
)
def test_nested_and_wrapped_forms_are_found(data: str) -> None:
    assert len(found(data.encode())) == 1


FORMS = [
    PLAIN,
    b64encode(PLAIN.encode()).decode(),
    json.dumps(PLAIN),
    PLAIN.encode().hex(),
    "".join(f"\\u{byte:04x}" for byte in PLAIN.encode()),
    "".join(f"&#{byte};" for byte in PLAIN.encode()),
    "".join(f"&#x{byte:x};" for byte in PLAIN.encode()),
]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32-le", "utf-8-sig"])
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_in_another_encoding_of_characters_is_removed(encoding: str, form: str) -> None:
    data = f"<{form}> and the rest".encode(encoding)
    cleaned = Scrubber([PLAIN]).clean(data)
    assert b"REMOVED-SECRET" in cleaned
    assert cleaned.replace(b"\0", b"").endswith(b"> and the rest")


NAMES = {
    "!": "excl", '"': "quot", "#": "num", "$": "dollar", "%": "percnt", "&": "amp", "(": "lpar", ")": "rpar",
    "*": "ast", "+": "plus", ",": "comma", ".": "period", "/": "sol", ":": "colon", ";": "semi", "<": "lt",
    "=": "equals", ">": "gt", "?": "quest", "@": "commat", "\\": "bsol", "_": "lowbar", "\n": "NewLine",
}  # fmt: skip
TEXT_ESCAPES: dict[str, Callable[[str], str]] = {
    "URL": lambda text: "".join(f"%{ord(each):02x}" for each in text),
    "URL, where needed": lambda text: quote(text, safe=""),
    "JSON": lambda text: "".join(f"\\u{ord(each):04X}" for each in text),
    "JSON, where needed": lambda text: json.dumps(text)[1:-1],
    "HTML, where needed": escape,
    "HTML, decimal": lambda text: "".join(f"&#{ord(each)};" for each in text),
    "HTML, hexadecimal": lambda text: "".join(f"&#x{ord(each):X};" for each in text),
    "HTML, named": lambda text: "".join(f"&{NAMES[each]};" if each in NAMES else each for each in text),
}
MIXED = "Zx81+tok/1'&%\"<3>%'x"
"""A secret that does not look escaped, with the characters that HTML and URLs escape side by side."""
TEXT_FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "base64 in lines": lambda secret: "\n".join(wrap(b64encode(secret.encode()).decode(), 16)),
    "hexadecimal in lines": lambda secret: secret.encode().hex("\n", 8),
    "UTF-16": "\0".join,
}


def escaped(text: str, names: Sequence[str]) -> bytes:
    for name in names:
        text = TEXT_ESCAPES[name](text)
    return f"<< {text} >>".encode()


@pytest.mark.parametrize(
    ("form", "levels"),
    [
        *product(TEXT_FORMS, range(MAX_LEVELS)),
        ("plain", MAX_LEVELS),
        *in_faults(*((form, MAX_LEVELS) for form in TEXT_FORMS if form != "plain")),
    ],
)
def test_each_combination_of_up_to_three_escapes_is_removed(form: str, levels: int) -> None:
    scrubber, text = Scrubber([MIXED]), TEXT_FORMS[form](MIXED)
    remaining = [
        names
        for names in product(TEXT_ESCAPES, repeat=levels)
        if scrubber.clean(data := escaped(text, names)) == data
    ]
    assert remaining == []


# A backslash before a letter is a JSON escape, and a percent sign before two hexadecimal digits one of a URL.
@given(
    secret=SECRETS.filter(
        lambda secret: not set(secret) & set("&;\\ ") and not re.search("%%|%[0-9a-fA-F]{2}", secret)
    ),
    names=st.lists(st.sampled_from(sorted(TEXT_ESCAPES)), max_size=MAX_LEVELS),
)
def test_nested_escapes_of_any_secret_are_removed(secret: str, names: list[str]) -> None:
    data = escaped(secret, names)
    assert Scrubber([secret]).clean(data) != data


def test_twice_escaped_secret_is_removed_alone() -> None:
    data = f'{{"name": "a {escape(escape(MIXED))} b"}}'
    assert found(data.encode(), MIXED) == [escape(escape(MIXED)).encode()]


def test_a_text_with_too_many_numeric_entities_is_replaced_as_a_whole() -> None:
    scrubber = Scrubber([PLAIN])
    assert scrubber.clean(b"&#65;" * MAX_ENTITIES) == b"&#65;" * MAX_ENTITIES
    for unit in (b"&#65;", b"&plus;"):
        assert scrubber.clean(unit * (MAX_ENTITIES + 1)) == b"REMOVED-SECRET"
    # Other characters are no part of a secret.
    assert scrubber.clean(b"&#20013;" * 50_000) == b"&#20013;" * 50_000


@pytest.mark.parametrize("sent", [lambda secret: quote(secret, safe=""), quote_plus])
@pytest.mark.parametrize("encode", [bytes.hex, lambda text: b64encode(text).decode()])
@pytest.mark.parametrize("offset", range(3))
def test_repeated_request_with_an_escaped_secret_is_cleaned(
    offset: int, encode: Callable[[bytes], str], sent: Callable[[str], str]
) -> None:
    secret = "canary+of a query/with=marks"
    request = "x" * offset + f"?key={sent(secret)}&more"
    cleaned = Scrubber([secret]).clean(encode(request.encode()).encode())
    assert b"REMOVED-SECRET" in cleaned


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


@pytest.mark.parametrize("first", "abtnrx")
@pytest.mark.parametrize("levels", range(1, MAX_LEVELS + 1))
def test_folded_secret_in_nested_json_is_removed(first: str, levels: int) -> None:
    secret = f"{PLAIN}{first}-and-a-second-line"
    data = secret.replace(PLAIN, PLAIN + "\n")
    for _ in range(levels):
        data = json.dumps({"log": data})
    assert b"second" not in Scrubber([secret]).clean(data.encode())


def test_spans_cover_only_the_escaped_text() -> None:
    assert found(b"a\\u0063anary-1 b", "canary-1") == [b"\\u0063anary-1"]
    assert found(b"a%63anary-%31%62", "canary-1") == [b"%63anary-%31"]
    assert found(b"canary-1 canary-%31", "canary-1") == [b"canary-1", b"canary-%31"]
    assert found(b'{"a": "\\\\c\\u0061nary-1"}', "canary-1") == [b"\\\\c\\u0061nary-1"]
    assert found(b"nothing %41 of \\u0041 it", "canary-1") == []


def test_unescaped_form_of_a_secret_with_escapes_is_not_searched_for() -> None:
    assert needles_of([b"%41%41%41"]) == {b"%41%41%41"}
    assert found(b"AAA \\u002541%41\\u002541", "%41%41%41") == []
    assert found(b"AAA \\u002541\\u002541\\u002541", "%41%41%41") == [b"\\u002541\\u002541\\u002541"]
    assert Scrubber(["%41%41%41"]).clean(b"AAA %41%41%41") == b"AAA REMOVED-S"


UNITS = [
    b"\\a", b"\\u0061", b"\\x61", b"%61", b"%2561", b"%", b"%%a", b"\\n", b"\\", b"&", b"&a", b"&#", b"&#1",
    b"&#65;", b"&#x41;", b"&amp;", b" ", b"a\0", b"=", b"\\a&#65;%25", b"canary-o", b'text and \\"more\\", ',
    b"%" + b"a" * 65_535, b"\\u0061b ", PLAIN.encode(),
    b"".join(b"\\u%04x" % each for each in PLAIN.encode()), b"&#x0000", b"&#0000", b"&plus", b"&lb&rb",
]  # fmt: skip
ENOUGH = 131_072
"""Size at which work for each escape, or for each pair of them, is far over its limit."""


def _hidden_in(unit: bytes, secret: str, size: int) -> bytes:
    """Return a text of this size with an escaped secret in the middle."""
    text = unit * (size // len(unit))
    return text[: size // 2] + "".join(f"%{ord(each):02x}" for each in secret).encode() + text[size // 2 :]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "secret",
    [PLAIN, "a" * (MAX_SECRET_CHARS - 1) + "b", *in_faults("canary-or-not", "ab" * 4_096)],
)
def test_the_bytes_that_are_decoded_are_a_small_multiple_of_the_text(
    unit: bytes, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, sizes = disguise._decoded, []

    def counted(data: bytes) -> tuple[bytes, int]:
        sizes.append(len(data))
        return decoded(data)

    scrubber = Scrubber([secret])
    monkeypatch.setattr(disguise, "_decoded", counted)
    for data in (unit * (ENOUGH // len(unit)), _hidden_in(unit, secret, ENOUGH)):
        sizes.clear()
        scrubber.clean(data)
        # The last step may go over the limit.
        assert sum(sizes) <= MAX_LEVELS * (WORK_FACTOR + 1) * len(data)


@given(
    secret=SECRETS,
    ways=st.lists(st.sampled_from(ESCAPES), min_size=60, max_size=60),
    encode=st.sampled_from([
        lambda secret: secret.encode(),
        lambda secret: b64encode(b"x" + secret.encode() + b"y"),
        lambda secret: secret.encode().hex().upper().encode(),
        lambda secret: "\0".join(secret).encode(),
    ]),
    around=st.binary(max_size=40),
)  # fmt: skip
def test_text_without_a_match_of_the_first_search_has_no_secret(
    secret: str, ways: list[Callable[[str], str]], encode: Callable[[str], bytes], around: bytes
) -> None:
    text = "".join(way(character) for character, way in zip(secret, ways, strict=False))
    data = around + encode(text) + around
    raw = secret.encode()
    disguises = Disguises([raw, b64encode(b"x" + raw + b"y")[2:-2], raw.hex().encode()])
    if not disguises.may_be_in(data):
        assert disguises.are_in(data) is False


def test_first_search_matches_only_beginnings_of_secrets() -> None:
    disguises = Disguises([b"canary-of-ours", b"63616e617279"], [b"canary-o"])
    for data in (b"canary-o", b"<cana ry-\nof>", b"%63anary-of", b"63 61 6E 61 72 79", b"\\u0063anary-of"):
        assert disguises.may_be_in(data)
    for data in (b"", b"canary-", b"%63anary-", b"6361 6e62 6c", b"an answer as usual & more"):
        assert not disguises.may_be_in(data)


def test_first_search_is_not_much_slower_with_many_secrets() -> None:
    """It took up to 100 times as long for 500 forms as for five."""
    texts = [b64encode(sha256(b"%d" % number).digest()) for number in range(1005)]
    data = b" ".join(texts[505:]) * 10
    times = []
    for forms in (texts[:5], texts[5:505]):
        disguises = Disguises(forms)
        taken = []
        for _ in range(5):
            began_s = process_time()
            assert not disguises.may_be_in(data)
            taken.append(process_time() - began_s)
        times.append(min(taken))
    assert times[1] < 40 * times[0]


def test_bytes_without_an_escape_are_searched_without_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    disguises = Disguises([PLAIN.encode(), PLAIN.encode().hex().encode()])
    decoded, sizes = disguise._decoded, []

    def counted(data: bytes) -> tuple[bytes, int]:
        sizes.append(len(data))
        return decoded(data)

    monkeypatch.setattr(disguise, "_decoded", counted)
    for data in (b'{"a": 1}', b"\0a\0b", PLAIN.encode().hex(" ").upper().encode(), b"=="):
        assert disguises.are_in(data) is (len(data) > 8)
        assert disguises.may_be_in(data) is (len(data) > 8)
    assert sizes == []
    for data in (b"100 %", b"\\n", b"a&b"):
        sizes.clear()
        assert disguises.are_in(data) is False
        assert sizes


def test_json_without_escapes_of_ascii_has_the_same_value() -> None:
    values = ["".join(map(chr, range(0x180))), "\\u0041", "\\\\u0041\\", "=41==\n=", '"\\"', "\U0001f600"]
    body = json.dumps(values).encode()
    every = "".join(f"\\u{code:04x}" for code in range(0x100)).encode()
    for text in (body, b'["%s"]' % every, b'["%s"]' % every.upper().replace(b"U", b"u")):
        assert json.loads(without_json_escapes(text)) == json.loads(text)
    assert b"\\u004" not in without_json_escapes(b'["%s"]' % every)
