"""The lock that keeps a second crawl off an SQLite file."""

from pathlib import Path

import pytest

from lifesign.crawl.database_lock import LOCK_SUFFIX, locked_database
from lifesign.errors import InvalidValue
from lifesign.storage.errors import ForeignDatabase


def lock_of(file: Path) -> Path:
    return file.with_name(file.name + LOCK_SUFFIX)


def test_second_crawl_of_a_database_is_refused_also_through_a_symbolic_link(tmp_path: Path) -> None:
    file, link = tmp_path / "crawl.db", tmp_path / "link.db"
    file.touch()
    link.symlink_to(file)
    with locked_database(file):
        for name in (file, link):
            with pytest.raises(InvalidValue) as refused, locked_database(name):
                pass
            assert refused.value.name == "database"
    with locked_database(link):
        assert not lock_of(link).exists()


def test_lock_file_is_kept_only_with_an_existing_database(tmp_path: Path) -> None:
    kept, gone = tmp_path / "kept.db", tmp_path / "gone.db"
    with locked_database(kept):
        kept.touch()
    with locked_database(gone):
        assert lock_of(gone).exists()
    assert lock_of(kept).exists()
    assert not lock_of(gone).exists()


@pytest.mark.parametrize("was_there", [False, True])
def test_refused_foreign_database_leaves_no_lock_file(tmp_path: Path, was_there: bool) -> None:  # noqa: FBT001 - a table
    file = tmp_path / "foreign.db"
    file.touch()
    if was_there:
        lock_of(file).touch()
    with pytest.raises(ForeignDatabase), locked_database(file):
        raise ForeignDatabase(["orders"])
    assert lock_of(file).exists() is was_there


def test_lock_file_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue), locked_database(tmp_path / "missing" / "crawl.db"):
        pass


def test_in_memory_database_is_not_locked(tmp_path: Path) -> None:
    with locked_database(None):
        assert list(tmp_path.iterdir()) == []
