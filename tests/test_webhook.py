import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_health.webhook import GIVE_UP_SECONDS, MAX_RETRY_SECONDS, after_failure, is_signed, signature

SECRET = "whsec_x"
NOW_S = 1_763_640_000


def test_the_signature_is_what_the_documentation_says() -> None:
    expected = hmac.new(b"whsec_x", b"1763640000.{}", hashlib.sha256).hexdigest()
    assert signature(SECRET, NOW_S, b"{}") == f"t=1763640000,v1={expected}"


@given(st.binary(max_size=100), st.integers(-300, 300))
def test_what_was_signed_just_now_is_believed(body: bytes, age_s: int) -> None:
    assert is_signed(SECRET, signature(SECRET, NOW_S, body), body, NOW_S + age_s)


GOOD = signature(SECRET, NOW_S, b"{}")


@pytest.mark.parametrize(
    ("header", "body", "now_s"),
    [
        (GOOD, b"{} ", NOW_S),
        (GOOD, b"{}", NOW_S + 301),
        (GOOD, b"{}", NOW_S - 301),
        (GOOD.replace("t=1763640000", "t=1763640001"), b"{}", NOW_S),
        (signature("whsec_y", NOW_S, b"{}"), b"{}", NOW_S),
        (GOOD[:-1], b"{}", NOW_S),
        (f"{GOOD},v1=x", b"{}", NOW_S),
        (f"t={'9' * 5_000},v1={'0' * 64}", b"{}", NOW_S),
        ("", b"{}", NOW_S),
        ("t=é,v1=é", b"{}", NOW_S),
    ],
)
def test_anything_else_is_not_believed(header: str, body: bytes, now_s: float) -> None:
    assert not is_signed(SECRET, header, body, now_s)


@given(st.integers(0, 10**9), st.floats(0, 1))
def test_the_wait_is_never_long_and_never_short(failures: int, chance: float) -> None:
    after = after_failure(failures, NOW_S, NOW_S, chance)
    assert 1 <= after.next_try_at_s - NOW_S <= MAX_RETRY_SECONDS
    assert after.failures == failures + 1


def test_the_wait_doubles() -> None:
    waits_s = [after_failure(failures, NOW_S, NOW_S, 0.0).next_try_at_s - NOW_S for failures in range(12)]
    assert waits_s == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1800, 1800]


def test_three_days_of_failure_are_enough() -> None:
    assert after_failure(0, None, NOW_S, 0.0).failing_since_s == NOW_S
    assert not after_failure(5, NOW_S - GIVE_UP_SECONDS + 1, NOW_S, 0.0).is_given_up
    assert after_failure(5, NOW_S - GIVE_UP_SECONDS, NOW_S, 0.0).is_given_up
