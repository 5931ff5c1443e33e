"""Labels of fault scripts, and the definition of a false verdict."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from tests.fleet.hosts import CANARIES, CLASS
from tests.fleet.scenarios import FACTORS, all_scripts, covering
from tests.fleet.script import INTERVAL_S, Action, Agent, Change, Expected, Outcome, Script, What, outcome_of
from tests.fleet.settings import definition
from tests.support.definitions import definition_of

AGENTS = (Agent(number=0), Agent(number=1))


def script(*actions: Action, **members: Any) -> Script:
    return Script(name="s", group="g", agents=AGENTS, actions=actions, ends_at_s=10_000, **members)


def change(number: int, at_s: float, status: str) -> Change:
    return Change(agent_id=AGENTS[number].agent_id, at_s=at_s, status=status, reason="probe_failures")


def die(at_s: float, *hosts: int) -> Action:
    return Action(at_s=at_s, what=What.DIE, hosts=hosts)


def revive(at_s: float, *hosts: int) -> Action:
    return Action(at_s=at_s, what=What.REVIVE, hosts=hosts)


def test_label_changes_only_with_death_and_revival() -> None:
    one = script(die(100, 0), Action(at_s=150, what=What.CUT), revive(200, 0), die(300))
    assert one.deaths(AGENTS[0]) == [(100, 200), (300, float("inf"))]
    assert one.deaths(AGENTS[1]) == [(300, float("inf"))]
    assert one.is_alive(AGENTS[0], 99)
    assert not one.is_alive(AGENTS[0], 100)
    assert one.is_alive(AGENTS[0], 200)
    assert not one.is_alive(AGENTS[0], 250, grace_s=100)


@pytest.mark.parametrize(("status", "member"), [("unhealthy", "false_unhealthy"), ("dead", "false_dead")])
def test_verdict_about_a_working_agent_is_false(status: str, member: str) -> None:
    outcome = outcome_of(script(die(100, 0)), [change(1, 5000, status)])
    assert getattr(outcome, member) == (AGENTS[1].agent_id,)
    assert not outcome.is_right


def test_death_is_found_with_its_delay_or_missed() -> None:
    one = script(die(100, 0), die(200, 1))
    outcome = outcome_of(one, [change(0, 1000, "unhealthy"), change(0, 3700, "dead")])
    assert list(outcome.detections_s) == [3600]
    assert list(outcome.missed) == [AGENTS[1].agent_id]
    assert outcome.is_right


def test_failure_that_arrives_within_one_interval_of_a_revival_is_no_false_verdict() -> None:
    one = script(die(100, 0), revive(4000, 0))
    assert outcome_of(one, [change(0, 4000 + INTERVAL_S / 2, "dead")]).is_right
    assert not outcome_of(one, [change(0, 4000 + 2 * INTERVAL_S, "dead")]).is_right


def problems(expected: Expected, **facts: Any) -> Outcome:
    return outcome_of(script(die(100, 0), expected=expected), [change(0, 3700, "dead")], **facts)


def test_expectations_of_a_script_are_checked() -> None:
    assert problems(Expected(dead_at_least=1, dead_within_s=3600)).is_right
    assert not problems(Expected(dead_at_least=2)).is_right
    assert not problems(Expected(dead_within_s=3599)).is_right
    assert not problems(Expected(is_loss_reported=True)).is_right
    assert problems(Expected(is_loss_reported=True), event_types=["monitor.evidence_lost"]).is_right


@pytest.mark.parametrize(("health", "is_right"), [("unknown", True), ("healthy", False)])
def test_health_of_a_dead_agent_that_is_still_active_must_be_unknown(health: str, *, is_right: bool) -> None:
    sample = {AGENTS[0].agent_id: ("active", health), AGENTS[1].agent_id: ("active", "healthy")}
    outcome = problems(Expected(unknown_at_s=500), shown=[(400, {}), (600, sample)])
    assert outcome.is_right == is_right


def test_script_survives_its_json() -> None:
    for one in all_scripts(3):
        assert Script.from_json(one.to_json()) == one


@pytest.mark.parametrize("has_canaries", [True, False])
def test_probers_take_the_definition_of_a_script(tmp_path: Path, *, has_canaries: bool) -> None:
    text = definition(script(has_canaries=has_canaries), 30.0)
    read = definition_of(text, tmp_path / "fleet.yml")
    canaries = {name: len(urls) for name, urls in read.canaries_by_class.items()}
    assert canaries == ({CLASS: len(CANARIES)} if has_canaries else {})


def test_each_pair_of_factor_values_occurs() -> None:
    rows = covering(random.Random(7))
    for one, other in itertools.combinations(FACTORS, 2):
        for pair in itertools.product(FACTORS[one], FACTORS[other]):
            assert pair in {(row[one], row[other]) for row in rows}


def test_same_seed_gives_the_same_scenarios() -> None:
    assert all_scripts(5) == all_scripts(5)
    assert all_scripts(5) != all_scripts(6)
    names = [one.name for one in all_scripts(5)]
    assert len(set(names)) == len(names)
