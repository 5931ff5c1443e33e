from pathlib import Path

import pytest

from lifesign.adapter.credentials import agent_key_file, agent_lock, forget
from lifesign.errors import InvalidValue

REGISTRY = "https://registry.example"
OTHERS = (
    "http://registry.example",
    "https://registry.example:8440",
    "https://registry.example/team-1",
    "https://[2001:db8::1]",
    f"https://{'a' * 250}.example",
)


def test_each_registry_has_its_own_key_file_of_an_agent(tmp_path: Path) -> None:
    files = [agent_key_file(tmp_path, registry, "coder.v1") for registry in (REGISTRY, *OTHERS)]
    for number, file in enumerate(files):
        file.write_text(str(number))
    assert [file.read_text() for file in files] == ["0", "1", "2", "3", "4", "5"]
    assert files[0].parent.name.startswith("registry.example-443-")
    assert {file.parent.stat().st_mode & 0o777 for file in files} == {0o700}
    assert agent_key_file(tmp_path, "https://Registry.example:443/", "coder.v1") == files[0]


def test_only_one_process_at_a_time_runs_as_an_agent(tmp_path: Path) -> None:
    own_key = agent_key_file(tmp_path, REGISTRY, "coder.v1")
    with agent_lock("coder.v1", own_key):
        for registry in (REGISTRY, *OTHERS):
            with (
                pytest.raises(InvalidValue, match="other adapter"),
                agent_lock("coder.v1", agent_key_file(tmp_path, registry, "coder.v1")),
            ):
                pass
        with agent_lock("coder.v2", agent_key_file(tmp_path, REGISTRY, "coder.v2")):
            pass
    with agent_lock("coder.v1", own_key):
        pass


def test_credentials_of_a_deregistered_agent_are_removed(tmp_path: Path) -> None:
    own_key = agent_key_file(tmp_path, REGISTRY, "coder")
    with agent_lock("coder", own_key):
        own_key.touch()
        forget(own_key)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_credentials_that_cannot_be_stored_are_reported(tmp_path: Path) -> None:
    (tmp_path / "own-keys").touch()
    with (
        pytest.raises(InvalidValue, match="directory"),
        agent_lock("coder", agent_key_file(tmp_path, REGISTRY, "coder")),
    ):
        pass
