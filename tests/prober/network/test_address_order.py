"""The order in which the addresses of a name are tried."""

from ipaddress import ip_address

import pytest

from lifesign.prober.network import address_order as order_file
from lifesign.prober.network.address_order import MAX_IN_VAIN, AddressOrder

HOST = "many.example"
FOURS = [ip_address(f"192.0.2.{number}") for number in range(1, 6)]
SIXES = [ip_address(f"2001:db8::{number}") for number in range(1, 5)]


def test_addresses_of_both_families_alternate_up_to_a_limit() -> None:
    order = AddressOrder()
    assert order.of(HOST, [*SIXES, *FOURS]) == [FOURS[0], SIXES[0], FOURS[1]]
    assert order.of(HOST, FOURS) == FOURS[:3]
    assert order.of(HOST, SIXES[:1]) == SIXES[:1]


def test_family_without_a_route_is_last_and_never_absent() -> None:
    order = AddressOrder()
    assert order.of(HOST, [FOURS[0], SIXES[0]], last_version=4) == [SIXES[0], FOURS[0]]
    many = [*SIXES, FOURS[0]]
    first = order.of(HOST, many, last_version=4)
    assert first == SIXES[:3]
    order.note(HOST, many, first, None)
    assert FOURS[0] in order.of(HOST, many, last_version=4)


def test_addresses_that_were_tried_in_vain_take_turns_with_the_others() -> None:
    order = AddressOrder()
    tried = []
    for _ in range(5):
        now = order.of(HOST, FOURS)
        order.note(HOST, FOURS, now, None)
        tried += now
    assert tried == FOURS * 3


def test_address_that_answered_last_is_always_tried_first() -> None:
    order = AddressOrder()
    order.note(HOST, FOURS, FOURS[:3], None)
    order.note(HOST, FOURS, (), FOURS[3])
    for others in ([FOURS[4], FOURS[0]], [FOURS[1], FOURS[2]], [FOURS[4], FOURS[0]]):
        now = order.of(HOST, FOURS)
        assert now == [FOURS[3], *others]
        order.note(HOST, FOURS, now, None)


def test_order_is_remembered_for_a_limited_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_file, "MAX_HOSTS", 2)
    order = AddressOrder()
    for host in ("a", "b", "c"):
        order.note(host, FOURS, FOURS[:3], None)
    order.note("few", FOURS[:3], FOURS[:3], None)
    assert [order.of(host, FOURS)[0] for host in ("a", "b", "c")] == [FOURS[0], FOURS[3], FOURS[3]]


def test_failures_of_one_name_are_remembered_up_to_a_limit() -> None:
    order, addresses = AddressOrder(), [ip_address(f"10.0.{n // 250}.{n % 250}") for n in range(1_000)]
    for _ in range(100):
        order.note("a.example", addresses, order.of("a.example", addresses), None)
    assert len(order._hosts["a.example"].in_vain) == MAX_IN_VAIN
