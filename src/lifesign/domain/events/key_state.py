"""Key states: the state of a key by the event log, for comparison with the stored key."""

from dataclasses import dataclass, replace

from lifesign.domain.access.permissions import StoredKey, fingerprint_of
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.registry_payloads import KeyChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    """State of one key, from the log or from the database, to compare both.

    Members that only the end of a key may change have their first value in the log.
    """

    key_id: str
    role: str
    agent_id: str | None
    name: str
    is_revoked: bool
    """Or suspended."""
    fingerprint: str
    expires_at_s: float | None = None
    """None: never."""


def state_of(key: StoredKey) -> KeyState:
    """Return the state of a stored key."""
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
    """Return the state of a key after an event about it.

    If a key was manipulated in the database and then rotated or revoked, the event contains the manipulated
    values. The earlier values stay, and the lifetime never grows.
    """
    is_revoked = event_type in {EventType.KEY_REVOKED, EventType.KEY_SUSPENDED}
    expires_at_s = None if payload.expires_at is None else payload.expires_at.timestamp()
    if before is None:
        return KeyState(
            key_id=payload.key_id,
            role=payload.role,
            agent_id=payload.agent_id,
            name=payload.name,
            is_revoked=is_revoked,
            fingerprint=payload.fingerprint,
            expires_at_s=expires_at_s,
        )
    ends = [at_s for at_s in (before.expires_at_s, expires_at_s) if at_s is not None]
    is_revoked |= before.is_revoked and event_type is not EventType.KEY_CONFIRMED
    return replace(before, is_revoked=is_revoked, expires_at_s=min(ends, default=None))
