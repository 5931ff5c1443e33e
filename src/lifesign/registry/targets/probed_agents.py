"""Registered agents as targets of probes.

An agent that requests it is probed at its card's URL, whether or not directories list that. It stops being a
target when it is deregistered (`change_status`), or registers again without the request. A target that a
directory listed keeps its own URL, whatever its record says later.
"""

from collections.abc import Sequence

from pydantic import ValidationError

from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.net.allowed_addresses import AddressRefused
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.probing.cadence import Cadence, without_failures
from lifesign.domain.targets.target import read_target
from lifesign.registry.targets.opt_out_origins import has_opted_out
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.probing import probe_results
from lifesign.storage.targets import target_links, target_rows
from lifesign.storage.targets.target_rows import GoneReason

RECHECK_SECONDS = Cadence().recheck_every_s
"""Minimum time between two rechecks of one target (protocol 3)."""


def url_to_probe(monitoring: str, card_url: str | None) -> str | None:
    """Return the URL at which an agent is to be probed; None if it is not.

    Raises InvalidRequest if the URL may not be probed.
    """
    if monitoring == DecidingEvidence.HEARTBEAT or card_url is None:
        return None
    url = read_target(card_url)
    if isinstance(url, AddressRefused):
        raise InvalidRequest([Finding("not_to_be_probed", "/card_url", url.reason)])
    return url


def begin_step(transaction: Transaction, url: str | None) -> int:
    """Lock the list of targets; return the version that `end_step` stores with the changed targets.

    All operations do it before they log events. Raises InvalidRequest if the owner of the URL's origin does
    not want it to be probed.
    """
    if url is None:
        return 0
    version = target_rows.next_version(transaction)
    if has_opted_out(transaction, url):
        text = "the owner of its origin has opted out of probes"
        raise InvalidRequest([Finding("opted_out", "/card_url", text)])
    return version


def end_step(
    transaction: Transaction,
    agent_id: str,
    url: str | None,
    version: int,
    *,
    has_history: bool = False,
) -> None:
    """Make an agent a target at this URL; with None, end its target.

    `has_history`: earlier failures concern a former incarnation or URL. The agent is probed at once.
    """
    target_links.make_claims_due(transaction, agent_ids=[agent_id])
    if url is not None:
        target_rows.enter(transaction, agent_id, url, version)
        # A linked target is probed in its place, by the thresholds of the agent.
        numbers = target_rows.of_agent(transaction, agent_id)
        target_rows.touch_targets(transaction, numbers, version)
        if has_history:
            restart_probing(transaction, numbers, version)
            target_rows.request_rechecks(transaction, numbers, version, 0.0)
        return
    known = target_rows.find(transaction, agent_id)
    if known is not None and known.is_registered and known.gone_at_s is None:
        target_rows.retire_named(transaction, [agent_id], GoneReason.DEREGISTERED)


def restart_probing(transaction: Transaction, numbers: Sequence[int], version: int) -> None:
    """End the back-off of targets, and discard their earlier results: these concern another agent.

    Otherwise a target would be probed up to a day later, and the death of its agent found days later.
    """
    target_rows.reset_probing(transaction, numbers, version)
    memories = probe_results.memories_of(transaction, numbers)
    probe_results.set_memories(
        transaction, {number: _without_failures(memory) for number, memory in memories.items()}
    )


def _without_failures(memory: str) -> str | None:
    """Return a stored memory without the facts that delay the next probe; None if it cannot be read."""
    try:
        return without_failures(ProbeMemory.from_json(memory)).to_json()
    except ValidationError:
        return None


def publish_thresholds(transaction: Transaction, agent_id: str) -> None:
    """Let probers read an agent's changed thresholds; call it before events are logged."""
    if numbers := target_rows.of_agent(transaction, agent_id):
        target_rows.touch_targets(transaction, numbers, target_rows.next_version(transaction))


def request_rechecks(transaction: Transaction, agent_ids: Sequence[str]) -> None:
    """Request probes of agents now, each at most once in RECHECK_SECONDS; call it before logging events."""
    if agent_ids and (numbers := target_rows.of_agents(transaction, agent_ids)):
        version = target_rows.next_version(transaction)
        target_rows.request_rechecks(transaction, numbers, version, RECHECK_SECONDS)


def has_registered_itself(transaction: Transaction, agent_id: str) -> bool:
    """Return whether an agent is a target because it registered to be probed."""
    known = target_rows.find(transaction, agent_id)
    return known is not None and known.is_registered
