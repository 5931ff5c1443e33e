"""The store of evidence: the bytes behind each finding."""

import errno
import gzip
import hashlib
import logging
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.preloaded import PYTHON, PreloadedProcess
from tests.support.servers import PATIENCE_SECONDS

from lifesign.errors import InvalidValue
from lifesign.prober.definition.models import EvidenceSettings
from lifesign.prober.evidence import evidence_store
from lifesign.prober.evidence.evidence_store import (
    MAX_BODY_BYTES,
    MAX_REMEMBERED,
    REMEMBERED_S,
    TOUCH_AFTER_S,
    WARN_EVERY_S,
    EvidenceStore,
)

KEEP_S = 86_400.0
BODY = b'{"name": "Weather"}'
DIGEST = hashlib.sha256(BODY).hexdigest()


class Wound:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        # Files that are being written have the age that the system gives them.
        self.start_s = self.now_s = time.time() // 60 * 60

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Wound:
    return Wound()


@pytest.fixture
def evidence(tmp_path: Path, clock: Wound) -> Iterator[EvidenceStore]:
    opened = EvidenceStore(tmp_path / "kept", max_bytes=10_000_000, keep_s=KEEP_S, clock_s=clock)
    yield opened
    opened.close()


def files_in(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.parent != directory)


def rewrite(file: Path, raw: bytes) -> None:
    """Change the content of a file, but not its age."""
    before = file.stat()
    file.write_bytes(raw)
    os.utime(file, (before.st_atime, before.st_mtime))


def settled(evidence: EvidenceStore) -> None:
    """Wait for a sweep that runs aside."""
    sweeper = evidence._sweeper
    if sweeper is not None:
        sweeper.join()


# --- keeping and showing -------------------------------------------------------------------------


def test_stored_evidence_can_be_read(evidence: EvidenceStore) -> None:
    assert evidence.keep(BODY) == DIGEST
    assert evidence.read(DIGEST) == BODY
    assert evidence.holds(DIGEST)


def test_body_is_stored_by_hash_as_a_private_gzip_file(evidence: EvidenceStore, tmp_path: Path) -> None:
    evidence.keep(BODY)
    (file,) = files_in(tmp_path / "kept")
    assert file == tmp_path / "kept" / DIGEST[:2] / f"{DIGEST[2:]}.gz"
    assert gzip.decompress(file.read_bytes()) == BODY
    for path in [file, *file.parents[:2], *(tmp_path / "kept").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path


@given(body=st.binary(max_size=5000))
def test_any_body_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, body: bytes) -> None:
    opened = EvidenceStore(tmp_path_factory.getbasetemp() / "any", max_bytes=10**9, keep_s=KEEP_S)
    digest = opened.keep(body)
    assert (digest is None) == (body == b"")
    if digest is not None:
        assert opened.read(digest) == body
    opened.close()


def test_empty_and_oversized_bodies_are_not_stored(evidence: EvidenceStore) -> None:
    largest = os.urandom(MAX_BODY_BYTES)
    digest = evidence.keep(largest)
    assert digest is not None
    assert evidence.read(digest) == largest
    assert evidence.keep(largest + b"x") is None
    assert evidence.keep(b"") is None


def test_existing_body_is_not_written_again(evidence: EvidenceStore, tmp_path: Path, clock: Wound) -> None:
    evidence.keep(BODY)
    (file,) = files_in(tmp_path / "kept")
    before = file.stat()
    clock.now_s += REMEMBERED_S
    for keeper in (evidence, EvidenceStore(tmp_path / "kept", max_bytes=10**7, keep_s=KEEP_S, clock_s=clock)):
        assert keeper.keep(BODY) == DIGEST
    assert (file.stat().st_ino, file.stat().st_mtime) == (before.st_ino, before.st_mtime)
    assert len(files_in(tmp_path / "kept")) == 1


def test_evidence_removed_by_others_is_stored_again(
    evidence: EvidenceStore, tmp_path: Path, clock: Wound
) -> None:
    evidence.keep(BODY)
    files_in(tmp_path / "kept")[0].unlink()
    assert evidence.read(DIGEST) is None
    clock.now_s += REMEMBERED_S
    assert not evidence.holds(DIGEST)
    assert evidence.keep(BODY) == DIGEST
    assert evidence.read(DIGEST) == BODY


def test_number_of_remembered_hashes_is_bounded(
    evidence: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_REMEMBERED <= 100_000
    monkeypatch.setattr(evidence_store, "MAX_REMEMBERED", 3)
    # The first one has the room swept aside, after which nothing is remembered.
    evidence.keep(b"first")
    settled(evidence)
    for number in range(10):
        evidence.keep(str(number).encode())
    assert len(evidence._remembered) == 3


# --- files that are not evidence -----------------------------------------------------------------


@pytest.mark.parametrize(
    "digest",
    [
        "",
        "0" * 64,
        "../" + "0" * 61,
        "/etc/passwd",
        "0" * 63,
        "A" * 64,
        "0" * 64 + "\n",
        "..",
        "\x00" * 64,
    ],
)
def test_invalid_digest_reads_no_file(evidence: EvidenceStore, digest: str) -> None:
    assert evidence.read(digest) is None
    assert not evidence.holds(digest)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"no gzip",
        gzip.compress(b"something else"),
        gzip.compress(BODY)[:-1],
        gzip.compress(bytes(MAX_BODY_BYTES + 1)),
        # Made by the test that needs it, not by each process that imports this file.
        lambda: gzip.compress(bytes(2**28)),
    ],
    ids=["empty", "not gzip", "another body", "cut off", "too large", "a bomb"],
)
def test_damaged_file_is_detected_by_its_hash_and_replaced(
    evidence: EvidenceStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: bytes | Callable[[], bytes],
) -> None:
    evidence.keep(BODY)
    (file,) = files_in(tmp_path / "kept")
    rewrite(file, damage if isinstance(damage, bytes) else damage())
    assert evidence.read(DIGEST) is None
    assert [(record.levelname, record.args) for record in caplog.records] == [("WARNING", (file,))]
    assert evidence.keep(BODY) == DIGEST
    assert evidence.read(DIGEST) == BODY


def test_empty_file_is_written_again(evidence: EvidenceStore, tmp_path: Path, clock: Wound) -> None:
    evidence.keep(BODY)
    rewrite(files_in(tmp_path / "kept")[0], b"")
    clock.now_s += REMEMBERED_S
    evidence.keep(BODY)
    assert evidence.read(DIGEST) == BODY


def test_symbolic_link_and_fifo_are_not_read(evidence: EvidenceStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(gzip.compress(BODY))
    evidence.keep(BODY)
    (file,) = files_in(tmp_path / "kept")
    file.unlink()
    file.symlink_to(secret)
    assert evidence.read(DIGEST) is None
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    assert evidence.read(DIGEST) is None


# --- age and disk space --------------------------------------------------------------------------


def test_evidence_in_use_is_not_expired(evidence: EvidenceStore, clock: Wound) -> None:
    evidence.keep(BODY)
    evidence.keep(b"seen once")
    clock.now_s += KEEP_S - 60
    assert evidence.holds(DIGEST)
    clock.now_s += 180
    settled(evidence)
    swept = evidence.sweep()
    assert swept is not None
    assert swept.removed == 1
    assert evidence.read(DIGEST) == BODY


def test_evidence_of_the_last_hour_is_kept(evidence: EvidenceStore, tmp_path: Path, clock: Wound) -> None:
    evidence.keep(BODY)
    (file,) = files_in(tmp_path / "kept")
    clock.now_s += TOUCH_AFTER_S
    evidence.keep(BODY)
    assert file.stat().st_mtime == clock.start_s
    clock.now_s += 1 + REMEMBERED_S
    evidence.keep(BODY)
    assert file.stat().st_mtime == clock.now_s


def test_full_quota_removes_the_oldest_evidence_first(tmp_path: Path, clock: Wound) -> None:
    opened = EvidenceStore(tmp_path / "kept", max_bytes=20 * 4096, keep_s=KEEP_S, clock_s=clock)
    digests = []
    for number in range(100):
        clock.now_s += 60
        digests.append(opened.keep(f"body {number}".encode()))
        settled(opened)
    assert None not in digests
    kept = [number for number, digest in enumerate(digests) if digest and opened.read(digest) is not None]
    assert kept == list(range(kept[0], 100))
    assert 17 <= len(kept) <= 20
    opened.close()


def test_dropped_evidence_is_logged_once_a_minute(
    tmp_path: Path, clock: Wound, caplog: pytest.LogCaptureFixture
) -> None:
    opened = EvidenceStore(tmp_path / "kept", max_bytes=2 * 4096, keep_s=KEEP_S, clock_s=clock)
    assert opened.keep(os.urandom(3 * 4096)) is None
    settled(opened)
    assert opened.keep(os.urandom(3 * 4096)) is None
    (warning,) = caplog.records
    assert isinstance(warning.args, tuple)
    assert warning.args[0] == tmp_path / "kept"
    assert "space" in str(warning.args[1])
    clock.now_s += WARN_EVERY_S
    assert opened.keep(os.urandom(3 * 4096)) is None
    assert len(caplog.records) == 2
    assert opened.keep(BODY) == DIGEST
    opened.close()


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.EROFS])
def test_disk_error_is_a_warning_and_fails_no_probe(
    evidence: EvidenceStore,
    tmp_path: Path,
    trouble: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def write(_fd: int, _data: bytes) -> int:
        raise OSError(trouble, os.strerror(trouble))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        assert evidence.keep(BODY) is None
    assert os.strerror(trouble) in caplog.text
    assert files_in(tmp_path / "kept") == []
    assert evidence._quota.used_bytes() == 0
    assert evidence.keep(BODY) == DIGEST
    settled(evidence)
    assert evidence._quota.used_bytes() == 4096


FILE_LIMIT = """
import resource, sys
from pathlib import Path
from lifesign.prober.evidence.evidence_store import EvidenceStore

evidence = EvidenceStore(Path(sys.argv[1]), max_bytes=10**9, keep_s=60)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
print(evidence.keep(b"a body that does not fit in twenty bytes"))
evidence.close()
"""


def keep_with_file_limit(kept: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, str(kept)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )


def test_partially_written_file_is_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = keep_with_file_limit(kept)
    assert done.stdout == "None\n"
    assert f" {kept} " in done.stderr
    assert os.strerror(errno.ENOSPC) in done.stderr or os.strerror(errno.EFBIG) in done.stderr
    assert files_in(kept) == []


def test_closed_store_stores_nothing(evidence: EvidenceStore) -> None:
    evidence.close()
    assert evidence.keep(BODY) is None
    evidence.close()


@pytest.mark.parametrize("place", ["file", "file/below", "shared"])
def test_evidence_directory_that_is_shared_or_a_file_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(InvalidValue) as caught:
        EvidenceStore(tmp_path / place, max_bytes=1, keep_s=1)
    assert caught.value.name == "evidence.directory"


def test_definition_configures_use_directory_and_retention_of_evidence(tmp_path: Path) -> None:
    assert EvidenceStore.from_settings(EvidenceSettings()) is None
    settings = EvidenceSettings(directory=tmp_path / "kept", max_megabytes=2, keep_days=0.5)
    opened = EvidenceStore.from_settings(settings)
    assert opened is not None
    assert (opened._quota._max_bytes, opened._quota._keep_s) == (2_000_000, 43_200)
    opened.close()


# --- several processes ---------------------------------------------------------------------------

KEEPER = """
import sys
from pathlib import Path
from lifesign.prober.evidence import evidence_quota
from lifesign.prober.evidence.evidence_store import EvidenceStore

# On a machine that is busy with others it may be long until a lock's holder goes on.
evidence_quota.LOCK_TRIES = 100_000
evidence = EvidenceStore(Path(sys.argv[1]), max_bytes=int(sys.argv[2]), keep_s=86400)
print("ready", flush=True)
sys.stdin.readline()
for number in range(400):
    digest = evidence.keep(f"body {number % 200}".encode())
    assert digest is None or evidence.read(digest) is not None or sys.argv[3] == "crowded"
evidence.close()
"""


def keepers(directory: Path, max_bytes: int, kind: str) -> list[PreloadedProcess]:
    command = [PYTHON, "-c", KEEPER, str(directory), str(max_bytes), kind]
    started = [PreloadedProcess(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    return started


def ended(processes: list[PreloadedProcess]) -> list[int]:
    codes = []
    for process in processes:
        with process:
            codes.append(process.wait(timeout=PATIENCE_SECONDS))
    return codes


def test_processes_that_share_a_directory_store_each_body_once(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert ended(keepers(kept, 10**9, "roomy")) == [0, 0, 0]
    opened = EvidenceStore(kept, max_bytes=10**9, keep_s=KEEP_S)
    bodies = [f"body {number}".encode() for number in range(200)]
    assert [opened.read(hashlib.sha256(body).hexdigest()) for body in bodies] == bodies
    assert len(files_in(kept)) == 200
    opened.sweep()
    assert opened._quota.used_bytes() == 200 * 4096
    opened.close()


def test_processes_that_share_a_directory_share_its_quota(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert ended(keepers(kept, 50 * 4096, "crowded")) == [0, 0, 0]
    blocks = sum(-(-path.stat().st_size // 4096) for path in files_in(kept))
    # Each of the two others may have been writing a file when a sweep counted them.
    assert blocks <= 50 + 2


def test_killed_process_leaves_no_partial_file(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    processes = keepers(kept, 10**9, "roomy")
    while len(files_in(kept)) < 50 and any(process.poll() is None for process in processes):
        pass
    for process in processes:
        with suppress(ProcessLookupError):
            process.kill()
    ended(processes)
    for path in files_in(kept):
        if path.suffix == ".gz":
            body = zlib.decompress(path.read_bytes(), wbits=31)
            assert hashlib.sha256(body).hexdigest() == path.parent.name + path.stem
        else:
            assert path.name.startswith(".")


def test_expected_errors_are_not_logged(evidence: EvidenceStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    evidence.keep(BODY)
    evidence.read(DIGEST)
    settled(evidence)
    evidence.sweep()
    assert caplog.text == ""
