"""Webhook deliveries: signatures (Standard Webhooks 1.0.0), retries and when a webhook is disabled."""

import hmac
import math
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lifesign.errors import InvalidValue

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - what all of them begin with
"""Lets scanners for leaked secrets find them."""
MIN_SECRET_BYTES: Final = 24
MAX_SECRET_BYTES: Final = 64
PAYLOAD_TYPE: Final = "registry.events"
"""The `type` of every payload: a batch of events, each of which has a type of its own."""

FIRST_RETRY_SECONDS: Final = 2.0
MAX_RETRY_SECONDS: Final = 1_800.0
GIVE_UP_SECONDS: Final = 3 * 86_400.0
"""Time of failures without a success after which a webhook is disabled."""
GIVE_UP_FAILURES: Final = 100
"""Number of failures in a row before which no webhook is disabled.

There are more in three days of attempts, and fewer if the registry was stopped or restored from a backup.
"""
GONE_STATUS: Final = 410
"""Status by which a receiver ends the deliveries; the webhook is disabled at once."""


def secret_of(random_bytes: bytes) -> str:
    """Return a webhook's secret, `whsec_` and base64, made of 24 to 64 random bytes.

    InvalidValue for another length.
    """
    if not MIN_SECRET_BYTES <= len(random_bytes) <= MAX_SECRET_BYTES:
        expected = f"{MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes"
        raise InvalidValue("random_bytes", f"{len(random_bytes)} bytes", expected)
    return SECRET_PREFIX + b64encode(random_bytes).decode("ascii")


def delivery_headers(message_id: str, at_s: float, body: bytes, secrets: Iterable[str]) -> dict[str, str]:
    """Return the HTTP headers of one delivery attempt: id, time, and a signature with each secret.

    The id and the time are signed with the body, separated by full stops: an id must not contain one.
    """
    if "." in message_id:
        raise InvalidValue("message_id", message_id, "no full stop")
    timestamp = str(math.floor(at_s))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return {
        ID_HEADER: message_id,
        TIMESTAMP_HEADER: timestamp,
        SIGNATURE_HEADER: " ".join(_signature(secret, signed) for secret in secrets),
    }


def _signature(secret: str, signed: bytes) -> str:
    key = b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    return f"v1,{b64encode(hmac.digest(key, signed, 'sha256')).decode('ascii')}"


@dataclass(frozen=True, slots=True)
class WebhookAfterFailure:
    """The state of a webhook after a failed attempt."""

    failures: int
    """In a row."""
    failing_since_s: float
    next_try_at_s: float
    is_given_up: bool


def after_failure(  # noqa: PLR0917 - the state before, and what came of the attempt
    failures: int,
    failing_since_s: float | None,
    now_s: float,
    chance: float,
    status: int | None = None,
    retry_after_s: float | None = None,
) -> WebhookAfterFailure:
    """Return a webhook's state after a failed attempt that followed `failures` in a row.

    The wait doubles from 2 s to 30 min. `chance`, 0 to 1, shortens it by up to half, so that webhooks that
    failed together are not retried together. The receiver's `Retry-After` delays the next attempt, to at most
    30 min. A receiver that fails for three days and 100 attempts, or answers 410, gets no further deliveries.
    """
    since_s = now_s if failing_since_s is None else failing_since_s
    # The exponent is bounded before the power is taken: failures are not.
    wait_s = min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures, 20)) * (1 - chance / 2)
    if retry_after_s is not None:
        wait_s = max(wait_s, min(retry_after_s, MAX_RETRY_SECONDS))
    return WebhookAfterFailure(
        failures=failures + 1,
        failing_since_s=since_s,
        next_try_at_s=now_s + wait_s,
        is_given_up=status == GONE_STATUS
        or (now_s - since_s >= GIVE_UP_SECONDS and failures + 1 >= GIVE_UP_FAILURES),
    )
