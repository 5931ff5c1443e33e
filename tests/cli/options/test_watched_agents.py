from pathlib import Path

import pytest

from lifesign.cli.options import watched_agents
from lifesign.cli.options.watched_agents import read_watched
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.errors import InvalidValue


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def key_file(place: Path, key: str) -> Path:
    place.write_text(f"{key}\n")
    place.chmod(0o600)
    return place


def test_sessions_are_mapped_to_agents_with_their_keys(tmp_path: Path) -> None:
    one, other = key_file(tmp_path / "1", "ahk_1"), key_file(tmp_path / "2", "ahk_2")
    watched = read_watched(["ses_1=a:1", "ses=2=b", "ses_3=a:1"], [f"a:1={one}", f"b={other}"])
    assert watched.sessions == {"a:1": ["ses_1", "ses_3"], "b": ["ses=2"]}
    assert watched.keys == {"a:1": "ahk_1", "b": "ahk_2"}
    assert "ahk_" not in repr(watched)


def test_one_key_of_a_file_or_the_environment_applies_to_all_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = key_file(tmp_path / "key=1", "ahk_1")
    other = key_file(tmp_path / "other", "ahk_3")
    assert read_watched(["s=a"], [str(file)]).keys == {"a": "ahk_1"}
    monkeypatch.setenv(KEY_VARIABLE, "ahk_2")
    assert read_watched(["s=a"], ()).keys == {"a": "ahk_2"}
    assert read_watched(["s=a", "t=b"], [str(file), f"b={other}"]).keys == {"a": "ahk_1", "b": "ahk_3"}


def test_key_directory_has_one_file_per_agent(tmp_path: Path) -> None:
    for name in ("a", "b", ".hidden", "no agent"):
        key_file(tmp_path / name, f"ahk_{name[0]}")
    (tmp_path / "c").mkdir()
    assert read_watched((), [str(tmp_path)]).sessions == {"a": [], "b": []}
    named = read_watched(["s=b"], [str(tmp_path)])
    assert (named.sessions, named.keys) == ({"b": ["s"]}, {"b": "ahk_b"})


@pytest.mark.parametrize(
    ("maps", "key_files", "message"),
    [
        ([], [], "--map: expected SESSION=AGENT_ID"),
        (["ses_1"], [], "--map: expected SESSION=AGENT_ID"),
        (["=a"], [], "--map: expected SESSION=AGENT_ID"),
        (["ses_1="], [], "--map: expected SESSION=AGENT_ID"),
        (["ses_1=.."], [], "--map: expected SESSION=AGENT_ID"),
        (["a/b=c"], [], "--map: expected SESSION=AGENT_ID"),
        (["s=a", "s=b"], [], "--map: s"),
        (["s=a"], [], "key: $LIFESIGN_KEY --key-file"),
        (["s=a"], ["a=/no/such"], "--key-file: /no/such"),
        (["s=a"], ["/x", "/y"], "--key-file: AGENT_ID=FILE"),
    ],
)
def test_invalid_arguments_are_refused(maps: list[str], key_files: list[str], message: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        read_watched(maps, key_files)
    assert [word for word in message.split() if word not in str(refused.value)] == []


def test_number_of_watched_agents_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_agents, "MAX_AGENTS", 1)
    with pytest.raises(InvalidValue, match="at most 1"):
        read_watched(["s=a", "t=b"], ())
