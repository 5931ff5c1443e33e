from pathlib import Path

import pytest

from lifesign.adapter.credentials import agent_key_file, agent_lock, forget
from lifesign.errors import InvalidValue


def test_only_one_process_at_a_time_runs_as_an_agent(tmp_path: Path) -> None:
    own_key = agent_key_file(tmp_path, "coder.v1")
    with agent_lock("coder.v1", own_key):
        with (
            pytest.raises(InvalidValue, match="other adapter"),
            agent_lock("coder.v1", own_key),
        ):
            pass
        with agent_lock("coder.v2", agent_key_file(tmp_path, "coder.v2")):
            pass
    with agent_lock("coder.v1", own_key):
        pass


def test_credentials_of_a_deregistered_agent_are_removed(tmp_path: Path) -> None:
    own_key = agent_key_file(tmp_path, "coder")
    with agent_lock("coder", own_key):
        own_key.touch()
        forget(own_key)
    assert list(own_key.parent.iterdir()) == []


def test_credentials_that_cannot_be_stored_are_reported(tmp_path: Path) -> None:
    (tmp_path / "own-keys").touch()
    with (
        pytest.raises(InvalidValue, match="directory"),
        agent_lock("coder", agent_key_file(tmp_path, "coder")),
    ):
        pass
