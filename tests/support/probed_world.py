"""What does a worker see in a test where nobody is really asked?

A world of targets whose ends are told beforehand, and a prober that looks at it and takes its time.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from agent_health.observation import LayerResult, Observation, ResultClass
from agent_health.probe_cadence import Cadence, after_probe
from agent_health.prober import pace
from agent_health.prober.clock import Clock
from agent_health.prober.definition import ProbeDefinition
from agent_health.prober.ledger import ProbeReport, TargetEntry

OK = LayerResult(result=ResultClass.OK, status_code=200)


def definition_of(**members: object) -> ProbeDefinition:
    """The definition of a probe of nobody in particular."""
    return ProbeDefinition.model_validate(
        {"name": "test", "contact": "mailto:ops@example.org", "targets": ["https://agent.example"], **members}
    )


@dataclass
class Look:
    """One probe that was made."""

    url: str
    at_s: float
    ended_at_s: float | None = None


@dataclass
class World:
    """Who answers how; each look takes time, and is noted."""

    clock: Clock
    cadence: Cadence = field(default_factory=Cadence)
    takes_s: float = 0.1
    timeout_s: float = 5.0
    ends: dict[str, ResultClass] = field(default_factory=dict)
    """How a target's card ends, `ok` where nothing is said."""
    is_cut: bool = False
    """Nobody is reached."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Where a URL leads, for those that share an address."""
    fails: set[str] = field(default_factory=set)
    """Whose probe is a defect."""
    hangs: set[str] = field(default_factory=set)
    looks: list[Look] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    on_look: Callable[[str], None] | None = None

    async def probe(self, entry: TargetEntry, at_s: float) -> ProbeReport:
        if entry.url in self.addresses:
            pace.admit(self.addresses[entry.url])
        look = Look(entry.url, at_s)
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
            result = ResultClass.TIMEOUT if self.is_cut else self.ends.get(entry.url, ResultClass.OK)
            await asyncio.sleep(self.timeout_s if result is ResultClass.TIMEOUT else self.takes_s)
        finally:
            self.under_way -= 1
            look.ended_at_s = self.clock.wall_s()
        return self._report(entry, at_s, result)

    def looks_at(self, url: str) -> list[float]:
        """Return when a target was looked at."""
        return [look.at_s for look in self.looks if look.url == url]

    def _report(self, entry: TargetEntry, at_s: float, result: ResultClass) -> ProbeReport:
        observation = Observation(
            target_url=entry.url,
            observed_at=datetime.fromtimestamp(self.clock.wall_s(), UTC),
            discovery=OK if result is ResultClass.OK else LayerResult(result=result),
        )
        memory = after_probe(entry.memory, observation, self.cadence, at_s)
        if result is ResultClass.OK:
            memory = memory.model_copy(update={"card_read_at_s": at_s, "card_url": entry.url})
        return ProbeReport(subject_id=entry.subject_id, observation=observation, memory=memory)


async def is_reached(world: World, _url: str) -> bool:
    """Ask a canary of this world."""
    await asyncio.sleep(world.takes_s)
    return not world.is_cut
