from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json
from tests.support.registry_api import RegistryApi

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.observed_facts import LastDocument, LastResult, Observed
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.models.base import moment
from lifesign.domain.observation.results import InconclusiveReason, LayerResult, ResultClass
from lifesign.domain.targets.target import TargetKind
from lifesign.registry.errors import AgentNotFound
from lifesign.registry.serializers.agent_records import existing_agent, record, summary, summary_members
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.agents.search import ListedAgent

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MAYBE = st.none() | TEXTS
MOMENTS = st.none() | st.floats(0, 4e9)
LISTED = st.builds(
    ListedAgent,
    id=st.integers(1, 2**53),
    agent_id=TEXTS,
    role_id=MAYBE,
    name=MAYBE,
    capabilities=st.lists(TEXTS, max_size=3),
    status=st.sampled_from(Status).map(str),
    health=st.sampled_from(HealthStatus).map(str),
    monitoring=st.sampled_from(DecidingEvidence).map(str),
    endpoint=MAYBE,
    card_url=MAYBE,
    target_url=MAYBE,
    last_heartbeat_at_s=st.floats(0, 4e9),
    current_load=st.integers(0, 1_000_000),
    max_concurrent_tasks=st.none() | st.integers(0, 1_000_000),
    evidence_at_s=MOMENTS,
    evidence_until_s=MOMENTS,
    results_until_s=MOMENTS,
    health_until_s=MOMENTS,
    inconclusive_reason=st.none() | st.sampled_from(InconclusiveReason).map(str),
    interface_result=st.none() | st.sampled_from(ResultClass).map(str),
    interface_at_s=MOMENTS,
    kind=st.none() | st.sampled_from(TargetKind).map(str),
)


@given(LISTED, st.floats(0, 4e9))
def test_agent_summary_equals_the_json_of_its_model(agent: ListedAgent, now_s: float) -> None:
    by_model = summary(agent, now_s).model_dump_json(exclude_none=True).encode()
    assert to_json(summary_members(agent, now_s)) == by_model


async def registered(api: RegistryApi) -> StoredAgent:
    await api.register("agent-1", capacity={"max_concurrent_tasks": 4})
    return await api.database.read(lambda transaction: existing_agent(transaction, "agent-1"))


async def test_maintenance_and_override_are_shown_until_they_end(api: RegistryApi) -> None:
    now_s = api.clock.at_s
    agent = replace(
        await registered(api),
        maintenance_until_s=now_s + 60.0,
        override_status="unhealthy",
        override_until_s=now_s + 120.0,
    )
    during = record(agent, now_s)
    assert during.maintenance_until == moment(now_s + 60.0)
    assert during.override is not None
    assert (during.override.status, during.override.until) == (Status.UNHEALTHY, moment(now_s + 120.0))
    between = record(agent, now_s + 61.0)
    assert (between.maintenance_until, between.override) == (None, during.override)
    assert record(agent, now_s + 121.0).override is None


async def test_agent_that_is_only_probed_has_no_heartbeat(api: RegistryApi) -> None:
    agent = await registered(api)
    assert record(agent, api.clock.at_s).reported.last_heartbeat_at == moment(agent.last_heartbeat_at_s)
    probed = record(replace(agent, monitoring=DecidingEvidence.PROBE), api.clock.at_s)
    assert probed.last_heartbeat_at is probed.reported.last_heartbeat_at is None


async def test_observed_facts_are_shown_once_a_prober_has_reported(api: RegistryApi) -> None:
    now_s = api.clock.at_s
    agent = await registered(api)
    assert record(agent, now_s).observed is None
    assert record(replace(agent, observed=Observed().to_json()), now_s).observed is None
    layer = LayerResult(result=ResultClass.TIMEOUT, reason="no answer", latency_ms=3_000.0)
    facts = Observed(
        last_observed_at_s=now_s,
        last_liveness_signal_at_s=now_s - 300.0,
        failures_in_row=3,
        transport=LastResult(layer=layer, observed_at_s=now_s),
        document=LastDocument(
            status=HealthStatus.DEGRADED,
            timestamp_s=now_s - 310.0,
            observed_at_s=now_s - 300.0,
            fresh_until_s=now_s - 250.0,
            is_stale=False,
            response_ratio=0.5,
            sample_count=20,
            latency_p99_ms=900.0,
        ),
    )
    shown = record(replace(agent, observed=facts.to_json()), now_s)
    assert shown.failing_probes == 3
    assert shown.observed is not None
    assert (shown.observed.discovery, shown.observed.failures_in_row) == (None, 3)
    assert shown.observed.last_liveness_signal_at == moment(now_s - 300.0)
    transport, document = shown.observed.transport, shown.observed.document
    assert transport is not None
    assert (transport.result, transport.reason, transport.observed_at) == (
        "timeout",
        "no answer",
        moment(now_s),
    )
    assert document is not None
    assert (document.status, document.response_ratio, document.sample_count) == ("degraded", 0.5, 20)


async def test_absent_agent_has_an_error_of_its_own(api: RegistryApi) -> None:
    with pytest.raises(AgentNotFound):
        await api.database.read(lambda transaction: existing_agent(transaction, "nobody"))
