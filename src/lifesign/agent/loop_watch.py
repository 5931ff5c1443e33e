"""Warning about an event loop that is blocked: then its agents can send no heartbeat and renew no lease."""

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path
from traceback import FrameSummary, extract_stack
from typing import Final

BLOCKED_SECONDS: Final = 5.0
"""Time without a turn of the event loop after which a warning is logged."""
TURN_SECONDS: Final = 0.5
"""Interval at which the event loop is asked for a turn."""
MAX_FRAMES: Final = 3
"""Number of the outermost functions that a warning names, and of the innermost ones."""

_PACKAGE: Final = str(Path(__file__).parent.parent)
_TURNS: Final = str(Path(asyncio.__file__).parent)

_log = logging.getLogger("lifesign.agent")


class LoopWatch:
    """Warns, from a thread, while the event loop of some agents is blocked; once for each time."""

    def __init__(self) -> None:
        self.agent_ids: list[str] = []
        self._has_turned = threading.Event()
        self._has_ended = threading.Event()

    def start(self) -> None:
        """Watch the event loop that runs in this thread."""
        watched = (asyncio.get_running_loop(), threading.get_ident())
        threading.Thread(target=self._run, args=watched, name="lifesign-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._has_ended.set()

    def _run(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        # Counted, not timed: a process that was stopped or a machine that slept has blocked nothing.
        turns_missed = round(BLOCKED_SECONDS / TURN_SECONDS)
        missed = 0
        self._has_turned.set()
        while not self._has_ended.wait(TURN_SECONDS):
            if not self._has_turned.is_set():
                missed += 1
                if missed == turns_missed:
                    self._warn(thread_id)
                continue
            if missed >= turns_missed:
                _log.warning(
                    "%s: the event loop was blocked for %.0f s", self._names(), missed * TURN_SECONDS
                )
            missed = 0
            self._has_turned.clear()
            try:
                loop.call_soon_threadsafe(self._has_turned.set)
            except RuntimeError:
                # It is closed.
                return

    def _warn(self, thread_id: int) -> None:
        frame = sys._current_frames().get(thread_id)  # noqa: SLF001 - the documented way to another thread
        calls = () if frame is None else _calls_of_program(extract_stack(frame))
        where = [f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in calls]
        if len(where) > 2 * MAX_FRAMES:
            where[MAX_FRAMES:-MAX_FRAMES] = ["..."]
        _log.warning(
            "%s: the event loop has been blocked for %.0f s, so no heartbeat is sent and no lease is "
            "renewed; it executes %s; hint: in a coroutine, call blocking functions with asyncio.to_thread, "
            "or make the handler a plain function",
            self._names(),
            BLOCKED_SECONDS,
            " > ".join(where) or "an unknown function",
        )

    def _names(self) -> str:
        first, *others = self.agent_ids
        return f"agent {first} and {len(others)} more" if others else f"agent {first}"


_watches: Final[dict[asyncio.AbstractEventLoop, LoopWatch]] = {}


@contextmanager
def watching_loop(agent_id: str) -> Iterator[None]:
    """Warn while the event loop of this thread is blocked. All agents in the loop share one thread."""
    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = LoopWatch()
        watch.agent_ids.append(agent_id)
        watch.start()
    else:
        watch.agent_ids.append(agent_id)
    try:
        yield
    finally:
        if len(watch.agent_ids) == 1:
            # The thread may still name the agent.
            del _watches[loop]
            watch.stop()
        else:
            watch.agent_ids.remove(agent_id)


def _calls_of_program(stack: list[FrameSummary]) -> list[FrameSummary]:
    """Return the calls of one turn of the event loop, from the first one that is not of this package."""
    ours = [index for index, call in enumerate(stack) if call.filename.startswith(_TURNS)]
    turn = stack[ours[-1] + 1 :] if ours else stack
    return [*dropwhile(lambda call: call.filename.startswith(_PACKAGE), turn)]
