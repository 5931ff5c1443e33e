import json
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifesign.domain.common.finding import json_pointer
from lifesign.domain.credentials.disguise import MAX_ENTITIES
from lifesign.domain.credentials.secret import (
    MAX_GROUPS,
    MAX_SECRET_CHARS,
    MAX_USUAL_CHARS,
    MIN_SECRET_CHARS,
    NO_SECRETS,
    REMOVED,
    SEPARATOR,
    Scrubber,
    is_open_to_group,
    is_too_open,
    secret_fault,
    secrets_in_header,
    united,
)
from lifesign.domain.text.safe_text import OF_WRITING, SPACES

UNSEARCHED = str.maketrans("", "", " ;\\")
SECRETS = st.text(
    alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=8, max_size=60
).filter(lambda secret: secret.strip() == secret and len(secret.translate(UNSEARCHED)) >= 6)
LEAST = 8
"""What replaces a secret is not longer than the secret."""
AROUND = st.binary(max_size=20)


@pytest.mark.parametrize(
    "text",
    ["", "short", "a" * (MAX_SECRET_CHARS + 1), "two\nlines-of-it", "ключ-ключ", "tab\tinside", "00000; ;"],
)
def test_text_that_could_not_be_removed_everywhere_is_refused_as_a_secret(text: str) -> None:
    assert secret_fault(text) is not None


@given(SECRETS)
def test_printable_texts_are_secrets(secret: str) -> None:
    assert secret_fault(secret) is None


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (0o100600, "accepted"), (0o100400, "accepted"), (0o100640, "warning"), (0o100440, "warning"),
        (0o100660, "refused"), (0o100620, "refused"), (0o100602, "refused"), (0o100604, "refused"),
        (0o100644, "refused"), (0o100601, "accepted"),
    ],
)  # fmt: skip
def test_mode_of_a_file_decides_whether_it_is_accepted(mode: int, expected: str) -> None:
    found = "refused" if is_too_open(mode) else "warning" if is_open_to_group(mode) else "accepted"
    assert found == expected


def shared(one: bytes, other: bytes) -> int:
    """Return with how many equal bytes two texts begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


@example(r"0000%0\0", b"", b"", 0).via("decoded, it is too short to be searched for")
@given(SECRETS, AROUND, AROUND, st.integers(0, 2))
def test_no_encoding_of_a_secret_remains(secret: str, before: bytes, after: bytes, offset: int) -> None:
    raw = secret.encode()
    shifted = bytes(range(65, 65 + offset)) + raw + after
    encoded = [
        raw,
        json.dumps(secret)[1:-1].encode(),
        raw.hex().encode(),
        raw.hex().upper().encode(),
        quote(secret, safe="").encode(),
        quote(secret).encode(),
        quote_plus(secret).encode(),
        "".join(f"%{byte:02x}" for byte in raw).encode(),
        "".join(f"%{byte:02X}" for byte in raw).encode(),
        "".join(f"\\u{byte:04x}" for byte in raw).encode(),
    ]
    scrubber = Scrubber([secret])
    for form in encoded:
        assert form not in scrubber.clean(b"[" + form + b"]")
    for encode in (b64encode, urlsafe_b64encode):
        form = encode(shifted)
        cleaned = scrubber.clean(form)
        assert REMOVED.encode()[:LEAST] in cleaned
        # The characters that the secret alone decides are gone; one or two may be equal by chance.
        kept = shared(form, cleaned) + shared(form[::-1], cleaned[::-1])
        assert len(form) - kept >= len(raw) * 8 // 6 - 4
    assert REMOVED.encode()[:LEAST] in scrubber.clean(before + raw)


def test_secret_in_a_json_pointer_is_removed() -> None:
    secret = "SK~std/AbCd+0123456789"
    assert Scrubber([secret]).clean_text(f"{json_pointer('a', secret, 0)}: no") == f"/a/{REMOVED}/0: no"


@pytest.mark.parametrize("change", [str.upper, str.lower, str.swapcase])
def test_secret_in_another_case_is_removed(change: Callable[[str], str]) -> None:
    """A secret of hexadecimal digits can be used in either case."""
    secret = "9F8b6c3a-Canary of/ours"
    for text in (change(secret), change(secret).replace("-", "\\u002d"), quote(change(secret), safe="")):
        assert Scrubber([secret]).clean(text.encode()).startswith(REMOVED.encode())
        assert Scrubber([secret]).clean_text(f"<{text}>") == f"<{REMOVED}>"


@pytest.mark.parametrize("change", [str.upper, str.lower])
@pytest.mark.parametrize("before", [b"", b"x", b"xy"])
@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
def test_base64_in_another_case_is_removed(
    change: Callable[[str], str], before: bytes, encode: Callable[[bytes], bytes]
) -> None:
    """A media type is read in lower case."""
    secret = "9F8b6c3a-Canary of/ours"
    text = change(encode(before + secret.encode() + b"yy").decode())
    scrubber = Scrubber([secret])
    assert REMOVED in scrubber.clean_text(text)
    # Cut within the secret.
    assert scrubber.clean_cut(text[:24]).startswith(REMOVED)


def test_clean_bytes_are_the_same_object() -> None:
    data = b"nothing of it here %41"
    assert Scrubber(["a-secret-of-ours"]).clean(data) is data
    assert Scrubber([]).clean(data) is data
    assert Scrubber([]).clean_text("text") == "text"
    assert not Scrubber([])


def test_longer_secret_is_removed_as_a_whole() -> None:
    scrubber = Scrubber(["password", "password-and-more"])
    assert scrubber.clean_text("password-and-more password") == f"{REMOVED} {REMOVED[:LEAST]}"


INNER, OUTER = "Inner-12345", "left/SideInner-12345right+Part/end"
ESCAPED: dict[str, Callable[[str], str]] = {
    "plain": str,
    "JSON as PHP writes it": lambda text: text.replace("/", "\\/"),
    "JSON": lambda text: "".join(f"\\u{ord(each):04x}" for each in text),
    "URL": lambda text: "".join(f"%{ord(each):02x}" for each in text),
    "URL, where needed": lambda text: quote(text, safe=""),
    "HTML": lambda text: text.replace("/", "&#x2F;").replace("+", "&plus;"),
    "HTML, decimal": lambda text: "".join(f"&#{ord(each)};" for each in text),
    "escaped at the ends": lambda text: f"%{ord(text[0]):02x}{text[1:-1]}%{ord(text[-1]):02x}",
    "escaped base64 in lines": lambda text: json.dumps(encodebytes(b"xx" + text.encode() * 3).decode()),
    "escaped hexadecimal": lambda text: quote(text.encode().hex("\n", 8)),
    "other case": lambda text: text.swapcase().replace("/", "\\/"),
    "UTF-16": "\0".join,
}


@pytest.mark.parametrize("form", ESCAPED)
@pytest.mark.parametrize(
    "secrets", [(INNER, OUTER), (INNER, OUTER, f"{OUTER}/and/more"), (OUTER[:12], OUTER)]
)
def test_secret_that_contains_another_is_removed_as_a_whole(form: str, secrets: Sequence[str]) -> None:
    scrubber = Scrubber(secrets)
    for secret in secrets:
        text = f"<< {ESCAPED[form](secret)} >>"
        alone = Scrubber([secret])
        assert scrubber.clean(text.encode()) == alone.clean(text.encode())
        if "base64" not in form:
            # The base64 form of a shorter secret is also found as a beginning.
            assert scrubber.clean_text(text) == alone.clean_text(text)
        assert scrubber.clean_shown(text.encode()) == alone.clean_shown(text.encode())


@pytest.mark.parametrize("mark", ["", min(OF_WRITING)])
def test_cut_secret_that_contains_another_is_removed(mark: str) -> None:
    outer = f"{INNER}{mark}/and/the/rest"
    scrubber = Scrubber([INNER, f"{INNER}/and/the/rest"])
    assert scrubber.clean_cut(f"Bad line: {outer[:-1]}") == f"Bad line: {REMOVED}"
    assert scrubber.clean_cut(f"Bad line: {outer[:-1]}".replace("/", "\\/")) == REMOVED
    assert scrubber.clean_shown(f"<{outer}>".encode()) == f"<{REMOVED}>".encode()


def test_password_within_the_header_of_a_longer_one_is_removed() -> None:
    former, password = "Sommer/2026", "Sommer/2026!Zusatz"
    pairs = [b64encode(f"probe:{each}".encode()).decode() for each in (former, password)]
    scrubber = Scrubber([former, password, *pairs])
    assert scrubber.clean_text("token Sommer\\/2026!Zusatz end") == f"token {REMOVED} end"
    for pair in pairs:
        assert scrubber.clean(f"<{quote(pair, safe='')}>".encode()) == f"<{REMOVED}>".encode()
        assert scrubber.clean(f"<%{ord(pair[0]):x}{pair[1:]}>".encode()) == f"<{REMOVED}>".encode()


def test_secrets_of_several_scrubbers_are_searched_together() -> None:
    one, other = Scrubber([INNER]), Scrubber([OUTER])
    assert united([one, NO_SECRETS]) is one
    assert united([]) is NO_SECRETS
    text = ESCAPED["JSON as PHP writes it"](OUTER)
    assert united([one, other]).clean_text(f"<{text}>") == f"<{REMOVED}>"


def test_number_of_searches_for_nested_secrets_is_limited() -> None:
    secrets = ["x" * MIN_SECRET_CHARS + "yz" * count for count in range(2 * MAX_GROUPS)]
    scrubber = Scrubber(secrets)
    assert len(scrubber._groups) == MAX_GROUPS
    for secret in secrets:
        assert secret[:MIN_SECRET_CHARS] not in scrubber.clean_text(f"<{secret}>")
    # Unrelated secrets need one search, in which a base64 form of one is no part of another.
    assert len(Scrubber([f"unrelated/secret {count:03}+%" for count in range(100)])._groups) == 1


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("Token 0123456789", ["0123456789"]),
        ('Token token="0123456789", v=1', ['token="0123456789", v=1', "0123456789"]),
        ("session=0123456789; theme=dark", ["theme=dark", "0123456789"]),
        (
            f"basic {b64encode(b'probe:0123456789').decode()}",
            ["cHJvYmU6MDEyMzQ1Njc4OQ==", "probe:0123456789", "0123456789"],
        ),
        ("Basic not-base64", ["not-base64"]),
        ("0123456789", []),
    ],
)
def test_parts_of_a_header_are_secrets(value: str, found: list[str]) -> None:
    assert secrets_in_header(value) == found


def test_secret_that_looks_escaped_is_found_in_other_case() -> None:
    scrubber = Scrubber(["141 %yosl > +awn;%48b6"])
    assert "YOSL" not in scrubber.clean_text("<141 %YOSL &gt; +AWN;%48B6>")


def test_text_with_a_lone_surrogate_can_be_cleaned() -> None:
    assert Scrubber(["a-secret-of-ours"]).clean_text("\ud800 a-secret-of-ours") == f"\ud800 {REMOVED}"


def test_the_beginning_of_a_secret_does_not_remain_in_a_text_that_was_cut() -> None:
    secret = "tok-Q7w9ZxK3pLm5Vb8Nc2Rt6Yh1"
    scrubber = Scrubber([secret])
    for length in range(MIN_SECRET_CHARS, len(secret)):
        for behind in ("", " Z", "\n"):
            cleaned = scrubber.clean_cut(f"BAD {secret[:length]}{secret[:length]}{behind}")
            assert cleaned == f"BAD {REMOVED}"
    assert scrubber.clean_cut(f"BAD {secret[: MIN_SECRET_CHARS - 1]}").endswith("tok-Q7w")


ESCAPES: Mapping[str, Callable[[str], str]] = {
    "none": str,
    "URL": lambda text: quote(text, safe=""),
    "JSON": lambda text: text.replace("/", "\\/"),
    "base64": lambda text: b64encode(text.encode()).decode(),
}


@pytest.mark.parametrize("escape", ESCAPES)
def test_guess_of_a_secret_does_not_show_how_much_of_it_is_right(escape: str) -> None:
    secret = "tok-Q7w9/ZxK3pLm5Vb8"
    for length in range(MIN_SECRET_CHARS, len(secret) - 1):
        guess = f"<{ESCAPES[escape](secret[: length + 1])}|>"
        other = Scrubber([f"{secret[:length]}~{secret[length + 1 :]}"])
        for text in (guess, guess[:-2]):
            assert Scrubber([secret]).clean_text(text) == other.clean_text(text) == text
            assert Scrubber([secret]).clean_cut(text) == other.clean_cut(text)


def test_text_is_cut_at_the_beginning_of_a_secret_that_is_escaped_in_queries() -> None:
    scrubber = Scrubber(["tok-Q7w9/ZxK3pLm5Vb8"])
    for text in ("tok-Q7w9/ZxK3pLm", "tok-Q7w9%2FZxK3pLm"):
        assert scrubber.clean_cut(f"Bad line: {text}") in {REMOVED, f"Bad line: {REMOVED}"}
    assert scrubber.clean_cut("Bad line: tok-Q7w9\\/ZxK3pLm") == REMOVED


@pytest.mark.parametrize(
    "escaped",
    [b"a-Secret/of+ours".hex(), "".join(f"%{byte:02x}" for byte in b"a-Secret/of+ours"), "A-SECRET/OF+OURS"],
)
def test_text_that_was_cut_within_an_escaped_secret_is_replaced_as_a_whole(escaped: str) -> None:
    scrubber = Scrubber(["a-Secret/of+ours"])
    assert scrubber.clean_cut(f"Bad status line: {escaped[:-1]}") == REMOVED
    assert scrubber.clean_cut("Bad status line: a-Secret") == f"Bad status line: {REMOVED[:8]}"
    assert scrubber.clean_cut("Bad status line: other") == "Bad status line: other"


@pytest.mark.parametrize("mark", sorted(OF_WRITING | SPACES))
def test_secret_with_invisible_characters_is_removed_from_shown_texts(mark: str) -> None:
    scrubber, text = Scrubber(["a-Secret/of+ours"]), f"<{mark}a-Sec{mark}ret/of+{mark}ours>"
    upper = text.replace(mark, f"\\u{ord(mark):04X}")
    for body in (text, json.dumps(text)[1:-1], upper):
        assert scrubber.clean_shown(body.encode()) == f"<{REMOVED}>".encode()
    assert scrubber.clean_cut(text) == REMOVED
    assert scrubber.clean_text(text) == f"<{REMOVED}>"
    assert scrubber.clean_text(f"<a{mark}b>") == f"<a{mark}b>"
    assert scrubber.clean_shown(b"<a-Secret/of+ours>") == f"<{REMOVED}>".encode()
    other = f"<a{mark}b>"
    assert scrubber.clean_shown(other.encode()) == other.encode()
    assert scrubber.clean_cut(other) == other


@pytest.mark.parametrize(
    ("secret", "before"),
    [
        ("eyJ-secret-of-ours", "%4"),
        ("abc-secret-of-ours", "\\u00"),
        ("abc-secret-of-ours", "&#x"),
        ("npm-secret-of-ours", "\\"),
        ("x41-secret-of-ours", "\\"),
    ],
)
@pytest.mark.parametrize("mark", ["", min(OF_WRITING)])
def test_secret_after_the_beginning_of_another_escape_is_removed_from_json(
    secret: str, before: str, mark: str
) -> None:
    scrubber = Scrubber([secret])
    written = json.dumps({f'"={before}{secret[0]}{mark}{secret[1:]}\\': "ü"})
    body = written.replace("-secret", "\\u002Dsecret").encode()
    assert scrubber.may_be_shown_in(body)
    assert scrubber.is_shown_in(body)
    (text,) = json.loads(scrubber.clean_shown(body))
    # Backslashes before a secret may belong to it.
    assert text.replace("\\", "") == f'"={before}{REMOVED}'.replace("\\", "")
    other = body.replace(b"of-ours", b"of-others")
    assert scrubber.clean_shown(other) == other


@pytest.mark.parametrize(
    "text",
    [
        *("tok-Q7w9ZxK3", "TOK-Q7W9ZXK3", "tok%2DQ7w9ZxK3", "tok-\u200bQ7w9ZxK3", r"tok-\u200bQ7w9ZxK3"),
        *("dG9rLVE3dzlaeEsz", "746f6b2d513777395a784b33", "tok-Q7w9ZxK", "tok-Q7w9", "746f6b2d", ""),
    ],
)
def test_a_secret_is_shown_in_a_text_from_which_it_is_removed(text: str) -> None:
    scrubber, data = Scrubber(["tok-Q7w9ZxK3"]), f"Bad line: {text}.".encode()
    assert scrubber.is_shown_in(data) is (scrubber.clean_shown(data) != data)


def test_text_with_too_many_entities_to_be_searched_is_reported() -> None:
    assert Scrubber(["tok-Q7w9ZxK3"]).is_shown_in(b"&#65;" * (MAX_ENTITIES + 1)) is None


def test_a_secret_that_ends_within_a_character_is_removed() -> None:
    cleaned = Scrubber(["p4ssw0rd%e2"]).clean_text("text/p4ssw0rd\u20ac")
    assert "p4ssw0rd" not in cleaned


def test_escape_does_not_span_two_joined_texts() -> None:
    scrubber = Scrubber(["4d-secret-of-ours"])
    for before in ("%", "\\", "\\x", "&#x", "\\u00"):
        joined = SEPARATOR.join((before, "4d-s%65cret-of-ours"))
        assert REMOVED in scrubber.clean_text(joined)


def test_repeated_search_of_a_header_finds_the_secret_again() -> None:
    scrubber = Scrubber(["a-secret-of-ours"])
    for _ in range(2):
        for long in ("", "x" * MAX_USUAL_CHARS):
            assert scrubber.may_be_in_cached(f"{long} a-secret-of-ours")
            assert not scrubber.may_be_in_cached(f"application/json {long}")
    assert not Scrubber([]).may_be_in_cached("a-secret-of-ours")
