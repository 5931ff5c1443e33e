"""Copies of an agent's output.

The output is passed on as it comes, and stored in two files of bounded size. Threads do this: a slow reader
of the output must not delay the renewal of the lease.
"""

import errno
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

from lifesign.filesystem.private_file import create_private
from lifesign.serving.line_writer import write_all

MAX_KEPT_BYTES: Final = 1024 * 1024
"""Maximum per stream; at least the last half of it is always kept."""
JOIN_SECONDS: Final = 2.0
"""Time to read the rest of the output after all writers have ended."""
_PIECE_BYTES: Final = 65_536
_OLDER: Final = ".older"
Progress = Callable[[], AbstractContextManager[object]]


class _TailFile:
    """A file that keeps the end of a stream: when it is half full, it becomes the older half."""

    def __init__(self, directory_fd: int, name: str) -> None:
        self._directory_fd = directory_fd
        self._name = name
        self._fd = self._open()
        self._bytes = 0

    def write(self, piece: bytes) -> None:
        if self._bytes + len(piece) > MAX_KEPT_BYTES // 2:
            with suppress(OSError):
                os.replace(
                    self._name,
                    self._name + _OLDER,
                    src_dir_fd=self._directory_fd,
                    dst_dir_fd=self._directory_fd,
                )
            # The former file stays open until then: the agent may have replaced it.
            former, self._fd, self._bytes = self._fd, self._open(), 0
            os.close(former)
        write_all(self._fd, piece)
        self._bytes += len(piece)

    def close(self) -> None:
        os.close(self._fd)

    def _open(self) -> int:
        # Whatever the agent has put there may be another's file.
        with suppress(OSError):
            os.unlink(self._name, dir_fd=self._directory_fd)
        return create_private(self._name, dir_fd=self._directory_fd)


class _CopiedStream(threading.Thread):
    """Copies one stream until its end."""

    def __init__(self, name: str, directory_fd: int, to_fd: int, progress: Progress) -> None:
        super().__init__(name=f"agent's {name}", daemon=True)
        self._file = _TailFile(directory_fd, f"{name}.log")
        self._to_fd = to_fd
        self._progress = progress
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)

    def run(self) -> None:
        passes_on = keeps = True
        while piece := os.read(self.read_fd, _PIECE_BYTES):
            # An agent that waits for a slow reader of our output does not hang.
            with self._progress():
                if keeps:
                    # A full disk ends the copy, not the agent.
                    keeps = _succeeds(self._file.write, piece)
                if passes_on:
                    passes_on = _succeeds(lambda piece: write_all(self._to_fd, piece), piece)
        with suppress(OSError):
            self._file.close()
        os.close(self.read_fd)


class OutputCopy:
    """Copies an agent's standard output and standard error to log files, and to the adapter's own output."""

    def __init__(
        self, directory_fd: int, *, stdout_to: int = 1, stderr_to: int = 2, progress: Progress = nullcontext
    ) -> None:
        """Keep the output in `stdout.log` and `stderr.log` of a directory, and copy it to these descriptors.

        `progress` is entered, in a thread, while each piece is copied.
        """
        self._directory_fd = os.dup(directory_fd)
        self._streams = [
            _CopiedStream("stdout", self._directory_fd, stdout_to, progress),
            _CopiedStream("stderr", self._directory_fd, stderr_to, progress),
        ]

    @property
    def stdout_fd(self) -> int:
        """Descriptor for the agent's standard output."""
        return self._streams[0].write_fd

    @property
    def stderr_fd(self) -> int:
        """Descriptor for the agent's standard error."""
        return self._streams[1].write_fd

    def begin(self) -> None:
        """Start copying. Call it when the agent's process has its descriptors.

        OSError if no more threads can be started.
        """
        for stream in self._streams:
            os.close(stream.write_fd)
        try:
            for stream in self._streams:
                stream.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"could not copy the output: {error}") from error

    def finish(self) -> None:
        """Wait a short time until all output is copied; then drop what a blocked reader has not accepted."""
        for stream in self._streams:
            if stream.ident is not None:
                stream.join(JOIN_SECONDS)
        if not any(stream.is_alive() for stream in self._streams):
            os.close(self._directory_fd)


def _succeeds(write: Callable[[bytes], None], piece: bytes) -> bool:
    try:
        write(piece)
    except OSError:
        return False
    return True
