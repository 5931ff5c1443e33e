import base64
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from lifesign.domain.events.webhook_delivery import (
    GIVE_UP_FAILURES,
    GIVE_UP_SECONDS,
    ID_HEADER,
    MAX_RETRY_SECONDS,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    after_failure,
    delivery_headers,
    secret_of,
)
from lifesign.errors import InvalidValue

NOW_S = 1_763_640_000.75


@given(st.binary(min_size=24, max_size=64))
def test_secret_is_the_base64_of_its_bytes(random_bytes: bytes) -> None:
    prefix, text = secret_of(random_bytes).split("_", 1)
    assert (prefix, base64.b64decode(text, validate=True)) == ("whsec", random_bytes)


@pytest.mark.parametrize("size", [0, 23, 65])
def test_secret_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(InvalidValue, match="24 to 64 bytes"):
        secret_of(bytes(size))


@given(
    st.binary(min_size=24, max_size=64),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=100),
    st.floats(0, 4e9),
)
def test_signature_is_that_of_the_standard_library(random_bytes: bytes, body: str, at_s: float) -> None:
    secret = secret_of(random_bytes)
    headers = delivery_headers("msg_1", at_s, body.encode(), [secret])
    signed_at = datetime.fromtimestamp(int(headers[TIMESTAMP_HEADER]), UTC)
    assert headers[SIGNATURE_HEADER] == Webhook(secret).sign("msg_1", signed_at, body)


def test_headers_have_the_id_whole_seconds_and_one_signature_for_each_secret() -> None:
    secrets = [secret_of(bytes([number]) * 32) for number in range(2)]
    headers = delivery_headers("msg_1", NOW_S, b"{}", secrets)
    assert (headers[ID_HEADER], headers[TIMESTAMP_HEADER]) == ("msg_1", "1763640000")
    both = headers[SIGNATURE_HEADER].split(" ")
    each = [delivery_headers("msg_1", NOW_S, b"{}", [secret])[SIGNATURE_HEADER] for secret in secrets]
    assert both == each
    assert {signature.split(",")[0] for signature in both} == {"v1"}


def test_message_id_with_a_full_stop_is_refused() -> None:
    with pytest.raises(InvalidValue, match="message_id"):
        delivery_headers("msg.1", NOW_S, b"{}", [secret_of(bytes(32))])


@given(st.integers(0, 10**9), st.floats(0, 1), st.none() | st.floats(0, 1e9))
def test_wait_is_between_one_second_and_the_maximum(
    failures: int, chance: float, retry_after_s: float | None
) -> None:
    after = after_failure(failures, NOW_S, NOW_S, chance, 503, retry_after_s)
    assert 1 <= after.next_try_at_s - NOW_S <= MAX_RETRY_SECONDS
    assert after.failures == failures + 1


def test_wait_doubles() -> None:
    waits_s = [after_failure(failures, NOW_S, NOW_S, 0.0).next_try_at_s - NOW_S for failures in range(12)]
    assert waits_s == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1800, 1800]


def test_retry_after_delays_the_next_attempt_and_never_hastens_it() -> None:
    waits_s = [
        after_failure(4, NOW_S, NOW_S, 0.0, 503, retry_after_s).next_try_at_s - NOW_S
        for retry_after_s in (None, 1.0, 100.0, 1e9)
    ]
    assert waits_s == [32, 32, 100, 1800]
    assert all(shorter <= longer for shorter, longer in pairwise(waits_s))


def test_webhook_is_given_up_after_three_days_or_at_once_when_its_receiver_is_gone() -> None:
    assert after_failure(0, None, NOW_S, 0.0).failing_since_s == NOW_S
    assert not after_failure(150, NOW_S - GIVE_UP_SECONDS + 1, NOW_S, 0.0, 503).is_given_up
    assert after_failure(150, NOW_S - GIVE_UP_SECONDS, NOW_S, 0.0, 503).is_given_up
    assert after_failure(0, None, NOW_S, 0.0, 410).is_given_up


def test_days_without_attempts_disable_no_webhook() -> None:
    """The registry was stopped, or restored from a backup."""
    since_s = NOW_S - 10 * GIVE_UP_SECONDS
    assert not after_failure(GIVE_UP_FAILURES - 2, since_s, NOW_S, 0.0, 503).is_given_up
    assert after_failure(GIVE_UP_FAILURES - 1, since_s, NOW_S, 0.0, 503).is_given_up


def test_attempts_of_three_days_suffice_to_disable_a_webhook() -> None:
    """With the longest waits."""
    now_s, failures = NOW_S, 0
    while now_s - NOW_S < GIVE_UP_SECONDS:
        after = after_failure(failures, NOW_S, now_s, 0.0, 503, MAX_RETRY_SECONDS)
        now_s, failures = after.next_try_at_s + 15.0, after.failures
    assert after_failure(failures, NOW_S, now_s, 0.0, 503).is_given_up
