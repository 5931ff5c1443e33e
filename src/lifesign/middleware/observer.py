"""What the code that follows a request needs from the middleware."""

from collections.abc import Callable
from typing import Protocol

from lifesign.middleware.body import Message


class Observer(Protocol):
    """What the code that follows a request needs from the middleware: settings, clock and counters."""

    timeout_ns: int
    quick_ns: int
    max_inspected_bytes: int
    streams_by_first_byte: bool
    now_ns: Callable[[], int]
    noting: "Noting | None"
    """This observer, if the request counts as `unfinished` should its worker be killed; else None."""

    @property
    def sends_may_raise(self) -> bool | None:
        """Whether `send` of this server may raise OSError; None before the first request."""

    def count(
        self,
        outcome: int,
        latency_ns: int | None,
        first_byte_ns: int | None,
        now_ns: int,
        inspection: int | None = None,
    ) -> None:
        """Count one interaction. If `latency_ns` is None, it has no latency. May raise."""

    def count_quick_answer(self, latency_ns: int, now_ns: int) -> None:
        """Count one good answer with nothing to inspect that took less than `quick_ns`. May raise."""

    def count_inspected_answer(self, latency_ns: int, now_ns: int) -> None:
        """Count one good answer that was inspected, and took less than `quick_ns`. May raise."""

    def count_tool_result(self, latency_ns: int, now_ns: int) -> None:
        """Count one good result of an MCP tool that took less than `quick_ns`. May raise."""

    def note_compressed(self, encoding: str) -> None:
        """Log once that an answer could not be inspected because the app compressed it."""

    def note_uncounted(self) -> None:
        """Log the current exception, because of which a request is not counted."""

    def log_failure(self, what: str) -> None:
        """Log the current exception. `what` says what failed."""


class Noting(Observer, Protocol):
    """Observer that counts a request as `unfinished` if the worker is killed before the end."""

    def suspended(self) -> Observer:
        """Note that the request waits for its caller; return the observer to use until it continues."""

    def resumed(self, scope: Message) -> Observer:
        """Note that the request continues; return the observer to use from now on."""
