import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.net.allowed_addresses import AddressRefused
from lifesign.domain.targets.opt_out_proof import (
    MAX_PROOF_BYTES,
    PROOF_PATH,
    TOKEN_BYTES,
    TOKEN_TTL_SECONDS,
    is_covered,
    is_open,
    is_proven,
    origin_of,
    token_of,
)
from lifesign.errors import InvalidValue

TOKEN = token_of(bytes(range(TOKEN_BYTES)))
OTHER = token_of(bytes(TOKEN_BYTES))
TOKENS = st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES).map(token_of)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("agent.example", "https://agent.example"),
        ("https://Agent.example:443/a2a?x=/y", "https://agent.example"),
        ("http://agent.example:8080/", "http://agent.example:8080"),
        ("http://[::1]:80/", "http://[::1]"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str) -> None:
    assert origin_of(url) == origin


def test_invalid_url_has_no_origin() -> None:
    assert isinstance(origin_of("ftp://agent.example"), AddressRefused)


def test_token_has_enough_random_bits() -> None:
    assert TOKEN == "aho_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    for size in (0, TOKEN_BYTES - 1, TOKEN_BYTES + 1):
        with pytest.raises(InvalidValue, match="random_bytes"):
            token_of(bytes(size))


@given(TOKENS, st.text(max_size=100))
def test_a_token_in_a_line_of_its_own_is_a_proof(token: str, before: str) -> None:
    assert is_proven(token, token.encode())
    assert is_proven(token, f"{before}\r\n  {token} \nthe rest".encode(errors="replace"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        TOKEN[:-1].encode(),
        f"{TOKEN}A".encode(),
        f"<p>{TOKEN}</p>".encode(),
        f"token: {TOKEN}".encode(),
        TOKEN.lower().encode(),
        OTHER.encode(),
        b"x" * MAX_PROOF_BYTES + f"\n{TOKEN}".encode(),
        TOKEN.encode("utf-16"),
    ],
    ids=str,
)
def test_file_without_the_token_on_its_own_line_is_no_proof(body: bytes) -> None:
    assert not is_proven(TOKEN, body)


@pytest.mark.parametrize("token", ["", "aho_", "\n", TOKEN[4:], f"{TOKEN}\n"])
def test_malformed_token_is_no_proof(token: str) -> None:
    assert not is_proven(token, f"\n{token}\n".encode())
    assert not is_proven(token, b"\n\n")


def test_a_file_saved_with_a_byte_order_mark_is_a_proof() -> None:
    assert is_proven(TOKEN, b"\xef\xbb\xbf" + TOKEN.encode())


def test_a_token_can_be_proven_for_a_week() -> None:
    assert is_open(1000.0, 1000.0)
    assert is_open(1000.0, 999.0 + TOKEN_TTL_SECONDS)
    assert not is_open(1000.0, 1000.0 + TOKEN_TTL_SECONDS)


@pytest.mark.parametrize(
    ("url", "origin", "covered"),
    [
        ("https://agent.example/", "https://agent.example", True),
        ("https://agent.example/a2a/one", "https://agent.example", True),
        ("http://agent.example/a2a", "https://agent.example", True),
        ("https://agent.example/", "http://agent.example", False),
        ("https://agent.example:8443/", "https://agent.example", False),
        ("http://agent.example:8443/", "https://agent.example:8443", False),
        ("https://agent.example/", "https://agent.example:8443", False),
        ("https://agent.example.evil.example/", "https://agent.example", False),
        ("https://sub.agent.example/", "https://agent.example", False),
        ("http://[2001:db8::a]/", "https://[2001:db8::a]", True),
        ("http://[2001:db8::a]:8080/", "https://[2001:db8::a]:8080", False),
    ],
)
def test_proof_covers_its_origin_and_https_covers_http(url: str, origin: str, *, covered: bool) -> None:
    assert is_covered(url, origin) is covered


def test_proof_file_is_below_well_known() -> None:
    assert PROOF_PATH.startswith("/.well-known/")
