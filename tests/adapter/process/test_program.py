import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from lifesign.adapter.errors import CommandFailed
from lifesign.adapter.process.agent_user import AgentUser
from lifesign.adapter.process.program import program_called

ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root may become another user")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can reach; those of pytest are its own user's."""
    with TemporaryDirectory() as place:
        Path(place).chmod(0o711)
        yield Path(place).resolve()


def script(path: Path, first_line: str = "#!/bin/sh", mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(f"{first_line}\n".encode())
    path.chmod(mode)
    return path


def test_first_executable_program_in_path_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "first" / "work").mkdir(parents=True)
    script(place / "second" / "work", mode=0o644)
    third = script(place / "third" / "work")
    monkeypatch.setenv("PATH", os.pathsep.join(str(place / one) for one in ("first", "second", "third")))
    assert program_called("work") == third
    monkeypatch.chdir(place / "third")
    assert program_called("./work") == third
    monkeypatch.setenv("PATH", f"{place / 'first'}{os.pathsep}")
    assert program_called("work") == third


def test_missing_program_differs_from_one_that_cannot_start(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandFailed) as absent:
        program_called(str(place / "absent"))
    assert absent.value.reason == "no such file"
    shut = script(place / "work", mode=0o644)
    with pytest.raises(CommandFailed) as failed:
        program_called(str(shut))
    assert failed.value.reason == f"{shut}: {shut} has mode 0644 and user {os.geteuid()}"
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(CommandFailed, match="has mode 0644"):
        program_called("work")


@pytest.mark.parametrize(
    ("first_line", "why"),
    [
        ("#!/no/such/python -u", "its first line names '/no/such/python', which does not exist"),
        ("#! \t/no/such/python", "its first line names '/no/such/python', which does not exist"),
        ("#!/bin/sh\r", r"its first line names '/bin/sh\\r', which does not exist"),
    ],
)
def test_script_with_unusable_interpreter_is_reported(place: Path, first_line: str, why: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        program_called(str(script(place / "work", first_line)))
    assert failed.value.reason == f"{place / 'work'}: {why}".replace("\\\\", "\\")


@pytest.mark.parametrize(
    "first_line", ["#!/bin/sh -e", "#!", "#! ", "#!sh", "echo hello", "#!/usr/bin/env sh", ""]
)
def test_problems_visible_only_at_start_do_not_fail_the_check(place: Path, first_line: str) -> None:
    work = script(place / "work", first_line)
    assert program_called(str(work)) == work


@pytest.mark.parametrize("shut", ["/proc/1/cwd/x", "/dev/null/x", "/" + "x" * 300, "", "/absent"])
def test_unreadable_directory_in_path_is_skipped(
    place: Path, monkeypatch: pytest.MonkeyPatch, shut: str
) -> None:
    work = script(place / "work")
    monkeypatch.setenv("PATH", f"{shut}{os.pathsep}{place}")
    assert program_called("work") == work
    with pytest.raises(CommandFailed):
        program_called(str(script(place / "other", f"#!/{'x' * 300}\0")))


@ONLY_ROOT
def test_directories_without_permission_are_skipped_for_other_users(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(place / "roots" / "work")
    (place / "roots").chmod(0o700)
    work = script(place / "work")
    monkeypatch.setenv("PATH", f"{place / 'roots'}{os.pathsep}{place}")
    with AgentUser.named("nobody").rights():
        assert program_called("work") == work


@ONLY_ROOT
def test_program_that_the_user_cannot_start_is_skipped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = AgentUser.named("nobody")
    inner = script(place / "roots" / "python")
    (place / "roots").chmod(0o700)
    (place / "venv").mkdir(mode=0o755)
    (place / "venv" / "python").symlink_to(inner)
    theirs = script(place / "theirs" / "python")
    (place / "theirs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place / 'venv'}{os.pathsep}{place / 'theirs'}")
    assert program_called("python") == place / "venv" / "python"
    assert program_called("python", nobody) == theirs
    monkeypatch.setenv("PATH", str(place / "venv"))
    with pytest.raises(CommandFailed) as failed:
        program_called("python", nobody)
    linked, shut = place / "venv" / "python", place / "roots"
    assert failed.value.reason == f"{linked}: {shut} has mode 0700 and user 0"
    work = script(place / "theirs" / "work", f"#!{linked}")
    with pytest.raises(CommandFailed, match=f"'{linked}': {shut} has mode 0700"):
        program_called(str(work), nobody)
    assert (os.geteuid(), os.getegid()) == (0, os.getgid())
    assert os.access(place / "roots", os.W_OK, effective_ids=True)
