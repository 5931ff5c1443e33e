import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from lifesign.domain.models.tasks import MAX_DETAIL_CHARACTERS, Detail, detail_of

DETAIL = TypeAdapter(Detail)


def test_control_characters_of_a_detail_are_replaced() -> None:
    assert detail_of("ValueError: no\x00 \x1b[31mcustomer\ud800\nat all") == (
        "ValueError: no\ufffd \ufffd[31mcustomer\ufffd\ufffdat all"
    )


@given(st.text(st.characters(codec=None), min_size=1, max_size=2 * MAX_DETAIL_CHARACTERS))
def test_any_output_becomes_a_valid_detail(message: str) -> None:
    assert DETAIL.validate_python(detail_of(message)) == detail_of(message)


@pytest.mark.parametrize("message", ["", "x" * (MAX_DETAIL_CHARACTERS + 1)])
def test_empty_or_too_long_detail_is_refused(message: str) -> None:
    with pytest.raises(ValidationError):
        DETAIL.validate_python(message)
