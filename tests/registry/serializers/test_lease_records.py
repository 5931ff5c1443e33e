from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.tasks.lease import Claim
from lifesign.registry.serializers.lease_records import lease_json, lease_record

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
