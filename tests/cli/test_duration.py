import pytest
import typer

from agent_health.cli.duration import read_duration


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


@pytest.mark.parametrize("text", ["", "1", "h", "1 h", "-1h", "1.5h", "1y", "1h30m", "9" * 30 + "d", "²s"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="30d"):
        read_duration(text)
