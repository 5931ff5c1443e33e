"""Logging handler for standard error that waits for no reader."""

import logging
import sys

from lifesign.serving.nonblocking_stream import NonBlockingStream, copied_descriptor


def stderr_handler() -> logging.Handler:
    """Return the handler; a plain one if standard error is no file, or if the platform cannot poll it."""
    copy_fd = copied_descriptor(sys.stderr)
    return logging.StreamHandler() if copy_fd is None else StderrHandler(copy_fd, sys.stderr.encoding)


class StderrHandler(logging.Handler):
    """Writes each line to a descriptor, which it closes, as NonBlockingStream does."""

    def __init__(self, fd: int, encoding: str) -> None:
        super().__init__()
        self._stream = NonBlockingStream(fd, encoding, self._omission_line)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; errors of the descriptor are ignored."""
        try:
            line = f"{self.format(record)}\n"
        except Exception:  # noqa: BLE001 - as all handlers do
            self.handleError(record)
            return
        self._stream.write(line)

    def close(self) -> None:
        """Wait a short time for lines that are not written yet."""
        self._stream.close()
        super().close()

    def _omission_line(self, text: str) -> str:
        members = {"name": "lifesign", "levelno": logging.WARNING, "levelname": "WARNING", "msg": text}
        return f"{self.format(logging.makeLogRecord(members))}\n"
