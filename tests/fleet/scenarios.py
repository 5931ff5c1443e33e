"""Scenarios of the labelled fleet, drawn from a seed."""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tests.fleet.answer_scenarios import credential_faults, wrong_answers
from tests.fleet.kinds import KINDS, UNCHECKED
from tests.fleet.script import (
    DEAD_AFTER_S,
    INTERVAL_S,
    MAX_SUSPENSION_S,
    UNHEALTHY_AFTER_S,
    WARM_UP_S,
    Action,
    Agent,
    Expected,
    How,
    Script,
    What,
)

CUT_S: Final = 2 * DEAD_AFTER_S
"""How long a cut lasts: twice what would be enough to call everything dead."""
AFTER_S: Final = 1500.0
"""How long verdicts are watched after the last action."""
FLAP_UP_S, FLAP_DOWN_S = 20.0, 10.0
FLAPPING_S: Final = 3000.0
HOSTS: Final = (1, 3, 12, 100)
MIXED_AGENTS: Final = 300

FACTORS: Final[dict[str, Sequence[Any]]] = {
    "how": tuple(How),
    "pattern": ("at_once", "one_by_one", "flapping"),
    "disturbance": ("none", "restart", "takeover"),
    "probers": (1, 3),
    "hosts": HOSTS,
    "canaries": (True, False),
}
"""Each pair of values of two of these occurs in at least one scenario."""

_PAIRS: Final = tuple(itertools.combinations(FACTORS, 2))


def all_scripts(seed: int) -> list[Script]:
    """Return all scenarios, the same ones for the same seed."""
    return [
        *network_cuts(seed),
        *partial_cuts(seed),
        *real_deaths(seed),
        *own_faults(seed),
        kinds(seed),
        *wrong_answers(seed),
        *credential_faults(seed),
    ]


def covering(rnd: random.Random) -> list[dict[str, Any]]:
    """Return combinations of FACTORS in which each pair of values occurs, drawn greedily."""
    missing = {
        (one, value, other, second)
        for one, other in _PAIRS
        for value in FACTORS[one]
        for second in FACTORS[other]
    }
    rows: list[dict[str, Any]] = []
    while missing:
        candidates = [{name: rnd.choice(values) for name, values in FACTORS.items()} for _ in range(200)]
        best = max(candidates, key=lambda row: len(_covered(row) & missing))
        if gain := _covered(best) & missing:
            missing -= gain
            rows.append(best)
    return rows


def _covered(row: dict[str, Any]) -> set[tuple[str, Any, str, Any]]:
    return {(one, row[one], other, row[other]) for one, other in _PAIRS}


def network_cuts(seed: int) -> Iterator[Script]:
    """Yield cuts of the whole network of the probers: no verdict may be wrong."""
    rnd = random.Random(seed)
    for row in covering(rnd):
        name = "cut-" + "-".join(
            (
                row["how"],
                row["pattern"],
                row["disturbance"],
                f"{row['probers']}p",
                f"{row['hosts']}h",
                "canaries" if row["canaries"] else "bare",
            )
        )
        until_s = WARM_UP_S + (FLAPPING_S if row["pattern"] == "flapping" else CUT_S)
        actions = [*_cut(row, until_s), *_disturb(row, until_s)]
        lost = row["pattern"] != "flapping"
        yield Script(
            name=name,
            group="network cut",
            agents=_plain(row["hosts"]),
            actions=tuple(sorted(actions, key=lambda action: action.at_s)),
            ends_at_s=until_s + AFTER_S,
            probers=row["probers"],
            has_canaries=row["canaries"],
            expected=Expected(
                is_loss_reported=lost,
                unknown_at_s=WARM_UP_S + DEAD_AFTER_S + UNHEALTHY_AFTER_S if lost else None,
            ),
            seed=seed,
        )


def _cut(row: dict[str, Any], until_s: float) -> Iterator[Action]:
    how, hosts = row["how"], row["hosts"]
    if row["pattern"] == "flapping":
        at_s = WARM_UP_S
        while at_s < until_s:
            yield Action(at_s=at_s, what=What.CUT, how=how)
            yield Action(at_s=at_s + FLAP_DOWN_S, what=What.HEAL)
            at_s += FLAP_DOWN_S + FLAP_UP_S
        return
    if row["pattern"] == "one_by_one" and how is not How.NAMES:
        for number in range(hosts):
            at_s = WARM_UP_S + 0.9 * UNHEALTHY_AFTER_S * number / hosts
            yield Action(at_s=at_s, what=What.CUT, how=how, hosts=(number,), has_canaries=number == 0)
    else:
        yield Action(at_s=WARM_UP_S, what=What.CUT, how=how)
    yield Action(at_s=until_s, what=What.HEAL)


def _disturb(row: dict[str, Any], until_s: float) -> Iterator[Action]:
    middle_s = (WARM_UP_S + until_s) / 2
    if row["disturbance"] == "restart":
        yield Action(at_s=middle_s, what=What.RESTART_PROBER)
    elif row["disturbance"] == "takeover":
        yield Action(at_s=middle_s, what=What.KILL_PROBER)
        if row["probers"] == 1:
            yield Action(at_s=middle_s + INTERVAL_S, what=What.START_PROBER, prober=1)


def partial_cuts(seed: int) -> Iterator[Script]:
    """Yield cuts of a share of 100 hosts together with the canaries."""
    rnd = random.Random(seed)
    for share, probers in itertools.product((0.2, 0.5, 0.95), (1, 3)):
        agents = _plain(100)
        cut = tuple(sorted(rnd.sample(range(100), round(share * 100))))
        yield Script(
            name=f"partial-{share:.0%}-{probers}p",
            group="partial cut",
            agents=agents,
            actions=(
                Action(at_s=WARM_UP_S, what=What.CUT, hosts=cut),
                Action(at_s=WARM_UP_S + CUT_S, what=What.HEAL),
            ),
            ends_at_s=WARM_UP_S + CUT_S + AFTER_S,
            probers=probers,
            seed=seed,
        )


def real_deaths(seed: int) -> Iterator[Script]:
    """Yield real deaths: of all, of two hosts one after the other, and of 30 % of 100."""
    limit_s = DEAD_AFTER_S + MAX_SUSPENSION_S + INTERVAL_S
    for hosts, canaries in itertools.product((3, 12, 100), (True, False)):
        expected = (
            Expected(dead_at_least=hosts, dead_within_s=limit_s)
            if canaries
            else Expected(is_loss_reported=True, unknown_at_s=WARM_UP_S + limit_s)
        )
        yield Script(
            name=f"all-{hosts}-die-{'canaries' if canaries else 'bare'}",
            group="real death",
            agents=_plain(hosts),
            actions=(Action(at_s=WARM_UP_S, what=What.DIE),),
            ends_at_s=WARM_UP_S + limit_s + AFTER_S,
            has_canaries=canaries,
            expected=expected,
            seed=seed,
        )
    for canaries in (True, False):
        second_s = WARM_UP_S + limit_s + INTERVAL_S
        yield Script(
            name=f"two-die-{'canaries' if canaries else 'bare'}",
            group="real death",
            agents=_plain(2),
            actions=(
                Action(at_s=WARM_UP_S, what=What.DIE, hosts=(0,)),
                Action(at_s=second_s, what=What.DIE, hosts=(1,)),
            ),
            ends_at_s=second_s + limit_s + INTERVAL_S,
            has_canaries=canaries,
            expected=Expected(dead_at_least=2 if canaries else 1, dead_within_s=limit_s),
            seed=seed,
        )
    for probers in (1, 2, 3):
        dying = tuple(random.Random(seed).sample(range(100), 30))
        yield Script(
            name=f"30-of-100-die-{probers}p",
            group="real death",
            agents=_plain(100),
            actions=(Action(at_s=WARM_UP_S, what=What.DIE, hosts=dying),),
            ends_at_s=WARM_UP_S + limit_s + AFTER_S,
            probers=probers,
            expected=Expected(dead_at_least=30, dead_within_s=limit_s),
            seed=seed,
        )


def own_faults(seed: int) -> Iterator[Script]:
    """Yield faults of probers and registry: verdicts as without them, or unknown."""
    hour_s = 3600.0
    limit_s = DEAD_AFTER_S + MAX_SUSPENSION_S + INTERVAL_S
    for name, actions, probers in (
        ("clock-ahead", _clock([(0.0, hour_s)]), 1),
        ("clock-behind", _clock([(0.0, -hour_s)]), 1),
        (
            "clock-jumping",
            _clock([(WARM_UP_S + n * 450, offset) for n, offset in enumerate((hour_s, -hour_s) * 5)]),
            2,
        ),
        ("prober-stopped", _span(What.STOP_PROBER, What.CONTINUE_PROBER, hour_s), 2),
        ("prober-killed", (Action(at_s=WARM_UP_S, what=What.KILL_PROBER),), 2),
        ("prober-overloaded", (Action(at_s=WARM_UP_S, what=What.STALL_PROBER),), 2),
        ("registry-stopped", _span(What.STOP_REGISTRY, What.CONTINUE_REGISTRY, hour_s), 2),
        ("hostile-key", (Action(at_s=WARM_UP_S, what=What.HOSTILE_KEY),), 2),
    ):
        # Three agents really die after the fault began: they must be found all the same.
        death = Action(at_s=WARM_UP_S + INTERVAL_S, what=What.DIE, hosts=(0, 1, 2))
        is_longer = any(action.what is What.STOP_REGISTRY for action in actions)
        yield Script(
            name=name,
            group="own fault",
            agents=_plain(30),
            actions=tuple(sorted((*actions, death), key=lambda action: action.at_s)),
            ends_at_s=WARM_UP_S + INTERVAL_S + limit_s + (hour_s if is_longer else 0.0) + AFTER_S,
            probers=probers,
            expected=Expected(dead_at_least=3),
            seed=seed,
        )
    for agents in (2, 3, 8):
        yield Script(
            name=f"inbound-cut-{agents}-heartbeats",
            group="own fault",
            agents=tuple(Agent(number=number, is_heartbeat=True) for number in range(agents)),
            actions=(
                Action(at_s=WARM_UP_S, what=What.CUT_INBOUND),
                Action(at_s=WARM_UP_S + 0.8 * MAX_SUSPENSION_S, what=What.HEAL),
            ),
            ends_at_s=WARM_UP_S + MAX_SUSPENSION_S + AFTER_S,
            seed=seed,
        )


def kinds(seed: int) -> Script:
    """Return the fleet of all kinds, without a fault of ours."""
    rnd = random.Random(seed)
    names = UNCHECKED
    agents = [
        Agent(
            number=number,
            kind=names[number % len(names)],
            is_heartbeat=KINDS[names[number % len(names)]].is_heartbeat,
        )
        for number in range(MIXED_AGENTS)
    ]
    actions = []
    for agent in agents:
        kind = KINDS[agent.kind]
        at_s = WARM_UP_S + rnd.random() * INTERVAL_S
        if kind.dies:
            actions.append(
                Action(at_s=0.0 if kind.is_dead_at_start else at_s, what=What.DIE, hosts=(agent.number,))
            )
        if kind.revives:
            actions.append(
                Action(
                    at_s=at_s + DEAD_AFTER_S + 2 * UNHEALTHY_AFTER_S, what=What.REVIVE, hosts=(agent.number,)
                )
            )
    limit_s = DEAD_AFTER_S + MAX_SUSPENSION_S + 2 * INTERVAL_S
    return Script(
        name="all-kinds",
        group="kinds",
        agents=tuple(agents),
        actions=tuple(sorted(actions, key=lambda action: action.at_s)),
        ends_at_s=WARM_UP_S + limit_s + 3 * AFTER_S,
        probers=2,
        expected=Expected(dead_at_least=sum(action.what is What.DIE for action in actions)),
        seed=seed,
    )


def _plain(hosts: int) -> tuple[Agent, ...]:
    return tuple(Agent(number=number) for number in range(hosts))


def _clock(offsets: Sequence[tuple[float, float]]) -> tuple[Action, ...]:
    return tuple(Action(at_s=at_s, what=What.SET_CLOCK, offset_s=offset_s) for at_s, offset_s in offsets)


def _span(begin: What, end: What, seconds: float) -> tuple[Action, ...]:
    return Action(at_s=WARM_UP_S, what=begin), Action(at_s=WARM_UP_S + seconds, what=end)
