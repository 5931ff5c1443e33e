"""Retirement of targets, and of their agent records.

The record of a target that a directory listed ends with it: it existed because the target was probed. Agents
are locked before targets; a record that was created at the same time is found afterwards.
"""

from collections.abc import Callable, Iterable, Mapping

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import ALIVE, Signal
from lifesign.registry.status_changes.agent_status import change_status
from lifesign.registry.status_changes.agent_verdicts import Change
from lifesign.storage.agents import agent_rows
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.targets import target_rows
from lifesign.storage.targets.target_rows import GoneReason

Targets = Mapping[str, int]
"""Ids, each with our number."""


def lock_agents(transaction: Transaction, subject_ids: Iterable[str]) -> None:
    """Lock the agent records of targets that may be retired."""
    agent_rows.find_named(transaction, sorted(subject_ids), to_change=True)


def retire(
    transaction: Transaction,
    gone: Targets,
    reason: GoneReason,
    version: int,
    *,
    ends_with: Callable[[str], bool] = lambda _: True,
) -> list[StoredAgent]:
    """Retire targets, and return the agents that `end_records` has to deregister.

    `ends_with` returns for an id whether its record ends. Call `lock_agents` first.
    """
    target_rows.leave(transaction, [*gone.values()], reason, version)
    ending = sorted(subject_id for subject_id in gone if ends_with(subject_id))
    found = agent_rows.find_named(transaction, ending, to_change=True) if ending else []
    return [agent for agent in found if agent.status in ALIVE]


def end_records(
    transaction: Transaction, ending: Iterable[StoredAgent], explanation: str, actor: str
) -> None:
    """Deregister the agents of retired targets; call it last, since it logs events."""
    changes = [
        Change(
            agent=agent,
            signals=(Signal.DEREGISTERED,),
            explanation=explanation,
            health=HealthStatus.UNKNOWN,
            assess_at_s=None,
        )
        for agent in ending
    ]
    if changes:
        change_status(transaction, changes, actor)
