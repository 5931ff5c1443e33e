from pathlib import Path

import pytest

from lifesign.serving.state_home import state_home


@pytest.mark.parametrize(("variable", "expected"), [
    ("/srv/state", "/srv/state/lifesign"),
    ("relative", "/home/ann/.local/state/lifesign"),
    ("", "/home/ann/.local/state/lifesign"),
    (None, "/home/ann/.local/state/lifesign"),
])  # fmt: skip
def test_state_is_in_the_xdg_state_home(
    variable: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    environment = {} if variable is None else {"XDG_STATE_HOME": variable}
    assert state_home(environment) == Path(expected)
