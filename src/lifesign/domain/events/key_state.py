"""What does the event log say of a key, and does the store say the same?

Events that were written by older versions tell neither when a key ends nor which one it is: what they do
not tell is not compared, and such keys are counted.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from lifesign.domain.access.permissions import StoredKey, fingerprint_of
from lifesign.domain.events.consistency import differences
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.registry_payloads import KeyChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    """What the log says of one key, and what the store says of it, to be compared.

    What nothing but the end of a key may ever change is as the log first told of it.
    """

    key_id: str
    role: str
    agent_id: str | None
    name: str | None = None
    """None, like `is_revoked`: not told by what was archived before these were compared."""
    is_revoked: bool | None = None
    fingerprint: str | None = None
    """None: no event tells which key it is, nor when it ends."""
    expires_at_s: float | None = None
    """None without a fingerprint: not told; with one: never."""

    @property
    def is_covered(self) -> bool:
        """Whether the log tells all that makes a key valid."""
        return None not in {self.name, self.is_revoked, self.fingerprint}


def state_of(key: StoredKey) -> KeyState:
    """Return what the store says of a key."""
    return KeyState(
        key_id=key.key_id,
        role=key.role.value,
        agent_id=key.agent_id,
        name=key.name,
        is_revoked=key.revoked_at_s is not None,
        fingerprint=fingerprint_of(key.digest),
        expires_at_s=key.expires_at_s,
    )


def after_event(before: KeyState | None, event_type: EventType, payload: KeyChanged) -> KeyState:
    """Return what is known of a key after an event that tells of it.

    Whoever altered a key in the store and then had it rotated or revoked has the event tell of the altered
    one: what was told before stands, and no key ever lasts longer than it did.
    """
    told = KeyState(
        key_id=payload.key_id,
        role=payload.role,
        agent_id=payload.agent_id,
        name=payload.name,
        is_revoked=event_type is EventType.KEY_REVOKED,
        fingerprint=payload.fingerprint,
        expires_at_s=None if payload.expires_at is None else payload.expires_at.timestamp(),
    )
    if before is None:
        return told
    after = replace(
        before,
        name=told.name if before.name is None else before.name,
        is_revoked=told.is_revoked or before.is_revoked,
    )
    if before.fingerprint is None:
        return replace(after, fingerprint=told.fingerprint, expires_at_s=told.expires_at_s)
    if told.fingerprint is None:
        # Written by an older version: when a rotated key ends now is not told.
        is_told = event_type is not EventType.KEY_ROTATED
        return after if is_told else replace(after, fingerprint=None, expires_at_s=None)
    ends = [at_s for at_s in (before.expires_at_s, told.expires_at_s) if at_s is not None]
    return replace(after, expires_at_s=min(ends, default=None))


class KeyComparison:
    """Compares stored keys with those of the log, and counts those of which it tells too little."""

    def __init__(self, logged: Mapping[str, KeyState], *, tells_all: bool) -> None:
        self._logged = logged
        self._tells_all = tells_all
        """Whether every key that there is has its event."""
        self.uncovered = 0
        """Keys that have been compared in part or not at all."""

    def differences(self, stored: Iterable[KeyState]) -> Iterator[str]:
        """Say what differs, key by key."""
        missing = set(self._logged)
        for key in stored:
            missing.discard(key.key_id)
            logged = self._logged.get(key.key_id)
            if logged is None:
                if self._tells_all:
                    yield f"key {key.key_id}: in the store, not in the log"
                else:
                    self.uncovered += 1
                continue
            self.uncovered += not logged.is_covered
            yield from _compared(logged, key)
        yield from (f"key {key_id}: in the log, not in the store" for key_id in sorted(missing))


def _compared(logged: KeyState, stored: KeyState) -> Iterator[str]:
    told = [
        member
        for member in ("role", "name", "is_revoked", "fingerprint")
        if getattr(logged, member) is not None
    ]
    if logged.fingerprint is not None:
        told.append("expires_at_s")
    yield from differences(f"key {stored.key_id}", logged, stored, [*told, "agent_id"])
