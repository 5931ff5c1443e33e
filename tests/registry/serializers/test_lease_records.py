import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lifesign.domain.models.base import moment
from lifesign.domain.tasks.lease import Claim, EndReason, Refusal, RefusalCode
from lifesign.errors import LifesignError
from lifesign.registry.errors import (
    AgentDraining,
    AgentGone,
    LeaseHeld,
    LeaseNotFound,
    LeaseOver,
    NotHolder,
    StaleToken,
    TokenNotIssued,
)
from lifesign.registry.serializers.lease_records import LeaseRequest, lease_json, lease_record, refused
from lifesign.storage.tasks.lease_requesters import Holder

MOMENTS_S = st.floats(0.0, 4_102_444_800.0)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1)


@given(
    resource=NAMES,
    holder=NAMES,
    token=st.integers(1, 2**53 - 1),
    acquired_at_s=MOMENTS_S,
    lasts_s=st.floats(1.0, 86_400.0),
)
def test_holder_gets_the_record_that_lists_show(
    resource: str, holder: str, token: int, acquired_at_s: float, lasts_s: float
) -> None:
    claim = Claim(
        resource=resource,
        lease_id=f"lease_1_{token}",
        holder=holder,
        token=token,
        acquired_at_s=acquired_at_s,
        expires_at_s=acquired_at_s + lasts_s,
    )
    assert lease_json(claim) == lease_record(claim, acquired_at_s).model_dump_json(exclude_none=True).encode()


CLAIM = Claim(
    resource="task:7", lease_id="lease_1_3", holder="a", token=3, acquired_at_s=100.0, expires_at_s=160.0
)
CALLER = Holder(number=1, agent_id="b", status="dead", incarnation=2)


@pytest.mark.parametrize(("now_s", "reason"), [(159.9, None), (160.0, EndReason.EXPIRED)])
def test_overdue_lease_is_shown_as_expired(now_s: float, reason: EndReason | None) -> None:
    shown = lease_record(CLAIM, now_s)
    assert shown.end_reason == reason
    assert shown.ended_at == (None if reason is None else moment(now_s))


@pytest.mark.parametrize(
    ("code", "agent", "error"),
    [
        (RefusalCode.LEASE_HELD, CALLER, LeaseHeld),
        (RefusalCode.AGENT_DRAINING, CALLER, AgentDraining),
        (RefusalCode.AGENT_GONE, CALLER, AgentGone),
        (RefusalCode.AGENT_GONE, None, LeaseNotFound),
        (RefusalCode.LEASE_ENDED, CALLER, LeaseOver),
        (RefusalCode.STALE_TOKEN, CALLER, StaleToken),
        (RefusalCode.TOKEN_NOT_ISSUED, CALLER, TokenNotIssued),
        (RefusalCode.NOT_HOLDER, CALLER, NotHolder),
        (RefusalCode.LEASE_NOT_FOUND, CALLER, LeaseNotFound),
    ],
)
def test_each_refusal_is_an_error_of_its_own(
    code: RefusalCode, agent: Holder | None, error: type[LifesignError]
) -> None:
    for claim in (CLAIM, None):
        found = refused(Refusal(code, claim), "lease_1_3", now_s=120.0, token=2, agent=agent)
        assert type(found) is error


@pytest.mark.parametrize("resource", ["", "intent:7", "task:", "shard:x", "x" * 10_000])
def test_invalid_resource_is_refused(resource: str) -> None:
    with pytest.raises(ValidationError) as refused:
        LeaseRequest.model_validate({"resource": resource})
    assert [fault["loc"] for fault in refused.value.errors()] == [("resource",)]
