import pytest

from lifesign.domain.text.units import unit_hint


@pytest.mark.parametrize(
    ("pointers", "named"),
    [
        (["/ttl_seconds"], "ttl_seconds"),
        (["/limits/body_bytes"], "body_bytes"),
        (["/name", "/0/latency_ms", "/ttl_seconds"], "latency_ms"),
        (["/seconds"], "seconds"),
        (["/name"], None),
        (["", "/a_seconds/b"], None),
        ([], None),
    ],
)
def test_error_names_the_first_member_with_a_unit(pointers: list[str], named: str | None) -> None:
    hint = unit_hint(pointers)
    assert hint.split(" ")[0] == (named or "")
