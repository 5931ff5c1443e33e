"""What is kept of an agent's numbers when a half hour is over?

Once in half an hour and agent: what probes add up to until then stands with what the last one saw.
"""

from collections.abc import Mapping, Sequence

from agent_health.agent_history import KeptHistory, OpenSlot, added, closed
from agent_health.storage import agent_histories
from agent_health.storage.database import Transaction


def keep_half_hours(transaction: Transaction, over: Mapping[int, Sequence[OpenSlot]]) -> None:
    """Add half hours that are over to the histories of agents, whom others do not change meanwhile.

    By our numbers of the agents; each one's in their order.
    """
    if not over:
        return
    known = agent_histories.find(transaction, sorted(over))
    kept = {}
    for number, slots in over.items():
        history = known.get(number, KeptHistory())
        for slot in slots:
            history = added(history, closed(slot))
        kept[number] = history
    agent_histories.store(transaction, kept)
