import io

import pytest

from lifesign.cli.options.confirmation import CannotConfirm, is_confirmed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "expected"), [("y\n", True), ("YES\n", True), ("\n", False), ("no\n", False), ("", False)]
)
def test_only_a_yes_confirms(answer: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 - a parameter
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert is_confirmed("Go on?", reason="It is a test.") is expected


def test_without_a_terminal_the_option_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(CannotConfirm) as raised:
        is_confirmed("Go on?", reason="It is a test.")
    assert raised.value.name == "--yes"
    assert "--yes" in raised.value.hint
    assert "expected" not in str(raised.value)
