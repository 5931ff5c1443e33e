"""Signed assertions by which an OAuth 2 client proves its identity (RFC 7523 2.2 and 3)."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import uuid4

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

    SigningKey = RSAPrivateKey | EllipticCurvePrivateKey

LIFETIME_SECONDS: Final = 60
"""Lifetime of an assertion, which is used once, immediately."""
BACKDATED_SECONDS: Final = 30
"""Age that a new assertion states: many providers refuse one from the future, be it by a second."""
MIN_RSA_BITS: Final = 2048


def client_assertion(
    client_id: str,
    token_url: str,
    pem: str,
    *,
    key_id: str | None = None,
    clock: Callable[[], float] = time.time,
) -> str:
    """Return a signed assertion (JWT) with which an OAuth 2 client proves its identity.

    ValueError, which never quotes the key, if the key is not accepted.
    """
    import jwt  # noqa: PLC0415 - takes 80 ms, and few definitions need it

    key = _read_key(pem)
    if key is None:
        raise ValueError(signing_key_fault(pem))
    now_s = int(clock())
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": token_url,
        "iat": now_s - BACKDATED_SECONDS,
        "exp": now_s + LIFETIME_SECONDS,
        "jti": str(uuid4()),
    }
    signing_key, algorithm = key
    headers = None if key_id is None else {"kid": key_id}
    return jwt.encode(claims, signing_key, algorithm=algorithm, headers=headers)


def signing_key_fault(pem: str) -> str | None:
    """Return why a text is not a private key that can sign assertions; None if it is one."""
    if _read_key(pem) is not None:
        return None
    return f"an unencrypted private key in PEM: RSA of {MIN_RSA_BITS} bits or more, or P-256"


def _read_key(pem: str) -> "tuple[SigningKey, str] | None":
    """Return a private key and its algorithm; None if it is of no accepted kind."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.asymmetric.ec import (  # noqa: PLC0415 - see above
        SECP256R1,
        EllipticCurvePrivateKey,
    )
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - see above
        load_pem_private_key,
    )

    try:
        key = load_pem_private_key(pem.encode("ascii", "replace"), password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return None
    if isinstance(key, RSAPrivateKey) and key.key_size >= MIN_RSA_BITS:
        return key, "RS256"
    if isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1):
        return key, "ES256"
    return None
