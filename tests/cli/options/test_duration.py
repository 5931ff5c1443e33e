import re
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from tests.support.command_tree import valued_parameters

from lifesign.cli import application, main
from lifesign.cli.options.duration import (
    METAVAR,
    DefaultDuration,
    duration_between,
    format_duration,
    in_durations,
    read_duration,
)
from lifesign.errors import InvalidValue

DURATIONS = [(name, each) for name, each in valued_parameters() if each.metavar == METAVAR]
FORM = "expected a duration such as 30s, 5m, 1h or 2d, or a number of seconds"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("0", 0),
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("0.25s", 0.25),
        ("1.5h", 5_400),
        ("0.1m", 6),
        ("15m", 900),
        ("1h", 3_600),
        ("30d", 2_592_000),
        ("2w", 1_209_600),
        (" 1h ", 3_600),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "1 h",
        "-1h",
        "-1",
        ".5s",
        "1.s",
        "1e3",
        "nan",
        "inf",
        "1y",
        "1ms",
        "1h30m",
        "²s",
        "٣s",
        "x" * 300,
    ],
)
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=FORM):
        read_duration(text)


@pytest.mark.parametrize("unit", ["d", ""])
def test_too_long_duration_is_reported_as_such(unit: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"of at most 999999999w; got '9{40}'$"):
        read_duration("9" * 30_000 + unit)


@given(st.sampled_from("smhdw"), st.integers(0, 999_999_999))
def test_written_values_read_back_equal(unit: str, number: int) -> None:
    seconds = read_duration(f"{number}{unit}")
    assert read_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.5, "0.5s"),
        (0.05, "0.05s"),
        (90, "90s"),
        (900, "15m"),
        (90_000, "25h"),
        (604_800, "7d"),
        (1e-9, "0s"),
    ],
)
def test_duration_is_formatted_in_its_largest_whole_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert str(DefaultDuration(seconds)) == text


def test_bounds_are_given_as_durations() -> None:
    read = duration_between(1, 86_400)
    assert [read("1s"), read("1d"), read(60.0)] == [1, 86_400, 60]
    for text in ("0s", "86401s", "2w"):
        with pytest.raises(typer.BadParameter, match=f" 1s to 1d; got '{text}'"):
            read(text)
    with pytest.raises(typer.BadParameter, match="more than 0s, up to 5m; got '0'"):
        duration_between(0, 300, more_than_s=0)("0")
    with pytest.raises(typer.BadParameter, match="2s or more; got '1'"):
        duration_between(2, None)("1")


def test_error_in_seconds_is_given_as_durations() -> None:
    error = in_durations("--lease", InvalidValue("lease_seconds", 90_000.0, "at least 0.5, at most 86400"))
    assert (error.name, error.given) == ("--lease", "25h")
    assert re.findall(r"[\d.]+[sd]", error.expected) == ["0.5s", "1d"]


@pytest.mark.parametrize(("name", "parameter"), DURATIONS, ids=[name for name, _ in DURATIONS])
def test_invalid_duration_has_the_same_error_for_each_option(name: str, parameter: Any) -> None:
    """A duration with a unit is accepted; the bounds differ."""
    command = typer.Context(typer.main.get_command(application._application))
    with pytest.raises(typer.BadParameter, match=f"{FORM}; got 'soon'"):
        parameter.process_value(command, "soon")
    assert parameter.process_value(command, "1m") == 60 or "retention" in name


def test_no_option_has_a_unit_in_its_name() -> None:
    assert len(DURATIONS) > 25
    units = ("-seconds", "-days", "-hours", "-minutes", "-ms")
    for name, parameter in valued_parameters():
        assert not name.endswith(units), name
        assert parameter.metavar not in {"SECONDS", "DAYS", "MINUTES", "HOURS"}, name


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["check", "agent.example", "--timeout", "soon"], "--timeout"),
        (["validate", "health.json", "--timeout", "soon"], "--timeout"),
        (["recheck", "billing-1", "--wait", "soon"], "--wait"),
        (["agents", "drain", "a", "--drain-timeout", "soon"], "--drain-timeout"),
        (["serve", "--sweep-interval", "soon"], "--sweep-interval"),
    ],
)
def test_invalid_duration_is_reported_with_option_value_and_form(
    arguments: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    line, hint = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lifesign: {option}: {FORM}; got 'soon'")
    assert hint.startswith("hint: ")


def test_invalid_duration_in_a_variable_names_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFESIGN_SERVER_SWEEP_INTERVAL", "soon")
    assert main(["serve"]) == 3
    output = capsys.readouterr().err
    assert output.startswith(f"lifesign: LIFESIGN_SERVER_SWEEP_INTERVAL: {FORM}; got 'soon'")


@pytest.mark.parametrize(("command", "default"), [("check", "10s"), ("validate", "10s"), ("recheck", "1m")])
def test_help_shows_defaults_in_the_same_form(
    command: str, default: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    assert f"[default: {default}]" in " ".join(capsys.readouterr().out.split())
