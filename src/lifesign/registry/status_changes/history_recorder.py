"""History of an agent, recorded at the end of each half hour.

Once per half hour and agent, the sums of its probes are stored with the last result.
"""

from collections.abc import Mapping, Sequence

from lifesign.domain.lifecycle.agent_history import KeptHistory, OpenSlot, added, closed
from lifesign.storage.agents import histories
from lifesign.storage.engine.transaction import Transaction


def store_half_hours(transaction: Transaction, over: Mapping[int, Sequence[OpenSlot]]) -> None:
    """Add finished half hours to the histories of agents, which the caller has locked.

    `over`: half hours in order, by the row numbers of the agents.
    """
    if not over:
        return
    known = histories.find(transaction, sorted(over))
    changed = {}
    for number, slots in over.items():
        history = known.get(number, KeptHistory())
        for slot in slots:
            history = added(history, closed(slot))
        changed[number] = history
    histories.store(transaction, changed)
