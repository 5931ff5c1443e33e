"""Labels of fault scripts, and the definition of a false verdict."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from tests.fleet.hosts import CANARIES, CLASS
from tests.fleet.kinds import KINDS
from tests.fleet.login import SECRET, SECRET_VARIABLE, Login
from tests.fleet.report import Finished
from tests.fleet.scenarios import FACTORS, all_scripts, covering
from tests.fleet.script import (
    ASSERTION_FAILED,
    INTERVAL_S,
    TWO_PROBES_S,
    Action,
    Agent,
    Change,
    Expected,
    Outcome,
    Script,
    What,
    outcome_of,
)
from tests.fleet.settings import definition
from tests.support.definitions import definition_of

AGENTS = (Agent(number=0), Agent(number=1))


def script(*actions: Action, **members: Any) -> Script:
    return Script(name="s", group="g", agents=AGENTS, actions=actions, ends_at_s=10_000, **members)


def change(number: int, at_s: float, status: str, reason: str = "probe_failures") -> Change:
    return Change(agent_id=AGENTS[number].agent_id, at_s=at_s, status=status, reason=reason)


def die(at_s: float, *hosts: int) -> Action:
    return Action(at_s=at_s, what=What.DIE, hosts=hosts)


def revive(at_s: float, *hosts: int) -> Action:
    return Action(at_s=at_s, what=What.REVIVE, hosts=hosts)


def test_label_changes_only_at_death_and_revival() -> None:
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


def wrong(begin_s: float, end_s: float, *hosts: int) -> tuple[Action, Action]:
    return (
        Action(at_s=begin_s, what=What.ANSWER_WRONGLY, hosts=hosts),
        Action(at_s=end_s, what=What.ANSWER_RIGHTLY, hosts=hosts),
    )


@pytest.mark.parametrize(
    ("number", "at_s", "status", "is_right"),
    [
        (0, 100 + TWO_PROBES_S, "unhealthy", True),
        (0, 2000 + INTERVAL_S / 2, "unhealthy", True),
        (0, 99, "unhealthy", False),
        (0, 100 + TWO_PROBES_S / 2, "unhealthy", False),
        (0, 2000 + 2 * INTERVAL_S, "unhealthy", False),
        (1, 1000, "unhealthy", False),
        (0, 1000, "dead", False),
    ],
)
def test_assertions_decide_only_about_agents_that_answer_wrongly(
    number: int, at_s: float, status: str, *, is_right: bool
) -> None:
    outcome = outcome_of(script(*wrong(100, 2000, 0)), [change(number, at_s, status, ASSERTION_FAILED)])
    assert outcome.is_right == is_right
    assert list(outcome.wrong_found) == ([AGENTS[number].agent_id] if is_right else [])


def test_agent_that_answers_wrongly_is_alive() -> None:
    outcome = outcome_of(script(*wrong(100, 2000, 0)), [change(0, 1000, "unhealthy")])
    assert list(outcome.false_unhealthy) == [AGENTS[0].agent_id]


def test_span_too_short_for_two_probes_has_no_label() -> None:
    one = script(*wrong(100, 100 + 0.9 * TWO_PROBES_S, 0))
    assert not outcome_of(one, [change(0, 150, "unhealthy", ASSERTION_FAILED)]).is_right


@pytest.mark.parametrize(
    ("counts", "is_right"), [({}, False), ({"a": 2}, True), ({"a": 3}, False), ({"a": 2, "b": 1}, False)]
)
def test_events_are_counted(counts: dict[str, int], *, is_right: bool) -> None:
    one = script(expected=Expected(events=(("a", 1, 2), ("b", 0, 0))))
    assert outcome_of(one, [], event_counts=counts).is_right == is_right


def test_wrong_answers_that_are_not_found_are_a_problem() -> None:
    one = script(*wrong(100, 2000, 0), expected=Expected(wrong_at_least=1))
    assert not outcome_of(one, []).is_right


def of_kind(kind: str, *actions: Action) -> Script:
    return Script(
        name="s", group="g", agents=(Agent(number=0, kind=kind),), actions=actions, ends_at_s=10_000
    )


@pytest.mark.parametrize(
    ("kind", "actions", "shown", "is_right"),
    [
        ("asked", (), ("active", "healthy"), True),
        ("asked", (), ("unhealthy", "unhealthy"), False),
        ("asked", wrong(100, 20_000), ("unhealthy", "unhealthy"), True),
        ("asked", wrong(100, 20_000), ("active", "healthy"), False),
        ("asked", wrong(100, 5000), ("active", "healthy"), True),
        ("asked", wrong(100, 5000), ("unhealthy", "unhealthy"), False),
        ("late", wrong(100, 20_000), ("active", "degraded"), True),
        ("late", wrong(100, 20_000), ("unhealthy", "unhealthy"), False),
        ("asked", (die(100),), ("dead", "unknown"), True),
        ("asked", (die(100),), ("unhealthy", "unhealthy"), False),
    ],
)
def test_agents_are_shown_as_labelled_at_the_end(
    kind: str, actions: tuple[Action, ...], shown: tuple[str, str], *, is_right: bool
) -> None:
    one = of_kind(kind, *actions)
    result: dict[str, Any] = {"changes": [], "event_counts": {}, "samples": [], "problems": []}
    final = {one.agents[0].agent_id: list(shown)}
    assert Finished(one, result | {"final": final}, "").is_right == is_right


@pytest.mark.parametrize(
    ("at_s", "health", "is_right"),
    [(1000, "unhealthy", True), (1000, "degraded", False), (90, "unhealthy", False), (90, "healthy", True)],
)
def test_health_between_is_that_of_the_label(at_s: float, health: str, *, is_right: bool) -> None:
    one = of_kind("asked", *wrong(100, 5000))
    agent_id = one.agents[0].agent_id
    result = {
        "changes": [],
        "event_counts": {},
        "samples": [[at_s, {agent_id: ["active", health]}]],
        "problems": [],
        "final": {agent_id: ["active", "healthy"]},
    }
    assert Finished(one, result, "").is_right == is_right


def problems(expected: Expected, **facts: Any) -> Outcome:
    return outcome_of(script(die(100, 0), expected=expected), [change(0, 3700, "dead")], **facts)


def test_expectations_of_a_script_are_checked() -> None:
    assert problems(Expected(dead_at_least=1, dead_within_s=3600)).is_right
    assert not problems(Expected(dead_at_least=2)).is_right
    assert not problems(Expected(dead_within_s=3599)).is_right
    assert not problems(Expected(is_loss_reported=True)).is_right
    assert problems(Expected(is_loss_reported=True), event_counts={"monitor.evidence_lost": 1}).is_right


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


def test_probers_take_assertions_and_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [name for name, kind in KINDS.items() if kind.checks]
    agents = tuple(Agent(number=number, kind=kind) for number, kind in enumerate(kinds))
    one = Script(name="s", group="g", agents=agents, actions=(), ends_at_s=10_000)
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    read = definition_of(definition(one, 30.0), tmp_path / "fleet.yml")
    assert sum(bool(target.checks) for target in read.settings_by_url.values()) == len(kinds)
    assert [each.name for each in read.credentials] == [f"gated-{kinds.index('gated')}"]


def test_tokens_are_accepted_until_they_are_revoked_or_rejected() -> None:
    login = Login()
    token = login.issue()
    assert login.accepts(f"Bearer {token}")
    login.is_rejecting = True
    assert not login.accepts(f"Bearer {token}")
    login.is_rejecting = False
    login.revoke()
    assert not login.accepts(f"Bearer {token}")
    assert login.accepts(f"Bearer {login.issue()}")


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
