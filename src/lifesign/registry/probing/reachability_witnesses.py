"""Witnesses for probers: targets of other shards, for one request each; and findings about classes."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import zip_longest

from pydantic import TypeAdapter

from lifesign.domain.lifecycle.network_silence import MassSilence
from lifesign.domain.models.base import moment
from lifesign.domain.models.shards import MAX_WITNESSES, HandedOutWitness, ShardClaimRequest
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.probing.shard_eligibility import DEFAULT_INTERVAL_S, has_turn
from lifesign.registry.policies import Policies
from lifesign.registry.status_changes.monitor_row import confirmed_in
from lifesign.registry.targets.feed_targets import recalled
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.probing import liveness
from lifesign.storage.probing.liveness import Candidate

MAX_CLASSES_SERVED = 16
"""Maximum of network classes for which one claim gets witnesses."""
CANDIDATES = 48
"""Targets of one class, and of one prober key, of which it is looked whether they may be handed out."""
MAX_OTHER_KEYS = 4
"""Number of prober keys besides the caller's whose targets are given with one claim; they take turns."""
TURN_FACTOR = 2
"""A key's turn is so many times as long as a target that was handed out rests: it always gets some of it."""
LATELY_INTERVALS = 2
"""A target that answered within so many intervals of the crawl answered lately."""

_MASS_SILENCE: TypeAdapter[MassSilence] = TypeAdapter(MassSilence)


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Facts about network classes in every answer to a prober."""

    silent_classes: list[str] = field(default_factory=list)
    confirmed_classes: dict[str, datetime] = field(default_factory=dict)


def news_for_probers(row: RegistryRow | None, prober_key: str, now_s: float) -> News:
    """Return, for a prober's key, the network classes in mass silence and those with a confirmed outage.

    A confirmation in the future, since the clock was set back, is left out until a sweep has moved it.
    """
    if row is None:
        return News()
    return News(
        silent_classes=mass_silence_in(row).classes_for(prober_key),
        confirmed_classes={
            name: moment(at_s) for name, at_s in sorted(confirmed_in(row).items()) if at_s <= now_s
        },
    )


def mass_silence_in(row: RegistryRow) -> MassSilence:
    """Return the network classes in mass silence from the registry's row."""
    return _MASS_SILENCE.validate_json(row.mass_silence) if row.mass_silence else MassSilence()


def mass_silence_json(silence: MassSilence) -> str:
    """Return the network classes in mass silence as JSON for the registry's row."""
    return _MASS_SILENCE.dump_json(silence).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """The worker that witnesses are handed out to."""

    key: str
    keys: Collection[str]
    """Keys with living workers."""
    shards: Collection[int]
    """Shards that the caller holds."""


def hand_out(
    transaction: Transaction,
    request: ShardClaimRequest,
    recipient: Recipient,
    silent_classes: Collection[str],
    policies: Policies,
) -> list[HandedOutWitness]:
    """Return targets to each of which the caller may send one request, to test its own network.

    Each goes to one prober at a time.

    Only targets of other shards are returned that answered recently, that accept such requests, that no
    prober got recently, and whose turn it is for the caller's key. They come from several hosts, and from
    several prober keys in turn, the caller's own key first, since one key's reports may be invented.
    """
    now_s = transaction.now_s
    interval_s = request.interval_s or DEFAULT_INTERVAL_S
    found: list[HandedOutWitness] = []
    handed_out: list[int] = []
    wanted = [name for name in sorted(request.wanted_witnesses) if name not in silent_classes]
    for name in wanted[:MAX_CLASSES_SERVED]:
        left = min(request.wanted_witnesses[name], MAX_WITNESSES)
        hosts: set[str] = set()
        for candidate in _candidates(transaction, name, recipient, interval_s, policies):
            memory = recalled(candidate.url, candidate.memory)
            is_due = has_turn(
                candidate.target, recipient.key, recipient.keys, now_s, TURN_FACTOR * policies.witness_seconds
            )
            if left and is_due and candidate.host not in hosts and accepts_witness_requests(memory, now_s):
                left -= 1
                hosts.add(candidate.host)
                handed_out.append(candidate.target)
                found.append(HandedOutWitness(url=candidate.url, network_class=name))
    liveness.hand_out(transaction, handed_out)
    return found


def _candidates(
    transaction: Transaction, network_class: str, recipient: Recipient, interval_s: float, policies: Policies
) -> list[Candidate]:
    """Return targets that answered lately, one of each prober key in turn."""
    now_s = transaction.now_s
    others = sorted(set(recipient.keys) - {recipient.key})
    first = int(now_s // policies.witness_seconds) % max(1, len(others))
    in_turn = [recipient.key, *(others[first:] + others[:first])[:MAX_OTHER_KEYS]]
    wanted = partial(
        liveness.candidates,
        transaction,
        network_class,
        answered_since_s=now_s - LATELY_INTERVALS * interval_s,
        handed_out_before_s=now_s - policies.witness_seconds,
        not_in_shards=recipient.shards,
        limit=CANDIDATES,
    )
    found = [wanted(of_key=key) for key in in_turn]
    # Reports of keys without living workers.
    found.append(wanted(not_of_keys=[recipient.key, *others]))
    return [one for turn in zip_longest(*found) for one in turn if one is not None]


def accepts_witness_requests(memory: ProbeMemory | None, now_s: float) -> bool:
    """Return whether a target neither asked to wait nor is excluded by robots.txt or an opt-out."""
    if memory is None:
        return True
    is_waiting = memory.not_before_s is not None and now_s < memory.not_before_s
    return not (memory.is_excluded or memory.slowdowns or is_waiting)
