"""How is a webhook's delivery signed, when is it tried again, and when is it given up?"""

import hmac
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

SIGNATURE_HEADER: Final = "X-Agent-Health-Signature"
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - what all of them begin with
"""Lets scanners for leaked secrets find them."""
MAX_AGE_SECONDS: Final = 300
"""Of a signature, when a receiver looks at it: an old delivery that was recorded is not taken again."""
FIRST_RETRY_SECONDS: Final = 2.0
MAX_RETRY_SECONDS: Final = 1_800.0
GIVE_UP_SECONDS: Final = 3 * 86_400.0
"""How long a webhook may fail without a success between before it is disabled."""

_SIGNATURE = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")


def signature(secret: str, at_s: int, body: bytes) -> str:
    """Return the header of a delivery: `t=<unix seconds>,v1=<HMAC-SHA-256 of "t.body">`, hexadecimal."""
    return f"t={at_s},v1={_mac(secret, at_s, body)}"


def is_signed(
    secret: str, header: str, body: bytes, now_s: float, *, max_age_s: float = MAX_AGE_SECONDS
) -> bool:
    """Whether a receiver may believe a delivery: signed with the secret, not long ago; in constant time."""
    parts = _SIGNATURE.fullmatch(header)
    if parts is None:
        return False
    at_s = int(parts[1])
    return abs(now_s - at_s) <= max_age_s and hmac.compare_digest(parts[2], _mac(secret, at_s, body))


@dataclass(frozen=True, slots=True)
class AfterFailure:
    """What becomes of a webhook that has just failed."""

    failures: int
    """In a row."""
    failing_since_s: float
    next_try_at_s: float
    is_given_up: bool


def after_failure(failures: int, failing_since_s: float | None, now_s: float, chance: float) -> AfterFailure:
    """Judge a failure that follows on `failures` in a row, the first of them at `failing_since_s`.

    The wait doubles from 2 s up to 30 min; `chance`, 0 to 1, takes away up to half of it, so that those
    who failed together do not come back together.
    """
    since_s = now_s if failing_since_s is None else failing_since_s
    # The exponent is bounded before the power is taken: failures are not.
    wait_s = min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures, 20))
    return AfterFailure(
        failures=failures + 1,
        failing_since_s=since_s,
        next_try_at_s=now_s + wait_s * (1 - chance / 2),
        is_given_up=now_s - since_s >= GIVE_UP_SECONDS,
    )


def _mac(secret: str, at_s: int, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{at_s}.".encode() + body, sha256).hexdigest()
