import pytest

from lifesign.cli.errors import InvalidConfig
from lifesign.cli.output.error_lines import complain, complain_of
from lifesign.client.registry_errors import error_of
from lifesign.domain.errors import FileFault
from lifesign.errors import LifesignError


def lines_of(error: LifesignError, capsys: pytest.CaptureFixture[str]) -> list[str]:
    complain_of(error)
    return capsys.readouterr().err.splitlines()


def test_hint_is_a_line_of_its_own_and_absent_if_nothing_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    complain("wrong", hint="do\x1b[2J this")
    problem, hint = capsys.readouterr().err.splitlines()
    assert (problem, hint.startswith("hint: do")) == ("lifesign: wrong", True)
    assert "\x1b" not in hint
    complain("wrong")
    assert capsys.readouterr().err == "lifesign: wrong\n"


def test_refusal_of_a_registry_has_its_code_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"code": "not_allowed", "message": "no", "hint": "another\nkey", "details": {}}
    first, second = lines_of(error_of(403, {"error": columns, "message": "no"}), capsys)
    assert first.endswith(" (not_allowed)")
    assert second == "hint: another key"


def test_file_errors_are_one_line_each_with_the_hint_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    faults = [FileFault(2, "/name", "expected a"), FileFault(5, "/wait_seconds", "expected b")]
    *complaints, hint = lines_of(InvalidConfig(faults, "a.toml"), capsys)
    assert complaints == [f"lifesign: a.toml: {fault}" for fault in faults]
    assert hint.startswith("hint: wait_seconds ")
