"""Lease ids: the position of a lease, its grant, and a proof that only its holder can know.

`lease_<number>_<token>_<proof>`: the number of the resource's row, the fencing token of the grant, and 128
bits derived from both, the holder and a secret of the row. An id cannot be guessed, and a former holder's id
is recognised although the row has a later grant.
"""

import hmac
import re
from base64 import b32encode
from typing import Final

SECRET_BYTES: Final = 16
"""Size of a row's secret, which is stored in hexadecimal."""
PROOF_BYTES: Final = 16

_ID = re.compile(r"lease_([1-9][0-9]{0,17})_([1-9][0-9]{0,18})_[a-z2-7]{26}")


def lease_id_of(number: int, token: int, holder: str, secret: str) -> str:
    """Return the id of a lease, which contains its row, its token and a check of its holder."""
    stem = f"lease_{number}_{token}"
    proof = hmac.digest(bytes.fromhex(secret), f"{stem}_{holder}".encode(), "sha256")[:PROOF_BYTES]
    return f"{stem}_{b32encode(proof).decode('ascii').rstrip('=').lower()}"


def number_in(lease_id: str) -> int | None:
    """Return the row number in a lease id; None if the id has another form."""
    parts = _ID.fullmatch(lease_id)
    return None if parts is None else int(parts[1])


def token_in(lease_id: str) -> int | None:
    """Return the fencing token in a lease id; None if the id has another form."""
    parts = _ID.fullmatch(lease_id)
    return None if parts is None else int(parts[2])


def was_granted_to(holder: str, lease_id: str, secret: str | None) -> bool:
    """Return whether the registry ever gave this id to this holder; compared in constant time.

    `secret` is that of the row in the id; None: the row was never granted.
    """
    parts = _ID.fullmatch(lease_id)
    if parts is None or secret is None:
        return False
    own = lease_id_of(int(parts[1]), int(parts[2]), holder, secret)
    return hmac.compare_digest(lease_id, own)
