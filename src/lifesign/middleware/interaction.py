"""Interactions of an agent without ASGI: each is timed, and counted by how it ends."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from lifesign.domain.health.outcome import Outcome, outcome_named, outcome_of_exception
from lifesign.errors import InvalidValue
from lifesign.middleware.cancellation import is_from_outside
from lifesign.middleware.window_storage import RecorderClock

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Recorder(Protocol):
    clock: RecorderClock

    def record(
        self, outcome: Outcome | str, *, latency_ms: float, first_byte_ms: float | None = None
    ) -> None: ...


class Interaction:
    """One interaction of an agent that is no ASGI app; created by `AgentHealth.interaction`.

    As a decorator, it counts each call of the function as an interaction.
    """

    def __init__(self, health: _Recorder) -> None:
        self._outcome: Outcome | None = None
        self._health = health
        self._first_byte_ns: int | None = None

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """Return the function with each of its calls counted.

        InvalidValue for a generator function: its call ends before its work begins.
        """
        health = self._health
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            expected = "a function or a coroutine function; in a generator, use `with` instead"
            raise InvalidValue("function", function, expected)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def counted_coroutine(*args: Any, **kwargs: Any) -> Any:
                with Interaction(health):
                    return await function(*args, **kwargs)

            return counted_coroutine  # type: ignore[return-value]

        @functools.wraps(function)
        def counted(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with contextlib.ExitStack() as ending:
                ending.enter_context(Interaction(health))
                result = function(*args, **kwargs)
                if inspect.iscoroutine(result):
                    # As of an `async def` behind another decorator: its work has not begun.
                    return _end_with(ending.pop_all(), result)  # type: ignore[return-value]
                return result

        return counted

    @property
    def outcome(self) -> Outcome | None:
        """Outcome to count, such as "task_failed"; if not set, the end of the block decides.

        Setting another value raises InvalidValue.
        """
        return self._outcome

    @outcome.setter
    def outcome(self, outcome: Outcome | str) -> None:
        self._outcome = outcome_named(outcome)

    def first_byte(self) -> None:
        """Record that a streamed answer begins now. Its latency ends here."""
        if self._first_byte_ns is None:
            self._first_byte_ns = self._health.clock.monotonic_ns() - self._began_ns

    def __enter__(self) -> Self:
        self._began_ns = self._health.clock.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now_ns = self._health.clock.monotonic_ns()
        outcome = self._outcome
        if outcome is None:
            outcome = Outcome.ANSWERED
            if error is not None:
                outcome = outcome_of_exception(error, is_from_outside=is_from_outside(error))
        latency_ns = now_ns - self._began_ns if self._first_byte_ns is None else self._first_byte_ns
        first_byte_ms = None if self._first_byte_ns is None else self._first_byte_ns / 1e6
        self._health.record(outcome, latency_ms=latency_ns / 1e6, first_byte_ms=first_byte_ms)


async def _end_with(ending: contextlib.ExitStack, coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a coroutine, and end an interaction with it."""
    with ending:
        return await coroutine
