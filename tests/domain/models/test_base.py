"""Text of times in the form of the API."""

from hypothesis import example, given
from hypothesis import strategies as st

from lifesign.domain.models.base import moment, moment_text
from lifesign.domain.text.times import utc_text


@given(at_s=st.floats(min_value=0, max_value=32_503_680_000))
@example(at_s=1_764_432_403.408)
@example(at_s=1_764_432_403.999_999_9)
def test_moment_text_is_the_text_of_the_moment_in_milliseconds(at_s: float) -> None:
    assert moment_text(at_s) == utc_text(moment(at_s), "milliseconds")
