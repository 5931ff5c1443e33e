"""Shards that a worker holds, and their targets.

A target takes a few hundred bytes here: its memory stays JSON until it is probed. A shard that was lost and
claimed again is read again: another worker may have probed its targets meanwhile.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from pydantic import ValidationError

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.result_sums import supersedes
from lifesign.domain.observation.results import (
    ANSWERED,
    INCONCLUSIVE,
    InconclusiveReason,
    Observation,
    ResultClass,
    not_measured,
)
from lifesign.domain.probing.cadence import Cadence, last_alive_s
from lifesign.domain.probing.result_receipt import receipt_of
from lifesign.domain.targets.target import host_of, is_on_origin_of, is_target_id
from lifesign.prober.registry_exchange.ledger import ShardClaim, TargetEntry, TargetPage

_NO_MEMORY: Final = ProbeMemory()
_NO_MEMORY_JSON: Final = _NO_MEMORY.to_json()

_log = logging.getLogger("lifesign")


class TargetSlot:
    """One target of a worker's shard, with what the worker knows about it."""

    __slots__ = (
        "confirmed_at_s",
        "due_at_s",
        "entered_at_s",
        "given_up",
        "had_wrong_answer",
        "is_backed_off",
        "is_busy",
        "kind",
        "measured_at_s",
        "memory",
        "recheck_at_s",
        "result",
        "shard",
        "subject_id",
        "thresholds_s",
        "url",
        "waited_until_s",
    )

    def __init__(self, shard: "Shard", entry: TargetEntry) -> None:
        self.shard = shard
        self.subject_id = entry.subject_id
        self.url = entry.url
        self.entered_at_s = entry.entered_at_s
        """When its URL or its agent changed, or its agent registered again; None: never."""
        self.recheck_at_s = entry.recheck_at_s
        self.confirmed_at_s = entry.confirmed_at_s
        """When an operator confirmed that it may be down; None: never."""
        self.thresholds_s = entry.thresholds_s
        """Silence after which it is unhealthy, and dead; None: the defaults of probing."""
        self.kind = entry.kind
        """Kind by the directories; None: unknown."""
        self.memory: str | None = None
        """Memory as JSON; None without one."""
        self.due_at_s: float | None = None
        """Time of the next probe, since the epoch; None while it is busy, or must not be probed."""
        self.is_busy = False
        """Whether it is being probed, or waits for its start or for a witness."""
        self.is_backed_off = False
        """Whether it counts as being in back-off."""
        self.waited_until_s: float | None = None
        """Time until which no probe was missed, since the epoch; None: its last probe.

        Its last failure waited for a witness until then, or the clock was set ahead to that time.
        """
        self.had_wrong_answer = False
        """Whether an assertion failed in its last result: a further failure of one needs no witness."""
        self.given_up = 0
        """Number of its results that could not be reported, and are not yet counted as missed."""
        self.result = _known_by(entry.memory)
        """Latest measured result; `not_measured` once it is too old, None if there is none."""
        self.measured_at_s = _measured_at_s(entry.memory)
        """Time of its last measurement, by the registry's clock; None if unknown."""
        shard.results[self.result] += 1
        self.remember(entry.memory)

    @property
    def host(self) -> str:
        """Host of the target's URL."""
        return host_of(self.url)

    def shares_origin(self) -> bool:
        """Return whether the shard has another target of the same origin."""
        others = (slot.url for slot in self.shard.slots.values() if slot.url != self.url)
        return any(is_on_origin_of(url, self.url) for url in others)

    @property
    def is_gone(self) -> bool:
        """Whether the target was removed, or this worker lost its shard."""
        return self.shard.claim is None or self.shard.slots.get(self.subject_id) is not self

    def remember(self, memory: ProbeMemory) -> None:
        """Store the target's memory, for its next probe."""
        text = memory.to_json()
        self.memory = text if text != _NO_MEMORY_JSON else None

    def note(self, result: ResultClass, memory: ProbeMemory, interval_s: float) -> None:
        """Count the target by a probe's result, unless the known result says more.

        A known result counts for as long as in the registry (`receipt_of`).
        """
        if result not in INCONCLUSIVE:
            self.measured_at_s = memory.probed_at_s
        if supersedes(result, self.result, is_excluded=memory.is_excluded):
            self._count_as(result)
        elif self.measured_at_s is not None and memory.probed_at_s is not None:
            receipt = receipt_of(self.measured_at_s, interval_s, memory, self.thresholds_s)
            if memory.probed_at_s > receipt.evidence_until_s:
                self._count_as(result)

    def note_known(self, memory: ProbeMemory) -> None:
        """Count the target by the result in its memory instead of one of this worker."""
        self.measured_at_s = _measured_at_s(memory)
        self._count_as(_known_by(memory))

    def _count_as(self, result: ResultClass | None) -> None:
        self.shard.results[self.result] -= 1
        self.shard.results[result] += 1
        self.result = result

    def recall(self) -> ProbeMemory:
        """Return the target's memory: what its next probe needs to know."""
        if self.memory is None:
            return _NO_MEMORY
        try:
            return ProbeMemory.from_json(self.memory)
        except ValidationError:
            # One invalid memory must not end the probes of all targets.
            _log.exception("the memory of %s is invalid, and is not used", self.subject_id)
            return _NO_MEMORY

    def cadence(self, usual: Cadence) -> Cadence:
        """Return the target's cadence: the usual one, unless the agent has thresholds of its own."""
        return usual if self.thresholds_s is None else usual.with_thresholds(*self.thresholds_s)

    def not_measured(self, at_s: float, inconclusive_reason: InconclusiveReason, why: str) -> Observation:
        """Return the observation of a probe of this target that did not take place."""
        at = datetime.fromtimestamp(at_s, UTC)
        if is_target_id(self.subject_id):
            return not_measured(at, inconclusive_reason, why, target_url=self.url)
        return not_measured(at, inconclusive_reason, why, agent_id=self.subject_id)


class Shard:
    """One shard whose lease this worker holds, with its targets."""

    __slots__ = (
        "claim",
        "has_parked",
        "is_current",
        "number",
        "numbered",
        "results",
        "slots",
        "version",
    )

    def __init__(self, claim: ShardClaim) -> None:
        self.number = claim.shard
        self.claim: ShardClaim | None = claim
        """None once the claim is lost."""
        self.slots: dict[str, TargetSlot] = {}
        self.results: Counter[ResultClass | None] = Counter()
        """Number of its targets by latest result."""
        self.version = 0
        """Version up to which its changes are known."""
        self.is_current = False
        """Whether its targets were read since it was claimed."""
        self.has_parked = False
        """Whether some of its targets became due while its claim had expired, and are not scheduled now."""
        self.numbered = 0
        """Number of results that were measured under the current token."""

    @property
    def token(self) -> int | None:
        """Fencing token of the shard's lease."""
        return None if self.claim is None else self.claim.fencing_token

    def next_number(self) -> int:
        """Return the number for the next result of the shard; it starts at 1 with each fencing token."""
        self.numbered += 1
        return self.numbered

    def is_owned(self, now_s: float) -> bool:
        """Return whether the shard's lease is valid now, a time of `Clock.boot_s`."""
        return self.claim is not None and self.is_current and now_s < self.claim.expires_at_s


@dataclass(slots=True)
class ApplyResult:
    """Targets that a page from the ledger has added, changed or removed."""

    to_plan: list[tuple[TargetSlot, ProbeMemory]] = field(default_factory=list)
    """New and changed targets, which need a due time, with their memory."""
    gone: list[TargetSlot] = field(default_factory=list)
    overtaken: list[TargetSlot] = field(default_factory=list)
    """Targets that another worker probed later, or that were reset: results of this worker are too late."""


@dataclass(frozen=True, slots=True)
class KnownShards:
    """Shards at one moment, by their numbers."""

    shards: dict[int, Shard]
    versions: dict[int, int]
    """Known version of each shard; 0 for those that were not read yet."""
    unread: tuple[Shard, ...]


class OwnedShards:
    """The shards whose leases one worker holds, with their targets."""

    def __init__(self) -> None:
        self.shards: dict[int, Shard] = {}
        self.targets = 0
        self._of_agents: dict[str, Shard] = {}
        """Shard in which each agent that is probed at its own URL was last read."""
        self._known: KnownShards | None = None
        """None after a change."""

    def tokens(self) -> dict[int, int]:
        """Return the fencing token of each held shard, as the ledger expects it."""
        return {
            number: shard.claim.fencing_token
            for number, shard in self.shards.items()
            if shard.claim is not None
        }

    def known(self) -> KnownShards:
        """Return what is known of the shards now."""
        if self._known is None:
            shards = dict(self.shards)
            versions = {number: shard.version if shard.is_current else 0 for number, shard in shards.items()}
            unread = tuple(shard for shard in shards.values() if not shard.is_current)
            self._known = KnownShards(shards, versions, unread)
        return self._known

    def results(self) -> dict[ResultClass | None, int]:
        """Return how many targets have which latest result; None: never probed."""
        results: Counter[ResultClass | None] = Counter()
        for shard in self.shards.values():
            for result, count in shard.results.items():
                results[result] += count
        return dict(+results)

    def slots(self) -> Iterator[TargetSlot]:
        """Return all targets, shard by shard."""
        for shard in list(self.shards.values()):
            yield from list(shard.slots.values())

    def take(self, claims: Iterable[ShardClaim]) -> tuple[list[Shard], list[Shard]]:
        """Store the shards that the ledger has granted; return the renewed or new ones, and the lost ones."""
        self._known = None
        claimed: list[Shard] = []
        named: set[int] = set()
        for claim in claims:
            named.add(claim.shard)
            shard = self.shards.get(claim.shard)
            if shard is None or shard.claim is None:
                shard = self.shards[claim.shard] = Shard(claim)
            elif shard.claim.fencing_token != claim.fencing_token:
                # Between the two claims, another worker may have held the shard.
                shard.is_current, shard.numbered = False, 0
            shard.claim = claim
            claimed.append(shard)
        lost = [self.lose(number) for number in self.shards.keys() - named]
        return claimed, [shard for shard in lost if shard is not None]

    def lose(self, number: int) -> Shard | None:
        """Remove a shard and return it. Its targets then count as gone."""
        shard = self.shards.pop(number, None)
        if shard is not None:
            self._known = None
            self.targets -= len(shard.slots)
            shard.claim = None
        return shard

    def mark_all_stale(self) -> None:
        """Let the targets of all shards be read from the ledger again."""
        self._known = None
        for shard in self.shards.values():
            shard.is_current = False

    def apply(self, shard: Shard, page: TargetPage) -> ApplyResult:
        """Store the targets that a page from the ledger lists; return the changes."""
        applied = ApplyResult()
        is_complete, before = not shard.is_current, len(shard.slots)
        for entry in page.entries:
            self._apply_entry(shard, entry, applied)
        removed_ids = set(page.gone)
        if is_complete:
            removed_ids |= shard.slots.keys() - {entry.subject_id for entry in page.entries}
        left = [slot for subject_id in removed_ids if (slot := shard.slots.pop(subject_id, None))]
        shard.results.subtract(slot.result for slot in left)
        applied.gone += left
        if (shard.version, shard.is_current) != (page.version, True):
            self._known = None
        shard.version, shard.is_current = page.version, True
        self.targets += len(shard.slots) - before
        return applied

    def _apply_entry(self, shard: Shard, entry: TargetEntry, applied: ApplyResult) -> None:
        slot, memory = shard.slots.get(entry.subject_id), entry.memory
        if slot is not None and (slot.url, slot.entered_at_s) != (entry.url, entry.entered_at_s):
            # The memory and the waiting results belong to another URL or to a former incarnation.
            self._drop(slot, applied)
            slot = None
        if slot is None:
            self._drop_from_other_shard(shard, entry.subject_id, applied)
            slot = shard.slots[entry.subject_id] = TargetSlot(shard, entry)
        else:
            slot.recheck_at_s = entry.recheck_at_s
            slot.confirmed_at_s, slot.thresholds_s = entry.confirmed_at_s, entry.thresholds_s
            slot.kind = entry.kind
            ours = slot.recall()
            if (memory.probed_at_s or 0.0) > (ours.probed_at_s or 0.0):
                slot.remember(memory)
                slot.note_known(memory)
                applied.overtaken.append(slot)
            elif (memory.alive_at_s or 0.0) > (last_alive_s(ours) or 0.0):
                # Its agent registered, became active or was linked since it was read.
                memory = ours.model_copy(update={"alive_at_s": memory.alive_at_s})
                slot.remember(memory)
            else:
                memory = ours
        applied.to_plan.append((slot, memory))

    def _drop_from_other_shard(self, shard: Shard, subject_id: str, applied: ApplyResult) -> None:
        """Drop an agent from the shard of its former host: of two moves between polls only one is read."""
        if is_target_id(subject_id):
            return
        former = self._of_agents.get(subject_id)
        if former is not None and former is not shard and former.claim is not None:
            slot = former.slots.get(subject_id)
            if slot is not None:
                self._drop(slot, applied)
                self.targets -= 1
        self._of_agents[subject_id] = shard

    @staticmethod
    def _drop(slot: TargetSlot, applied: ApplyResult) -> None:
        """Drop a slot, and its results that were not reported yet."""
        del slot.shard.slots[slot.subject_id]
        slot.shard.results[slot.result] -= 1
        applied.gone.append(slot)
        applied.overtaken.append(slot)


def _measured_at_s(memory: ProbeMemory) -> float | None:
    """Return when a target was measured last, by its memory."""
    return memory.alive_at_s if memory.result in ANSWERED else memory.probed_at_s


def _known_by(memory: ProbeMemory) -> ResultClass | None:
    """Return the known result of a target by its memory; None: never probed."""
    if memory.is_excluded or (memory.result is None and memory.probed_at_s is not None):
        return ResultClass.NOT_MEASURED
    return memory.result
