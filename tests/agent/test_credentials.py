import os
import stat
from pathlib import Path

import pytest
from tests.support.file_mount import run_with_mounted

from lifesign.agent.credentials import AgentKeys, registry_url
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.client.registry_errors import NotAuthorized, Unprocessable
from lifesign.client.secret_file import MAX_SECRET_BYTES
from lifesign.errors import InvalidValue


def test_stored_key_precedes_given_key_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    environment = {KEY_VARIABLE: "ahk_environment"}
    assert AgentKeys(environment=environment).current() == "ahk_environment"
    assert AgentKeys(key="ahk_given", environment=environment).current() == "ahk_given"
    keys = AgentKeys(key="ahk_given", key_file=file, environment=environment)
    assert keys.current() == "ahk_given"
    keys.keep("ahk_own")
    assert keys.current() == "ahk_own"
    assert AgentKeys(key="ahk_given", key_file=file, environment=environment).current() == "ahk_own"


def test_key_stored_by_another_process_is_used(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    keys = AgentKeys(key="ahk_given", key_file=file, environment={})
    AgentKeys(key="ahk_given", key_file=file, environment={}).keep("ahk_own")
    assert keys.current() == "ahk_own"


def test_given_key_is_used_while_the_file_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    keys = AgentKeys(key="ahk_given", key_file=file, environment={})
    file.write_bytes(b"x" * (MAX_SECRET_BYTES + 1))
    assert keys.current() == "ahk_given"
    assert not keys.is_own
    file.write_text("ahk_own")
    assert keys.current() == "ahk_own"


def test_agent_key_is_stored_with_private_mode(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    AgentKeys(key="ahk_given", key_file=file, environment={}).keep("ahk_own")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("ahk_own\n", 0o600)
    assert list(tmp_path.iterdir()) == [file]


def test_key_file_readable_by_others_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.key"
    file.write_text("ahk_own")
    file.chmod(0o644)
    assert AgentKeys(key_file=file, environment={}).current() == "ahk_own"
    assert "chmod 600" in caplog.text
    assert len(caplog.records) == 1
    assert "ahk_own" not in caplog.text


def test_key_file_without_a_key_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.key"
    file.touch(mode=0o644)
    keys = AgentKeys(key="ahk_given", key_file=file, environment={})
    # Each request reads the file, until it has a key.
    assert [keys.current(), keys.current()] == ["ahk_given", "ahk_given"]
    assert caplog.records == []
    file.write_text("ahk_own")
    assert [keys.current(), keys.current()] == ["ahk_own", "ahk_own"]
    assert len(caplog.records) == 1


def test_key_that_cannot_be_stored_is_used_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = AgentKeys(key="ahk_given", key_file=tmp_path / "absent" / "a.key", environment={})
    keys.keep("ahk_own")
    assert keys.current() == "ahk_own"
    assert "could not be written" in caplog.text
    assert "ahk_own" not in caplog.text


def test_key_that_could_not_be_stored_is_written_later(tmp_path: Path) -> None:
    file = tmp_path / "absent" / "a.key"
    keys = AgentKeys(key="ahk_given", key_file=file, environment={})
    keys.keep("ahk_own")
    keys.write_again()
    file.parent.mkdir()
    keys.write_again()
    assert file.read_text() == "ahk_own\n"
    # The file may be replaced from now on.
    file.unlink()
    keys.write_again()
    assert not file.exists()


def test_hint_names_the_stored_key_that_the_registry_does_not_accept(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    keys = AgentKeys(key="ahk_given", key_file=file, environment={})
    unknown = NotAuthorized("HTTP 401", status=401)
    create = "lifesign keys create --role agent --agent-id a --name a"
    assert keys.hint(unknown, "a").endswith(create)
    file.write_text("ahk_own\n")
    file.chmod(0o600)
    assert keys.current() == "ahk_own"
    assert f"the key in {file}, " in keys.hint(unknown, "a")
    assert f"{create} --write-key {file}. " in keys.hint(unknown, "a")
    assert keys.hint(Unprocessable("HTTP 422", status=422), "a") == ""


def test_key_without_a_file_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    AgentKeys(key="ahk_given", environment={}).keep("ahk_own")
    assert "set a key_file" in caplog.text
    caplog.clear()
    # The agent does not return.
    AgentKeys(key="ahk_given", environment={}, has_fixed_id=False).keep("ahk_own")
    assert caplog.text == ""


def test_missing_or_invalid_key_is_refused_without_being_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="key_file"):
        AgentKeys(environment={})
    with pytest.raises(InvalidValue, match=r"none\.key.* first start"):
        AgentKeys(key_file=tmp_path / "none.key", environment={})
    with pytest.raises(InvalidValue) as wrong:
        AgentKeys(key="two words", environment={})
    assert "two words" not in str(wrong.value)
    file = tmp_path / "a.key"
    file.write_text("x" * (MAX_SECRET_BYTES + 1))
    file.chmod(0o600)
    with pytest.raises(InvalidValue, match="at most 8192 bytes"):
        AgentKeys(key_file=file, environment={})
    with pytest.raises(InvalidValue, match="readable file"):
        AgentKeys(key_file=tmp_path, environment={})


def test_keys_are_not_shown() -> None:
    assert "ahk_given" not in repr(AgentKeys(key="ahk_given", environment={}))


def test_registry_url_is_taken_from_argument_or_environment() -> None:
    assert registry_url("http://a", {"LIFESIGN_REGISTRY": "http://b"}) == "http://a"
    assert registry_url(None, {"LIFESIGN_REGISTRY": "http://b"}) == "http://b"
    with pytest.raises(InvalidValue, match="LIFESIGN_REGISTRY"):
        registry_url(None, {})


def test_key_file_is_read_again_after_a_refusal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.key"
    keys = AgentKeys(key="ahk_given", key_file=file, environment={})
    keys.keep("ahk_own")
    file.write_text("ahk_rotated\n")
    file.chmod(0o640)
    assert keys.current() == "ahk_own"
    assert keys.is_replaced("ahk_own")
    assert keys.current() == "ahk_rotated"
    # A second request was refused with the former key; there is no third key.
    assert keys.is_replaced("ahk_own")
    assert not keys.is_replaced("ahk_rotated")
    assert len(caplog.records) == 1
    # A file that is being written, or cannot be read, changes nothing.
    for content in ("", "two words"):
        file.write_text(content)
        assert not keys.is_replaced("ahk_rotated")
    file.unlink()
    assert keys.is_replaced("ahk_rotated")
    assert keys.current() == "ahk_given"


def test_own_key_without_a_stored_copy_is_kept_after_a_refusal(tmp_path: Path) -> None:
    for file in (None, tmp_path / "absent" / "a.key"):
        keys = AgentKeys(key="ahk_given", key_file=file, environment={})
        keys.keep("ahk_own")
        assert not keys.is_replaced("ahk_own")
        assert keys.current() == "ahk_own"


def test_file_of_the_given_key_is_read_again_after_a_refusal(tmp_path: Path) -> None:
    given = tmp_path / "given.key"
    os.mkfifo(given)
    keys = AgentKeys(key="ahk_given", key_file=tmp_path / "a.key", given_file=given, environment={})
    # A pipe would block until another process writes to it.
    assert not keys.is_replaced("ahk_given")
    given.unlink()
    assert not keys.is_replaced("ahk_given")
    given.write_text("ahk_rotated")
    assert keys.is_replaced("ahk_given")
    assert keys.current() == "ahk_rotated"


def test_key_file_that_is_a_mount_point_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    assert AgentKeys(key="ahk_given", key_file=file, environment={}).file_fault() is None
    file.touch(mode=0o600)
    module = "from lifesign.agent.credentials import AgentKeys"
    keys = "AgentKeys(key='ahk_given', key_file=pathlib.Path(sys.argv[1]), environment={})"
    code = f"import pathlib, sys; {module}; print({keys}.file_fault().name)"
    assert run_with_mounted(file, code) == "key_file"
