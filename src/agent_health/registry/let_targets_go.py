"""What becomes of targets that are probed no more, and of their records as agents?

The record of a target that a directory listed ends with it: it was there because it was probed. Agents are
locked before targets; one that showed its first sign of life at the very same time is found afterwards.
"""

from collections.abc import Callable, Iterable, Mapping

from agent_health.document import HealthStatus
from agent_health.lifecycle import ALIVE, Signal
from agent_health.registry.change_status import change_status
from agent_health.registry.judge_agents import Change
from agent_health.storage import agents, targets
from agent_health.storage.agents import StoredAgent
from agent_health.storage.database import Transaction
from agent_health.storage.targets import GoneReason

Targets = Mapping[str, int]
"""Ids, each with our number."""


def lock_agents(transaction: Transaction, subject_ids: Iterable[str]) -> None:
    """Keep others from changing the records of targets that may have to go."""
    agents.find_named(transaction, sorted(subject_ids), to_change=True)


def let_go(
    transaction: Transaction,
    gone: Targets,
    reason: GoneReason,
    version: int,
    *,
    ends_with: Callable[[str], bool] = lambda _: True,
) -> list[StoredAgent]:
    """Make targets gone, and return the records that end with them, to be handed to `end_records`.

    `ends_with` says of an id whether its record ends. `lock_agents` comes first.
    """
    targets.leave(transaction, [*gone.values()], reason, version)
    ending = sorted(subject_id for subject_id in gone if ends_with(subject_id))
    found = agents.find_named(transaction, ending, to_change=True) if ending else []
    return [agent for agent in found if agent.status in ALIVE]


def end_records(
    transaction: Transaction, ending: Iterable[StoredAgent], explanation: str, actor: str
) -> None:
    """End the records of targets that are gone; last, since it is logged."""
    changes = [
        Change(
            agent=agent,
            signals=(Signal.DEREGISTERED,),
            explanation=explanation,
            health=HealthStatus.UNKNOWN,
            judge_at_s=None,
        )
        for agent in ending
    ]
    if changes:
        change_status(transaction, changes, actor)
