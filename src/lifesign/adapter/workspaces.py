"""Workspaces of runs, and their retention.

Each run has a directory for its owner only, in a parent that no other user may write to. A file beside it has
the result of the run. The adapter keeps that file locked, so that the workspace of a running run is never
mistaken for an abandoned one.
"""

import errno
import fcntl
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError

from lifesign.adapter.process.agent_user import AgentUser
from lifesign.domain.models.tasks import MAX_OBJECT_BYTES, RUN_ID_PATTERN, JsonObject
from lifesign.domain.parsing.surrogate_escapes import replace_half_pairs
from lifesign.errors import InvalidValue
from lifesign.filesystem.file_lock import try_lock
from lifesign.filesystem.private_file import create_private

RETENTION_SECONDS: Final = 7 * 86_400.0
"""Retention of the workspaces of failed runs (lease protocol, "What happens on failure")."""
INPUT_FILE: Final = "input.json"
REPORT_FILE: Final = "latest_report.json"
COMMENTS_FILE: Final = "comments.json"
OUTPUT_FILE: Final = "output.json"
LEVELS_AT_ONCE: Final = 100
"""Number of directories that are removed at once: each needs two open descriptors."""
MAX_ROUNDS: Final = 10_000
"""Maximum number of such rounds; files that a process keeps creating stay, and the workspace with them."""
MAX_FILE_BYTES: Final = 4 * MAX_OBJECT_BYTES
"""Maximum size of `output.json`, which may be indented."""
MIN_ROOM_BYTES: Final = 65_536
"""Free space without which no task is claimed: for the files of the adapter in a workspace."""
_MAX_NOTE_BYTES: Final = 8_192
_NOTE: Final = ".json"
_OUTPUT: Final[TypeAdapter[dict[str, Any]]] = TypeAdapter(JsonObject)
_OTHERS_MAY_WRITE: Final = 0o022
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class AgentOutput:
    """Content of the file `output.json` that an agent wrote, or why it cannot be read."""

    output: dict[str, Any] | None
    """An empty object if the agent left no file; None if its file cannot be submitted."""
    fault: str = ""


class Workspace:
    """Directory for the files of one run; the agent gets its path."""

    def __init__(self, path: Path, fd: int, note_fd: int, note: dict[str, Any]) -> None:
        self.path = path
        self.fd = fd
        self._note_fd = note_fd
        self._note = note
        self._user: AgentUser | None = None

    def put(self, name: str, content: Any) -> None:
        """Write a JSON file into the workspace, before the agent's process starts."""
        with os.fdopen(create_private(name, dir_fd=self.fd), "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, indent=2)
            file.write("\n")

    def hand_over(self, user: AgentUser) -> None:
        """Give the workspace and its content to the agent's user; OSError if that fails."""
        self._user = user
        with os.scandir(self.fd) as entries:
            for entry in entries:
                os.chown(entry.name, user.uid, user.gid, dir_fd=self.fd, follow_symlinks=False)
        # Last: until now no other process could put anything there.
        os.fchown(self.fd, user.uid, user.gid)

    def result(self) -> AgentOutput:
        """Read the file `output.json`: the result that the agent wants to submit."""
        try:
            text = self._output()
        except FileNotFoundError:
            return AgentOutput({})
        except OSError as error:
            why = "it is a link" if error.errno == errno.ELOOP else error.strerror
            return AgentOutput(None, f"{OUTPUT_FILE}: expected a readable file ({why})")
        if text is None:
            return AgentOutput(None, f"{OUTPUT_FILE}: expected a file that the agent's user owns")
        if len(text) > MAX_FILE_BYTES:
            return AgentOutput(None, f"{OUTPUT_FILE}: expected at most {MAX_FILE_BYTES} bytes")
        return _read_output(text)

    def has_output(self) -> bool:
        """Return whether the agent wrote an output file, with any content."""
        try:
            os.stat(OUTPUT_FILE, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _output(self) -> bytes | None:
        """Return the content of `output.json`, up to one byte more than allowed.

        None if it is no regular file of the agent.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(OUTPUT_FILE, flags, dir_fd=self.fd)
        try:
            # Opening a pipe would block until another process writes to it.
            found = os.fstat(fd)
            # A hard link to a file that the user may not read, but we may, must not disclose it.
            is_anothers = self._user is not None and found.st_uid != self._user.uid
            if not stat.S_ISREG(found.st_mode) or is_anothers:
                return None
            with os.fdopen(fd, "rb", closefd=False) as file:
                return file.read(MAX_FILE_BYTES + 1)
        finally:
            os.close(fd)

    def note(self, **members: Any) -> None:
        """Add facts about the run to the file beside its workspace."""
        self._note.update(members)
        _write_note(self._note_fd, self._note)

    def close(self) -> None:
        """Release the workspace. From now on `prune` may remove it, depending on its age."""
        os.close(self.fd)
        os.close(self._note_fd)


class Workspaces:
    """Directory that contains the workspaces of all runs."""

    def __init__(
        self, root: Path, *, user: AgentUser | None = None, wall_s: Callable[[], float] = time.time
    ) -> None:
        """Create the directory if it is absent.

        InvalidValue if it cannot be private, or is inaccessible to the user.
        """
        self.root = root.resolve() if ".." in root.parts else root.absolute()
        self._wall_s = wall_s
        missing_ones = _missing(self.root)
        # Before any is created: a refused one leaves nothing behind that a later run would use.
        if user is not None and missing_ones and (why := user.unsearchable_directory(missing_ones[0].parent)):
            raise InvalidValue("workspaces", str(root), _reachable(user, why))
        try:
            for missing in missing_ones:
                with suppress(FileExistsError):
                    missing.mkdir(mode=0o700)
                    if user is not None:
                        # Search permission alone shows no names. The umask may not have it.
                        missing.chmod(0o711)
            self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            expected = f"a directory that can be created and read ({error.strerror})"
            raise InvalidValue("workspaces", str(root), expected) from None
        expected = _ownership_fault(self._fd, self.root)
        if user is not None and not expected and (why := user.unsearchable_directory(self.root)):
            expected = _reachable(user, why)
        if expected:
            os.close(self._fd)
            raise InvalidValue("workspaces", str(root), expected)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def check_room(self) -> None:
        """Raise OSError if no workspace could be created now, for example because the disk is full."""
        name = f"room-{secrets.token_hex(8)}"
        try:
            with os.fdopen(create_private(name, dir_fd=self._fd), "wb", buffering=0) as file:
                if file.write(bytes(MIN_ROOM_BYTES)) < MIN_ROOM_BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._fd)

    def prepare(self, run_id: str, **members: Any) -> Workspace:
        """Create the workspace of a run; OSError if that fails, or if it exists already."""
        if not re.fullmatch(RUN_ID_PATTERN, run_id):
            raise ValueError(f"{run_id[:80]!r} is not a valid run id")
        note = {"run_id": run_id, **members, "began_at_s": self._wall_s()}
        note_fd = create_private(run_id + _NOTE, dir_fd=self._fd)
        try:
            fcntl.flock(note_fd, fcntl.LOCK_EX)
            _write_note(note_fd, note)
            os.mkdir(run_id, 0o700, dir_fd=self._fd)
            fd = os.open(run_id, _DIRECTORY, dir_fd=self._fd)
        except BaseException:
            os.close(note_fd)
            raise
        return Workspace(self.root / run_id, fd, note_fd, note)

    def finish(self, workspace: Workspace, *, keep: bool, **members: Any) -> None:
        """Record the end of a run, close its workspace, and remove it unless `keep` is True.

        Inaccessible parts are left: the agent may have changed the modes of its directory.
        """
        try:
            with suppress(OSError):
                workspace.note(**members, ended_at_s=self._wall_s())
            if not keep:
                with suppress(OSError):
                    self._remove(workspace.path.name)
        finally:
            workspace.close()

    def abandoned_runs(self) -> list[str]:
        """Return the ids of runs that have not ended but whose adapter no longer runs."""
        return [run_id for run_id in self._runs() if self._is_remaining(run_id)]

    def _is_remaining(self, run_id: str) -> bool:
        with self._locked(run_id) as note_fd:
            note = {} if note_fd is None else _read_note(note_fd)
            # A workspace without a record is being prepared.
            return bool(note) and "ended_at_s" not in note

    def prune(self, keep_s: float = RETENTION_SECONDS) -> int:
        """Remove workspaces of runs that ended more than `keep_s` seconds ago; return their number.

        A run without an end, whose adapter was killed, counts as ended now.
        """
        return sum(self._prune_one(run_id, keep_s) for run_id in self._runs())

    def _runs(self) -> Iterator[str]:
        for name in os.listdir(self._fd):  # noqa: PTH208 - of what is open, not of a path
            run_id = name.removesuffix(_NOTE)
            if name.endswith(_NOTE) and re.fullmatch(RUN_ID_PATTERN, run_id):
                yield run_id

    def _prune_one(self, run_id: str, keep_s: float) -> bool:
        with self._locked(run_id) as note_fd:
            if note_fd is None:
                return False
            note, now_s = _read_note(note_fd), self._wall_s()
            ended_at_s = note.get("ended_at_s")
            if not isinstance(ended_at_s, int | float) or not math.isfinite(ended_at_s):
                _write_note(note_fd, {**note, "run_id": run_id, "exit_reason": None, "ended_at_s": now_s})
            elif now_s - ended_at_s > keep_s:
                return self._remove(run_id)
        return False

    @contextmanager
    def _locked(self, run_id: str) -> Iterator[int | None]:
        """Lock the file of a run; None if the run is running, or the file is not valid."""
        try:
            fd = os.open(
                run_id + _NOTE, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd
            )
        except OSError:
            yield None
            return
        try:
            yield fd if try_lock(fd) and stat.S_ISREG(os.fstat(fd).st_mode) else None
        finally:
            os.close(fd)

    def _remove(self, run_id: str) -> bool:
        """Remove a workspace, but not the targets of its links; False if something of it remains."""
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(run_id, dir_fd=self._fd, follow_symlinks=False).st_mode):
                _remove_tree(self._fd, run_id)
            else:
                # The agent has put a link, or whatever else, in its place.
                os.unlink(run_id, dir_fd=self._fd)
        try:
            os.stat(run_id, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            with suppress(FileNotFoundError):
                os.unlink(run_id + _NOTE, dir_fd=self._fd)
            return True
        return False


def _missing(path: Path) -> list[Path]:
    """Return which directories are to be made for one to be there, the outermost first."""
    return [one for one in (*reversed(path.parents), path) if not one.exists()]


def _reachable(user: AgentUser, why: str) -> str:
    return f"a directory to which {user.name} has access (chmod 711): {why}"


def _ownership_fault(fd: int, root: Path) -> str:
    """Return the fault of an open directory that another user could replace.

    Users with write permission for a directory above it can; unless that is sticky, as /tmp is.
    """
    found = os.fstat(fd)
    if found.st_mode & _OTHERS_MAY_WRITE or found.st_uid not in {0, os.geteuid()}:
        return "a directory of this user to which no other user may write (chmod 700)"
    for above in root.resolve().parents:
        found = above.stat()
        is_open = found.st_mode & _OTHERS_MAY_WRITE and not found.st_mode & stat.S_ISVTX
        if is_open or found.st_uid not in {0, os.geteuid()}:
            return (
                f"a directory below directories of root or this user, to which no other user may write; "
                f"{above} has mode {stat.S_IMODE(found.st_mode):04o} and user {found.st_uid}"
            )
    return ""


def _remove_tree(parent_fd: int, name: str) -> None:
    """Remove a directory with all in it, as far as that can be; follows no link and leaves no file system."""
    for _ in range(MAX_ROUNDS):
        if not _remove_levels(parent_fd, name, LEVELS_AT_ONCE, None):
            return


def _remove_levels(parent_fd: int, name: str, levels: int, top_fd: int | None) -> bool:
    """Remove so many levels, and move deeper directories to the top; return whether there were any."""
    is_moved = False
    with suppress(OSError):
        place_fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent_fd)
        try:
            if os.fstat(place_fd).st_dev != os.fstat(parent_fd).st_dev:
                return False
            # An agent may have removed its owner's permissions for its own directory.
            os.chmod(f"/proc/self/fd/{place_fd}", 0o700)  # noqa: PTH101 - of what is open, not of a path
        finally:
            os.close(place_fd)
        if levels == 0 and top_fd is not None:
            os.rename(name, f"deep_{secrets.token_hex(8)}", src_dir_fd=parent_fd, dst_dir_fd=top_fd)
            return True
        fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
        try:
            # One by one: an agent may have made millions of files in one.
            with os.scandir(fd) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        above_fd = fd if top_fd is None else top_fd
                        is_moved |= _remove_levels(fd, entry.name, levels - 1, above_fd)
                    else:
                        with suppress(OSError):
                            os.unlink(entry.name, dir_fd=fd)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=parent_fd)
    return is_moved


def _write_note(fd: int, note: dict[str, Any]) -> None:
    text = json.dumps(note, ensure_ascii=False).encode() + b"\n"
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))


def _read_note(fd: int) -> dict[str, Any]:
    try:
        read = json.loads(os.pread(fd, _MAX_NOTE_BYTES, 0))
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {}


def _read_output(text: bytes) -> AgentOutput:
    """Return the JSON object in the content of `output.json`, or why it has none."""
    try:
        text.decode()
        return AgentOutput(_OUTPUT.validate_json(replace_half_pairs(text)))
    except UnicodeDecodeError:
        return AgentOutput(None, f"{OUTPUT_FILE}: expected text in UTF-8")
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return AgentOutput(None, f"{OUTPUT_FILE}: expected a JSON object: {fault['msg'][:200]}")
