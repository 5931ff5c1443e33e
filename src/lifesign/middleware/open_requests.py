"""Requests that a kill of the worker process would lose."""

from collections.abc import Callable
from typing import Any

from lifesign.middleware.body import Message
from lifesign.middleware.observer import Noting, Observer
from lifesign.middleware.recorder import AgentHealth


class OpenRequests:
    """Observer that keeps the number of requests in progress in a shared file, in case of a kill."""

    def __init__(self, observer: Observer, health: AgentHealth) -> None:
        self.noting: Noting | None = self
        self._observer = observer
        self._end_request = health.end_request
        self._begin_request = health.begin_request
        self.timeout_ns = observer.timeout_ns
        self.quick_ns = observer.quick_ns
        self.max_inspected_bytes = observer.max_inspected_bytes
        self.streams_by_first_byte = observer.streams_by_first_byte
        self.now_ns = observer.now_ns
        self.count = self._ending(observer.count)
        self.count_quick_answer = self._ending(observer.count_quick_answer)
        self.count_inspected_answer = self._ending(observer.count_inspected_answer)
        self.count_tool_result = self._ending(observer.count_tool_result)
        self.note_uncounted = self._ending(observer.note_uncounted)
        self.note_compressed = observer.note_compressed
        self.log_failure = observer.log_failure

    @property
    def sends_may_raise(self) -> bool | None:
        """Whether `send` of this server may raise OSError."""
        return self._observer.sends_may_raise

    def suspended(self) -> Observer:
        """Note that the request waits for its caller; return the observer to use until it continues."""
        self._end_request()
        return self._observer

    def resumed(self, scope: Message) -> Observer:
        """Note that a request begins or continues; return the observer to use.

        Only a POST is noted: an event stream of a GET may be open for as long as the worker runs.
        """
        if scope["method"] != "POST":
            return self._observer
        try:
            self._begin_request()
        except Exception:  # noqa: BLE001 - measuring must never fail what it measures
            self.log_failure("a request could not be noted")
            return self._observer
        return self

    def _ending(self, count: Callable[..., None]) -> Callable[..., None]:
        end_request = self._end_request

        def count_ended(*arguments: Any) -> None:
            # In this order: a kill in between loses a request instead of counting it twice.
            end_request()
            count(*arguments)

        return count_ended
