"""Failures that wait for a witness, in a bounded number, and their second requests."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation
from lifesign.domain.observation.witness_rule import WitnessAnswer, bears_out
from lifesign.domain.probing.cadence import without_result
from lifesign.prober.registry_exchange.ledger import ProbeReport
from lifesign.prober.worker.shards import TargetSlot

MAX_WAITING_FAILURES: Final = 50_000
"""Failures of one process that wait for a witness or for their second request: about 100 MB as JSON."""


class WaitingFailure:
    """A failed probe that counts only if a witness shows that the network works."""

    __slots__ = (
        "_memory",
        "_memory_after",
        "_observation",
        "answer",
        "answered_at_s",
        "began_at_s",
        "failed_at_s",
        "is_alive",
        "is_date_failure",
        "is_name_failure",
        "is_tls_failure",
        "layers",
        "made_at_s",
        "network_class",
        "rounds",
        "slot",
    )

    def __init__(
        self,
        slot: TargetSlot,
        report: ProbeReport,
        memory: ProbeMemory,
        *,
        network_class: str,
        began_at_s: float,
        failed_at_s: float,
        made_at_s: float,
        rounds: int = 1,
    ) -> None:
        """`memory`: memory before the probe."""
        self.slot = slot
        self.network_class = network_class
        self.is_name_failure = report.contact.is_name_failure
        self.is_date_failure = report.contact.is_date_failure
        self.is_tls_failure = report.contact.is_tls_failure
        self.layers = report.contact.unreached_layers or None
        """Names of the layers that do not count without a witness; None: all that failed."""
        self.began_at_s = began_at_s
        """Start of the first request, since the epoch."""
        self.failed_at_s = failed_at_s
        """Time on the monotonic clock."""
        self.made_at_s = made_at_s
        """The same moment by `Clock.boot_s`."""
        self.rounds = rounds
        """Number of its waits for a witness, including this one."""
        self.answer: WitnessAnswer | None = None
        """The witness, once one answered."""
        self.answered_at_s = 0.0
        """Time of the answer, on the monotonic clock."""
        self._observation = report.observation.model_dump_json(exclude_defaults=True)
        self._memory = without_result(memory, report.memory).to_json()
        self.is_alive = report.observation.is_liveness_signal
        """Whether the target lives, and only a part of it failed."""
        self._memory_after = report.memory.to_json() if self.is_alive else self._memory

    @property
    def observation(self) -> Observation:
        """Return the observation of the failed probe."""
        return Observation.model_validate_json(self._observation)

    @property
    def memory(self) -> ProbeMemory:
        """Return the target's memory before the failed probe, with facts that the probe learned."""
        return ProbeMemory.from_json(self._memory)

    @property
    def memory_after(self) -> ProbeMemory:
        """Return the target's memory to keep if the failure does not count."""
        return ProbeMemory.from_json(self._memory_after)


class _Line:
    """Failures of one network class, the oldest first; those that need different witnesses are separate."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[tuple[bool, bool, bool], deque[WaitingFailure]] = {}

    def __bool__(self) -> bool:
        return any(self._parts.values())

    def add(self, failure: WaitingFailure) -> None:
        needs = failure.is_name_failure, failure.is_date_failure, failure.is_tls_failure
        self._parts.setdefault(needs, deque()).append(failure)

    def first_at_s(self) -> float | None:
        return min((part[0].failed_at_s for part in self._parts.values() if part), default=None)

    def take(self, is_taken: Callable[[WaitingFailure], bool]) -> Iterator[WaitingFailure]:
        for _, part in sorted(self._parts.items()):
            while part and is_taken(part[0]):
                yield part.popleft()


class WaitingFailures:
    """Failures that wait for a witness, by network class. Times: seconds of the monotonic clock."""

    def __init__(self, max_waiting: int = MAX_WAITING_FAILURES) -> None:
        self.asked_again = 0
        """Number of failures with a witness whose second request is in progress."""
        self._max_waiting = max_waiting
        self._lines: dict[str, _Line] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """Return the number of failures that wait for a witness."""
        return self._waiting

    @property
    def is_full(self) -> bool:
        """Whether no more failures can be added."""
        return self._waiting + self.asked_again >= self._max_waiting

    def add(self, failure: WaitingFailure) -> None:
        """Add a failure behind all others of its network class."""
        self._lines.setdefault(failure.network_class, _Line()).add(failure)
        self._waiting += 1

    def first_at_s(self, network_class: str) -> float | None:
        """Return when the oldest waiting failure of a network class was added; None if none waits."""
        line = self._lines.get(network_class)
        return None if line is None else line.first_at_s()

    def release(self, answer: WitnessAnswer, now_s: float) -> list[WaitingFailure]:
        """Remove and return the failures that count now, as this answer is a witness for them."""

        def is_borne_out(failure: WaitingFailure) -> bool:
            return bears_out(
                answer,
                failure.network_class,
                failure.failed_at_s,
                is_name_failure=failure.is_name_failure,
                is_date_failure=failure.is_date_failure,
                is_tls_failure=failure.is_tls_failure,
            )

        released = self._take(answer.network_class, is_borne_out)
        for failure in released:
            failure.answer, failure.answered_at_s = answer, now_s
        self.asked_again += len(released)
        return released

    def give_up(self, network_class: str, until_s: float) -> list[WaitingFailure]:
        """Remove and return the failures of a network class that were added up to a time."""
        return self._take(network_class, lambda failure: failure.failed_at_s <= until_s)

    def _take(self, network_class: str, is_taken: Callable[[WaitingFailure], bool]) -> list[WaitingFailure]:
        line = self._lines.get(network_class)
        if line is None:
            return []
        taken = list(line.take(is_taken))
        self._waiting -= len(taken)
        if not line:
            del self._lines[network_class]
        return taken
