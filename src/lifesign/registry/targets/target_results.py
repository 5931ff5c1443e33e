"""Results of targets: the changes of one probe to the stored facts about its target.

These are the last result and its start, the memory for the next probe, the changes, and the sums. An
observation counts once, in the order of its shard's tokens and of its number under the token: one that is not
later than the last changes nothing, so that a batch may be sent twice. No clock takes part in that.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from lifesign.domain.common.clock_skew import not_before
from lifesign.domain.observation.evidence_age import Receipt, find_inconclusive_reason
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.result_sums import (
    NO_LATENCY,
    Layer,
    bucket_of,
    is_informative,
    layers_of,
    supersedes,
)
from lifesign.domain.observation.results import InconclusiveReason, LayerResult, Observation, ResultClass
from lifesign.domain.observation.summary_line import has_lost_interface
from lifesign.domain.text.safe_text import harmless
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.probing import liveness, probe_results, result_history
from lifesign.storage.probing.liveness import LiveTarget, SilentTarget
from lifesign.storage.probing.probe_results import ProbeResultRow, Subject
from lifesign.storage.probing.result_history import ALL_TARGETS, ResultChange, SumKey, hour_of

_NOT_STORED = {"agent_id", "target_url", "observed_at"}
# One part for each layer, in this order; empty without a result.
STORED_LAYERS = tuple(layer for layer in Layer if layer is not Layer.OVERALL)
_SEPARATOR = ","
_NO_RESULTS = _SEPARATOR * (len(STORED_LAYERS) - 1)

Layers = Sequence[tuple[Layer, LayerResult]]


@dataclass(slots=True)
class Results:
    """Changes by a batch of observations before they are stored."""

    prober_key: str
    """Key of the prober that reports them."""
    left: dict[int, ProbeResultRow] = field(default_factory=dict)
    """Indexed by the target's number."""
    changes: list[ResultChange] = field(default_factory=list)
    sums: Counter[SumKey] = field(default_factory=Counter)
    answered: dict[int, LiveTarget] = field(default_factory=dict)
    """Last result that answered or failed, by the target's number."""
    silent: dict[int, SilentTarget] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)
    """Numbers of the targets with a result that counts, whatever it is."""

    def take(
        self,
        subject: Subject,
        observation: Observation,
        memory: ProbeMemory | None,
        receipt: Receipt,
        order: tuple[int, int],
    ) -> bool:
        """Add one probe of a target; return whether it counts. `order` is its token and its number."""
        assert subject.target is not None  # noqa: S101 - who is no target has no results
        if subject.token is not None and order <= (subject.token, subject.number or 0):
            return False
        # A batch that took longer on its way makes nothing look as if it had come before the last result.
        at_s = not_before(receipt.at_s, subject.observed_at_s)
        left = self.left.get(subject.target)
        if left is None:
            left = self.left[subject.target] = ProbeResultRow(
                subject.target, at_s, *order, receipt.results_until_s
            )
        left.observed_at_s = subject.observed_at_s = at_s
        left.token, left.number = subject.token, subject.number = order
        left.results_until_s = receipt.results_until_s
        known = (subject.layers or _NO_RESULTS).split(_SEPARATOR)
        card = known[STORED_LAYERS.index(Layer.DISCOVERY)]
        result = observation.result_with_card(ResultClass(card) if card else None)
        layers = list(layers_of(observation))
        left.inconclusive_reason = inconclusive_reason = find_inconclusive_reason(observation, result)
        if inconclusive_reason is None:
            left.evidence_at_s, left.evidence_until_s = at_s, receipt.evidence_until_s
        self._note_liveness(subject, observation, inconclusive_reason, at_s)
        self._count(subject, result, layers, at_s)
        # Without a layer there is no fact and no reason.
        is_excluded = memory is not None and memory.is_excluded
        if layers and supersedes(result, subject.result, is_excluded=is_excluded):
            self._remember(subject, left, result, layers, at_s)
            observation_json = observation.model_dump_json(exclude=_NOT_STORED, exclude_none=True)
            left.observed = f'{{"observed_at_s":{at_s!r},{observation_json[1:]}'
        if memory is not None:
            left.memory = memory.to_json()
            version = memory.protocol_version
            left.protocol_version = None if version is None else harmless(version)
        return True

    def store(self, transaction: Transaction) -> None:
        """Store all changes except the sums."""
        probe_results.store(transaction, [*self.left.values()])
        liveness.note(transaction, [*self.answered.values()], [*self.silent.values()])
        # Also of answers without an address, which `note` leaves out.
        liveness.note_reporter(transaction, self.reported - self.silent.keys(), self.prober_key)
        result_history.add_changes(transaction, self.changes)

    def store_sums(self, transaction: Transaction) -> None:
        """Store the sums; call it last in a transaction."""
        result_history.add_sums(transaction, self.sums)

    def _note_liveness(
        self,
        subject: Subject,
        observation: Observation,
        inconclusive_reason: InconclusiveReason | None,
        at_s: float,
    ) -> None:
        """Record whether the target answered or fell silent; other results are no evidence about that."""
        assert subject.target is not None  # noqa: S101 - see `take`
        target, where = subject.target, (observation.network_class, observation.address)
        self.reported.add(target)
        if observation.is_liveness_signal:
            self.silent.pop(target, None)
            self.answered[target] = LiveTarget(target, *where, at_s, self.prober_key)
        elif subject.agent is None:
            # It never answered, so that it cannot fall silent.
            return
        elif observation.is_measured_failure or inconclusive_reason is InconclusiveReason.NO_WITNESS:
            self.silent.setdefault(target, SilentTarget(target, *where, at_s, self.prober_key))

    def _count(self, subject: Subject, result: ResultClass, layers: Layers, at_s: float) -> None:
        hour, sums = hour_of(at_s), self.sums
        for directory in (ALL_TARGETS, *subject.directories):
            sums[hour, directory, Layer.OVERALL, result, NO_LATENCY] += 1
            for layer, outcome in layers:
                sums[hour, directory, layer, outcome.result, bucket_of(outcome.latency_ms)] += 1

    def _remember(
        self, subject: Subject, left: ProbeResultRow, result: ResultClass, layers: Layers, at_s: float
    ) -> None:
        """Record the result, and its change from the previous one, if it is informative."""
        if subject.result != result:
            # No agent has changed since the last failed attempt.
            if subject.result is not None and is_informative(ResultClass(subject.result)):
                evidence = next(
                    (outcome.evidence for _, outcome in layers if outcome.evidence is not None), None
                )
                overall = Layer.OVERALL.value, subject.result, result.value, evidence
                self.changes.append(ResultChange(left.target, at_s, *overall))
            subject.result = left.result = result.value
            left.result_since_s = at_s
        known = (subject.layers or _NO_RESULTS).split(_SEPARATOR)
        for layer, outcome in layers:
            place, now = STORED_LAYERS.index(layer), outcome.result.value
            if now == known[place] or not is_informative(outcome.result):
                continue
            if known[place]:
                self.changes.append(
                    ResultChange(left.target, at_s, layer.value, known[place], now, outcome.evidence)
                )
            known[place] = now
        if has_lost_interface(layers):
            known[STORED_LAYERS.index(Layer.TRANSPORT)] = known[STORED_LAYERS.index(Layer.MESSAGE)] = ""
        after = _SEPARATOR.join(known)
        if after != subject.layers:
            subject.layers = left.layers = after


def last_of(stored: str) -> list[tuple[Layer, ResultClass]]:
    """Return the last informative result of each layer from its stored form, in the order of requests."""
    parts = zip(STORED_LAYERS, stored.split(_SEPARATOR), strict=True)
    return [(layer, ResultClass(result)) for layer, result in parts if result]
