"""Report of the labelled fleet: confusion matrix, detection times, and errors."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.fleet.kinds import KINDS
from tests.fleet.script import FOUND_AFTER_S, Change, Outcome, Script, outcome_of
from tests.fleet.settings import MAX_REQUEST_FACTOR


@dataclass(frozen=True)
class Finished:
    """One scenario that was run."""

    script: Script
    result: dict[str, Any] | None
    """The registry's verdicts; None if the scenario itself failed."""
    why: str

    @cached_property
    def outcome(self) -> Outcome | None:
        """Return how it compares with the labels."""
        if self.result is None:
            return None
        agents = self.script.agents
        return outcome_of(
            self.script,
            [Change(**change) for change in self.result["changes"]],
            undecided=[agent.agent_id for agent in agents if KINDS[agent.kind].is_undecided],
            tolerated=frozenset(
                agent.agent_id for agent in agents if "unhealthy" in KINDS[agent.kind].statuses
            ),
            event_counts=self.result["event_counts"],
            shown=[
                (at_s, {agent_id: (status, health) for agent_id, (status, health) in sample.items()})
                for at_s, sample in self.result["samples"]
            ],
        )

    @cached_property
    def problems(self) -> list[str]:
        """Return the deviations, in words."""
        if self.result is None or self.outcome is None:
            return [f"it came to nothing: {self.why}"]
        problems = [*self.outcome.problems, *self.result["problems"]]
        for what, agents in (
            ("false unhealthy", self.outcome.false_unhealthy),
            ("false dead", self.outcome.false_dead),
        ):
            if agents:
                problems.append(f"{len(agents)} {what}: {', '.join(agents[:5])}")
        if self.script.group == "kinds":
            problems += _wrong_kinds(self.script, self.result["final"])
        problems += _wrong_healths(self.script, self.result["samples"])
        return [*problems, *_wrong_ends(self.script, self.result["final"])]

    @property
    def is_right(self) -> bool:
        return not self.problems


def _wrong_kinds(script: Script, final: dict[str, list[str]]) -> list[str]:
    problems = []
    for agent in script.agents:
        kind = KINDS[agent.kind]
        status, health = final.get(agent.agent_id, ("absent", "absent"))
        if status not in kind.statuses or (status != "dead" and health not in kind.healths):
            problems.append(f"{agent.agent_id} is shown as {status} and {health}")
    return problems


def _wrong_healths(script: Script, samples: list[Any]) -> list[str]:
    """Return checked agents that were shown as worse than they are."""
    found: dict[str, str] = {}
    for agent in script.agents:
        kind = KINDS[agent.kind]
        allowed = {"degraded"} if kind.is_gradual else {"unhealthy"}
        for at_s, sample in samples if kind.checks else ():
            _, health = sample.get(agent.agent_id, ("", "unknown"))
            is_wrong = script.has_been_wrong(agent, at_s, grace_s=FOUND_AFTER_S)
            # Without evidence, the last health stays until it is too old.
            is_unsure = kind.has_login and script.wrongs(agent)
            if health not in {"healthy", "unknown", *(allowed if is_wrong or is_unsure else ())}:
                found[agent.agent_id] = f"{agent.agent_id} is shown as {health} at {at_s:.0f} s"
    return list(found.values())


def _wrong_ends(script: Script, final: dict[str, list[str]]) -> list[str]:
    """Return checked agents that are not shown as they are at the end."""
    problems = []
    for agent in script.agents:
        kind = KINDS[agent.kind]
        if not kind.checks:
            continue
        expected = ("active", "healthy")
        if not script.is_alive(agent, script.ends_at_s):
            expected = ("dead", "unknown")
        elif script.has_been_wrong(agent, script.ends_at_s - FOUND_AFTER_S):
            expected = ("active", "degraded") if kind.is_gradual else ("unhealthy", "unhealthy")
        if (shown := tuple(final.get(agent.agent_id, ("absent", "absent")))) != expected:
            problems.append(f"{agent.agent_id} is shown as {' and '.join(shown)} at the end")
    return problems


def report(finished: Sequence[Finished], *, seed: int, factor: float) -> str:
    """Return the report as Markdown."""
    request_factor = min(factor, MAX_REQUEST_FACTOR)
    lines = [
        "# Labelled fleet",
        "",
        f"Seed {seed}; {len(finished)} scenarios. Times are unscaled.",
        f"All durations are divided by {factor:g}, deadlines of single requests by {request_factor:g}.",
        "",
        "| scenarios | number | right | false unhealthy | false dead | found | missed | found after, s |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    groups: dict[str, list[Finished]] = defaultdict(list)
    for each in finished:
        groups[each.script.group].append(each)
    for group, members in groups.items():
        outcomes = [each.outcome for each in members if each.outcome is not None]
        times = sorted(seconds for outcome in outcomes for seconds in outcome.detections_s)
        lines.append(
            f"| {group} | {len(members)} | {sum(each.is_right for each in members)} "
            f"| {sum(len(outcome.false_unhealthy) for outcome in outcomes)} "
            f"| {sum(len(outcome.false_dead) for outcome in outcomes)} "
            f"| {len(times)} | {sum(len(outcome.missed) for outcome in outcomes)} | {_spread(times)} |"
        )
    lines += ["", *_matrix(finished), ""]
    for each in finished:
        lines += [f"* {each.script.name}: {problem}" for problem in each.problems]
    return "\n".join(lines) + "\n"


def _spread(times: Sequence[float]) -> str:
    if not times:
        return "-"
    return f"{times[0]:.0f} to {times[-1]:.0f}, median {statistics.median(times):.0f}"


def _matrix(finished: Sequence[Finished]) -> list[str]:
    """Return label against final status, over all scenarios."""
    counts: Counter[tuple[str, str]] = Counter()
    for each in finished:
        if each.result is None:
            continue
        for agent in each.script.agents:
            status, health = each.result["final"].get(agent.agent_id, ("absent", "absent"))
            label = "works" if each.script.is_alive(agent, each.script.ends_at_s) else "dead"
            if "unhealthy" in KINDS[agent.kind].statuses and label == "works":
                label = "fails or flaps"
            elif label == "works" and each.script.has_been_wrong(agent, each.script.ends_at_s):
                label = "answers wrongly"
            shown = status if status in {"dead", "unhealthy"} or health != "unknown" else "active, unknown"
            counts[label, shown] += 1
    shown = sorted({column for _, column in counts})
    rows = ["works", "answers wrongly", "fails or flaps", "dead"]
    return [
        f"| label at the end | {' | '.join(shown)} |",
        f"|---|{'--:|' * len(shown)}",
        *(f"| {row} | {' | '.join(str(counts[row, column]) for column in shown)} |" for row in rows),
    ]
