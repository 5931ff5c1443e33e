import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.access.permissions import (
    KEY_BYTES,
    PERMISSIONS,
    Permission,
    Principal,
    Role,
    StoredKey,
    digest_of,
    is_current,
    is_valid,
    key_of,
    looks_like_key,
    may,
    may_for_any_agent,
    permission_hint,
    require,
    role_hint,
    with_earlier_end,
)
from lifesign.domain.errors import ACTION_PHRASES, NotAllowed
from lifesign.errors import InvalidValue

READING = {
    Permission.LIST_AGENTS,
    Permission.READ_AGENT,
    Permission.READ_EVENTS,
    Permission.READ_LEASES,
    Permission.READ_TARGETS,
    Permission.READ_TASKS,
}
OF_ITS_OWN = READING | {
    Permission.RECHECK,
    Permission.RE_REGISTER,
    Permission.HEARTBEAT,
    Permission.DRAIN,
    Permission.DEREGISTER,
    Permission.UPDATE,
    Permission.LEASE,
    Permission.RELEASE_LEASE,
    Permission.WRITE_STATE,
    Permission.WORK_TASKS,
}
# The rights of each role on any record, written a second time from the protocol.
TO_ANYBODY = {
    Role.ENROLL: {Permission.REGISTER},
    Role.AGENT: set(),
    Role.READER: READING | {Permission.READ_MONITOR},
    Role.PROBER: READING
    | {
        Permission.READ_MONITOR,
        Permission.REPORT_OBSERVATIONS,
        Permission.LEASE_SHARDS,
        Permission.IMPORT_TARGETS,
    },
    Role.COORDINATOR: READING
    | {
        Permission.READ_MONITOR,
        Permission.REGISTER,
        Permission.RE_REGISTER,
        Permission.DRAIN,
        Permission.DEREGISTER,
        Permission.RELEASE_LEASE,
        Permission.SEND_COMMAND,
        Permission.SET_MAINTENANCE,
        Permission.RECHECK,
        Permission.IMPORT_TARGETS,
        Permission.CONFIRM_DIRECTORY,
        Permission.MANAGE_OPT_OUTS,
        Permission.CREATE_TASKS,
    },
    # A task is worked on with a key of the agent itself.
    Role.ADMIN: set(Permission) - {Permission.WORK_TASKS},
}
ROLES = st.sampled_from(Role)
ACTIONS = st.sampled_from(Permission)
AGENT_IDS = st.sampled_from(["agent_a", "agent_b", "agent_A", ""])
PRINCIPALS = st.builds(Principal, st.just("key_1"), ROLES, st.none() | AGENT_IDS)
AGENT = Principal("key_1", Role.AGENT, "agent_a")
COORDINATING_AGENT = Principal("key_2", Role.COORDINATOR, "agent_a")

RANDOM = bytes(range(KEY_BYTES))
KEY = key_of(RANDOM)
STORED = StoredKey(
    key_id="key_1",
    name="first",
    role=Role.AGENT,
    agent_id="agent_a",
    digest=digest_of(KEY),
    created_at_s=1000.0,
)


def allowed(principal: Principal, agent_id: str | None) -> set[Permission]:
    return {action for action in Permission if may(principal, action, agent_id)}


# Permissions


@pytest.mark.parametrize("role", Role)
def test_role_has_exactly_the_permissions_of_the_protocol_for_other_agents(role: Role) -> None:
    key = Principal("key_1", role, None)
    assert allowed(key, "agent_b") == TO_ANYBODY[role]
    assert allowed(key, None) == TO_ANYBODY[role]


def test_agents_key_acts_only_for_its_agent() -> None:
    assert allowed(AGENT, "agent_a") == OF_ITS_OWN
    assert allowed(AGENT, "agent_b") == set()


def test_agent_key_has_no_permission_for_all_records() -> None:
    assert allowed(AGENT, None) == set()


def test_agent_key_without_an_agent_has_no_rights() -> None:
    nobody = Principal("key_1", Role.AGENT, None)
    for agent_id in (None, "", "None", "agent_a"):
        assert allowed(nobody, agent_id) == set()


def test_coordinator_key_of_an_agent_also_has_the_rights_of_that_agent() -> None:
    assert allowed(COORDINATING_AGENT, "agent_a") == TO_ANYBODY[Role.COORDINATOR] | OF_ITS_OWN
    assert allowed(COORDINATING_AGENT, "agent_b") == TO_ANYBODY[Role.COORDINATOR]
    assert allowed(COORDINATING_AGENT, None) == TO_ANYBODY[Role.COORDINATOR]


@pytest.mark.parametrize("role", [Role.ENROLL, Role.READER, Role.PROBER])
def test_agent_id_on_a_key_of_another_role_adds_no_permission(role: Role) -> None:
    assert allowed(Principal("key_1", role, "agent_a"), "agent_a") == TO_ANYBODY[role]


@given(PRINCIPALS, ACTIONS, st.none() | AGENT_IDS)
def test_require_agrees_with_may(principal: Principal, action: Permission, agent_id: str | None) -> None:
    if may(principal, action, agent_id):
        require(principal, action, agent_id)
        assert may_for_any_agent(principal, action)
        return
    with pytest.raises(NotAllowed) as raised:
        require(principal, action, agent_id)
    assert raised.value.role == principal.role
    assert raised.value.action == action
    assert raised.value.agent_id == agent_id


@given(PRINCIPALS, ACTIONS)
def test_may_at_all_is_true_if_some_record_is_permitted(principal: Principal, action: Permission) -> None:
    records = [None, "agent_c", principal.agent_id]
    assert may_for_any_agent(principal, action) == any(
        may(principal, action, agent_id) for agent_id in records
    )


def test_refusal_contains_key_action_and_agent() -> None:
    with pytest.raises(NotAllowed, match=r"this reader key may not release leases \(agent 'agent_a'\)$"):
        require(Principal("key_1", Role.READER, None), Permission.RELEASE_LEASE, "agent_a")
    with pytest.raises(NotAllowed, match=r"this enroll key may not manage keys$"):
        require(Principal("key_1", Role.ENROLL, None), Permission.MANAGE_KEYS)


def test_missing_permission_is_described() -> None:
    assert ACTION_PHRASES.keys() <= set(Permission)
    for action in Permission:
        message = str(NotAllowed("reader", action, None))
        assert "_" not in message
        assert not message.endswith((" override", " maintenance for", " release hold", " set maintenance"))


@pytest.mark.parametrize(
    ("action", "roles", "is_own"),
    [
        (Permission.RECHECK, {Role.COORDINATOR, Role.ADMIN}, True),
        (Permission.WORK_TASKS, set(), True),
        (Permission.ERASE, {Role.ADMIN}, False),
    ],
)
def test_hint_names_the_roles_and_the_agents_own_key(
    action: Permission, roles: set[Role], *, is_own: bool
) -> None:
    hint = permission_hint(action)
    assert {role for role in Role if str(role) in hint.replace(",", "").split()} == roles
    assert ("own key" in hint) == is_own


def test_permission_table_is_immutable() -> None:
    with pytest.raises(TypeError):
        PERMISSIONS[Role.READER, Permission.ERASE] = PERMISSIONS[Role.ADMIN, Permission.ERASE]  # type: ignore[index]


# Keys


@given(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES))
def test_key_contains_all_its_random_bits(random_bytes: bytes) -> None:
    key = key_of(random_bytes)
    assert looks_like_key(key)
    assert len(key) == 47
    assert base64.urlsafe_b64decode(key.removeprefix("ahk_") + "=") == random_bytes


@pytest.mark.parametrize("length", [0, 16, KEY_BYTES - 1, KEY_BYTES + 1])
def test_key_of_too_few_random_bytes_is_refused_without_quoting_them(length: int) -> None:
    with pytest.raises(InvalidValue) as raised:
        key_of(b"secret".ljust(length, b"x")[:length])
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ahk_",
        KEY[:-1],
        KEY + "A",
        KEY + "\n",
        " " + KEY,
        KEY.replace("ahk_", "AHK_"),
        KEY.replace("ahk_", ""),
        KEY[:-1] + "+",
        KEY[:-1] + "=",
        KEY[:-1] + "é",
        KEY[:-1] + "\u0661",
        KEY[:-1] + "\x00",
        KEY[:-1] + "\ud800",
        "ahk_" + "A" * 1_000_000,
    ],
)
def test_malformed_text_is_not_taken_for_a_key(text: str) -> None:
    assert not looks_like_key(text)


def test_stored_digest_is_sha_256_of_the_whole_key() -> None:
    assert digest_of("abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest_of(KEY) != digest_of(KEY[:-1])


def test_a_stored_key_shows_neither_key_nor_digest() -> None:
    assert KEY not in repr(STORED)
    assert "digest" not in repr(STORED)


def test_key_is_valid_only_by_its_own_digest() -> None:
    assert is_valid(STORED, digest_of(KEY), 1000.0)
    assert not is_valid(STORED, digest_of(key_of(RANDOM[::-1])), 1000.0)
    assert not is_valid(STORED, b"", 1000.0)
    assert not is_valid(STORED, digest_of(KEY)[:-1], 1000.0)


def test_a_rotated_key_is_valid_until_the_overlap_ends() -> None:
    rotated = replace(STORED, expires_at_s=2000.0)
    assert is_valid(rotated, digest_of(KEY), 1999.999)
    assert not is_valid(rotated, digest_of(KEY), 2000.0)


@pytest.mark.parametrize("now_s", [999.0, 1500.0, 5000.0])
def test_revoked_key_is_refused_at_any_time(now_s: float) -> None:
    assert not is_valid(replace(STORED, revoked_at_s=1500.0), digest_of(KEY), now_s)
    assert not is_valid(replace(STORED, revoked_at_s=1500.0, expires_at_s=9000.0), digest_of(KEY), now_s)


ENDS = st.none() | st.floats(0, 100)


@given(ENDS, ENDS, ENDS, ENDS, st.floats(0, 100))
def test_earlier_of_two_expiry_times_applies(
    expires_at_s: float | None,
    other_expires_at_s: float | None,
    revoked_at_s: float | None,
    other_revoked_at_s: float | None,
    now_s: float,
) -> None:
    key = StoredKey(key_id="key_1", name="alice", role=Role.READER, digest=b"", created_at_s=0.0)
    one = replace(key, expires_at_s=expires_at_s, revoked_at_s=revoked_at_s)
    other = replace(key, expires_at_s=other_expires_at_s, revoked_at_s=other_revoked_at_s)
    both = with_earlier_end(one, other)
    assert is_current(both, now_s) == (is_current(one, now_s) and is_current(other, now_s))
    assert both == with_earlier_end(other, one)


def test_hint_names_each_role_before_its_purpose() -> None:
    assert [purpose.split()[0] for purpose in role_hint().split(", ")] == list(Role)
