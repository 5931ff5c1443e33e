"""A suspension of verdicts, for tests of what shows it."""

from dataclasses import replace

from lifesign.domain.lifecycle.verdict_suspension import MonitorState, Track, new_monitors
from lifesign.registry.status_changes.monitor_row import with_monitors
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.transaction import Transaction

EXITS = 30


def suspend(transaction: Transaction, track: Track = Track.HEARTBEAT) -> None:
    """Suspend verdicts on one track, as if so many agents had fallen silent just now."""
    row = registry_row.lock(transaction)
    monitors = new_monitors(transaction.now_s)
    held = replace(monitors.of(track), state=MonitorState.SUSPENDED, exits_this_cadence=EXITS)
    registry_row.store(transaction, with_monitors(row, monitors.with_track(track, held)))
