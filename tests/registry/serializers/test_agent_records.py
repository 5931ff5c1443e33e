from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.observation.results import InconclusiveReason, ResultClass
from lifesign.registry.serializers.agent_records import summary, summary_members
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
)


@given(LISTED, st.floats(0, 4e9))
def test_agent_summary_equals_the_json_of_its_model(agent: ListedAgent, now_s: float) -> None:
    by_model = summary(agent, now_s).model_dump_json(exclude_none=True).encode()
    assert to_json(summary_members(agent, now_s)) == by_model
