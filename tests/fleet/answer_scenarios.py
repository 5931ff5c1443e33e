"""Scenarios of agents that answer wrongly behind HTTP 200, and of credentials with faults."""

import random
from collections.abc import Iterator
from typing import Final

from tests.fleet.script import (
    DEAD_AFTER_S,
    INTERVAL_S,
    MAX_SUSPENSION_S,
    WARM_UP_S,
    Action,
    Agent,
    Expected,
    LoginFault,
    Script,
    What,
)

LIMIT_S: Final = DEAD_AFTER_S + MAX_SUSPENSION_S + INTERVAL_S
AFTER_S: Final = 1500.0
"""How long verdicts are watched after the last action."""
FAULT_S: Final = 1.2 * DEAD_AFTER_S
"""How long a credential has a fault: longer than would be enough to call an agent dead."""
FAULT_AT_S: Final = WARM_UP_S + 6 * INTERVAL_S
OF_A_KIND: Final = 8
KINDS: Final = ("asked", "described", "counting", "late")
BEHIND_LOGIN: Final = 12

_FAILED, _ENDED = "prober.credential_failed", "prober.credential_fault_ended"
_NO_FAULT_OF_PROBERS: Final = (("prober.failures_high", 0, 0), ("monitor.suspended", 0, 0))


def wrong_answers(seed: int) -> Iterator[Script]:
    """Yield scenarios of wrong answers: for long, for one probe at a time, and while the network is cut."""
    rnd = random.Random(seed)
    agents = _checked()
    hard = [agent for agent in agents if agent.kind != "late"]
    wrong = [number for number in range(len(agents)) if number % OF_A_KIND < 4]
    hard_wrong = sum(agent.number in wrong for agent in hard)
    begins = [
        Action(at_s=WARM_UP_S + rnd.random() * INTERVAL_S, what=What.ANSWER_WRONGLY, hosts=(number,))
        for number in wrong
    ]
    healing = tuple(number for number in wrong if number % OF_A_KIND == 0)
    dying = tuple(number for number in wrong if number % OF_A_KIND == 1)
    yield _script(
        "answers-wrong",
        agents,
        [
            *begins,
            Action(at_s=WARM_UP_S + 3 * INTERVAL_S, what=What.DIE, hosts=dying),
            Action(at_s=WARM_UP_S + LIMIT_S, what=What.ANSWER_RIGHTLY, hosts=healing),
        ],
        ends_at_s=WARM_UP_S + 3 * INTERVAL_S + LIMIT_S + AFTER_S,
        expected=Expected(
            dead_at_least=len(dying), dead_within_s=LIMIT_S, wrong_at_least=hard_wrong,
            events=_NO_FAULT_OF_PROBERS,
        ),
        seed=seed,
    )  # fmt: skip
    yield _script(
        "answers-wrong-once-in-a-while",
        agents,
        list(_single_wrong_answers(agents, rnd)),
        ends_at_s=WARM_UP_S + FAULT_S + AFTER_S,
        expected=Expected(events=_NO_FAULT_OF_PROBERS),
        seed=seed,
    )
    cut_s = WARM_UP_S + 4 * INTERVAL_S
    yield _script(
        "answers-wrong-network-cut",
        agents,
        [
            *begins,
            Action(at_s=cut_s, what=What.CUT),
            Action(at_s=cut_s + LIMIT_S / 2, what=What.RESTART_PROBER),
            Action(at_s=cut_s + LIMIT_S, what=What.HEAL),
        ],
        ends_at_s=cut_s + LIMIT_S + AFTER_S,
        expected=Expected(wrong_at_least=hard_wrong, is_loss_reported=True),
        seed=seed,
    )


def _checked() -> tuple[Agent, ...]:
    kinds = [kind for kind in KINDS for _ in range(OF_A_KIND)]
    return tuple(Agent(number=number, kind=kind) for number, kind in enumerate(kinds))


def _single_wrong_answers(agents: tuple[Agent, ...], rnd: random.Random) -> Iterator[Action]:
    """Let every other agent be wrong for spans in which no two probes fit, with right answers between."""
    for agent in agents[::2]:
        at_s = WARM_UP_S + rnd.random() * INTERVAL_S
        while at_s < WARM_UP_S + FAULT_S:
            yield Action(at_s=at_s, what=What.ANSWER_WRONGLY, hosts=(agent.number,))
            at_s += 0.4 * INTERVAL_S
            yield Action(at_s=at_s, what=What.ANSWER_RIGHTLY, hosts=(agent.number,))
            at_s += (1.6 + rnd.random()) * INTERVAL_S


def credential_faults(seed: int) -> Iterator[Script]:
    """Yield faults of credentials: they change no verdict, and each is reported once."""
    agents = _behind_login()
    yield _script(
        "tokens-revoked",
        agents,
        [
            Action(at_s=WARM_UP_S, what=What.REVOKE_TOKENS),
            # A token is replaced at most once a minute, which is not scaled.
            Action(at_s=WARM_UP_S + FAULT_S, what=What.REVOKE_TOKENS),
        ],
        ends_at_s=WARM_UP_S + FAULT_S + AFTER_S,
        expected=Expected(events=(*_NO_FAULT_OF_PROBERS, (_FAILED, 0, 0))),
        seed=seed,
    )
    yield _lasting_fault("tokens-rejected", [Action(at_s=FAULT_AT_S, what=What.REJECT_TOKENS)], agents, seed)
    for login in LoginFault:
        faults = [
            Action(at_s=FAULT_AT_S, what=What.FAIL_LOGIN, login=login),
            Action(at_s=FAULT_AT_S, what=What.REVOKE_TOKENS),
        ]
        yield _lasting_fault(f"login-{login}", faults, agents, seed)


def _lasting_fault(name: str, faults: list[Action], agents: tuple[Agent, ...], seed: int) -> Script:
    """Return a scenario in which no agent behind a login can be measured for a time."""
    end_s = FAULT_AT_S + FAULT_S
    soon_s = FAULT_AT_S + 2 * INTERVAL_S
    return _script(
        name,
        agents,
        [
            *faults,
            # Found before the fault: it neither ends nor counts.
            Action(at_s=WARM_UP_S, what=What.ANSWER_WRONGLY, hosts=(0, 1)),
            Action(at_s=soon_s, what=What.ANSWER_RIGHTLY, hosts=(1,)),
            # Found after the fault.
            Action(at_s=soon_s, what=What.ANSWER_WRONGLY, hosts=(2, 3)),
            # Found in spite of it: this one has no login.
            Action(at_s=soon_s, what=What.ANSWER_WRONGLY, hosts=(BEHIND_LOGIN,)),
            Action(at_s=soon_s + 2 * INTERVAL_S, what=What.DIE, hosts=(4, 5)),
            Action(at_s=end_s, what=What.ACCEPT_TOKENS),
            Action(at_s=end_s, what=What.RESTORE_LOGIN),
        ],
        # Requests for a token back off for up to twice as long as the fault has lasted.
        ends_at_s=end_s + 2 * FAULT_S + AFTER_S,
        expected=Expected(
            dead_at_least=2,
            dead_within_s=LIMIT_S,
            wrong_at_least=5,
            events=(
                *_NO_FAULT_OF_PROBERS,
                (_FAILED, BEHIND_LOGIN, BEHIND_LOGIN),
                # Nothing says whether the credentials of dead agents work again. A prober that lost
                # the shard of an agent remembers the fault for 15 minutes, which are not scaled.
                (_ENDED, 1, BEHIND_LOGIN),
            ),
        ),
        seed=seed,
    )


def _behind_login() -> tuple[Agent, ...]:
    """Return agents behind a login, and half as many without one."""
    return tuple(
        Agent(number=number, kind="gated" if number < BEHIND_LOGIN else "asked")
        for number in range(BEHIND_LOGIN * 3 // 2)
    )


def _script(
    name: str,
    agents: tuple[Agent, ...],
    actions: list[Action],
    *,
    ends_at_s: float,
    expected: Expected,
    seed: int,
) -> Script:
    return Script(
        name=name,
        group="wrong answers" if name.startswith("answers") else "credential faults",
        agents=agents,
        actions=tuple(sorted(actions, key=lambda action: action.at_s)),
        ends_at_s=ends_at_s,
        probers=2,
        expected=expected,
        seed=seed,
    )
