"""Byte counter: the bound on what a peer may send besides the body that is read."""

from hypothesis import given
from hypothesis import strategies as st

from lifesign.http_client.byte_counter import MAX_BYTES_PER_BODY_BYTE, MAX_SPARE_BYTES, ByteCounter


def test_bytes_besides_the_body_are_limited() -> None:
    counter = ByteCounter()
    assert counter.receive(MAX_SPARE_BYTES)
    assert (counter.room_bytes, counter.is_exceeded) == (0, False)
    assert not counter.receive(1)
    assert counter.is_exceeded


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=20))
def test_timely_read_body_never_exceeds_the_byte_limit(pieces: list[int]) -> None:
    counter = ByteCounter()
    for piece in pieces:
        size = min(piece, MAX_SPARE_BYTES)
        assert counter.receive(size)
        counter.take(size)


@given(st.integers(0, 1 << 20), st.integers(1, 1 << 24))
def test_byte_limit_grows_only_with_the_body(body: int, received: int) -> None:
    counter = ByteCounter()
    counter.take(body)
    assert counter.receive(received) == (received <= MAX_SPARE_BYTES + MAX_BYTES_PER_BODY_BYTE * body)
