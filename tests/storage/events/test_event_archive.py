from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.storage.events.test_event_log import draft, written
from tests.support.event_logs import read_archive, verify

from lifesign.domain.errors import InvalidEvent
from lifesign.domain.events.chain import GENESIS, Event, agent_of, chain
from lifesign.domain.events.event import EventDraft
from lifesign.storage.events.event_archive import (
    Archived,
    ArchiveFile,
    archive_lock,
    erase_in,
    files_in,
)

FIRST = 5
GONE = {"agent_1": 1_000}


def chained(drafts: Iterable[EventDraft]) -> list[Event]:
    """Give drafts their places in a log of which the first few events are in another file."""
    before = [draft(number, "other") for number in range(1, FIRST)]
    events, checkpoint = [], GENESIS
    for one in [*before, *drafts]:
        events.append(chain(checkpoint, f"evt_{checkpoint.sequence}", one, 1_763_640_000.0))
        checkpoint = events[-1].checkpoint
    return events


def archived(directory: Path, *drafts: EventDraft) -> Archived:
    events = chained(drafts)[FIRST - 1 :]
    with ArchiveFile(directory, FIRST, events[-1].sequence) as file:
        file.write(events)
        file.finish(events[-1].hash)
    (found,) = files_in(directory)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Archived:
    """Five events, of which the second and the fourth are of the agent that will be erased."""
    return archived(
        tmp_path, draft(1, "agent_2"), draft(2), draft(3, "agent_10"), written("r", "i"), draft(5, "agent_2")
    )


def erased(file: Archived) -> list[int]:
    return [event.sequence for event in read_archive(file.path) if event.is_erased]


def test_erasing_payloads_of_an_agent_keeps_the_hash_chain_valid(file: Archived) -> None:
    before = [*read_archive(file.path)]
    assert erase_in(file, GONE) == 2
    assert erased(file) == [FIRST + 1, FIRST + 3]
    after = [*read_archive(file.path)]
    start = chained([])[-1].checkpoint
    assert verify(after, start) == verify(before, start)
    assert {agent_of(event) for event in after} == {None, "agent_2", "agent_10"}
    assert erase_in(file, GONE) == 0


def test_only_events_before_the_erasure_are_erased(file: Archived) -> None:
    assert erase_in(file, {"agent_1": FIRST + 3}) == 1
    assert erased(file) == [FIRST + 1]


def test_agent_named_only_by_others_changes_no_archive(file: Archived) -> None:
    before = file.path.read_bytes()
    # A resource, a lease's field, and the beginning of a name.
    assert erase_in(file, {"r": 1_000, "holder": 1_000, "agent": 1_000}) == 0
    assert file.path.read_bytes() == before


def test_moved_or_used_file_is_not_removed(file: Archived) -> None:
    with archive_lock(file.path.parent) as is_alone:
        assert is_alone
        assert erase_in(file, GONE) is None
    assert erased(file) == []
    file.path.unlink()
    assert erase_in(file, GONE) is None


DAMAGE: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "nothing": lambda _lines: [],
    "half a line": lambda lines: [*lines[:-1], lines[-1][:-1]],
    "its end is missing": lambda lines: lines[:-1],
    "its beginning is missing": lambda lines: lines[1:],
    "more than its name says": lambda lines: [*lines, lines[-1]],
    "one is missing": lambda lines: [*lines[:1], *lines[2:], lines[-1]],
    "others in their places": lambda lines: lines[::-1],
    "no event": lambda lines: [*lines[:1], b'{"agent_id": "agent_1"}\n', *lines[2:]],
    "deep JSON": lambda lines: [*lines[:-1], b"[" * 100_000 + b"\n"],
    "no JSON": lambda lines: [*lines[:-1], b"{\n"],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_file_with_other_content_than_its_name_is_not_changed(file: Archived, damage: str) -> None:
    lines = file.path.read_bytes().splitlines(keepends=True)
    damaged = b"".join(DAMAGE[damage](lines))
    file.path.write_bytes(damaged)
    with pytest.raises(InvalidEvent):
        erase_in(file, GONE)
    assert file.path.read_bytes() == damaged


def test_files_of_different_logs_do_not_replace_each_other(file: Archived, tmp_path: Path) -> None:
    before = file.path.read_bytes()
    with ArchiveFile(tmp_path, file.first_sequence, file.last_sequence) as writer:
        writer.write_lines([b"another log"])
        other = writer.finish("0" * 64)
    assert file.path.read_bytes() == before
    assert files_in(tmp_path) == sorted([file, other])


def test_only_archive_files_in_the_directory_count(file: Archived, tmp_path: Path) -> None:
    (tmp_path / f"events-000000000001-000000000004-{'0' * 16}.jsonl").symlink_to(file.path)
    (tmp_path / "events-000000000001-000000000004.jsonl").touch()
    (tmp_path / "events-1-4.jsonl").touch()
    (tmp_path / f".{file.path.name}.0123456789abcdef").touch()
    assert files_in(tmp_path) == [file]
    assert files_in(tmp_path / "none") == []
