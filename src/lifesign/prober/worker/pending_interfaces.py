"""Interfaces that were read and that the ledger has not taken yet.

A result may wait for a witness, be replaced, or be dropped. The interface that its probe read waits here
until any later result of the same target is delivered with it.
"""

from typing import Final

from lifesign.domain.published_interface.published import Interface
from lifesign.prober.worker.shards import TargetSlot

MAX_PENDING_BYTES: Final = 33_554_432
"""Interfaces that wait, as JSON. Beyond it the next reading of a target counts as its first one."""


class PendingInterfaces:
    """Newly read interfaces that wait to be reported, at most one of each target."""

    def __init__(self, max_bytes: int = MAX_PENDING_BYTES) -> None:
        self._max_bytes = max_bytes
        self._waiting: dict[str, tuple[TargetSlot, Interface]] = {}
        """By the target's id."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, slot: TargetSlot, interface: Interface) -> bool:
        """Store a target's interface, in place of an earlier one; return whether there is room."""
        self._remove(slot.subject_id)
        if self._bytes + len(interface.text) > self._max_bytes:
            for subject_id in [one for one, (other, _) in self._waiting.items() if other.is_gone]:
                self._remove(subject_id)
        if self._bytes + len(interface.text) > self._max_bytes:
            return False
        self._waiting[slot.subject_id] = slot, interface
        self._bytes += len(interface.text)
        return True

    def of(self, slot: TargetSlot) -> Interface | None:
        """Return the interface to report with a target's next result; None if there is none."""
        if not self._waiting:
            return None
        other, interface = self._waiting.get(slot.subject_id, (None, None))
        return interface if other is slot else None

    def delivered(self, slot: TargetSlot, interface: Interface) -> None:
        """Remove an interface that was reported, unless a newer one of the target waits."""
        if self.of(slot) is interface:
            self._remove(slot.subject_id)

    def _remove(self, subject_id: str) -> None:
        if (gone := self._waiting.pop(subject_id, None)) is not None:
            self._bytes -= len(gone[1].text)
