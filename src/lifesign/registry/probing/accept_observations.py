"""Intake of observations: the consequences of probe results (protocol 3, 4, 8).

Each result comes with the token of its target's shard: it counts only while the prober's key holds that
shard. The result is stored with its target (`target_results`); for a target with an agent record, `verdict`
is computed too. The registry's clock decides when a result was observed: its time of receipt minus the
result's age.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from lifesign.domain.access.permissions import Permission
from lifesign.domain.common.clock_skew import not_before
from lifesign.domain.events.event import EventDraft
from lifesign.domain.lifecycle.agent_history import OpenSlot, ended_slot
from lifesign.domain.lifecycle.observed_facts import Observed, fold, with_document_age
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.lifecycle.verdict import has_decision_in_force
from lifesign.domain.models.agents import FoundAgent
from lifesign.domain.models.base import Url
from lifesign.domain.models.observation_batch import (
    MAX_BATCH_BYTES,
    ObservationAnswer,
    ObservationBatch,
    ObservationResult,
    ReportOutcome,
)
from lifesign.domain.observation.evidence_age import Receipt
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.domain.probing.result_receipt import receipt_of
from lifesign.domain.published_interface.published import Form
from lifesign.domain.targets.opt_out_proof import origin_of
from lifesign.domain.targets.target import is_target_id, read_target, target_id
from lifesign.domain.tasks.lease import Claim, check_write, shard_resource
from lifesign.errors import LifesignError
from lifesign.registry.agents.register_agent import add_agents, begin_incarnation
from lifesign.registry.probing.claim_shards import prober_key, writer_name
from lifesign.registry.probing.reachability_witnesses import news_for_probers
from lifesign.registry.request_handling.execution import checked
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.lease_records import refused
from lifesign.registry.status_changes import lease_events
from lifesign.registry.status_changes.agent_status import MONITOR, change_status
from lifesign.registry.status_changes.agent_verdicts import (
    Change,
    VerdictContext,
    assess_agent,
    change_of,
    facts_of,
    leases_of_draining,
)
from lifesign.registry.status_changes.history_recorder import store_half_hours
from lifesign.registry.status_changes.monitor_row import verdict_context_in
from lifesign.registry.targets.interface_changes import ReadInterface, note_interfaces
from lifesign.registry.targets.link_decisions import note_cards
from lifesign.registry.targets.target_results import Results
from lifesign.storage.agents import agent_rows
from lifesign.storage.agents.agent_rows import ObservedRow, StoredAgent
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.probing import probe_results, prober_result_counts
from lifesign.storage.probing.probe_results import Subject
from lifesign.storage.probing.prober_result_counts import Reported
from lifesign.storage.targets import target_links, target_rows
from lifesign.storage.targets.target_links import CardFound
from lifesign.storage.tasks import leases

MAX_LOGGED_REFUSALS = 16
"""Maximum of events about stale tokens per batch, which may name all shards: the log keeps its events."""

_URL: TypeAdapter[str] = TypeAdapter(Url)
_ALIVE = frozenset({Status.ACTIVE, Status.UNHEALTHY})


@dataclass(frozen=True, slots=True)
class _BatchShards:
    """Shards of a batch, and why some of them do not belong to the caller."""

    tokens: Mapping[int, int]
    claims: Mapping[int, Claim]
    """Claims of the caller's shards: a result from before the grant does not count."""
    refusals: dict[int, LifesignError]
    drafts: list[EventDraft]
    """Events about the refusals, of the first MAX_LOGGED_REFUSALS."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A result that counts for its target, and may count for an agent."""

    subject_id: str
    observation: Observation
    receipt: Receipt
    holder: str
    """Holder of its shard."""
    memory: ProbeMemory | None
    interface: Form | None
    """Newly read interface."""


@dataclass(frozen=True, slots=True)
class _LockedSubjects:
    """Facts about the subjects of a batch; their agents are locked."""

    subjects: dict[str, Subject]
    agents: dict[str, StoredAgent]
    """Subjects of a batch by id; found ones are added.

    For a linked target this is the registered agent.
    """
    relinked: frozenset[str]
    """Subjects whose link began or ended before the locks were there: their locked agent is the wrong one."""


def accept_observations(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    """Store the results of probes, and change the status of agents where the results require it.

    A batch with a stale fencing token is refused as a whole, and the refusal is logged.
    """
    # That refusal is returned, not raised: its event has to be committed.
    batch = call.body_as(ObservationBatch)
    shards = _vet_batch(transaction, call, batch)
    if batch.shard is not None and batch.shard in shards.refusals:
        event_log.append(transaction, shards.drafts)
        return shards.refusals[batch.shard]
    named = [_subject_id(observation) for observation in batch.observations]
    known = _locked(transaction, sorted(set(named)))
    # The locks may have been waited for.
    transaction = transaction.after_waiting()
    results = Results(prober_key(call.caller))
    outcomes: list[ReportOutcome | None] = []
    taken: list[_Taken] = []
    memories = batch.memories or [None] * len(named)
    for place, (subject_id, memory) in enumerate(zip(named, memories, strict=True)):
        subject = known.subjects[subject_id]
        outcome = _refused(subject, shards)
        if outcome is None and (
            subject_id in known.relinked or _is_of_before(batch, place, subject, transaction.now_s)
        ):
            outcome = ReportOutcome.IGNORED
        if outcome is None:
            thresholds_s = _thresholds_s(known.agents.get(subject_id))
            receipt = _receipt(
                batch, place, subject, shards, now_s=transaction.now_s, thresholds_s=thresholds_s
            )
            observation = with_document_age(batch.observations[place], receipt.at_s)
            order = shards.tokens[_shard_of(subject)], batch.numbers[place]
            if results.take(subject, observation, memory, receipt, order):
                holder = _holder_of(subject, shards)
                interface = batch.interfaces[place] if batch.interfaces else None
                taken.append(_Taken(subject_id, observation, receipt, holder, memory, interface))
            else:
                outcome = ReportOutcome.IGNORED
        outcomes.append(outcome)
    results.store(transaction)
    reported = _reported(taken, known)
    row = registry_row.find(transaction)
    cards = _cards(named, memories, outcomes)
    # Before any event is appended: link decisions lock claims first, then the log.
    note_cards(transaction, _card_claims(taken, known))
    changed = note_interfaces(transaction, _read_interfaces(taken, known)) if batch.interfaces else []
    _note_doubles(transaction, taken, known)
    _find_agents(transaction, taken, known, cards)
    folded = iter(_fold_in(transaction, taken, known, verdict_context_in(row)))
    decided = [next(folded) if outcome is None else outcome for outcome in outcomes]
    _follow_cards(transaction, known, cards)
    event_log.append(transaction, [*shards.drafts, *changed])
    for holder, sums in reported.items():
        prober_result_counts.add(transaction, holder, transaction.now_s, sums)
    results.store_sums(transaction)
    news = news_for_probers(row, prober_key(call.caller), transaction.now_s)
    answer = ObservationAnswer(
        results=[
            ObservationResult(subject_id, outcome) for subject_id, outcome in zip(named, decided, strict=True)
        ],
        counts=dict(Counter(decided)),
        lost=sorted(shards.refusals),
        silent_classes=news.silent_classes,
        confirmed_classes=news.confirmed_classes,
    )
    return OperationReply(content=answer)


def _subject_id(observation: Observation) -> str:
    if observation.agent_id is not None:
        return observation.agent_id
    return target_id(observation.target_url or "")


def _vet_batch(transaction: Transaction, call: Call, batch: ObservationBatch) -> _BatchShards:
    """Lock the leases of the shards in a batch, and check its tokens."""
    tokens = batch.tokens or {}
    if batch.shard is not None and batch.fencing_token is not None:
        tokens = {batch.shard: batch.fencing_token}
    claims = leases.find_many(transaction, map(shard_resource, tokens))
    now_s = transaction.after_waiting().now_s
    refusals: dict[int, LifesignError] = {}
    claims_by_shard: dict[int, Claim] = {}
    drafts: list[EventDraft] = []
    for shard, token in sorted(tokens.items()):
        resource = shard_resource(shard)
        claim = claims.get(resource)
        # A row without a lease belongs to a shard that was never held.
        claim = None if claim is None or claim.lease_id is None else claim
        writer = writer_name(call.caller, None if claim is None else claim.holder)
        refusal = check_write(claim, writer, token, now_s)
        if refusal is not None:
            agent_id = call.caller.agent_id
            event = lease_events.write_rejected(
                refusal, resource, writer=writer, token=token, agent_id=agent_id
            )
            drafts.append(event)
            refusals[shard] = refused(refusal, resource, now_s=now_s, token=token)
        elif claim is not None:
            claims_by_shard[shard] = claim
    return _BatchShards(tokens, claims_by_shard, refusals, drafts[:MAX_LOGGED_REFUSALS])


def _thresholds_s(agent: StoredAgent | None) -> tuple[float, float] | None:
    """Return the silence after which a registered agent is unhealthy, and dead; None for other targets."""
    if agent is None or agent.target_url is not None:
        return None
    return agent.unhealthy_after_s, agent.dead_after_s


def _receipt(
    batch: ObservationBatch,
    place: int,
    subject: Subject,
    shards: _BatchShards,
    *,
    now_s: float,
    thresholds_s: tuple[float, float] | None,
) -> Receipt:
    """Return when a result was observed: not before its shard was granted, nor before the last result.

    Its prober cannot make the known evidence look older, however great an age it reports.
    """
    granted_at_s = shards.claims[_shard_of(subject)].acquired_at_s
    age_s = min(batch.ages_s[place], max(0.0, now_s - granted_at_s))
    memory = None if batch.memories is None else batch.memories[place]
    at_s = not_before(now_s - age_s, subject.observed_at_s, now_s)
    return receipt_of(at_s, batch.interval_s, memory, thresholds_s)


def _is_of_before(batch: ObservationBatch, place: int, subject: Subject, now_s: float) -> bool:
    """Return whether a probe began before its target's URL or agent changed, or registered again."""
    if subject.entered_at_s is None or subject.entered_at_s > now_s:
        # A time ahead is from before the clock was set back.
        return False
    memory = None if batch.memories is None else batch.memories[place]
    began_at_s = None if memory is None else memory.probed_at_s
    ended_at_s = now_s - batch.ages_s[place]
    return min(ended_at_s, ended_at_s if began_at_s is None else began_at_s) < subject.entered_at_s


def _shard_of(subject: Subject) -> int:
    assert subject.shard is not None  # noqa: S101 - it is a target
    return subject.shard


def _holder_of(subject: Subject, shards: _BatchShards) -> str:
    holder = shards.claims[_shard_of(subject)].holder
    assert holder is not None  # noqa: S101 - the shard is granted
    return holder


def _locked(transaction: Transaction, subject_ids: list[str]) -> _LockedSubjects:
    """Return the stored facts of these, and lock them against concurrent changes.

    The shards' leases are locked: only their holder accesses the targets.
    """
    subjects = probe_results.find(transaction, subject_ids)
    numbers = sorted(subject.agent for subject in subjects.values() if subject.agent is not None)
    found = agent_rows.find_many(transaction, numbers, to_change=True) if numbers else []
    numbered = {agent.id: agent for agent in found}
    targets = [subject.target for subject in subjects.values() if subject.target is not None]
    linked = target_links.linked_agents(transaction, targets)
    return _LockedSubjects(
        subjects,
        {
            subject_id: numbered[subject.agent]
            for subject_id, subject in subjects.items()
            if subject.agent in numbered
        },
        frozenset(
            subject_id
            for subject_id, subject in subjects.items()
            if subject.target is not None
            and linked.get(subject.target) != (subject.agent if subject.is_linked else None)
        ),
    )


def _refused(subject: Subject, shards: _BatchShards) -> ReportOutcome | None:
    """Return why an observation does not count with any result; None if it may count."""
    if subject.target is None:
        return ReportOutcome.UNKNOWN
    if subject.shard not in shards.tokens:
        return ReportOutcome.NOT_IN_SHARD
    if subject.shard in shards.refusals:
        return ReportOutcome.SHARD_LOST
    return ReportOutcome.IGNORED if subject.is_gone else None


def _cards(
    named: Sequence[str], memories: Sequence[ProbeMemory | None], outcomes: Sequence[ReportOutcome | None]
) -> dict[str, str | None]:
    """Return the last known URLs of the cards of targets that a directory listed; None without one.

    Reports without a memory say nothing about them.
    """
    return {
        subject_id: _shown(memory.card_url)
        for subject_id, memory, outcome in zip(named, memories, outcomes, strict=True)
        if outcome is None and memory is not None and is_target_id(subject_id)
    }


def _shown(url: str | None) -> str | None:
    """Return a card's place as a record may show it; None if it may not."""
    try:
        return None if url is None else _URL.validate_python(url)
    except ValidationError:
        return None


def _follow_cards(transaction: Transaction, known: _LockedSubjects, cards: Mapping[str, str | None]) -> None:
    """Update records that probers created by the present URLs of their cards."""
    places = {
        agent.id: cards[agent.agent_id]
        for agent in known.agents.values()
        if agent.target_url is not None
        and agent.agent_id in cards
        and cards[agent.agent_id] != agent.card_url
    }
    agent_rows.set_card_urls(transaction, places)


def _card_claims(taken: Iterable[_Taken], known: _LockedSubjects) -> list[CardFound]:
    """Return the agents that the cards of crawled targets name, for cards that were read now.

    A card that was not read, or could not be, names none.
    """
    claims: dict[int, CardFound] = {}
    for each in taken:
        target, discovery = known.subjects[each.subject_id].target, each.observation.discovery
        if target is None or discovery is None or not is_target_id(each.subject_id):
            continue
        memory = each.memory if discovery.result is ResultClass.OK else None
        if memory is not None and memory.link_registry is not None and memory.link_agent_id is not None:
            read = read_target(memory.link_registry)
            registry, agent_id = (read, memory.link_agent_id) if isinstance(read, str) else (None, None)
            claims[target] = CardFound(target, each.receipt.at_s, registry, agent_id, memory.card_url)
        elif memory is not None or discovery.result is ResultClass.NOT_AN_AGENT:
            claims[target] = CardFound(target, each.receipt.at_s, None, None)
    return list(claims.values())


def _read_interfaces(taken: Iterable[_Taken], known: _LockedSubjects) -> list[ReadInterface]:
    """Return the interfaces that were newly read; a target that becomes an agent now is none yet."""
    found = []
    for each in taken:
        target, agent = known.subjects[each.subject_id].target, known.agents.get(each.subject_id)
        if target is not None and each.interface is not None:
            is_there = agent is not None and agent.status != Status.DEREGISTERED
            found.append(
                ReadInterface(
                    target=target,
                    target_id=each.subject_id,
                    agent_id=agent.agent_id if agent is not None and is_there else None,
                    form=each.interface,
                    changes_in_row=0 if each.memory is None else each.memory.interface_changes,
                    at_s=each.receipt.at_s,
                )
            )
    return found


def _note_doubles(transaction: Transaction, taken: Iterable[_Taken], known: _LockedSubjects) -> None:
    """Record which targets a census counts as another one, for targets whose cards were read now.

    A target does if a redirect leads from its card to another target's card, and a registered one if its card
    is a crawled target's.
    """
    places: dict[int, str | None] = {}
    for each in taken:
        target, memory = known.subjects[each.subject_id].target, each.memory
        discovery = each.observation.discovery
        if target is None or memory is None or discovery is None or discovery.result is not ResultClass.OK:
            continue
        is_own = memory.card_redirect is None and not is_target_id(each.subject_id)
        places[target] = memory.card_url if is_own else memory.card_redirect
    doubles = target_links.doubles_among(transaction, [*places])
    for target, place in sorted(places.items()):
        if place is None and target not in doubles:
            continue
        url = None if place is None else read_target(place)
        other = None
        if isinstance(url, str):
            other = target_links.find_crawled_target(transaction, url, f"{origin_of(url)}/", target)
        target_links.set_counts_as(transaction, target, other)


def _find_agents(
    transaction: Transaction,
    taken: Iterable[_Taken],
    known: _LockedSubjects,
    cards: Mapping[str, str | None],
) -> None:
    """Create a record for each target with its first liveness signal in an incarnation."""
    alive: dict[str, Observation] = {}
    for each in taken:
        agent = known.agents.get(each.subject_id)
        is_there = agent is not None and agent.status != Status.DEREGISTERED
        if known.subjects[each.subject_id].is_linked:
            # Its agent may have left a moment ago; the link ends by itself then.
            continue
        if not is_there and each.observation.is_liveness_signal:
            alive.setdefault(each.subject_id, each.observation)
    if not alive:
        return
    numbers = {subject_id: known.subjects[subject_id].target for subject_id in alive}
    # Some may have left since they were read; the others cannot leave before they have records.
    living = target_rows.lock_present(
        transaction, [number for number in numbers.values() if number is not None]
    )
    # A target without a record has no agent to lock: its link may have begun until now.
    living -= target_links.linked_agents(transaction, sorted(living)).keys()
    new: dict[str, FoundAgent] = {}
    for subject_id, observation in alive.items():
        if (number := numbers[subject_id]) is not None and number not in living:
            continue
        url = observation.target_url or _url_of(transaction, subject_id)
        body = checked(
            FoundAgent, {"agent_id": subject_id, "target_url": url, "card_url": cards.get(subject_id)}
        )
        assert isinstance(body, FoundAgent)  # noqa: S101 - it is what was asked for
        if (agent := known.agents.get(subject_id)) is None:
            new[subject_id] = body
        else:
            known.agents[subject_id] = begin_incarnation(transaction, agent, body, MONITOR, supersede=False)
    if new:
        added = add_agents(transaction, new, MONITOR, "its first liveness signal")
        known.agents.update((agent.agent_id, agent) for agent in added)


def _url_of(transaction: Transaction, subject_id: str) -> str | None:
    target = target_rows.find(transaction, subject_id)
    return None if target is None else target.url


def _reported(taken: Iterable[_Taken], known: _LockedSubjects) -> dict[str, Reported]:
    """Return each worker's reports about agents that were alive before, by worker in the order of names."""
    sums: dict[str, Counter[str]] = {}
    for each in taken:
        of_worker = sums.setdefault(each.holder, Counter())
        agent = known.agents.get(each.subject_id)
        if agent is not None and agent.status in _ALIVE:
            of_worker[_kind_of(each.observation)] += 1
    return {holder: Reported(**sums[holder]) for holder in sorted(sums)}


def _kind_of(observation: Observation) -> str:
    if observation.is_liveness_signal:
        return "answered"
    return "failed" if observation.is_measured_failure else "inconclusive"


def _fold_in(
    transaction: Transaction, taken: Sequence[_Taken], known: _LockedSubjects, around: VerdictContext
) -> list[ReportOutcome]:
    """Fold observations into the facts about their agents, and apply the consequences.

    Returns the result for each. Agents are processed one after the other, and the facts about one are
    released at once: keeping those of hundreds at the same time takes more processor time than the work
    itself.
    """
    outcomes = [ReportOutcome.NO_LIVENESS_SIGNAL_YET] * len(taken)
    places: dict[str, list[int]] = {}
    for place, each in enumerate(taken):
        if known.subjects[each.subject_id].is_first_linked:
            places.setdefault(each.subject_id, []).append(place)
        else:
            outcomes[place] = ReportOutcome.ACCEPTED
    leases_by_agent = leases_of_draining(transaction, known.agents.values())
    rows: list[ObservedRow] = []
    over: dict[int, list[OpenSlot]] = {}
    changes: list[Change] = []
    for subject_id, where in places.items():
        agent = known.agents.get(subject_id)
        if agent is None or agent.status == Status.DEREGISTERED:
            continue
        seen = Observed() if agent.observed is None else Observed.from_json(agent.observed)
        is_excused = has_decision_in_force(facts_of(agent, 0, seen), transaction.now_s)
        for place in where:
            before, each = seen, taken[place]
            seen = fold(before, each.observation, each.receipt, agent.status_since_s, is_excused=is_excused)
            outcomes[place] = ReportOutcome.ACCEPTED
            if ended := ended_slot(before.slot, seen.slot):
                over.setdefault(agent.id, []).append(ended)
        rows.append(agent_rows.observed_row(agent.id, seen))
        verdict = assess_agent(agent, leases_by_agent.get(agent.agent_id, 0), transaction.now_s, around, seen)
        changes.append(change_of(agent, verdict))
    agent_rows.set_observed(transaction, rows)
    store_half_hours(transaction, over)
    agent_rows.set_verdict_due(
        transaction,
        {
            change.agent.id: change.assess_at_s
            for change in changes
            if not change.is_visible and change.assess_at_s != change.agent.assess_at_s
        },
    )
    visible = [change for change in changes if change.is_visible]
    if visible:
        change_status(transaction, visible, MONITOR)
    return outcomes


OPERATIONS = (
    Operation(
        method="POST",
        path="/api/v1/observations",
        summary="Report a batch of observations of a prober",
        action=Permission.REPORT_OBSERVATIONS,
        function=accept_observations,
        body=ObservationBatch,
        example={
            "observations": [
                {
                    "agent_id": "agent_billing_01",
                    "observed_at": "2026-02-08T10:30:00Z",
                    "transport": {"result": "ok", "status_code": 200, "latency_ms": 41.5},
                    "network_class": "public_ipv4",
                    "address": "192.0.2.7",
                }
            ],
            "tokens": {"311": 4_294_967_297},
            "ages_s": [1.5],
            "numbers": [42],
            "interval_s": 300.0,
        },
        answer=ObservationAnswer,
        errors=(404, 412),
        max_body_bytes=MAX_BATCH_BYTES,
    ),
)
