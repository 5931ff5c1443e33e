import time
from collections.abc import Callable
from functools import partial

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from lifesign.prober.secrets.client_assertion import (
    BACKDATED_SECONDS,
    LIFETIME_SECONDS,
    client_assertion,
    signing_key_fault,
)

URL = "https://login.acme.example/oauth2/token"
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def pem(key: PrivateKey, encryption: KeySerializationEncryption | None = None) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()).decode()


@pytest.mark.parametrize(
    ("new_key", "algorithm"),
    [
        # Each process of pytest-xdist would make it while it collects the tests.
        (partial(rsa.generate_private_key, 65_537, 2048), "RS256"),
        (partial(ec.generate_private_key, ec.SECP256R1()), "ES256"),
    ],
)
def test_client_assertion_has_client_endpoint_and_short_lifetime(
    new_key: Callable[[], rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey], algorithm: str
) -> None:
    key = new_key()
    signed = [client_assertion("acme", URL, pem(key), key_id="key-1") for _ in range(2)]
    claims = [jwt.decode(each, key.public_key(), [algorithm], audience=URL) for each in signed]
    assert claims[0]["iss"] == claims[0]["sub"] == "acme"
    assert claims[0]["exp"] - claims[0]["iat"] == BACKDATED_SECONDS + LIFETIME_SECONDS
    assert claims[0]["jti"] != claims[1]["jti"]
    assert jwt.get_unverified_header(signed[0])["kid"] == "key-1"


def test_client_assertion_of_a_clock_that_is_ahead_is_valid() -> None:
    """PyJWT grants no leeway."""
    key = ec.generate_private_key(ec.SECP256R1())
    signed = client_assertion("acme", URL, pem(key), clock=lambda: time.time() + BACKDATED_SECONDS)
    assert jwt.decode(signed, key.public_key(), ["ES256"], audience=URL)["iss"] == "acme"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not a key",
        "-----BEGIN PRIVATE KEY-----\nbroken\n-----END PRIVATE KEY-----",
        "tökens",
        pem(rsa.generate_private_key(65_537, 1024)),  # noqa: S505 - what is refused
        pem(ec.generate_private_key(ec.SECP384R1())),
        pem(ed25519.Ed25519PrivateKey.generate()),
        pem(ec.generate_private_key(ec.SECP256R1()), BestAvailableEncryption(b"passphrase")),
    ],
)
def test_other_keys_are_refused_and_never_quoted(text: str) -> None:
    fault = signing_key_fault(text)
    assert fault is not None
    assert not text or text not in fault
    with pytest.raises(ValueError, match="PEM"):
        client_assertion("acme", URL, text)
