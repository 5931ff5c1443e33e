import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import make_url
from tests.support.small_disk import fill, mounted

from lifesign.domain.events.chain import Checkpoint
from lifesign.domain.events.database_marker import DatabaseMarker
from lifesign.errors import InvalidValue
from lifesign.registry.database_identity.marker_file import (
    MAX_BYTES,
    MarkerFile,
    found_marker,
    marker_file,
    put_marker,
    same_for_all_spellings,
    state_directory,
)
from lifesign.registry.errors import InvalidMarker, NewerMarker

MARKER = DatabaseMarker(installation_id="ins_1", epoch=3, head=Checkpoint(10, "a" * 64))


@pytest.fixture
def file(tmp_path: Path) -> MarkerFile:
    return marker_file(f"sqlite:///{tmp_path}/registry.db", tmp_path / "state" / "deep")


def test_marker_reads_back_and_is_private(file: MarkerFile) -> None:
    assert file.read() is None
    file.write(MARKER)
    assert file.read() == MARKER
    newer = DatabaseMarker(installation_id="ins_1", epoch=4, head=Checkpoint(11, "b" * 64))
    file.write(newer)
    assert file.read() == newer
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.directory.stat().st_mode & 0o777 == 0o700
    # Nothing is left beside it.
    assert list(file.directory.iterdir()) == [file.path]


@pytest.mark.parametrize(("content", "why"), [
    (b"", "it is damaged"),
    (b"\0" * 300, "it is damaged"),
    (b"[" * 4_000, "it is damaged"),
    (b"x" * (MAX_BYTES + 1), f"larger than {MAX_BYTES} bytes"),
    (b'{"format": 0}', "its format is 0, not 1"),
    ({"sequence": -1}, "it is damaged"),
    ({"sequence": 2**53}, "it is damaged"),
    ({"epoch": "3"}, "it is damaged"),
    ({"hash": "A" * 64}, "it is damaged"),
    ({"installation_id": None}, "it is damaged"),
])  # fmt: skip
def test_a_damaged_marker_is_named(file: MarkerFile, content: bytes | dict[str, object], why: str) -> None:
    file.write(MARKER)
    if isinstance(content, dict):
        content = json.dumps(json.loads(file.path.read_bytes()) | content).encode()
    file.path.write_bytes(content)
    with pytest.raises(InvalidMarker) as refused:
        file.read()
    assert refused.value.file == str(file.path)
    assert refused.value.why.endswith(why)


def test_a_marker_of_a_newer_format_is_not_called_damaged(file: MarkerFile) -> None:
    file.write(MARKER)
    file.path.write_text('{"format": 2}')
    with pytest.raises(NewerMarker) as refused:
        file.read()
    assert (refused.value.file, refused.value.found, refused.value.supported) == (str(file.path), 2, 1)


def test_members_of_a_later_version_are_ignored(file: MarkerFile) -> None:
    file.write(MARKER)
    file.path.write_text(json.dumps(json.loads(file.path.read_text()) | {"host": "a"}))
    assert file.read() == MARKER


@pytest.mark.parametrize("kind", ["directory", "pipe", "link"])
def test_a_marker_that_is_no_file_is_refused_at_once(file: MarkerFile, kind: str, tmp_path: Path) -> None:
    file.directory.mkdir(parents=True)
    if kind == "directory":
        file.path.mkdir()
    elif kind == "pipe":
        os.mkfifo(file.path)
    else:
        file.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises((InvalidMarker, InvalidValue)):
        found_marker(file)


def test_equivalent_database_urls_share_one_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "linked").symlink_to("data")
    monkeypatch.chdir(tmp_path / "data")
    names = {
        same_for_all_spellings(make_url(url))
        for url in (
            f"sqlite:///{tmp_path}/data/registry.db",
            f"sqlite:///{tmp_path}/linked/registry.db",
            f"sqlite:///{tmp_path}/data/../data/registry.db?timeout=3",
            "sqlite:///registry.db",
            "sqlite:///../data/registry.db",
        )
    }
    assert names == {f"sqlite:///{tmp_path}/data/registry.db"}
    # A link in place of the file keeps its name: that it leads elsewhere one day must be noticed.
    (tmp_path / "current.db").symlink_to("data/registry.db")
    assert same_for_all_spellings(make_url(f"sqlite:///{tmp_path}/current.db")) not in names
    assert same_for_all_spellings(make_url("sqlite://")) is None


def test_marker_is_kept_where_a_linked_directory_leads_and_when_it_leads_elsewhere(tmp_path: Path) -> None:
    for name in ("disk-1", "disk-2"):
        (tmp_path / name).mkdir()
    linked = tmp_path / "linked"
    linked.symlink_to("disk-1")

    def marker_of(directory: str) -> MarkerFile:
        return marker_file(f"sqlite:///{tmp_path}/{directory}/registry.db", tmp_path / "state")

    marker_of("linked").write(MARKER)
    assert marker_of("disk-1").read() == MARKER
    later = replace(MARKER, head=Checkpoint(MARKER.head.sequence + 1, MARKER.head.hash))
    marker_of("disk-1").write(later)
    assert marker_of("linked").read() == later
    for directory in ("linked", "disk-1"):
        marker_of(directory).path.write_text("{")
        assert marker_of("linked").read() in {MARKER, later}
        marker_of(directory).write(later)
    marker_of("linked").write(MARKER)
    linked.unlink()
    linked.symlink_to("disk-2")
    assert marker_of("linked").read() == MARKER
    marker_of("disk-2").write(replace(later, installation_id="another"))
    assert marker_of("linked").read() == MARKER


def test_password_and_spelling_of_the_server_do_not_change_the_marker_path() -> None:
    names = {
        same_for_all_spellings(make_url(url))
        for url in (
            "postgresql://ah@db/ah",
            "postgres://ah:secret@DB:5432/ah",
            "postgresql+asyncpg://ah:other@db/ah?password=secret",
        )
    }
    assert names == {"postgresql://ah@db:5432/ah"}
    others = [
        "postgresql://ah@db/other", "postgresql://bo@db/ah", "postgresql://ah@db:5433/ah",
        "postgresql://ah@/ah?host=/run/one", "postgresql://ah@/ah?host=/run/two",
    ]  # fmt: skip
    assert len({same_for_all_spellings(make_url(url)) for url in others} | names) == len(others) + 1


def test_several_databases_share_a_marker_directory(tmp_path: Path) -> None:
    one, two = (marker_file(f"sqlite:///{tmp_path}/{name}.db", tmp_path) for name in ("one", "two"))
    one.write(MARKER)
    assert two.read() is None


def test_a_database_in_memory_has_no_marker(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue):
        marker_file("sqlite://", tmp_path)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = marker_file(f"sqlite:///{tmp_path}/registry.db", tmp_path / "file")
    for act in (file.check_writable, lambda: put_marker(file, MARKER)):
        with pytest.raises(InvalidValue) as refused:
            act()
        assert refused.value.name == "state_dir"


def test_marker_directory_must_be_given_without_a_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(InvalidValue) as refused:
        state_directory(None, {})
    assert refused.value.name == "state_dir"
    assert state_directory(tmp_path, {}) == tmp_path


@pytest.mark.fault
def test_full_or_read_only_disk_is_reported_before_the_start_and_keeps_the_marker(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        file = marker_file(f"sqlite:///{tmp_path}/registry.db", disk / "state")
        file.check_writable()
        file.write(MARKER)
        fill(disk)
        with pytest.raises(InvalidValue, match=os.strerror(errno.ENOSPC)):
            file.check_writable()
        with pytest.raises(OSError, match=rf"Errno {errno.ENOSPC}\b"):
            file.write(DatabaseMarker(installation_id="ins_1", epoch=3, head=Checkpoint(11, "b" * 64)))
        assert file.read() == MARKER
        assert [each.name for each in file.directory.iterdir()] == [file.path.name]
    with mounted(tmp_path / "disk", "size=64k,ro") as disk:
        file = marker_file(f"sqlite:///{tmp_path}/registry.db", disk / "state")
        with pytest.raises(InvalidValue, match="Read-only file system"):
            file.check_writable()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root makes files for others")
def test_files_written_by_root_belong_to_the_service(tmp_path: Path) -> None:
    (tmp_path / "service").mkdir()
    os.chown(tmp_path / "service", 64_477, 64_478)
    file = marker_file(f"sqlite:///{tmp_path}/registry.db", tmp_path / "service" / "state")
    file.write(MARKER)
    for path in (file.directory, file.path):
        assert (path.stat().st_uid, path.stat().st_gid) == (64_477, 64_478)
