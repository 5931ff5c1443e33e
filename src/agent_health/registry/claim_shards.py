"""Which shards does a prober own for a while? (protocol 8)

Whoever claims says that it lives, renews what it really holds, gives up what is more than its fair share,
and gets what is free up to that. The leases of shards are leases like all others; that somebody lives is
a row of its own, since whoever holds nothing yet counts too. A holder is a key and a worker's own name:
several workers may share one key, and need names of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from agent_health.access import Action, Principal, require
from agent_health.actor import KEY_ACTOR_PREFIX
from agent_health.agent_record import Body, moment
from agent_health.document import Time
from agent_health.errors import TooMany
from agent_health.lease import Claim, EndReason, ended, is_unexpired, judge_write, next_token, shard_resource
from agent_health.registry import lease_events
from agent_health.registry.hold_lease import holder_of
from agent_health.registry.operations import Call, Operation, Reply
from agent_health.shard_record import (
    GrantedShard,
    LivingProber,
    ShardClaimRequest,
    ShardGrant,
    ShardsShown,
    WorkerName,
)
from agent_health.shard_share import divide, fair_share
from agent_health.storage import event_log, lease_askers, leases, probed, probers, targets
from agent_health.storage.database import Transaction
from agent_health.target import SHARDS

PATH = "/api/v1/shards"
MAX_PROBERS = SHARDS
"""That live at a time: more would have nothing to do."""
MAX_SHOWN = MAX_PROBERS
MAX_CLAIM_BYTES = 131_072
"""Of a body that names all shards."""

_RESOURCES = {shard_resource(shard): shard for shard in range(SHARDS)}


class LeavingWorker(Body):
    """The query of `DELETE /api/v1/shards`."""

    worker: WorkerName


class ShardChanges(Body):
    """The query of `GET /api/v1/shards`."""

    changed_after: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """A version that an earlier answer gave; absent: no changes are told."""
    unprobed_since: Time | None = None
    """Count the targets that were not probed since then."""


@dataclass(slots=True)
class _Shards:
    """The leases of all shards, by shard, and what is to be stored and logged of them."""

    numbers: dict[int, int]
    claims: dict[int, Claim]
    changed: dict[int, Claim]
    over: list[Claim]

    def put(self, shard: int, claim: Claim) -> None:
        self.claims[shard] = self.changed[shard] = claim

    def end(self, shard: int, reason: EndReason, now_s: float) -> None:
        """End a shard's lease if it has one that nobody has ended yet."""
        claim = self.claims[shard]
        if claim.lease_id is not None and claim.ended_at_s is None:
            claim = ended(claim, reason, now_s)
            self.put(shard, claim)
            self.over.append(claim)


def worker_holder(caller: Principal, worker: str) -> str:
    """Return by which name a worker holds shards; a slash stands in no id of a key."""
    return f"{KEY_ACTOR_PREFIX}{caller.key_id}/{worker}"


def claim_shards(transaction: Transaction, call: Call) -> Reply:
    """Keep what the worker holds, take what is too much, and give it what is free, up to its fair share.

    A shard that the worker holds by our books and does not name, or with another token, is one that it
    has lost track of: it is ended, and may be granted anew. Companions that are still to come count as if
    they lived: else the first would have all, and each of them wait for its part. TooMany if too many
    workers live.
    """
    asked = call.body_as(ShardClaimRequest)
    holder = worker_holder(call.caller, asked.worker)
    floor = lease_askers.lock(transaction, [call.digest], ()).token_floor
    probers.lock_all(transaction)
    shards = _locked(transaction)
    now_s = transaction.now_s
    workers = _join(transaction, holder, asked.ttl_seconds)
    held = _really_held(shards, holder, asked.held, now_s)
    for shard, claim in shards.claims.items():
        if claim.holder == holder and shard not in held:
            shards.end(shard, EndReason.RELEASED, now_s)
    free = [shard for shard, claim in shards.claims.items() if not is_unexpired(claim, now_s)]
    sharers = max(workers, asked.companions + 1)
    division = divide(held, free, sharers)
    for shard in division.given_up:
        shards.end(shard, EndReason.RELEASED, now_s)
    expires_at_s = now_s + asked.ttl_seconds
    for shard in division.kept:
        shards.put(shard, replace(shards.claims[shard], expires_at_s=expires_at_s))
    for shard in division.granted:
        shards.end(shard, EndReason.EXPIRED, now_s)
        token = next_token(shards.claims[shard].token, floor)
        granted = leases.granted(
            shards.claims[shard],
            shards.numbers[shard],
            holder=holder,
            token=token,
            acquired_at_s=now_s,
            expires_at_s=expires_at_s,
        )
        shards.put(shard, granted)
    leases.store(transaction, list(shards.changed.values()))
    drafts = [*lease_events.all_over(shards.over, holder)]
    new = [shards.claims[shard] for shard in division.granted]
    drafts += lease_events.shards_granted(new, holder, holder)
    event_log.append(transaction, drafts)
    mine, expires_at = sorted((*division.kept, *division.granted)), moment(expires_at_s)
    answer = ShardGrant(
        shards=[GrantedShard(shard, shards.claims[shard].token, expires_at) for shard in mine],
        workers=workers,
        share=fair_share(sharers),
    )
    return Reply(content=answer)


def leave_shards(transaction: Transaction, call: Call) -> Reply:
    """Give back all that a worker holds, so that others get it at once; again, nothing happens."""
    holder = worker_holder(call.caller, call.query_as(LeavingWorker).worker)
    probers.lock_all(transaction)
    probers.remove(transaction, holder)
    ended_now = leases.end_all_of(transaction, {holder: EndReason.RELEASED}).get(holder, [])
    event_log.append(transaction, [*lease_events.all_over(ended_now, holder)])
    return Reply(status=204)


def show_shards(transaction: Transaction, call: Call) -> Reply:
    """Return who probes, and in which shards anything changed that probers do not know."""
    require(call.caller, Action.READ_TARGETS)
    asked = call.query_as(ShardChanges)
    after, since = asked.changed_after, asked.unprobed_since
    living = probers.listing(transaction, MAX_SHOWN)
    changed = {} if after is None else targets.newest_versions(transaction, after)
    answer = ShardsShown(
        version=targets.last_version(transaction),
        changed={str(shard): version for shard, version in sorted(changed.items())},
        probers=[
            LivingProber(holder=holder, joined_at=moment(joined_s), expires_at=moment(until_s))
            for holder, joined_s, until_s in living
        ],
        share=fair_share(max(1, len(living))),
        unprobed=None if since is None else probed.count_unprobed(transaction, since.timestamp()),
    )
    return Reply(content=answer)


def _locked(transaction: Transaction) -> _Shards:
    """Lock the leases of all shards, in the order in which everybody locks leases."""
    rows = leases.lock(transaction, to_hold=_RESOURCES)
    numbers = {_RESOURCES[claim.resource]: number for number, claim in rows.items()}
    claims = {_RESOURCES[claim.resource]: claim for claim in rows.values()}
    return _Shards(numbers, dict(sorted(claims.items())), {}, [])


def _join(transaction: Transaction, holder: str, ttl_seconds: float) -> int:
    """Note that a worker lives, and return how many do."""
    others = probers.count_others(transaction, holder)
    joined_at_s = probers.find(transaction, holder)
    if joined_at_s is None and others >= MAX_PROBERS:
        raise TooMany("living workers", MAX_PROBERS)
    now_s = transaction.now_s
    probers.store(transaction, holder, now_s if joined_at_s is None else joined_at_s, now_s + ttl_seconds)
    return others + 1


def _really_held(shards: _Shards, holder: str, named: Mapping[int, int], now_s: float) -> set[int]:
    """Return the shards that the holder has by our books too."""
    return {
        shard
        for shard, token in named.items()
        if judge_write(shards.claims[shard], holder, token, now_s) is None
    }


def writer_name(caller: Principal, holder: str | None) -> str:
    """Return by which name a caller writes to what `holder` holds: a worker's, if that shows the same key.

    Which of the key's workers it is, the fencing token tells: no two grants have the same one.
    """
    is_own_worker = holder is not None and holder.startswith(worker_holder(caller, ""))
    return holder if holder is not None and is_own_worker else holder_of(caller)


OPERATIONS = (
    Operation(
        method="GET",
        path=PATH,
        summary="List who probes, and which shards hold anything new",
        action=Action.READ_TARGETS,
        deed=show_shards,
        is_write=False,
        query=ShardChanges,
        answer=ShardsShown,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/claim",
        summary="Say that a prober's worker lives, and take its share of the shards",
        action=Action.LEASE_SHARDS,
        deed=claim_shards,
        body=ShardClaimRequest,
        answer=ShardGrant,
        errors=(409,),
        max_body_bytes=MAX_CLAIM_BYTES,
    ),
    Operation(
        method="DELETE",
        path=PATH,
        summary="Give back all shards of a worker that leaves",
        action=Action.LEASE_SHARDS,
        deed=leave_shards,
        status=204,
        query=LeavingWorker,
    ),
)
