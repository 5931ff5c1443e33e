"""Fault scripts: which faults happen when, and from these alone the label of each agent at each moment.

Times are unscaled seconds since the script began. A run divides all durations by one factor.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

ASSERTION_FAILED: Final = "assertion_failed"
INTERVAL_S: Final = 300.0
UNHEALTHY_AFTER_S: Final = 900.0
DEAD_AFTER_S: Final = 3600.0
MAX_SUSPENSION_S: Final = 900.0
TWO_PROBES_S: Final = 0.5 * INTERVAL_S
"""In less time no agent is probed twice."""
FOUND_AFTER_S: Final = 3.0 * INTERVAL_S
"""Wrong answers are found after two probes, and shown one sample later at the latest."""
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
    ANSWER_WRONGLY = "answer_wrongly"
    """Agents answer wrongly behind HTTP 200: from now on their label is wrong."""
    ANSWER_RIGHTLY = "answer_rightly"
    REVOKE_TOKENS = "revoke_tokens"
    """Revoke all access tokens up to now."""
    REJECT_TOKENS = "reject_tokens"
    """Agents reject all access tokens from now on, new ones too."""
    ACCEPT_TOKENS = "accept_tokens"
    FAIL_LOGIN = "fail_login"
    """The token endpoint goes down."""
    RESTORE_LOGIN = "restore_login"


class How(StrEnum):
    """Way in which a host is cut off."""

    DROP = "drop"
    REJECT = "reject"
    NAMES = "names"
    """The name server is unreachable."""


class LoginFault(StrEnum):
    """Way in which the token endpoint is down."""

    CLOSED = "closed"
    """Its port is closed."""
    HANGING = "hanging"
    FAILING = "failing"
    """HTTP 503."""
    PAGE = "page"
    """A page for people, with HTTP 200."""
    REFUSING = "refusing"
    """It does not know the client any more."""


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
    login: LoginFault = LoginFault.CLOSED


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
    wrong_at_least: int = 0
    """Agents whose wrong answers must be found."""
    events: tuple[tuple[str, int, int], ...] = ()
    """Types of events, with the least and the greatest number that may be logged."""
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
        return self._spans(agent, What.DIE, What.REVIVE)

    def wrongs(self, agent: Agent) -> list[tuple[float, float]]:
        """Return the spans in which an agent answers wrongly, in order; the last may end at infinity."""
        return self._spans(agent, What.ANSWER_WRONGLY, What.ANSWER_RIGHTLY)

    def _spans(self, agent: Agent, begin: What, end: What) -> list[tuple[float, float]]:
        spans: list[tuple[float, float]] = []
        for action in self.actions:
            if action.hosts and agent.number not in action.hosts:
                continue
            has_begun = bool(spans) and spans[-1][1] == float("inf")
            if action.what is begin and not has_begun:
                spans.append((action.at_s, float("inf")))
            elif action.what is end and has_begun:
                spans[-1] = (spans[-1][0], action.at_s)
        return spans

    def is_alive(self, agent: Agent, at_s: float, grace_s: float = 0.0) -> bool:
        """Return the label: whether the agent works at a moment, and has since `grace_s` before it."""
        return not any(begin_s <= at_s < end_s + grace_s for begin_s, end_s in self.deaths(agent))

    def has_been_wrong(self, agent: Agent, at_s: float, grace_s: float = 0.0) -> bool:
        """Return the label: whether two probes may have got wrong answers, up to `grace_s` ago."""
        return any(
            begin_s + TWO_PROBES_S <= min(at_s, end_s) and at_s < end_s + grace_s
            for begin_s, end_s in self.wrongs(agent)
        )


def script_from(given: dict[str, Any]) -> Script:
    """Return the script that `Script.to_json` wrote."""
    expected = dict(given["expected"])
    if expected["exempt_s"] is not None:
        expected["exempt_s"] = tuple(expected["exempt_s"])
    expected["events"] = tuple((name, least, most) for name, least, most in expected["events"])
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
                        "login": LoginFault(action["login"]),
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
    wrong_found: tuple[str, ...]
    """Agents whose wrong answers were found."""
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
    event_counts: Mapping[str, int] = MappingProxyType({}),
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
    wrong: set[str] = set()
    for change in changes:
        agent = by_id.get(change.agent_id)
        if agent is None or change.status not in false or _is_exempt(script, change.at_s):
            continue
        if change.reason == ASSERTION_FAILED:
            # The answer of a probe may arrive up to one interval after the agent's recovery.
            if script.has_been_wrong(agent, change.at_s, grace_s=INTERVAL_S) and change.status == "unhealthy":
                wrong.add(agent.agent_id)
            else:
                false[change.status].add(agent.agent_id)
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
        wrong_found=tuple(sorted(wrong)),
        detections_s=tuple(sorted(found.values())),
        missed=tuple(missed),
        problems=(
            *_missing_verdicts(script.expected, found, wrong),
            *_unexpected_events(script.expected, event_counts),
            *_not_unknown(script, list(shown), by_id),
        ),
    )


def _is_exempt(script: Script, at_s: float) -> bool:
    span = script.expected.exempt_s
    return span is not None and span[0] <= at_s < span[1]


def _missing_verdicts(
    expected: Expected, found: dict[tuple[str, float], float], wrong: set[str]
) -> Iterable[str]:
    if len(found) < expected.dead_at_least:
        yield f"{len(found)} agents found dead, expected at least {expected.dead_at_least}"
    if expected.dead_within_s and found:
        latest_s = max(found.values())
        if latest_s > expected.dead_within_s:
            yield f"found dead after {latest_s:.0f} s, expected at most {expected.dead_within_s:.0f} s"
    if len(wrong) < expected.wrong_at_least:
        yield f"{len(wrong)} agents found to answer wrongly, expected at least {expected.wrong_at_least}"


def _unexpected_events(expected: Expected, event_counts: Mapping[str, int]) -> Iterable[str]:
    if expected.is_loss_reported and not event_counts.get("monitor.evidence_lost"):
        yield "no event monitor.evidence_lost"
    for name, least, most in expected.events:
        if not least <= (logged := event_counts.get(name, 0)) <= most:
            yield f"{logged} events {name}, expected {least} to {most}"


def _not_unknown(
    script: Script, shown: list[tuple[float, dict[str, tuple[str, str]]]], by_id: dict[str, Agent]
) -> Iterable[str]:
    at_s = script.expected.unknown_at_s
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
        others = sorted(
            agent_id
            for agent_id, (status, health) in later[0][1].items()
            if agent_id in by_id
            and by_id[agent_id].number in affected
            and status != "dead"
            and health != "unknown"
        )
        if others:
            yield f"health is not unknown at {later[0][0]:.0f} s: {', '.join(others[:5])} ({len(others)})"
