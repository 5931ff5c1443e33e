"""Claims of shards: which shards a prober owns for a while (protocol 8).

A worker that claims reports that it is alive, renews the shards that it really holds, releases surplus
shards, and gets free ones up to its fair share. The leases of shards are ordinary leases. A living worker has
a row of its own, since a worker that holds nothing yet counts too. A holder is a key and a worker's own name:
several workers may share one key, and need different names.

With a claim a worker reports the network classes that it reaches. A worker that reaches less than another
one, or makes no progress, keeps no shard (`shard_eligibility`). The answer contains witnesses if the worker
knows too few.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated

from pydantic import Field

from lifesign.domain.access.event_actor import KEY_ACTOR_PREFIX
from lifesign.domain.access.permissions import Permission, Principal, require
from lifesign.domain.health.document import Time
from lifesign.domain.lifecycle.heartbeat_timeout import may_have_jumped
from lifesign.domain.models.base import Body, moment
from lifesign.domain.models.shards import (
    GrantedShard,
    LivingProber,
    ShardClaimRequest,
    ShardGrant,
    ShardsShown,
    WorkerName,
)
from lifesign.domain.probing.shard_eligibility import (
    DEFAULT_INTERVAL_S,
    Idleness,
    LivingWorker,
    WithheldReason,
    count_sharers,
    key_of,
    makes_no_progress,
    most_lack_results,
    withheld,
    within_known,
)
from lifesign.domain.probing.shard_share import NO_DIVISION, divide, fair_share
from lifesign.domain.targets.target import SHARDS
from lifesign.domain.tasks.lease import (
    Claim,
    EndReason,
    check_write,
    ended,
    is_unexpired,
    next_token,
    shard_resource,
)
from lifesign.registry.errors import TooMany, TooManyWorkers
from lifesign.registry.leases.hold_lease import check_new_end, holder_of
from lifesign.registry.policies import Policies
from lifesign.registry.probing.evidence_watch import watched_in
from lifesign.registry.probing.prober_credentials import (
    CredentialFacts,
    credentials_of_claim,
    missing_for,
    working_for,
)
from lifesign.registry.probing.reachability_witnesses import Recipient, hand_out, news_for_probers
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.status_changes import lease_events
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.keys import key_rows
from lifesign.storage.probing import (
    liveness,
    probe_results,
    prober_result_counts,
    probers,
)
from lifesign.storage.probing.probers import StoredProber
from lifesign.storage.targets import target_rows
from lifesign.storage.tasks import lease_requesters, leases

PATH = "/api/v1/shards"
MAX_PROBERS = SHARDS
"""Maximum of living workers: more would have no shard."""
MAX_SHOWN = MAX_PROBERS
COMPANIONS_S = 60.0
"""Time after a worker joined for which its companions count; they have joined by then."""
MAX_CLAIM_BYTES = 524_288
"""Maximum size of a body that names all shards and credentials."""

MAX_SAMPLED_TARGETS = 2_000
"""Targets of one holder of which one claim reads whether results are overdue."""

_log = logging.getLogger("lifesign.registry")
_RESOURCES = {shard_resource(shard): shard for shard in range(SHARDS)}


class LeavingWorker(Body):
    """The query of `DELETE /api/v1/shards`."""

    worker: WorkerName


class ShardChanges(Body):
    """The query of `GET /api/v1/shards`."""

    changed_after: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Only shards that changed after this version, which an earlier answer had. Absent: no shards."""
    unprobed_since: Time | None = None
    """Time from which to count the targets that were not probed."""


@dataclass(slots=True)
class _ShardLeases:
    """The leases of all shards, by shard, and the pending changes and log entries."""

    numbers: dict[int, int]
    claims: dict[int, Claim]
    changed: dict[int, Claim]
    over: list[Claim]

    def put(self, shard: int, claim: Claim) -> None:
        self.claims[shard] = self.changed[shard] = claim

    def end(self, shard: int, reason: EndReason, now_s: float) -> None:
        """End a shard's lease if it has one that has not ended."""
        claim = self.claims[shard]
        if claim.lease_id is not None and claim.ended_at_s is None:
            claim = ended(claim, reason, now_s)
            self.put(shard, claim)
            self.over.append(claim)


def worker_holder(caller: Principal, worker: str) -> str:
    """Return the holder name of a worker; ids of keys contain no slash."""
    return f"{prober_key(caller)}/{worker}"


def prober_key(caller: Principal) -> str:
    """Return the holder name of a prober's key: `key:` and its id."""
    return f"{KEY_ACTOR_PREFIX}{caller.key_id}"


def claim_shards(transaction: Transaction, call: Call) -> OperationReply:
    """Renew the worker's shards, release surplus ones, and grant free ones up to its fair share.

    If the worker omits a shard that it holds, or names it with another token, the lease of that shard ends:
    the worker has lost it. Announced companions count as workers for a minute before they join, so that the
    first worker does not get all shards. At most as many companions count as the key has living workers.
    TooMany if too many workers are alive, with this key or in all.
    """
    body = call.body_as(ShardClaimRequest)
    holder = worker_holder(call.caller, body.worker)
    requesters = lease_requesters.lock(transaction, [call.digest], ())
    probers.lock_all(transaction)
    shards = _locked(transaction)
    now_s = transaction.now_s
    check_new_end("shards", now_s, requesters.swept_at_s)
    confirmed = _confirmed_shards(shards, holder, body.held, now_s)
    living, ended = _join(transaction, call, body, holder)
    idle = _count_idle(transaction, shards, holder)
    workers = _living_workers(transaction, living)
    reason = _withheld(transaction, idle, workers[holder], list(workers.values()))
    for shard, claim in shards.claims.items():
        if claim.holder == holder and (reason is not None or shard not in confirmed):
            shards.end(shard, EndReason.RELEASED, now_s)
    joined_at_s = next(prober.joined_at_s for prober in living if prober.holder == holder)
    is_new = now_s - joined_at_s <= COMPANIONS_S
    share = _fair_share(workers, key_of(holder), body.companions if is_new else 0, now_s)
    if reason is None:
        free = [shard for shard, claim in shards.claims.items() if not is_unexpired(claim, now_s)]
        division = divide(confirmed, free, share)
        grants_left = idle[key_of(holder)].grants_left
        if len(division.granted) > grants_left:
            division = replace(division, granted=division.granted[:grants_left])
            reason = WithheldReason.TOO_MANY_GRANTS
    else:
        division = NO_DIVISION
    for shard in division.given_up:
        shards.end(shard, EndReason.RELEASED, now_s)
    expires_at_s = now_s + body.ttl_seconds
    for shard in division.kept:
        shards.put(shard, replace(shards.claims[shard], expires_at_s=expires_at_s))
    for shard in division.granted:
        shards.end(shard, EndReason.EXPIRED, now_s)
        granted = leases.granted(
            shards.claims[shard],
            shards.numbers[shard],
            holder=holder,
            token=next_token(shards.claims[shard].token, requesters.token_floor),
            acquired_at_s=now_s,
            expires_at_s=expires_at_s,
        )
        shards.put(shard, granted)
    leases.store(transaction, list(shards.changed.values()))
    if division.granted:
        of_key = idle[key_of(holder)]
        granted_lately = of_key.granted + len(division.granted)
        prober_result_counts.note_idle(transaction, key_of(holder), replace(of_key, granted=granted_lately))
    drafts = [*lease_events.leases_ended(shards.over, holder)]
    new = [shards.claims[shard] for shard in division.granted]
    drafts += lease_events.shards_granted(new, holder, holder)
    event_log.append(transaction, drafts)
    mine, expires_at = sorted((*division.kept, *division.granted)), moment(expires_at_s)
    row = registry_row.find(transaction)
    credentials = CredentialFacts(
        living=living,
        ended=ended,
        watched=() if row is None or not body.credentials else watched_in(row).credentials,
        now_s=now_s,
    )
    news = news_for_probers(row, prober_key(call.caller), now_s)
    offset_s = _offset_s(body, now_s)
    keys = {key_of(prober.holder) for prober in living}
    recipient = Recipient(key=key_of(holder), keys=keys, shards=mine)
    answer = ShardGrant(
        shards=[GrantedShard(shard, shards.claims[shard].token, expires_at) for shard in mine],
        workers=len(living),
        share=share,
        witnesses=hand_out(transaction, body, recipient, news.silent_classes, call.policies),
        silent_classes=news.silent_classes,
        confirmed_classes=news.confirmed_classes,
        clock_offset_s=offset_s,
        reason=reason,
        missing_credentials=missing_for(credentials, holder),
        working_credentials=working_for(credentials, holder),
    )
    return OperationReply(content=answer)


def leave_shards(transaction: Transaction, call: Call) -> OperationReply:
    """Release all shards of a worker, so that other workers get them at once. It may be repeated."""
    holder = worker_holder(call.caller, call.query_as(LeavingWorker).worker)
    probers.lock_all(transaction)
    _count_idle(transaction, _locked(transaction), holder)
    probers.end(transaction, holder)
    ended_now = leases.end_all_of(transaction, {holder: EndReason.RELEASED}).get(holder, [])
    event_log.append(transaction, [*lease_events.leases_ended(ended_now, holder)])
    return OperationReply(status=204)


def show_shards(transaction: Transaction, call: Call) -> OperationReply:
    """Return the living workers of probers, and the shards whose targets changed."""
    require(call.caller, Permission.READ_TARGETS)
    query = call.query_as(ShardChanges)
    after, since = query.changed_after, query.unprobed_since
    living = probers.running(transaction, MAX_SHOWN)
    workers = _living_workers(transaction, living)
    sharers = count_sharers(list(workers.values()), transaction.now_s)
    changed = {} if after is None else target_rows.newest_versions(transaction, after)
    answer = ShardsShown(
        version=target_rows.last_version(transaction),
        changed={str(shard): version for shard, version in sorted(changed.items())},
        probers=[_shown(each, workers[each.holder], transaction.now_s) for each in living],
        share=fair_share(min(sharers.values(), default=1), max(1, len(sharers))),
        unprobed=None if since is None else probe_results.count_unprobed(transaction, since.timestamp()),
    )
    return OperationReply(content=answer)


def _fair_share(workers: Mapping[str, LivingWorker], key: str, companions: int, now_s: float) -> int:
    """Return the maximum number of shards for a worker of a key, if so many others of the key begin with it.

    A key that announces companions that never come keeps at most half of its part free for them.
    """
    sharers = count_sharers(list(workers.values()), now_s)
    awaited = min(companions + 1, 2 * sharers[key])
    return fair_share(max(1, sharers[key], awaited), len(sharers.keys() | {key}))


def _locked(transaction: Transaction) -> _ShardLeases:
    """Lock the leases of all shards, in the order in which every transaction locks leases."""
    rows = leases.lock(transaction, to_hold=_RESOURCES)
    numbers = {_RESOURCES[claim.resource]: number for number, claim in rows.items()}
    claims = {_RESOURCES[claim.resource]: claim for claim in rows.values()}
    return _ShardLeases(numbers, dict(sorted(claims.items())), {}, [])


def _join(
    transaction: Transaction, call: Call, request: ShardClaimRequest, holder: str
) -> tuple[list[StoredProber], list[StoredProber]]:
    """Note that a worker lives, and return all that do, and those that ended lately. Raises TooMany."""
    now_s = transaction.now_s
    living = probers.running(transaction, MAX_PROBERS + 1)
    known = next((prober for prober in living if prober.holder == holder), None)
    others = [prober for prober in living if prober.holder != holder]
    if known is None:
        _check_room(transaction, call, others)
    offset_s = _offset_s(request, now_s)
    _report_offset(holder, None if known is None else known.offset_s, offset_s, call.policies)
    ended = probers.ended(transaction)
    former = [each for each in ended if key_of(each.holder) == key_of(holder)]
    former += [] if known is None else [known]
    prober = StoredProber(
        holder=holder,
        joined_at_s=now_s if known is None else known.joined_at_s,
        expires_at_s=now_s + request.ttl_seconds,
        interval_s=request.interval_s,
        reached=None if request.reached_classes is None else tuple(request.reached_classes),
        offset_s=offset_s,
        credentials=credentials_of_claim(request.credentials, former, now_s),
    )
    probers.store(transaction, prober)
    prober_result_counts.fold_left(transaction, {each.holder for each in others} | {holder})
    return [*others, prober], ended


def _check_room(transaction: Transaction, call: Call, others: Sequence[StoredProber]) -> None:
    """Raise TooMany, or TooManyWorkers, if one more worker is too much, of all keys or of the caller's."""
    if len(others) >= MAX_PROBERS:
        raise TooMany("living workers", MAX_PROBERS)
    key = key_rows.find_by_id(transaction, call.caller.key_id)
    if key is None:
        # A crawl without a server has no key, and starts its workers itself.
        return
    most = call.policies.prober_workers if key.max_workers is None else key.max_workers
    prefix = worker_holder(call.caller, "")
    ends_s = [prober.expires_at_s for prober in others if prober.holder.startswith(prefix)]
    if len(ends_s) >= most:
        raise TooManyWorkers(most, moment(min(ends_s)))


def _offset_s(request: ShardClaimRequest, now_s: float) -> float | None:
    """Return how far a worker's wall clock is ahead of the database's, as far as known."""
    return None if request.sent_at is None else round(request.sent_at.timestamp() - now_s, 3)


def _report_offset(holder: str, before_s: float | None, offset_s: float | None, policies: Policies) -> None:
    """Log once that a worker's clock is wrong, and once that it is right again."""

    def is_wrong(seconds: float | None) -> bool:
        return seconds is not None and abs(seconds) > policies.clock_offset_seconds

    if is_wrong(offset_s) and not is_wrong(before_s):
        _log.warning("the clock of prober %s differs from the database's by %.0f s", holder, offset_s)
    elif is_wrong(before_s) and not is_wrong(offset_s):
        _log.info("the clock of prober %s agrees with the database's again", holder)


def _living_workers(transaction: Transaction, living: Sequence[StoredProber]) -> dict[str, LivingWorker]:
    """Return the state of each living worker, by its holder."""
    reports = {each.holder: each for each in prober_result_counts.all_of(transaction)}

    def barred_until_s(holder: str) -> float:
        rows = reports.get(holder), reports.get(key_of(holder))
        return max((row.idle.barred_until_s for row in rows if row and row.idle), default=-inf)

    has_reports = any(prober.reached is not None for prober in living)
    known = liveness.classes(transaction) if has_reports else ()
    return {
        prober.holder: LivingWorker(
            holder=prober.holder,
            interval_s=prober.interval_s or DEFAULT_INTERVAL_S,
            reached=within_known(prober.reached, known),
            reported_at_s=reports[prober.holder].reported_at_s if prober.holder in reports else -inf,
            barred_until_s=barred_until_s(prober.holder),
        )
        for prober in living
    }


def _count_idle(transaction: Transaction, shards: _ShardLeases, holder: str) -> dict[str, Idleness]:
    """Count how long a worker, and all workers of its key, have held living agents without a result.

    The registry's records count: a worker that names none of its shards has held them nevertheless. Returns
    these two. Keys whose claims expired are counted, too, before others get their shards: such a key held
    them, even if it does not claim again in that time. Nothing is counted while the clock may have jumped.
    """
    now_s = transaction.now_s
    own = holder, key_of(holder)
    rows = prober_result_counts.all_of(transaction)
    row = registry_row.find(transaction)
    if row is not None and may_have_jumped(row.swept_at_s, now_s):
        known = {each.holder: each.idle for each in rows if each.idle is not None}
        return {name: known.get(name, Idleness(at_s=now_s)) for name in own}
    ran_out = {
        key_of(claim.holder)
        for claim in shards.claims.values()
        if claim.holder is not None and not is_unexpired(claim, now_s)
    }
    counted: dict[str, Idleness] = {}
    # A key with one worker holds the shards of its worker.
    due_by_shards: dict[frozenset[int], list[float]] = {}
    for name in sorted(ran_out.union(own)):
        stored = next((row.idle for row in rows if row.holder == name), None)
        before = Idleness(at_s=now_s) if stored is None else stored
        of_it = [row.reported_at_s for row in rows if name in (row.holder, key_of(row.holder))]
        held = {
            shard: until_s
            for shard, claim in shards.claims.items()
            if _is_held_by(claim, name) and (until_s := _held_until_s(claim)) > before.at_s
        }
        shards_held = frozenset(held)
        if shards_held not in due_by_shards:
            due_by_shards[shards_held] = liveness.results_due_s(
                transaction, held, int(now_s) % SHARDS, MAX_SAMPLED_TARGETS
            )
        due_s = due_by_shards[shards_held]
        held_until_s = max(held.values()) if due_s else -inf
        reported_at_s = -inf if most_lack_results(due_s, now_s) else max(of_it, default=-inf)
        counted[name] = before.counted(reported_at_s, now_s, held_until_s=held_until_s)
        prober_result_counts.note_idle(transaction, name, counted[name])
    return {name: counted[name] for name in own}


def _withheld(
    transaction: Transaction,
    idle: Mapping[str, Idleness],
    me: LivingWorker,
    all_workers: Sequence[LivingWorker],
) -> WithheldReason | None:
    """Return why the caller keeps no shard; None if it may. One without progress is barred for a while."""
    now_s = transaction.now_s
    others = [worker for worker in all_workers if worker.holder != me.holder]
    reason = withheld(me, others, now_s)
    if reason is not None:
        return reason
    for name, idleness in idle.items():
        rivals = [other for other in others if key_of(other.holder) != name]
        if makes_no_progress(idleness.idle_s, me.interval_s, rivals, now_s):
            prober_result_counts.note_idle(transaction, name, idleness.barred(me.interval_s, now_s))
            return WithheldReason.NO_PROGRESS
    return None


def _is_held_by(claim: Claim, name: str) -> bool:
    return claim.holder is not None and name in (claim.holder, key_of(claim.holder))


def _held_until_s(claim: Claim) -> float:
    return claim.expires_at_s if claim.ended_at_s is None else min(claim.ended_at_s, claim.expires_at_s)


def _confirmed_shards(shards: _ShardLeases, holder: str, named: Mapping[int, int], now_s: float) -> set[int]:
    """Return the shards that the holder also has in the database."""
    return {
        shard
        for shard, token in named.items()
        if check_write(shards.claims[shard], holder, token, now_s) is None
    }


def _shown(prober: StoredProber, standing: LivingWorker, now_s: float) -> LivingProber:
    return LivingProber(
        holder=prober.holder,
        joined_at=moment(prober.joined_at_s),
        expires_at=moment(prober.expires_at_s),
        interval_s=prober.interval_s,
        reached_classes=None if prober.reached is None else list(prober.reached),
        clock_offset_s=prober.offset_s,
        reported_at=moment(standing.reported_at_s) if standing.reported_at_s > 0 else None,
        makes_no_progress=now_s < standing.barred_until_s,
    )


def writer_name(caller: Principal, holder: str | None) -> str:
    """Return the holder name for a write under `holder`'s lease: a worker's name if it is of the same key.

    The fencing token identifies the worker: no two grants have the same one.
    """
    is_own_worker = holder is not None and holder.startswith(worker_holder(caller, ""))
    return holder if holder is not None and is_own_worker else holder_of(caller)


OPERATIONS = (
    Operation(
        method="GET",
        path=PATH,
        summary="List probers, and the shards with changes",
        action=Permission.READ_TARGETS,
        needs_any_record=True,
        function=show_shards,
        is_write=False,
        query=ShardChanges,
        answer=ShardsShown,
    ),
    Operation(
        method="POST",
        path=f"{PATH}/claim",
        summary="Renew a worker of a prober, and claim its share of the shards",
        action=Permission.LEASE_SHARDS,
        function=claim_shards,
        body=ShardClaimRequest,
        example={"worker": "prober-1", "ttl_seconds": 60, "held": {"17": 4294967297}},
        answer=ShardGrant,
        errors=(409,),
        max_body_bytes=MAX_CLAIM_BYTES,
    ),
    Operation(
        method="DELETE",
        path=PATH,
        summary="Release all shards of a worker that stops",
        action=Permission.LEASE_SHARDS,
        function=leave_shards,
        status=204,
        query=LeavingWorker,
    ),
)
