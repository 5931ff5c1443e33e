import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from lifesign.cli.options.duration import duration_between, duration_text, read_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("90s", 90),
        ("15m", 900),
        ("1h", 3_600),
        ("30d", 2_592_000),
        ("2w", 1_209_600),
        (" 1h ", 3_600),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "1 h", "-1h", "1.5h", "1y", "1h30m", "²s", "٣s", "x" * 300])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="30d"):
        read_duration(text)


def test_one_that_is_too_long_is_told_as_that() -> None:
    with pytest.raises(typer.BadParameter, match=r"of at most 999999999w; got '9{40}'$"):
        read_duration("9" * 30_000 + "d")


@given(st.sampled_from("smhdw"), st.integers(0, 999_999_999))
def test_what_is_written_is_read_as_the_same(unit: str, number: int) -> None:
    seconds = read_duration(f"{number}{unit}")
    assert read_duration(duration_text(seconds)) == seconds


def test_bounds_are_told_in_the_words_of_durations() -> None:
    read = duration_between(1, 86_400)
    assert [read("1s"), read("1d")] == [1, 86_400]
    for text in ("0s", "86401s", "2w"):
        with pytest.raises(typer.BadParameter, match=f"expected a duration of 1s to 1d; got '{text}'"):
            read(text)
