"""Runs of agents in this process: two runs of one agent never work at the same time."""

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Final

_Key = tuple[int, str, str]

_lock: Final = threading.Lock()
_runs: Final[dict[_Key, "list[LocalRun]"]] = {}


class LocalRun:
    """One run of an agent: it makes the run before it drain, and its turn comes when that one has ended."""

    def __init__(self, registry: str, agent_id: str, give_way: Callable[[], None]) -> None:
        """`give_way` makes the run drain; it is called in the thread of a later run of the agent."""
        # A forked process inherits the entries, but not the runs.
        self._key: _Key = (os.getpid(), registry, agent_id)
        self._give_way = give_way
        self._loop = asyncio.get_running_loop()

    def begin(self) -> bool:
        """Make the run before this one drain; return whether there is one."""
        with _lock:
            earlier = [run for run in _runs.get(self._key, []) if run.is_alive()]
            _runs[self._key] = [*earlier, self]
        if earlier:
            # The others were made to drain by the next one.
            earlier[-1]._give_way()  # noqa: SLF001 - of the same class
        return bool(earlier)

    def is_first(self) -> bool:
        """Return whether all runs that began before this one have ended."""
        with _lock:
            return next((run for run in _runs.get(self._key, []) if run.is_alive()), self) is self

    def is_alive(self) -> bool:
        """Return whether the event loop of the run still runs: a run without one neither works nor ends."""
        return self._loop.is_running()

    def end(self) -> None:
        """Let the next run begin."""
        with _lock:
            others = [run for run in _runs.get(self._key, []) if run is not self]
            if others:
                _runs[self._key] = others
            else:
                _runs.pop(self._key, None)
