import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifesign.middleware import document_file as board_module
from lifesign.middleware.document_file import MOST_DOCUMENT_BYTES, DocumentFile
from lifesign.middleware.published_document import PublishedDocument

SECOND_NS = 1_000_000_000
WALL_NS = 1_763_640_000 * SECOND_NS
BOARD_BYTES = 4096 + 2 * 40_960


def notice(number: int, document: bytes = b'{"schema_version":"0.1.0"}') -> PublishedDocument:
    at_ns = WALL_NS + number * 60 * SECOND_NS
    return PublishedDocument(at_ns, at_ns + 60 * SECOND_NS, at_ns // 1_000_000, document)


OLD, OLDER = notice(2, b"old " * 50), notice(1, b"older " * 40)
NEW = notice(3, b"new " * 70)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "board"


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> DocumentFile:
    """Shared state whose bytes every example replaces."""
    return DocumentFile(tmp_path_factory.mktemp("fuzz") / "board")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a board that holds two notices."""
    board = DocumentFile(tmp_path_factory.mktemp("whole") / "board")
    board.agree_on_offset(0, WALL_NS)
    board.write(OLDER)
    board.write(OLD)
    return os.pread(board.fd, BOARD_BYTES, 0)


# --- notices ----------------------------------------------------------------------------------------------


def test_new_document_file_has_no_document(path: Path) -> None:
    assert DocumentFile(path).read() is None


def test_newest_document_is_read_by_all_workers(path: Path) -> None:
    one, other = DocumentFile(path), DocumentFile(path)
    for number in range(1, 6):
        (one, other)[number % 2].write(notice(number, b"%d" % number))
        assert one.read() == other.read() == notice(number, b"%d" % number)
    assert DocumentFile(path).read() == notice(5, b"5")


def test_document_file_is_small_and_private(path: Path) -> None:
    DocumentFile(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size <= 128 * 1024


def test_document_above_the_size_limit_is_refused(path: Path) -> None:
    board = DocumentFile(path)
    longest = notice(1, b"x" * MOST_DOCUMENT_BYTES)
    board.write(longest)
    with pytest.raises(ValueError, match="32769"):
        board.write(notice(2, b"x" * (MOST_DOCUMENT_BYTES + 1)))
    board.write(notice(3, b"x" * MOST_DOCUMENT_BYTES))
    assert DocumentFile(path).read() == notice(3, b"x" * MOST_DOCUMENT_BYTES)
    assert path.stat().st_size == BOARD_BYTES


# --- torn and foreign bytes -------------------------------------------------------------------------------


def written_over(whole: bytes, board: DocumentFile) -> tuple[bytes, int, int]:
    """Write NEW over `whole`; return all bytes and where they begin and end to differ."""
    os.pwrite(board.fd, whole, 0)
    assert board.read() == OLD
    board.write(NEW)
    after = os.pread(board.fd, BOARD_BYTES, 0)
    changed = [at for at in range(BOARD_BYTES) if whole[at] != after[at]]
    return after, changed[0], changed[-1] + 1


def test_writer_killed_at_any_byte_leaves_the_older_document(whole: bytes, fuzzed: DocumentFile) -> None:
    after, start, end = written_over(whole, fuzzed)
    for cut in range(start, end):
        os.pwrite(fuzzed.fd, after[:cut] + whole[cut:], 0)
        assert fuzzed.read() == OLD
    os.pwrite(fuzzed.fd, after, 0)
    assert fuzzed.read() == NEW


@given(st.data())
def test_partially_written_document_in_any_byte_order_leaves_the_older_one(
    whole: bytes, fuzzed: DocumentFile, data: st.DataObject
) -> None:
    after, start, end = written_over(whole, fuzzed)
    torn = bytearray(whole)
    differing = [at for at in range(start, end) if whole[at] != after[at]]
    missing = data.draw(st.sets(st.sampled_from(differing), min_size=1))
    for at in differing:
        torn[at] = whole[at] if at in missing else after[at]
    os.pwrite(fuzzed.fd, bytes(torn), 0)
    assert fuzzed.read() == OLD


@given(st.integers(0, BOARD_BYTES - 1), st.binary(min_size=1, max_size=8192))
@example(0, bytes(8192))
@example(4096, b"\xff" * 40_960)
@example(4096 + 24, b"\xff\xff\xff\xff")
def test_overwritten_bytes_leave_a_document_that_was_written_or_none(
    whole: bytes, fuzzed: DocumentFile, at: int, noise: bytes
) -> None:
    os.pwrite(fuzzed.fd, whole, 0)
    os.pwrite(fuzzed.fd, noise[: BOARD_BYTES - at], at)
    assert fuzzed.read() in {None, OLD, OLDER}


def test_each_flipped_bit_of_the_newest_document_is_detected(whole: bytes, fuzzed: DocumentFile) -> None:
    _, first, _ = written_over(whole, fuzzed)
    second = 4096 + 40_960 if first < 4096 + 40_960 else 4096
    for at in range(second, second + 28 + len(OLD.document) + 4):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        os.pwrite(fuzzed.fd, bytes(flipped), 0)
        assert fuzzed.read() == OLDER


@given(st.binary(max_size=20_000))
@example(b"")
@example(b"# notes of an operator\n" * 500)
def test_workers_reuse_a_file_with_foreign_content(fuzzed: DocumentFile, content: bytes) -> None:
    os.pwrite(fuzzed.fd, content + bytes(BOARD_BYTES - len(content)), 0)
    assert fuzzed.read() is None
    offset_ns = fuzzed.agree_on_offset(7, WALL_NS)
    assert offset_ns == fuzzed.agree_on_offset(9, WALL_NS + 5) == WALL_NS - 7
    fuzzed.write(OLDER)
    fuzzed.write(OLD)
    assert fuzzed.read() == OLD


@pytest.mark.parametrize("content", [b"", b"\0", b"text", b"x" * 1_000_000])
def test_file_of_any_size_becomes_a_document_file(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
    board = DocumentFile(path)
    assert board.read() is None
    board.agree_on_offset(0, WALL_NS)
    board.write(OLD)
    assert DocumentFile(path).read() == OLD


def _symlink(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


def _directory(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _readable_by_all(path: Path) -> None:
    path.write_bytes(b"x")
    path.chmod(0o644)


@pytest.mark.parametrize("make", [_symlink, _directory, _fifo, _readable_by_all])
def test_insecure_file_is_quarantined_and_replaced(
    path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    make(path)
    DocumentFile(path).write(OLD)
    assert DocumentFile(path).read() == OLD
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_unmovable_file_is_an_error_with_its_path(path: Path) -> None:
    path.mkdir()
    path.with_name("board.set-aside").write_text("in the way")
    with pytest.raises(OSError, match="board"):
        DocumentFile(path)


# --- the time base ----------------------------------------------------------------------------------------


def reboot(monkeypatch: pytest.MonkeyPatch, name: bytes) -> None:
    monkeypatch.setattr(board_module, "_boot_id", lambda *_: name)


def test_workers_share_one_clock_offset_per_boot_despite_clock_changes(path: Path) -> None:
    offset_ns = DocumentFile(path).agree_on_offset(100 * SECOND_NS, WALL_NS)
    assert offset_ns + 100 * SECOND_NS == WALL_NS
    for step_ns in (3600 * SECOND_NS, -3600 * SECOND_NS):
        assert DocumentFile(path).agree_on_offset(200 * SECOND_NS, WALL_NS + step_ns) == offset_ns


def test_window_continues_with_the_wall_clock_after_a_reboot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DocumentFile(path).agree_on_offset(10**6 * SECOND_NS, WALL_NS)
    reboot(monkeypatch, b"another boot")
    later_ns = WALL_NS + 600 * SECOND_NS
    assert DocumentFile(path).agree_on_offset(5 * SECOND_NS, later_ns) + 5 * SECOND_NS == later_ns


@pytest.mark.parametrize("back_s", [1, 3600, 50 * 365 * 86_400])
def test_clock_after_a_reboot_is_not_before_the_published_document(
    path: Path, monkeypatch: pytest.MonkeyPatch, back_s: int
) -> None:
    board = DocumentFile(path)
    board.agree_on_offset(10**6 * SECOND_NS, WALL_NS)
    board.write(notice(60))
    reboot(monkeypatch, b"another boot")
    board = DocumentFile(path)
    wall_ns = notice(60).computed_ns - back_s * SECOND_NS
    assert board.agree_on_offset(5 * SECOND_NS, wall_ns) + 5 * SECOND_NS >= notice(60).computed_ns
    assert board.read() == notice(60)


def test_reboot_is_detected_from_the_clocks_without_a_boot_id(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bytes:
        raise FileNotFoundError(errno.ENOENT, "not Linux")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    up_ns = 10**6 * SECOND_NS
    first = DocumentFile(path).agree_on_offset(up_ns, WALL_NS)
    later_ns = 30 * SECOND_NS
    assert DocumentFile(path).agree_on_offset(up_ns + later_ns, WALL_NS + later_ns) == first
    rebooted = DocumentFile(path).agree_on_offset(0, WALL_NS + 600 * SECOND_NS)
    assert rebooted == WALL_NS + 600 * SECOND_NS


def test_damaged_time_base_is_recreated(whole: bytes, fuzzed: DocumentFile) -> None:
    header = 72
    os.pwrite(fuzzed.fd, whole, 0)
    agreed_ns = fuzzed.agree_on_offset(0, WALL_NS + 10**12)
    assert agreed_ns == WALL_NS
    for at in range(header):
        flipped = bytearray(whole)
        flipped[at] ^= 0xFF
        os.pwrite(fuzzed.fd, bytes(flipped), 0)
        anew_ns = fuzzed.agree_on_offset(0, WALL_NS + 10**12)
        # Padding carries no information; otherwise the time of the notices is used.
        assert anew_ns in {agreed_ns, WALL_NS + 10**12}
        assert fuzzed.read() == OLD
        assert fuzzed.agree_on_offset(3, WALL_NS) == anew_ns


def test_locked_document_file_does_not_block_a_worker(path: Path) -> None:
    held = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    one, other = DocumentFile(path), DocumentFile(path)
    offset_ns = one.agree_on_offset(5, WALL_NS)
    assert offset_ns == other.agree_on_offset(7, WALL_NS + 2) == WALL_NS - 5
    os.close(held)
    # The first to hold the lock writes it: a later step of the wall clock changes nothing.
    one.write_offset()
    other.write_offset()
    assert DocumentFile(path).agree_on_offset(9, WALL_NS + 3600 * SECOND_NS) == offset_ns


def test_clock_offset_written_by_another_worker_is_kept(path: Path) -> None:
    held = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    late = DocumentFile(path)
    late.agree_on_offset(0, WALL_NS + 1)
    os.close(held)
    assert DocumentFile(path).agree_on_offset(0, WALL_NS) == WALL_NS
    late.write_offset()
    assert DocumentFile(path).agree_on_offset(0, WALL_NS + 10**12) == WALL_NS
