"""Say whether an AI agent works.

The domain lies open in this directory, one question to a file:

    outcome, a2a_answer, a2a_stream, inspection
                               what is an interaction, and when has it failed?
    rolling_window, latency_histogram, trend, health_status, self_report
                               what follows from many of them?
    document, document_reader  what may a health document contain?
    agent_card                 where does an A2A agent say how it is called, and how it is?
    decision                   should I call this agent?
    lifecycle, verdict         which status has an agent, and why?
    silence, observed, monitor_health
                               when is it silent, what was seen of it, and is it us?
    lease, event, replay       who holds what, and what is written down of it all?
    activity_event, passive_heartbeat
                               what do an agent's sessions elsewhere say of it?
    target, observation, probe_cadence
                               whom to probe, what was seen, when next?
    witness_rule, network_class
                               when a failure that a prober saw counts
    target_address             which addresses may be contacted?

The other files say in their first line which question is theirs. Every sub-package is an edge:
`middleware` and `agent` inside the agent, `client` outside, `prober` outside of whole directories,
`activity` outside of what sessions do, `adapter` around an agent's process, `registry` the server on its
`storage`, `dashboard` what people see of it in a browser, `cli` on top.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lifesign.middleware import AgentHealth, AgentHealthMiddleware, Counting, Outcome

__all__ = ["AgentHealth", "AgentHealthMiddleware", "Counting", "Outcome"]


def __getattr__(name: str) -> Any:
    # Imported late, so that a consumer of documents does not load the middleware.
    if name in __all__:
        from lifesign import middleware  # noqa: PLC0415

        return getattr(middleware, name)
    raise AttributeError(f"module 'lifesign' has no attribute {name!r}")
