"""Targets with scripted ends, and a slow prober."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lifesign.domain.net.network_class import PUBLIC_IPV4
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass, reason_of_inconclusive
from lifesign.domain.probing.cadence import Cadence, after_probe
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.network import host_limiter
from lifesign.prober.network.clock import Clock
from lifesign.prober.reachability.witness_requests import WitnessReply
from lifesign.prober.registry_exchange.ledger import (
    Answered,
    ProbeConnection,
    ProbeReport,
    TargetEntry,
)

OK = LayerResult(result=ResultClass.OK, status_code=200)
_STATUS = {ResultClass.NOT_AN_AGENT: 404, ResultClass.HTTP_ERROR: 500, ResultClass.RATE_LIMITED: 429}
"""The status of an answer of the host itself."""


def definition_of(**members: object) -> ProbeDefinition:
    """Return the definition of a probe without particular targets."""
    return ProbeDefinition.model_validate(
        {"name": "test", "contact": "mailto:ops@example.org", "targets": ["https://agent.example"], **members}
    )


@dataclass
class Look:
    """One probe that was made."""

    url: str
    at_s: float
    ended_at_s: float | None = None
    is_second: bool = False
    """Whether it is the second request of the witness rule."""
    name_failed_at_s: float | None = None


@dataclass
class World:
    """Targets and their answers; each probe takes time and is recorded."""

    clock: Clock
    cadence: Cadence = field(default_factory=Cadence)
    takes_s: float = 0.1
    timeout_s: float = 5.0
    ends: dict[str, ResultClass] = field(default_factory=dict)
    """The end of a target's card, by default `ok`."""
    is_cut: bool = False
    """Nothing is reached."""
    cut_classes: set[str] = field(default_factory=set)
    """Network classes of which nothing is reached."""
    cut_urls: set[str] = field(default_factory=set)
    """Targets and canaries that are not reached."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """The network class of a URL, where it is another than that of all others."""
    has_no_names: bool = False
    """Whether no name resolves, though the name server answers."""
    asked: list[tuple[float, str, Sequence[str]]] = field(default_factory=list)
    """Rounds of requests to witnesses: when, in which class, and which."""
    witness_s: float = 0.05
    """How long a witness takes for its answer."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """The host of a URL, for targets that share an address."""
    fails: set[str] = field(default_factory=set)
    """Targets whose probe raises."""
    hangs: set[str] = field(default_factory=set)
    looks: list[Look] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    on_look: Callable[[str], None] | None = None

    async def probe(self, entry: TargetEntry, at_s: float) -> ProbeReport:
        if entry.url in self.addresses:
            host_limiter.admit(self.addresses[entry.url])
        look = Look(entry.url, at_s, is_second=entry.is_repeat, name_failed_at_s=entry.name_failed_at_s)
        began_s = self.clock.monotonic_s()
        self.looks.append(look)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.on_look is not None:
                self.on_look(entry.url)
            if entry.url in self.fails:
                raise ValueError("a defect")
            if entry.url in self.hangs:
                await asyncio.sleep(1e6)
            result = self.result_of(entry.url)
            await asyncio.sleep(self.timeout_s if result is ResultClass.TIMEOUT else self.takes_s)
        finally:
            self.under_way -= 1
            look.ended_at_s = self.clock.wall_s()
        return self._report(entry, at_s, began_s, result)

    def class_of(self, url: str) -> str:
        """Return the network class of a URL."""
        return self.classes.get(url, PUBLIC_IPV4)

    def result_of(self, url: str) -> ResultClass:
        """Return how a request to a URL ends now."""
        if self.is_cut or self.class_of(url) in self.cut_classes or url in self.cut_urls:
            return ResultClass.TIMEOUT
        return ResultClass.DNS_FAILURE if self.has_no_names else self.ends.get(url, ResultClass.OK)

    async def ask(self, urls: Sequence[str], network_class: str, timeout_s: float) -> Sequence[WitnessReply]:
        """Ask witnesses, as `WitnessRequester` does."""
        self.asked.append((self.clock.monotonic_s(), network_class, urls))
        results = [self.result_of(url) for url in urls]
        is_late = any(result is ResultClass.TIMEOUT for result in results)
        await asyncio.sleep(timeout_s if is_late else self.witness_s)
        return [
            WitnessReply(status=200, is_looked_up=True)
            if result is ResultClass.OK
            else WitnessReply(reason=result.value)
            for result in results
        ]

    def looks_at(self, url: str) -> list[float]:
        """Return when a target was looked at."""
        return [look.at_s for look in self.looks if look.url == url]

    def _report(self, entry: TargetEntry, at_s: float, began_s: float, result: ResultClass) -> ProbeReport:
        is_ok = result is ResultClass.OK
        has_address = result is not ResultClass.DNS_FAILURE
        network_class = self.class_of(entry.url)
        observation = Observation(
            target_url=entry.url,
            observed_at=datetime.fromtimestamp(self.clock.wall_s(), UTC),
            discovery=OK if is_ok else LayerResult(result=result, status_code=_STATUS.get(result)),
            inconclusive_reason=reason_of_inconclusive(result),
            network_class=network_class if has_address else entry.memory.network_class,
            address="192.0.2.1" if has_address else None,
        )
        memory = after_probe(entry.memory, observation, self.cadence, at_s)
        if is_ok:
            memory = memory.model_copy(update={"card_read_at_s": at_s, "card_url": entry.url})
        has_status = is_ok or result in _STATUS
        answered = Answered(network_class=network_class, url=entry.url, sent_at_s=began_s)
        contact = ProbeConnection(
            network_class=observation.network_class,
            has_answered_itself=has_status,
            is_name_failure=not has_address,
            answered=answered if has_status else None,
        )
        return ProbeReport(
            subject_id=entry.subject_id, observation=observation, memory=memory, contact=contact
        )
