"""What does one probe change of what is known of its target?

The last result and since when it holds, what the next probe has to remember, the changes, and the sums.
An observation counts once, and in the order of time: one that is not later than the last changes
nothing, so that a batch may be sent twice.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from pydantic_core import from_json

from agent_health.decision import MAX_AHEAD_SECONDS
from agent_health.observation import LayerResult, Observation, ResultClass
from agent_health.probe_memory import ProbeMemory
from agent_health.result_sums import Layer, counted, layers_of, tells_anything
from agent_health.storage import probed, result_history
from agent_health.storage.database import Transaction
from agent_health.storage.probed import Subject
from agent_health.storage.result_history import ALL_TARGETS, ResultChange, SumKey, hour_of

SAME_MOMENT_S = 2e-6
"""Two times that differ by less are one: a database may turn the last digit of a float."""

_NOT_STORED = {"agent_id", "target_url"}


@dataclass(slots=True)
class Results:
    """What a batch of observations changes, before it is stored."""

    now_s: float
    touched: dict[int, Subject] = field(default_factory=dict)
    changes: list[ResultChange] = field(default_factory=list)
    sums: Counter[SumKey] = field(default_factory=Counter)

    def take(self, subject: Subject, observation: Observation, memory: ProbeMemory | None) -> bool:
        """Take one probe of a target in; whether it counts."""
        assert subject.target is not None  # noqa: S101 - who is no target has no results
        claimed_s = observation.observed_at.timestamp()
        last_s = subject.observed_at_s
        is_late = last_s is not None and claimed_s <= last_s + SAME_MOMENT_S
        if is_late or claimed_s - self.now_s > MAX_AHEAD_SECONDS:
            return False
        at_s = min(claimed_s, self.now_s)
        self._count(subject, observation, at_s)
        self._remember(subject, observation, at_s)
        subject.observed_at_s = claimed_s
        if memory is not None:
            subject.memory = memory.to_json()
            subject.protocol_version = _printable(memory.protocol_version)
        self.touched[subject.target] = subject
        return True

    def store(self, transaction: Transaction) -> None:
        """Write all but the sums."""
        probed.store(transaction, [*self.touched.values()])
        result_history.add_changes(transaction, self.changes)

    def store_sums(self, transaction: Transaction) -> None:
        """Write the sums; last of all."""
        result_history.add_sums(transaction, self.sums)

    def _count(self, subject: Subject, observation: Observation, at_s: float) -> None:
        hour = hour_of(at_s)
        for layer, result, bucket in counted(observation):
            for directory in (ALL_TARGETS, *subject.directories):
                self.sums[hour, directory, layer, result, bucket] += 1

    def _remember(self, subject: Subject, observation: Observation, at_s: float) -> None:
        """Note the result, and what has changed; what nobody measured changes nothing."""
        result = observation.result
        if not tells_anything(result):
            return
        if subject.seen is not None:
            self._note_changes(subject, observation, at_s)
        if subject.result != result:
            subject.result, subject.result_since_s = result.value, at_s
        subject.seen = observation.model_dump_json(exclude=_NOT_STORED, exclude_none=True)

    def _note_changes(self, subject: Subject, observation: Observation, at_s: float) -> None:
        assert subject.target is not None  # noqa: S101 - see `take`
        before = from_json(subject.seen or "{}")
        alike = ResultChange(subject.target, at_s, Layer.OVERALL.value, "", "", None)
        evidence: str | None = None
        found: list[ResultChange] = []
        for layer, now in layers_of(observation):
            previous = before.get(layer.value)
            evidence = evidence or now.evidence
            if previous is not None and _has_changed(previous["result"], now):
                found.append(
                    replace(
                        alike,
                        layer=layer.value,
                        previous=previous["result"],
                        result=now.result.value,
                        evidence=now.evidence,
                    )
                )
        result = observation.result
        if subject.result is not None and subject.result != result:
            overall = replace(alike, previous=subject.result, result=result.value, evidence=evidence)
            self.changes.append(overall)
        self.changes += found


def _has_changed(previous: str, now: LayerResult) -> bool:
    return now.result != previous and tells_anything(now.result) and tells_anything(ResultClass(previous))


def _printable(text: str | None) -> str | None:
    """Return what a card says as it can be stored and shown anywhere."""
    if text is None:
        return None
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
