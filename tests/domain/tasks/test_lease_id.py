import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.tasks.lease_id import lease_id_of, number_in, token_in, was_granted_to

SECRET = "0123456789abcdef" * 2
NUMBERS = st.integers(1, 10**14 - 1)
TOKENS = st.integers(1, 2**53 - 1)


@given(NUMBERS, TOKENS, st.text(min_size=1, max_size=128))
def test_lease_id_contains_row_and_token_and_fits_its_column(number: int, token: int, holder: str) -> None:
    lease_id = lease_id_of(number, token, holder, SECRET)
    assert (number_in(lease_id), token_in(lease_id)) == (number, token)
    assert len(lease_id) <= 64
    assert was_granted_to(holder, lease_id, SECRET)


@given(NUMBERS, TOKENS)
def test_lease_id_is_invalid_for_another_holder_row_token_or_secret(number: int, token: int) -> None:
    lease_id = lease_id_of(number, token, "agent-1", SECRET)
    proof = lease_id.rpartition("_")[2]
    assert not was_granted_to("agent-2", lease_id, SECRET)
    assert not was_granted_to("agent-1", f"lease_{number + 1}_{token}_{proof}", SECRET)
    assert not was_granted_to("agent-1", f"lease_{number}_{token + 1}_{proof}", SECRET)
    assert not was_granted_to("agent-1", lease_id, SECRET[::-1])
    assert not was_granted_to("agent-1", lease_id, None)
    assert not was_granted_to("agent-1", f"lease_{number}_{token}", SECRET)


def test_proof_has_128_bits() -> None:
    proofs = {lease_id_of(1, token, "a", SECRET).rpartition("_")[2] for token in range(1, 2_001)}
    assert len(proofs) == 2_000
    assert {len(proof) for proof in proofs} == {26}


@pytest.mark.parametrize(
    "text",
    [
        "", "lease_", "lease_1", "lease_1_1", f"lease_0_1_{'a' * 26}", f"lease_1_0_{'a' * 26}", "x",
        f"lease_-1_1_{'a' * 26}", f"lease_\u0661_1_{'a' * 26}", f"lease_1_1_{'a' * 26}\n",
        "lease_1_1_", f"lease_1_1_{'a' * 25}", f"lease_1_1_{'A' * 26}", f"lease_1_1_{'1' * 26}",
        f"lease_1_1_{'a' * 27}",
    ],
)  # fmt: skip
def test_other_text_is_no_lease_id(text: str) -> None:
    assert number_in(text) is None
    assert token_in(text) is None
    assert not was_granted_to("a", text, SECRET)
