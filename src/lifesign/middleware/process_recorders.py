"""Recorders of this process: its metrics show them, and a forked child starts them again."""

import os
import weakref
from typing import Protocol

from lifesign.domain.health.document import HealthDocument
from lifesign.middleware.settings import RecorderSettings


class Recorder(Protocol):
    """What this module and the metrics need of an `AgentHealth`."""

    settings: RecorderSettings

    def document(self) -> HealthDocument:
        """Compute and return the present health document of all workers."""

    def begin_in_child(self) -> None:
        """Start again as a separate worker, in a child process after a fork."""


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def add_recorder(recorder: Recorder) -> None:
    """Add a recorder to those of this process, for as long as it is in use."""
    _recorders.add(recorder)


def living_recorders() -> list[Recorder]:
    """Return all recorders of this process, sorted by the names of their agents."""
    return sorted(_recorders, key=lambda recorder: recorder.settings.agent_id)


def _reset_in_child() -> None:
    """Leave the parent's window to the parent: its counts are in its file, not in ours."""
    for recorder in _recorders:
        recorder.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
