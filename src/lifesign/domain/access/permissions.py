"""Roles of keys and their permissions.

A caller is identified by its key. Keys are random, so that a plain SHA-256 digest is enough to store them:
they cannot be guessed, and a slow hash would only slow down every heartbeat.
"""

import base64
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType

from lifesign.domain.errors import NotAllowed
from lifesign.errors import InvalidValue

KEY_PREFIX = "ahk_"
"""Lets scanners for leaked secrets find our keys."""
KEY_BYTES = 32
"""Random bytes in a key."""

_KEY = re.compile(rf"{KEY_PREFIX}[A-Za-z0-9_-]{{43}}")


class Role(StrEnum):
    """Role of a key, which decides its permissions."""

    ENROLL = "enroll"
    """May register new agents, but not replace existing ones."""
    AGENT = "agent"
    """Key of a single agent."""
    READER = "reader"
    PROBER = "prober"
    COORDINATOR = "coordinator"
    ADMIN = "admin"


_PURPOSES: Mapping[Role, str] = MappingProxyType({
    Role.ENROLL:      "registers agents",
    Role.AGENT:       "is the key of one agent",
    Role.READER:      "reads",
    Role.PROBER:      "reports probe results",
    Role.COORDINATOR: "manages agents and tasks",
    Role.ADMIN:       "also manages keys",
})  # fmt: skip


class Permission(StrEnum):
    """Something that a key may be permitted to do."""

    REGISTER = "register"
    """Add an agent that is not there yet."""
    RE_REGISTER = "re-register"
    """Begin a new life of an agent, also of one that is still alive."""
    HEARTBEAT = "heartbeat"
    DRAIN = "drain"
    DEREGISTER = "deregister"
    UPDATE = "update"
    """Change the record of an agent."""
    LEASE = "lease"
    """Acquire and renew, as the holder."""
    RELEASE_LEASE = "release_lease"
    WRITE_STATE = "write_state"
    """Guarded by a fencing token."""
    LIST_AGENTS = "list_agents"
    READ_AGENT = "read_agent"
    READ_EVENTS = "read_events"
    READ_LEASES = "read_leases"
    READ_MONITOR = "read_monitor"
    """Read the state of the monitor."""
    REPORT_OBSERVATIONS = "report_observations"
    LEASE_SHARDS = "lease_shards"
    READ_TARGETS = "read_targets"
    """Read targets and their results."""
    IMPORT_TARGETS = "import_targets"
    """Import the entries of a directory."""
    CONFIRM_DIRECTORY = "confirm_directory"
    """Retire the targets that left a directory after it lost more than half of them."""
    MANAGE_OPT_OUTS = "manage_opt_outs"
    """Let an owner prove that an origin must not be probed."""
    SEND_COMMAND = "send_command"
    SET_MAINTENANCE = "set_maintenance"
    RECHECK = "recheck"
    """Have a target probed out of turn."""
    CREATE_TASKS = "create_or_steer_tasks"
    """Create tasks, and decide how tasks that wait for people continue."""
    READ_TASKS = "read_tasks"
    WORK_TASKS = "work_tasks"
    """Claim, report on and end tasks."""
    MANAGE_KEYS = "manage_keys"
    MANAGE_WEBHOOKS = "manage_webhooks"
    OVERRIDE = "override"
    """Replace a verdict by one's own."""
    RELEASE_SUSPENSION = "release_suspension"
    CONFIRM_OUTAGE = "confirm_outage"
    """Say that a network class, or an agent, may be down."""
    ERASE = "erase"


class Extent(StrEnum):
    """Whether a permission applies to all records, or only to the caller's own."""

    ANY = "any"
    """All records, also those of no agent."""
    OWN = "own"
    """The record of the agent to which the key belongs."""


# A pair absent from this table is refused (protocol, section 5).
PERMISSIONS: Mapping[tuple[Role, Permission], Extent] = MappingProxyType({
    (Role.ENROLL,      Permission.REGISTER):            Extent.ANY,

    (Role.AGENT,       Permission.RE_REGISTER):         Extent.OWN,
    (Role.AGENT,       Permission.HEARTBEAT):                Extent.OWN,
    (Role.AGENT,       Permission.DRAIN):               Extent.OWN,
    (Role.AGENT,       Permission.DEREGISTER):          Extent.OWN,
    (Role.AGENT,       Permission.UPDATE):              Extent.OWN,
    (Role.AGENT,       Permission.LEASE):               Extent.OWN,
    (Role.AGENT,       Permission.RELEASE_LEASE):       Extent.OWN,
    (Role.AGENT,       Permission.WRITE_STATE):         Extent.OWN,
    (Role.AGENT,       Permission.WORK_TASKS):          Extent.OWN,
    (Role.AGENT,       Permission.READ_TASKS):          Extent.OWN,
    (Role.AGENT,       Permission.LIST_AGENTS):         Extent.OWN,
    (Role.AGENT,       Permission.READ_AGENT):          Extent.OWN,
    (Role.AGENT,       Permission.READ_EVENTS):         Extent.OWN,
    (Role.AGENT,       Permission.READ_LEASES):         Extent.OWN,
    (Role.AGENT,       Permission.READ_TARGETS):        Extent.OWN,
    (Role.AGENT,       Permission.RECHECK):             Extent.OWN,

    (Role.READER,      Permission.LIST_AGENTS):         Extent.ANY,
    (Role.READER,      Permission.READ_AGENT):          Extent.ANY,
    (Role.READER,      Permission.READ_EVENTS):         Extent.ANY,
    (Role.READER,      Permission.READ_LEASES):         Extent.ANY,
    (Role.READER,      Permission.READ_MONITOR):        Extent.ANY,
    (Role.READER,      Permission.READ_TARGETS):        Extent.ANY,
    (Role.READER,      Permission.READ_TASKS):          Extent.ANY,

    (Role.PROBER,      Permission.LIST_AGENTS):         Extent.ANY,
    (Role.PROBER,      Permission.READ_AGENT):          Extent.ANY,
    (Role.PROBER,      Permission.READ_EVENTS):         Extent.ANY,
    (Role.PROBER,      Permission.READ_LEASES):         Extent.ANY,
    (Role.PROBER,      Permission.READ_MONITOR):        Extent.ANY,
    (Role.PROBER,      Permission.READ_TARGETS):        Extent.ANY,
    (Role.PROBER,      Permission.READ_TASKS):          Extent.ANY,
    (Role.PROBER,      Permission.REPORT_OBSERVATIONS): Extent.ANY,
    (Role.PROBER,      Permission.LEASE_SHARDS):        Extent.ANY,
    (Role.PROBER,      Permission.IMPORT_TARGETS):      Extent.ANY,

    (Role.COORDINATOR, Permission.REGISTER):            Extent.ANY,
    (Role.COORDINATOR, Permission.RE_REGISTER):         Extent.ANY,
    # A caller that may change a status may also deregister (RFC-0016, security considerations), but no caller
    # sends heartbeats, leases or works in another agent's name.
    (Role.COORDINATOR, Permission.DRAIN):               Extent.ANY,
    (Role.COORDINATOR, Permission.DEREGISTER):          Extent.ANY,
    (Role.COORDINATOR, Permission.RELEASE_LEASE):       Extent.ANY,
    (Role.COORDINATOR, Permission.LIST_AGENTS):         Extent.ANY,
    (Role.COORDINATOR, Permission.READ_AGENT):          Extent.ANY,
    (Role.COORDINATOR, Permission.READ_EVENTS):         Extent.ANY,
    (Role.COORDINATOR, Permission.READ_LEASES):         Extent.ANY,
    (Role.COORDINATOR, Permission.READ_MONITOR):        Extent.ANY,
    (Role.COORDINATOR, Permission.READ_TARGETS):        Extent.ANY,
    (Role.COORDINATOR, Permission.READ_TASKS):          Extent.ANY,
    (Role.COORDINATOR, Permission.SEND_COMMAND):        Extent.ANY,
    (Role.COORDINATOR, Permission.SET_MAINTENANCE):     Extent.ANY,
    (Role.COORDINATOR, Permission.RECHECK):             Extent.ANY,
    (Role.COORDINATOR, Permission.IMPORT_TARGETS):      Extent.ANY,
    (Role.COORDINATOR, Permission.CONFIRM_DIRECTORY):   Extent.ANY,
    (Role.COORDINATOR, Permission.MANAGE_OPT_OUTS):     Extent.ANY,
    (Role.COORDINATOR, Permission.CREATE_TASKS):        Extent.ANY,

    # A task is worked on by an agent, with its own key: an admin's key belongs to none.
    **{(Role.ADMIN, action): Extent.ANY for action in Permission if action is not Permission.WORK_TASKS},
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request, identified by a key."""

    key_id: str
    role: Role
    agent_id: str | None
    """Agent to which the key belongs; None without an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """What the registry stores about a key; not the key itself."""

    key_id: str
    """May be shown and logged; nothing of the key follows from it."""
    name: str
    role: Role
    agent_id: str | None = None
    digest: bytes = field(repr=False)
    """SHA-256 of the whole key."""
    created_at_s: float
    expires_at_s: float | None = None
    """Time from which the key is refused; None: never. After a rotation, the end of the overlap."""
    revoked_at_s: float | None = None
    """Time from which the key is refused. A revocation applies at once, whatever the clock says."""
    max_workers: int | None = None
    """Workers that may probe with it at a time; None: the default."""
    is_suspended: bool = False
    """Whether a restore suspended the key because its state was unknown; an operator may confirm it."""
    successor_id: str | None = None
    """Id of the key that replaced it in a rotation; None: there is none."""


def may(principal: Principal, action: Permission, agent_id: str | None = None) -> bool:
    """Return whether the caller has a permission for the record of `agent_id`; None: for no record.

    None means no single record, as for a list: callers that are limited to their own record are refused. A
    coordinator that is an agent too has the permissions of agents for that agent.
    """
    if PERMISSIONS.get((principal.role, action)) is Extent.ANY:
        return True
    is_own = agent_id is not None and agent_id == principal.agent_id
    return is_own and _extent(principal, action) is Extent.OWN


def may_for_any_agent(principal: Principal, action: Permission) -> bool:
    """Return whether the caller has a permission for one record at least, before the record is known.

    This is not sufficient: `may` or `require` must be called once the record is known.
    """
    extent = _extent(principal, action)
    return extent is Extent.ANY or (extent is Extent.OWN and principal.agent_id is not None)


def require(principal: Principal, action: Permission, agent_id: str | None = None) -> None:
    """Raise NotAllowed unless the caller has the permission for this record (see `may`)."""
    if not may(principal, action, agent_id):
        raise NotAllowed(principal.role, action, agent_id)


def require_one_of(principal: Principal, actions: Sequence[Permission]) -> None:
    """Raise NotAllowed unless the caller has one of these permissions for one record at least.

    This is not sufficient: see `may_for_any_agent`. The error names the first permission.
    """
    if not any(may_for_any_agent(principal, action) for action in actions):
        raise NotAllowed(principal.role, actions[0], None)


def role_hint() -> str:
    """Return the purpose of each role, as a hint for a caller that named an unknown one."""
    return ", ".join(f"{role} {purpose}" for role, purpose in _PURPOSES.items())


def permission_hint(action: Permission) -> str:
    """Return the roles of keys that have a permission, as a hint for a caller without it."""
    anywhere = [role for role in Role if PERMISSIONS.get((role, action)) is Extent.ANY]
    keys = [f"a key of role {' or '.join(anywhere)}"] if anywhere else []
    if PERMISSIONS.get((Role.AGENT, action)) is Extent.OWN:
        keys.append("the agent's own key")
    return f"use {', or '.join(keys)}"


def _extent(principal: Principal, action: Permission) -> Extent | None:
    """Return the records that a permission covers for a caller, a coordinator also as an agent."""
    extent = PERMISSIONS.get((principal.role, action))
    if extent is None and principal.role is Role.COORDINATOR:
        return PERMISSIONS.get((Role.AGENT, action))
    return extent


def key_of(random_bytes: bytes) -> str:
    """Return the text of a new key, made of `KEY_BYTES` random bytes; InvalidValue for another number.

    `ahk_` and 43 characters of the URL-safe base64 alphabet.
    """
    if len(random_bytes) != KEY_BYTES:
        raise InvalidValue("random_bytes", f"{len(random_bytes)} bytes", f"{KEY_BYTES} bytes")
    return KEY_PREFIX + base64.urlsafe_b64encode(random_bytes).decode("ascii").rstrip("=")


def looks_like_key(text: str) -> bool:
    """Return whether a text has the form of a key, so that looking it up is worthwhile."""
    return _KEY.fullmatch(text) is not None


def digest_of(key: str) -> bytes:
    """Return the stored form of a key: its SHA-256, 32 bytes."""
    return sha256(key.encode()).digest()


def fingerprint_of(digest: bytes) -> str:
    """Return the fingerprint of a key's digest for the event log: its SHA-256."""
    return sha256(digest).hexdigest()


def is_valid(stored: StoredKey, digest: bytes, now_s: float) -> bool:
    """Return whether this digest is the stored key's, and the key is valid now. Constant time."""
    return hmac.compare_digest(stored.digest, digest) and is_current(stored, now_s)


def is_current(stored: StoredKey, now_s: float) -> bool:
    """Return whether a stored key is valid now: neither revoked nor expired.

    At `expires_at_s` it has expired.
    """
    is_unexpired = stored.expires_at_s is None or now_s < stored.expires_at_s
    return is_unexpired and stored.revoked_at_s is None


def with_earlier_end(stored: StoredKey, other: StoredKey) -> StoredKey:
    """Merge two copies of a stored key: it ends (expires, is revoked) at the earlier time of both copies."""
    revoked = [key for key in (stored, other) if key.revoked_at_s is not None]
    return replace(
        stored,
        expires_at_s=_earlier_s(stored.expires_at_s, other.expires_at_s),
        revoked_at_s=_earlier_s(stored.revoked_at_s, other.revoked_at_s),
        is_suspended=bool(revoked) and all(key.is_suspended for key in revoked),
    )


def _earlier_s(one: float | None, other: float | None) -> float | None:
    return min((at_s for at_s in (one, other) if at_s is not None), default=None)


def rotated_lifetime_s(stored: StoredKey) -> float | None:
    """Return the default lifetime of a key that replaces this one; None: unlimited.

    It is that of the key itself: rotation must not make a short lifetime unlimited.
    """
    return None if stored.expires_at_s is None else stored.expires_at_s - stored.created_at_s


def is_last_admin(key_id: str, admins: Iterable[StoredKey], now_s: float) -> bool:
    """Return whether this is the only valid key that can manage keys."""
    return not any(is_current(admin, now_s) for admin in admins if admin.key_id != key_id)
