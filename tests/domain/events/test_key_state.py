import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.access.permissions import Role, StoredKey, digest_of, fingerprint_of
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.key_state import KeyState, after_event, state_of
from lifesign.domain.events.registry_payloads import KeyChanged
from lifesign.domain.events.replay import Replay
from lifesign.domain.models.base import moment

AT_S = 1_800_000_000.0
CREATED, ROTATED, REVOKED = EventType.KEY_CREATED, EventType.KEY_ROTATED, EventType.KEY_REVOKED
KEY = StoredKey(
    key_id="key_1",
    name="alice",
    role=Role.READER,
    digest=digest_of("k"),
    created_at_s=AT_S,
    expires_at_s=AT_S + 90,
)
ENDS = st.none() | st.integers(1, 10**6).map(lambda later: AT_S + later)


def key_changed(key: StoredKey = KEY) -> KeyChanged:
    """Return the event payload of a key."""
    return KeyChanged(
        key_id=key.key_id,
        name=key.name,
        role=key.role.value,
        agent_id=key.agent_id,
        fingerprint=fingerprint_of(key.digest),
        expires_at=None if key.expires_at_s is None else moment(key.expires_at_s),
    )


def known_after(*events: tuple[EventType, KeyChanged]) -> KeyState:
    state: KeyState | None = None
    for event_type, payload in events:
        state = after_event(state, event_type, payload)
    assert state is not None
    return state


def compared(state: KeyState, *stored: StoredKey) -> list[str]:
    replay = Replay()
    replay.keys = {state.key_id: state}
    return replay.differences([], [], keys=map(state_of, stored))


@pytest.mark.parametrize(
    ("changed", "member"),
    [
        (replace(KEY, role=Role.ADMIN), "role"),
        (replace(KEY, agent_id="a"), "agent_id"),
        (replace(KEY, name="bob"), "name"),
        (replace(KEY, digest=digest_of("other")), "fingerprint"),
        (replace(KEY, expires_at_s=None), "expires_at_s"),
        (replace(KEY, expires_at_s=AT_S + 91), "expires_at_s"),
        (replace(KEY, revoked_at_s=AT_S), "is_revoked"),
    ],
)
def test_every_changed_field_of_a_stored_key_is_reported(changed: StoredKey, member: str) -> None:
    created = known_after((CREATED, key_changed()))
    assert compared(created, KEY) == []
    (difference,) = compared(created, changed)
    assert difference.startswith(f"key key_1: {member} is ")


def test_revoked_key_that_is_valid_again_is_reported() -> None:
    revoked = known_after((CREATED, key_changed()), (REVOKED, key_changed()))
    assert compared(revoked, replace(KEY, revoked_at_s=AT_S)) == []
    (difference,) = compared(revoked, KEY)
    assert re.search(r"key_1: is_revoked .*True .*False", difference)
    # A rotation does not make a revoked key valid again.
    assert known_after(
        (CREATED, key_changed()), (REVOKED, key_changed()), (ROTATED, key_changed())
    ).is_revoked


def test_event_about_an_altered_key_is_not_trusted() -> None:
    altered = replace(KEY, role=Role.ADMIN, name="bob", digest=digest_of("other"), revoked_at_s=AT_S)
    state = known_after((CREATED, key_changed()), (REVOKED, key_changed(altered)))
    assert len(compared(state, altered)) == 3


@given(first=ENDS, then=ENDS, kind=st.sampled_from([ROTATED, REVOKED]))
def test_no_event_moves_the_expiry_of_a_key_to_a_later_time(
    first: float | None, then: float | None, kind: EventType
) -> None:
    state = known_after(
        (CREATED, key_changed(replace(KEY, expires_at_s=first))),
        (kind, key_changed(replace(KEY, expires_at_s=then))),
    )
    assert state.expires_at_s == min((at_s for at_s in (first, then) if at_s is not None), default=None)


def test_key_without_event_and_event_without_key_are_reported() -> None:
    state = known_after((CREATED, key_changed()))
    (unexplained,) = compared(state, KEY, replace(KEY, key_id="key_2"))
    assert re.search(r"key_2: .*not in the log$", unexplained)
    (absent,) = compared(state)
    assert re.search(r"key_1: .*not in the store$", absent)
