"""Acquisition, renewal and release of leases (protocol 6, RFC-0016 9).

Waiting requests are processed together. A few statements fetch and lock the rows of all of them, the requests
are decided one after another in the order of their arrival, and one statement stores the leases.
"""

import hmac
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lifesign.domain.access.event_actor import KEY_ACTOR_PREFIX
from lifesign.domain.access.permissions import (
    Permission,
    Principal,
    StoredKey,
    is_valid,
    may,
    require,
    require_one_of,
)
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest, InvalidResource, NotAllowed
from lifesign.domain.events.event import EventDraft
from lifesign.domain.lifecycle.heartbeat_timeout import was_set_back
from lifesign.domain.lifecycle.status_table import ALIVE, Status
from lifesign.domain.tasks.lease import (
    TTL_SECONDS,
    TTL_TOLERANCE_SECONDS,
    Claim,
    EndReason,
    Refusal,
    ResourceKind,
    decide_acquire,
    decide_release,
    decide_renew,
    ended,
    for_stranger,
    is_end_uncertain,
    read_resource,
)
from lifesign.domain.tasks.lease_id import number_in, was_granted_to
from lifesign.domain.tasks.task_states import task_in
from lifesign.errors import LifesignError
from lifesign.registry.errors import AgentGone, AgentNotFound, LeaseEndUncertain, LeaseNotFound, UnknownKey
from lifesign.registry.serializers.lease_records import refused
from lifesign.registry.status_changes import lease_events
from lifesign.registry.status_changes.agent_status import MONITOR
from lifesign.registry.status_changes.task_status import lose_tasks
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.tasks import lease_requesters, leases, task_rows
from lifesign.storage.tasks.lease_requesters import Holder, LeaseRequesters

ACQUIRE_PERMISSIONS: Final = (Permission.LEASE,)
"""Permissions to acquire a lease: the caller needs one of them."""
RENEW_PERMISSIONS: Final = (Permission.LEASE, Permission.LEASE_SHARDS)
"""Permissions to renew a lease, for its holder: a prober holds leases of shards."""
RELEASE_PERMISSIONS: Final = (Permission.RELEASE_LEASE, Permission.LEASE_SHARDS)
"""Permissions to release a lease. Without the first one, a caller can release only its own leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquire:
    """Request for a lease."""

    digest: bytes
    """Digest of the key of the request."""
    incarnation: int | None = None
    """Incarnation that the agent states; None if it states none."""
    resource: str
    """Name in the form that `read_resource` accepts."""
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Request of a holder to extend its lease."""

    digest: bytes
    incarnation: int | None = None
    lease_id: str
    token: int
    ttl_s: float | None
    """None: the duration of the task's lease; for any other lease TTL_SECONDS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReleaseRequest:
    """The holder has finished, or a caller with the permission ends the lease."""

    digest: bytes
    incarnation: int | None = None
    lease_id: str


LeaseOperation = Acquire | Renew | LeaseReleaseRequest
Answer = Claim | LifesignError
"""The lease as it is now, or why the request is refused and changed nothing."""


@dataclass(slots=True)
class _Facts:
    """Facts for the decisions of a batch, and their results."""

    now_s: float
    token_floor: int
    holders: Mapping[str, Holder]
    rows: dict[int, Claim]
    numbers: dict[str, int]
    """Row numbers by resource."""
    lease_s: Mapping[int, float]
    """Maximum lifetime of task leases that are to be renewed, by row number."""
    uncertain: Collection[int]
    """Row numbers of leases of which only the next sweep knows whether they have ended."""
    swept_at_s: float | None
    changed: dict[int, Claim] = field(default_factory=dict)
    drafts: list[EventDraft] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)
    """Draining agents that have given back a lease."""
    given_back: dict[str, list[Claim]] = field(default_factory=dict)
    """Leases that were ended, with the caller that ended them."""

    def put(self, number: int, claim: Claim) -> None:
        """Store a claim; the next request of the batch sees it."""
        self.rows[number] = self.changed[number] = claim


def hold_leases(transaction: Transaction, operations: Sequence[LeaseOperation]) -> list[Answer]:
    """Carry out requests in their order; return for each the lease, or why it is refused."""
    released = {one.lease_id for one in operations if isinstance(one, LeaseReleaseRequest)}
    askers = lease_requesters.lock(transaction, (one.digest for one in operations), _numbers_in(released))
    callers = [_caller(askers.keys.get(one.digest), one) for one in operations]
    allowed = [
        one for one, caller in zip(operations, callers, strict=True) if not isinstance(caller, LifesignError)
    ]
    facts = _fetch(transaction, allowed, askers)
    answers: list[Answer] = []
    for one, caller in zip(operations, callers, strict=True):
        key = askers.keys.get(one.digest)
        if isinstance(caller, LifesignError):
            answers.append(caller)
        elif key is None or not is_valid(key, one.digest, facts.now_s):
            answers.append(UnknownKey())
        else:
            answers.append(_decide(one, caller, facts))
    leases.store(transaction, list(facts.changed.values()))
    for actor, claims in facts.given_back.items():
        moved = lose_tasks(transaction, claims, actor)
        facts.drafts += [draft for several in moved.values() for draft in several]
    _schedule_drained(transaction, facts)
    event_log.append(transaction, facts.drafts)
    return answers


def holder_of(caller: Principal) -> str:
    """Return the name under which a caller holds leases; no agent can have the same name."""
    return caller.agent_id or f"{KEY_ACTOR_PREFIX}{caller.key_id}"


def check_end(transaction: Transaction, claim: Claim, now_s: float) -> None:
    """Raise LeaseEndUncertain if the lease is overdue and only the next sweep knows whether it has ended."""
    if _uncertain(transaction, {0: claim}, now_s):
        raise LeaseEndUncertain(claim.resource)


def check_new_end(resource: str, now_s: float, swept_at_s: float | None) -> None:
    """Raise LeaseEndUncertain if the next sweep would move an end that is computed now."""
    if was_set_back(swept_at_s, now_s):
        raise LeaseEndUncertain(resource)


def refusal_for(refusal: Refusal, caller: Principal) -> Refusal:
    """Return the refusal of a guarded write without what this caller may not know about the lease."""
    claim = refusal.claim
    is_known = claim is not None and claim.holder == holder_of(caller)
    return refusal if is_known or may(caller, Permission.READ_LEASES) else for_stranger(refusal)


def _caller(key: StoredKey | None, one: LeaseOperation) -> Principal | LifesignError:
    """Return the caller, or why it may not hold leases; the validity of the key is checked later."""
    if key is None or key.revoked_at_s is not None:
        return UnknownKey()
    caller = Principal(key.key_id, key.role, key.agent_id)
    try:
        _check_permission(caller, one)
    except NotAllowed as refusal:
        return refusal
    return caller


def _check_permission(caller: Principal, one: LeaseOperation) -> None:
    match one:
        case Acquire() if read_resource(one.resource) is ResourceKind.SHARD:
            require(caller, Permission.LEASE_SHARDS)
        case Acquire():
            require_one_of(caller, ACQUIRE_PERMISSIONS)
        case Renew():
            require_one_of(caller, RENEW_PERMISSIONS)
        case LeaseReleaseRequest():
            require_one_of(caller, RELEASE_PERMISSIONS)


def _fetch(transaction: Transaction, allowed: Sequence[LeaseOperation], askers: LeaseRequesters) -> _Facts:
    """Lock the leases of the requests, and read the clock after that."""
    rows = leases.lock(
        transaction,
        to_hold={one.resource for one in allowed if isinstance(one, Acquire)},
        numbers=_numbers_in({one.lease_id for one in allowed if not isinstance(one, Acquire)}),
    )
    renewed = _numbers_in({one.lease_id for one in allowed if isinstance(one, Renew)})
    of_tasks = [number for number in renewed if number in rows and task_in(rows[number].resource) is not None]
    now_s = transaction.now_s
    return _Facts(
        now_s=now_s,
        token_floor=askers.token_floor,
        holders=askers.holders,
        rows=rows,
        numbers={row.resource: number for number, row in rows.items()},
        lease_s=task_rows.leases_of(transaction, of_tasks),
        uncertain=_uncertain(transaction, rows, now_s),
        swept_at_s=askers.swept_at_s,
    )


def _uncertain(transaction: Transaction, rows: Mapping[int, Claim], now_s: float) -> list[int]:
    """Return the numbers of the claims whose end is uncertain; the clock was read after they were locked."""
    overdue = {
        number: row for number, row in rows.items() if row.ended_at_s is None and row.expires_at_s <= now_s
    }
    registry = registry_row.find(transaction) if overdue else None
    swept_at_s = None if registry is None else registry.swept_at_s
    return [number for number, row in overdue.items() if is_end_uncertain(row, now_s, swept_at_s)]


def _numbers_in(lease_ids: set[str]) -> list[int]:
    return [number for number in map(number_in, lease_ids) if number is not None]


def _decide(one: LeaseOperation, caller: Principal, facts: _Facts) -> Answer:
    agent = None if caller.agent_id is None else facts.holders.get(caller.agent_id)
    try:
        if agent is None and caller.agent_id is not None and one.incarnation is not None:
            raise AgentNotFound(caller.agent_id)
        if agent is not None and one.incarnation not in {None, agent.incarnation}:
            raise AgentGone(agent.agent_id, agent.status, agent.incarnation)
        match one:
            case Acquire():
                return _acquire(one, caller, agent, facts)
            case Renew():
                return _renew(one, caller, agent, facts)
            case LeaseReleaseRequest():
                return _release(one, caller, facts)
    except LifesignError as refusal:
        return refusal


def _acquire(one: Acquire, caller: Principal, agent: Holder | None, facts: _Facts) -> Claim:
    if task_in(one.resource) is not None:
        # Its lease begins and ends with a run.
        raise InvalidResource(
            one.resource, "another resource: a task of the registry is claimed at POST /api/v1/tasks/claim"
        )
    if read_resource(one.resource) is ResourceKind.SHARD:
        # Shares, limits and bars apply only to claims.
        raise InvalidResource(one.resource, "a shard to be claimed at /api/v1/shards/claim")
    number = facts.numbers[one.resource]
    before = facts.rows[number]
    check_new_end(one.resource, facts.now_s, facts.swept_at_s)
    if number in facts.uncertain:
        raise LeaseEndUncertain(one.resource)
    status = None if agent is None else Status(agent.status)
    decision = decide_acquire(
        before, status, token_floor=facts.token_floor, now_s=facts.now_s, ttl_seconds=one.ttl_s
    )
    if isinstance(decision, Refusal):
        raise refused(decision, one.resource, now_s=facts.now_s, agent=agent)
    if before.lease_id is not None and before.ended_at_s is None:
        # Its time is over, and this finds out before the sweep does.
        over = ended(before, EndReason.EXPIRED, facts.now_s)
        facts.drafts.append(lease_events.lease_ended(over, MONITOR))
    claim = leases.granted(
        before,
        number,
        holder=holder_of(caller),
        holder_incarnation=0 if agent is None else agent.incarnation,
        token=decision.token,
        acquired_at_s=facts.now_s,
        expires_at_s=decision.expires_at_s,
    )
    facts.put(number, claim)
    facts.drafts.append(lease_events.acquired(claim, holder_of(caller)))
    return claim


def _renew(one: Renew, caller: Principal, agent: Holder | None, facts: _Facts) -> Claim:
    if agent is not None and agent.status not in ALIVE:
        raise AgentGone(agent.agent_id, agent.status, agent.incarnation)
    number, claim = _row_of(one.lease_id, caller, facts)
    check_new_end(claim.resource, facts.now_s, facts.swept_at_s)
    most_s = facts.lease_s.get(number)
    decision = decide_renew(
        claim,
        one.lease_id,
        holder=holder_of(caller),
        token=one.token,
        now_s=facts.now_s,
        ttl_seconds=most_s or TTL_SECONDS if one.ttl_s is None else one.ttl_s,
    )
    if isinstance(decision, Refusal):
        raise refused(decision, one.lease_id, now_s=facts.now_s, token=one.token, agent=agent)
    if one.ttl_s is not None and most_s is not None and one.ttl_s > most_s + TTL_TOLERANCE_SECONDS:
        # The holder computes its own deadline from the requested time: a shorter lease without notice would
        # be unsafe.
        expected = f"expected at most {most_s:g}, the lease_seconds of the task"
        raise InvalidRequest([Finding("longer_than_its_task", "/ttl_seconds", expected)])
    claim = replace(claim, expires_at_s=decision.expires_at_s)
    facts.put(number, claim)
    return claim


def _release(one: LeaseReleaseRequest, caller: Principal, facts: _Facts) -> Claim:
    number, claim = _row_of(one.lease_id, caller, facts)
    decision = decide_release(
        claim,
        one.lease_id,
        holder=holder_of(caller),
        now_s=facts.now_s,
        is_for_another=may(caller, Permission.RELEASE_LEASE),
    )
    if isinstance(decision, Refusal):
        raise refused(decision, one.lease_id, now_s=facts.now_s)
    if not decision.is_repeat:
        claim = ended(claim, decision.end_reason, facts.now_s)
        facts.put(number, claim)
        facts.drafts.append(lease_events.lease_ended(claim, holder_of(caller)))
        facts.given_back.setdefault(holder_of(caller), []).append(claim)
        holder = facts.holders.get(claim.holder or "")
        if holder is not None and holder.status == Status.DRAINING:
            facts.drained.add(holder.agent_id)
    return claim


def _row_of(lease_id: str, caller: Principal, facts: _Facts) -> tuple[int, Claim]:
    """Return the row of a lease that the caller holds or held, or may end for its holder.

    LeaseNotFound otherwise, whether there is such a lease or not: callers that try ids do not learn about
    leases of others.
    """
    number = number_in(lease_id)
    claim = None if number is None else facts.rows.get(number)
    if number is None or claim is None:
        raise LeaseNotFound(lease_id)
    holder = holder_of(caller)
    is_current = hmac.compare_digest(claim.lease_id or "", lease_id)
    is_permitted = claim.holder == holder or may(caller, Permission.RELEASE_LEASE)
    if not ((is_current and is_permitted) or was_granted_to(holder, lease_id, claim.id_secret)):
        raise LeaseNotFound(lease_id)
    if number in facts.uncertain:
        raise LeaseEndUncertain(claim.resource)
    return number, claim


def _schedule_drained(transaction: Transaction, facts: _Facts) -> None:
    """Schedule draining agents that have released all their leases for the next sweep."""
    if facts.drained:
        still_held = leases.count_held(transaction, sorted(facts.drained))
        done = facts.drained - still_held.keys()
        agent_rows.set_verdict_due(
            transaction, {facts.holders[agent_id].number: facts.now_s for agent_id in done}
        )
