"""Fault scripts: which faults happen when, and from these alone the label of each agent at each moment.

Times are unscaled seconds since the script began. A run divides all durations by one factor.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

INTERVAL_S: Final = 300.0
UNHEALTHY_AFTER_S: Final = 900.0
DEAD_AFTER_S: Final = 3600.0
MAX_SUSPENSION_S: Final = 900.0
WARM_UP_S: Final = 1500.0
"""Time in which every agent is measured at least four times before the first fault."""


class What(StrEnum):
    """Effect of an action."""

    CUT = "cut"
    """Cut hosts off below HTTP."""
    HEAL = "heal"
    """Undo every cut."""
    DIE = "die"
    """Agents die: from now on their label is dead."""
    REVIVE = "revive"
    STOP_PROBER = "stop_prober"
    """SIGSTOP."""
    CONTINUE_PROBER = "continue_prober"
    KILL_PROBER = "kill_prober"
    """SIGKILL."""
    RESTART_PROBER = "restart_prober"
    """SIGTERM, wait for the end, and start again."""
    START_PROBER = "start_prober"
    STALL_PROBER = "stall_prober"
    """Stop and continue it ten times a second, so that it runs a tenth of the time."""
    SET_CLOCK = "set_clock"
    """Set a prober's wall clock off by `offset_s`."""
    STOP_REGISTRY = "stop_registry"
    CONTINUE_REGISTRY = "continue_registry"
    CUT_INBOUND = "cut_inbound"
    """Drop what heartbeat agents send to the registry."""
    HOSTILE_KEY = "hostile_key"
    """A second prober key claims shards, floods, and reports nothing true."""


class How(StrEnum):
    """Way in which a host is cut off."""

    DROP = "drop"
    REJECT = "reject"
    NAMES = "names"
    """The name server is unreachable."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """One step of a script."""

    at_s: float
    what: What
    hosts: tuple[int, ...] = ()
    """Numbers of agents; empty: all."""
    how: How = How.DROP
    has_canaries: bool = True
    """Whether a cut includes the canaries."""
    prober: int = 0
    offset_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Agent:
    """One agent of a fleet."""

    number: int
    kind: str = "plain"
    """A key of `kinds.KINDS`."""
    is_heartbeat: bool = False
    """Whether it is monitored by heartbeat instead of by probes."""

    @property
    def agent_id(self) -> str:
        """Its id in the registry."""
        return f"{self.kind}-{self.number}"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Required results, besides the absence of false verdicts."""

    dead_at_least: int = 0
    """Agents that must be found dead."""
    dead_within_s: float = 0.0
    """The latest time from an agent's death until it is found."""
    is_loss_reported: bool = False
    """`monitor.evidence_lost` must be logged."""
    unknown_at_s: float | None = None
    """A moment at which the health of all cut or dead agents that are still active must be `unknown`."""
    exempt_s: tuple[float, float] | None = None
    """A span in which verdicts may be wrong, with the reason in `exempt_why`."""
    exempt_why: str = ""


@dataclass(frozen=True, kw_only=True)
class Script:
    """One scenario: a fleet, what happens to it, and what must come out."""

    name: str
    group: str
    agents: tuple[Agent, ...]
    actions: tuple[Action, ...]
    ends_at_s: float
    probers: int = 1
    has_canaries: bool = True
    expected: Expected = field(default_factory=Expected)
    seed: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Script":
        return script_from(json.loads(text))

    def deaths(self, agent: Agent) -> list[tuple[float, float]]:
        """Return the spans in which an agent is really dead, in order; the last may end at infinity."""
        spans: list[tuple[float, float]] = []
        for action in self.actions:
            if action.hosts and agent.number not in action.hosts:
                continue
            is_dead = bool(spans) and spans[-1][1] == float("inf")
            if action.what is What.DIE and not is_dead:
                spans.append((action.at_s, float("inf")))
            elif action.what is What.REVIVE and is_dead:
                spans[-1] = (spans[-1][0], action.at_s)
        return spans

    def is_alive(self, agent: Agent, at_s: float, grace_s: float = 0.0) -> bool:
        """Return the label: whether the agent works at a moment, and has since `grace_s` before it."""
        return not any(begin_s <= at_s < end_s + grace_s for begin_s, end_s in self.deaths(agent))


def script_from(given: dict[str, Any]) -> Script:
    """Return the script that `Script.to_json` wrote."""
    expected = dict(given["expected"])
    if expected["exempt_s"] is not None:
        expected["exempt_s"] = tuple(expected["exempt_s"])
    return Script(
        **{
            **given,
            "agents": tuple(Agent(**agent) for agent in given["agents"]),
            "actions": tuple(
                Action(
                    **{
                        **action,
                        "what": What(action["what"]),
                        "how": How(action["how"]),
                        "hosts": tuple(action["hosts"]),
                    }
                )
                for action in given["actions"]
            ),
            "expected": Expected(**expected),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of an agent's status, as the registry's event log has it."""

    agent_id: str
    at_s: float
    """Unscaled, since the script began."""
    status: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Results of a scenario, beside its labels."""

    false_unhealthy: tuple[str, ...]
    """Agents that went unhealthy while they worked."""
    false_dead: tuple[str, ...]
    detections_s: tuple[float, ...]
    """Time from each real death until the agent was found dead."""
    missed: tuple[str, ...]
    """Agents that died for good and were not found dead."""
    problems: tuple[str, ...]
    """Whatever else differs from what the script expects."""

    @property
    def is_right(self) -> bool:
        return not (self.false_unhealthy or self.false_dead or self.problems)


def outcome_of(
    script: Script,
    changes: Sequence[Change],
    *,
    undecided: Iterable[str] = (),
    event_types: Iterable[str] = (),
    shown: Iterable[tuple[float, dict[str, tuple[str, str]]]] = (),
    tolerated: frozenset[str] = frozenset(),
) -> Outcome:
    """Compare what a registry decided with the labels of a script.

    `undecided` are agents whose kind has no label for life and death, `tolerated` the ids whose kind is
    unhealthy by its own word. `shown` has samples of (status, health) by agent id.
    """
    by_id = {agent.agent_id: agent for agent in script.agents}
    skipped = {*undecided, *tolerated}
    false: dict[str, set[str]] = {"unhealthy": set(), "dead": set()}
    found: dict[tuple[str, float], float] = {}
    for change in changes:
        agent = by_id.get(change.agent_id)
        if agent is None or change.status not in false or _is_exempt(script, change.at_s):
            continue
        # A failure from before a revival may still arrive within one interval.
        if script.is_alive(agent, change.at_s, grace_s=INTERVAL_S) and agent.agent_id not in skipped:
            false[change.status].add(agent.agent_id)
        elif change.status == "dead":
            for begin_s, end_s in script.deaths(agent):
                if begin_s <= change.at_s < end_s + INTERVAL_S:
                    found.setdefault((agent.agent_id, begin_s), change.at_s - begin_s)
    missed = [
        agent.agent_id
        for agent in script.agents
        for begin_s, end_s in script.deaths(agent)
        if end_s == float("inf") and (agent.agent_id, begin_s) not in found
    ]
    return Outcome(
        false_unhealthy=tuple(sorted(false["unhealthy"])),
        false_dead=tuple(sorted(false["dead"])),
        detections_s=tuple(sorted(found.values())),
        missed=tuple(missed),
        problems=tuple(_problems(script, found, set(event_types), list(shown), by_id)),
    )


def _is_exempt(script: Script, at_s: float) -> bool:
    span = script.expected.exempt_s
    return span is not None and span[0] <= at_s < span[1]


def _problems(
    script: Script,
    found: dict[tuple[str, float], float],
    event_types: set[str],
    shown: list[tuple[float, dict[str, tuple[str, str]]]],
    by_id: dict[str, Agent],
) -> Iterable[str]:
    expected = script.expected
    if len(found) < expected.dead_at_least:
        yield f"{len(found)} agents found dead, expected at least {expected.dead_at_least}"
    if expected.dead_within_s and found:
        latest_s = max(found.values())
        if latest_s > expected.dead_within_s:
            yield f"found dead after {latest_s:.0f} s, expected at most {expected.dead_within_s:.0f} s"
    if expected.is_loss_reported and "monitor.evidence_lost" not in event_types:
        yield "no event monitor.evidence_lost"
    at_s = expected.unknown_at_s
    if at_s is not None:
        later = [sample for sample in shown if sample[0] >= at_s]
        if not later:
            yield f"no sample after {at_s:.0f} s"
            return
        affected = {
            host
            for action in script.actions
            if action.what in {What.CUT, What.DIE}
            for host in action.hosts or tuple(agent.number for agent in script.agents)
        }
        wrong = sorted(
            agent_id
            for agent_id, (status, health) in later[0][1].items()
            if agent_id in by_id
            and by_id[agent_id].number in affected
            and status != "dead"
            and health != "unknown"
        )
        if wrong:
            yield f"health is not unknown at {later[0][0]:.0f} s: {', '.join(wrong[:5])} ({len(wrong)})"
