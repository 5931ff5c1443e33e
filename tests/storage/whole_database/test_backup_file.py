import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lifesign.errors import InvalidValue
from lifesign.storage.errors import InvalidBackup
from lifesign.storage.whole_database import backup_file
from lifesign.storage.whole_database.backup_file import (
    BackupHeader,
    check,
    reading,
    writing,
)

HEADER = BackupHeader(revision="0001", created_at_s=1_763_640_000.25)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A backup of two tables, one of them empty."""
    file = tmp_path / "backup.gz"
    with writing(file, HEADER) as writer:
        writer.begin_table("agents", ["id", "name"])
        for number in range(2_500):
            writer.add_row([number, f"näme {number}"])
        writer.begin_table("keys", ["key_id"])
    return file


def test_written_rows_are_read_in_batches(file: Path) -> None:
    with reading(file) as (header, batches):
        found = list(batches)
    assert header == HEADER
    assert [(batch.table, len(batch.rows)) for batch in found] == [
        ("agents", 1_000), ("agents", 1_000), ("agents", 500),
    ]  # fmt: skip
    assert found[-1].rows[-1] == [2_499, "näme 2499"]
    assert found[-1].columns == ("id", "name")


def test_equal_backups_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with writing(tmp_path / name, HEADER) as writer:
            writer.begin_table("agents", ["id"])
            writer.add_row([0.1 + 0.2])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_backup_truncated_at_any_byte_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "small.gz"
    with writing(file, HEADER) as writer:
        writer.begin_table("agents", ["id"])
        writer.add_row([1])
    whole = file.read_bytes()
    check(file)
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(InvalidBackup):
            check(file)


def test_backup_with_a_changed_byte_is_refused_or_equal(tmp_path: Path) -> None:
    file = tmp_path / "small.gz"
    with writing(file, HEADER) as writer:
        writer.begin_table("agents", ["id"])
        writer.add_row([1])
    whole = file.read_bytes()
    lines = gzip.decompress(whole)
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            check(file)
        except InvalidBackup:
            continue
        # The time, the operating system and the like in gzip's own header.
        assert place < 10
        assert gzip.decompress(file.read_bytes()) == lines


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines.replace(b"[7,", b"[8,", 1),
        lambda lines: lines.replace(b"[7,", b"[7,null,", 1),
        lambda lines: b"".join(lines.splitlines(keepends=True)[:-1]),
        lambda lines: lines + b"[1]\n",
        lambda lines: lines.rstrip(),
        lambda lines: lines.replace(b'"0001"', b'"0002"', 1),
        lambda lines: lines.replace(b'"version":1', b'"version":2', 1),
        lambda lines: lines.replace(b"lifesign-backup", b"another-program", 1),
        lambda lines: lines.replace(b'"keys"', b'"agents"', 1),
        lambda lines: b"not json\n" + lines,
        lambda lines: b"",
        lambda lines: b"[" * 100_000 + b"\n",
        lambda lines: _created_at(lines, b"1e300"),
        lambda lines: _created_at(lines, b"NaN"),
        lambda lines: _created_at(lines, b"-1"),
    ],
)
def test_altered_backup_with_a_valid_gzip_checksum_is_refused(
    file: Path, change: Callable[[bytes], bytes]
) -> None:
    lines = gzip.decompress(file.read_bytes())
    assert change(lines) != lines
    file.write_bytes(gzip.compress(change(lines)))
    with pytest.raises(InvalidBackup):
        check(file)


def _created_at(lines: bytes, at_s: bytes) -> bytes:
    """Return the lines with this time of creation, and a valid checksum."""
    *first, _ = lines.replace(b"1763640000.25", at_s, 1).splitlines(keepends=True)
    end = {"rows": {"agents": 2_500, "keys": 0}, "sha256": hashlib.sha256(b"".join(first)).hexdigest()}
    return b"".join(first) + json.dumps(end).encode() + b"\n"


def test_endless_backup_row_is_refused_at_the_size_limit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_file, "MAX_LINE_BYTES", 100)
    file.write_bytes(gzip.compress(b"[" + b" " * 1_000_000))
    with pytest.raises(InvalidBackup, match="too large"):
        check(file)


@pytest.mark.parametrize("name", ["absent.gz", "."])
def test_unreadable_file_is_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidBackup, match=r"No such file|Is a directory"):
        check(tmp_path / name)


def test_failed_backup_keeps_the_previous_file(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(LookupError), writing(file, HEADER):
        raise LookupError("on purpose")
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_directory_as_backup_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="a directory"), writing(tmp_path, HEADER):
        pass
