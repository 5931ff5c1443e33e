"""Probes of a target that its directories list as an A2A agent and as an MCP server.

Any stranger may list a URL in a public directory. So a probe of such a target has up to two parts, one for
each kind, and only its answers decide (docs/decisions/0007-prober.md).
"""

from dataclasses import replace

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.domain.targets.target import StatedKind
from lifesign.prober.probe.session import ProbeSession
from lifesign.prober.registry_exchange.ledger import ProbeReport


def kinds_in_order(memory: ProbeMemory) -> tuple[StatedKind, StatedKind]:
    """Return the kinds in the order of a probe: first MCP if the target answered so last, else A2A."""
    kinds = StatedKind.A2A, StatedKind.MCP
    return kinds if memory.mcp_generation is None else kinds[::-1]


def may_be_of_other_kind(visit: ProbeSession, observation: Observation) -> bool:
    """Return whether the target did not answer as the first kind, and can be requested as the other one."""
    is_unanswered = observation.is_measured_failure or observation.result is ResultClass.GATED
    return is_unanswered and not observation.is_liveness_signal and visit.may_ask(visit.given.url)


def decisive_report(
    memory: ProbeMemory, first: ProbeReport, second: ProbeReport, second_kind: StatedKind
) -> ProbeReport:
    """Return the report of the part that decides; `memory` is that from before the probe.

    If the target has ever answered as the first kind, only a valid answer as the other kind counts: a request
    for credentials may come from any server, and would hide that the target is gone.
    """
    seen = second.observation
    requests = first.requests + second.requests
    if memory.mcp_generation is None and memory.card_url is None:
        is_decisive = not seen.is_measured_failure
    else:
        is_decisive = seen.is_liveness_signal and seen.result is not ResultClass.GATED
    if not is_decisive:
        return replace(first, requests=requests)
    remembered = second.memory
    if second_kind is StatedKind.A2A:
        remembered = remembered.model_copy(update={"mcp_generation": None, "mcp_generation_at_s": None})
    return replace(second, memory=remembered, requests=requests)
