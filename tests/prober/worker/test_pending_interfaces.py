"""Interfaces that wait for a delivery, within their limit."""

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.published_interface.published import Interface, InterfaceKind, bounded_interface
from lifesign.domain.targets.target import target_id
from lifesign.prober.registry_exchange.ledger import ShardClaim, TargetEntry, TargetPage
from lifesign.prober.worker.pending_interfaces import PendingInterfaces
from lifesign.prober.worker.shards import OwnedShards, TargetSlot


def slots(count: int) -> tuple[OwnedShards, list[TargetSlot]]:
    owned = OwnedShards()
    owned.take([ShardClaim(shard=0, fencing_token=1, expires_at_s=1e9)])
    urls = [f"https://agent.example/{number}" for number in range(count)]
    entries = [TargetEntry(subject_id=target_id(url), url=url, memory=ProbeMemory()) for url in urls]
    owned.apply(owned.shards[0], TargetPage(entries=entries))
    return owned, sorted(owned.slots(), key=lambda slot: slot.url)


def interface(name: str) -> Interface:
    return bounded_interface(InterfaceKind.AGENT_CARD, {"name": name})


SIZE = len(interface("a").text)


def test_an_interface_waits_until_it_is_delivered() -> None:
    _, (slot, other) = slots(2)
    pending, first, second = PendingInterfaces(), interface("a"), interface("b")
    assert pending.of(slot) is None
    assert pending.add(slot, first)
    assert pending.of(slot) is first
    assert pending.of(other) is None
    # A newer one came while the first was on its way.
    assert pending.add(slot, second)
    pending.delivered(slot, first)
    assert pending.of(slot) is second
    pending.delivered(slot, second)
    assert (pending.of(slot), len(pending)) == (None, 0)


def test_interfaces_above_the_limit_are_refused_until_one_is_delivered() -> None:
    _, (slot, other) = slots(2)
    pending, first = PendingInterfaces(max_bytes=SIZE), interface("a")
    assert pending.add(slot, first)
    assert not pending.add(other, interface("b"))
    assert pending.add(slot, interface("c"))
    pending.delivered(slot, interface("c"))
    assert not pending.add(other, interface("b"))
    waiting = pending.of(slot)
    assert waiting is not None
    pending.delivered(slot, waiting)
    assert pending.add(other, interface("b"))


def test_interfaces_of_lost_targets_are_removed() -> None:
    owned, (slot, _) = slots(2)
    pending = PendingInterfaces(max_bytes=SIZE)
    assert pending.add(slot, interface("a"))
    owned.lose(0)
    _, (_, other) = slots(2)
    assert pending.add(other, interface("b"))
    assert pending.of(slot) is None
