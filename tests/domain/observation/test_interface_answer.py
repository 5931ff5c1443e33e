import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifesign.domain.observation.interface_answer import allows_post, classify_interface, may_accept_post
from lifesign.domain.observation.results import ANSWERED, ResultClass

STATUSES = st.integers(100, 599)


@pytest.mark.parametrize("status", [200, 204, 206, 300])
def test_any_status_is_an_answer(status: int) -> None:
    assert classify_interface(status) == (ResultClass.OK, "")


@pytest.mark.parametrize("status", [400, 405, 406, 411, 415, 422, 426, 428, 501])
def test_status_of_a_missing_message_means_the_interface_exists(status: int) -> None:
    result, reason = classify_interface(status)
    assert result is ResultClass.OK
    assert reason.startswith(f"HTTP {status}: it ")


@pytest.mark.parametrize("status", [401, 402, 403, 407])
def test_interface_that_requires_credentials_or_payment_is_gated(status: int) -> None:
    assert classify_interface(status)[0] is ResultClass.GATED


@pytest.mark.parametrize("status", [404, 410])
def test_status_not_found_means_not_an_agent(status: int) -> None:
    assert classify_interface(status)[0] is ResultClass.NOT_AN_AGENT


def test_status_429_is_rate_limited() -> None:
    assert classify_interface(429)[0] is ResultClass.RATE_LIMITED


@pytest.mark.parametrize(
    "status", [100, 101, 408, 409, 412, 413, 414, 421, 431, 451, 499, 500, 502, 503, 599]
)
def test_other_statuses_are_http_errors(status: int) -> None:
    result, reason = classify_interface(status)
    assert (result, reason.partition(":")[0]) == (ResultClass.HTTP_ERROR, f"HTTP {status}")


@given(STATUSES)
@example(304)
def test_every_status_code_is_classified_and_only_success_has_no_reason(status: int) -> None:
    result, reason = classify_interface(status)
    assert bool(reason) or (result is ResultClass.OK and 200 <= status < 400)
    # "Not modified" answers a condition, and a probe sends none.
    assert result in ANSWERED or not 200 <= status < 400 or status == 304


def test_status_404_of_a_post_only_interface_is_recognised() -> None:
    assert [status for status in range(100, 600) if may_accept_post(status)] == [404, 410]
    assert not may_accept_post(None)
    assert allows_post(200, "POST")
    assert allows_post(204, "OPTIONS,  post")
    assert not allows_post(200, "GET,HEAD")
    assert not allows_post(200, "")
    assert not allows_post(404, "POST")
    assert not allows_post(None, "POST")


@given(STATUSES | st.none(), st.lists(st.sampled_from(["GET", "post", "PUT", "POSTS", ""]), max_size=4))
def test_only_a_successful_options_answer_with_post_counts(status: int | None, methods: list[str]) -> None:
    is_good = status is not None and 200 <= status < 300
    assert allows_post(status, " ,\t".join(methods)) == (is_good and "post" in methods)


def test_unconditional_request_accepts_no_304() -> None:
    assert classify_interface(304)[0] is ResultClass.HTTP_ERROR
