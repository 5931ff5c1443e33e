import random
from collections.abc import Sequence
from dataclasses import replace

from tests.support.databases import WoundClock

from lifesign.domain.tasks.lease import Claim, EndReason
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.tasks import leases
from lifesign.storage.tasks.leases import LeaseFilter

SHORT, LONG = f"task_{'0' * 26}", f"task_{'1' * 26}"


def _claim(number: int, resource: str, holder: str, clock: WoundClock, *, ttl_s: float = 60) -> Claim:
    return Claim(
        resource=resource,
        lease_id=f"lease_{number}_1",
        holder=holder,
        holder_incarnation=1,
        token=1,
        acquired_at_s=clock.at_s,
        expires_at_s=clock.at_s + ttl_s,
    )


async def _hold(
    database: Database, clock: WoundClock, holder: str, resources: Sequence[str], *, ttl_s: float = 60
) -> list[Claim]:
    def function(transaction: Transaction) -> list[Claim]:
        rows = leases.lock(transaction, to_hold=resources)
        held = [_claim(number, row.resource, holder, clock, ttl_s=ttl_s) for number, row in rows.items()]
        leases.store(transaction, held)
        return held

    return await database.write(function)


async def test_resource_that_was_never_leased_has_a_row_and_no_lease(database: Database) -> None:
    def function(transaction: Transaction) -> dict[int, Claim]:
        first = leases.lock(transaction, to_hold=["b", "a", "b"])
        assert leases.lock(transaction, to_hold=["a"], numbers=[*first, 999]) == first
        return first

    rows = await database.write(function)
    assert sorted(row.resource for row in rows.values()) == ["a", "b"]
    assert set(rows.values()) == {Claim(resource="a"), Claim(resource="b")}
    assert await database.read(lambda transaction: leases.count(transaction, LeaseFilter())) == 0


async def test_lease_is_found_by_resource_and_by_number(database: Database, clock: WoundClock) -> None:
    held = await _hold(database, clock, "agent_1", ["task:1", "task:2"])
    (number, _) = await database.write(lambda transaction: [*leases.lock(transaction, to_hold=["task:1"]), 0])
    both = await database.write(
        lambda transaction: leases.lock(transaction, to_hold=["task:2"], numbers=[number, 999])
    )
    assert list(both) == sorted(both)
    assert sorted(both.values(), key=lambda claim: claim.resource) == held
    assert await database.read(lambda transaction: leases.find(transaction, "task:1")) == held[0]
    assert await database.read(lambda transaction: leases.find(transaction, "task:3")) is None


async def test_lease_times_are_stored_with_full_precision(database: Database, clock: WoundClock) -> None:
    chance = random.Random(1)  # noqa: S311 - no secret
    clock.at_s = 1_763_640_000.1234567
    held = await _hold(database, clock, "agent_1", [f"task:{number}" for number in range(200)])
    exact = [
        replace(claim, expires_at_s=clock.at_s + chance.random(), ended_at_s=clock.at_s + chance.random())
        for claim in held
    ]
    await database.write(lambda transaction: leases.store(transaction, exact))
    stored = await database.write(
        lambda transaction: leases.lock(transaction, to_hold=[claim.resource for claim in exact])
    )
    assert list(stored.values()) == exact


async def test_expired_or_ended_lease_has_no_holder(database: Database, clock: WoundClock) -> None:
    await _hold(database, clock, "agent_1", [f"task:{SHORT}", "task:short-too"], ttl_s=10)
    await _hold(database, clock, "agent_1", [f"task:{LONG}", "TASK:other"], ttl_s=100)
    (ended_one,) = await _hold(database, clock, "agent_2", ["task:ended"])
    await database.write(
        lambda transaction: leases.store(
            transaction, [replace(ended_one, ended_at_s=clock.at_s, end_reason=EndReason.RELEASED)]
        )
    )

    def held(transaction: Transaction) -> tuple[dict[str, int], set[str]]:
        return (
            leases.count_held(transaction, ["agent_1", "agent_2", "agent_3"]),
            leases.tasks_of(transaction, "agent_1"),
        )

    assert await database.read(held) == ({"agent_1": 4}, {SHORT, LONG})
    clock.advance(10)
    assert await database.read(held) == ({"agent_1": 2}, {LONG})


async def test_ending_a_holder_ends_and_returns_each_of_its_leases_once(
    database: Database, clock: WoundClock
) -> None:
    await _hold(database, clock, "agent_1", ["task:over"], ttl_s=5)
    await _hold(database, clock, "agent_1", ["task:1", "task:2"])
    await _hold(database, clock, "agent_2", ["task:3"])
    await _hold(database, clock, "agent_3", ["task:4"])
    clock.advance(5)
    reasons = {"agent_1": EndReason.AGENT_DEAD, "agent_2": EndReason.AGENT_DEREGISTERED}
    ended = await database.write(lambda transaction: leases.end_all_of(transaction, reasons))
    assert {holder: [claim.resource for claim in claims] for holder, claims in ended.items()} == {
        "agent_1": ["task:over", "task:1", "task:2"],
        "agent_2": ["task:3"],
    }
    assert [(claim.end_reason, claim.ended_at_s) for claim in ended["agent_1"]] == [
        (EndReason.EXPIRED, clock.at_s),
        (EndReason.AGENT_DEAD, clock.at_s),
        (EndReason.AGENT_DEAD, clock.at_s),
    ]
    assert await database.read(lambda transaction: leases.find(transaction, "task:3")) == ended["agent_2"][0]
    assert await database.write(lambda transaction: leases.end_all_of(transaction, reasons)) == {}
    assert await database.write(lambda transaction: leases.end_all_of(transaction, {})) == {}
    assert await database.read(lambda transaction: leases.count_held(transaction, ["agent_3"])) == {
        "agent_3": 1
    }


async def test_expired_claims_come_earliest_first_and_bounded(database: Database, clock: WoundClock) -> None:
    for seconds in (30, 10, 20, 40):
        await _hold(database, clock, "agent_1", [f"task:{seconds}"], ttl_s=seconds)

    async def expired(limit: int) -> list[str]:
        claims = await database.write(
            lambda transaction: leases.expired(transaction, transaction.now_s, limit)
        )
        return [claim.resource for claim in claims]

    assert await expired(10) == []
    clock.advance(30)
    assert await expired(10) == ["task:10", "task:20", "task:30"]
    assert await expired(2) == ["task:10", "task:20"]


async def test_lease_list_continues_after_the_last_page(database: Database, clock: WoundClock) -> None:
    await _hold(database, clock, "agent_1", [f"task:{number}" for number in range(5)])
    await _hold(database, clock, "agent_2", ["task:other"], ttl_s=1)
    clock.advance(1)
    everybody, running = LeaseFilter(), LeaseFilter(running_at_s=clock.at_s)
    assert await database.read(lambda transaction: leases.count(transaction, everybody)) == 6
    assert await database.read(lambda transaction: leases.count(transaction, running)) == 5
    first = await database.read(lambda transaction: leases.listing(transaction, running, after=0, limit=3))
    rest = await database.read(
        lambda transaction: leases.listing(transaction, running, after=max(first), limit=3)
    )
    assert [claim.resource for page in (first, rest) for claim in page.values()] == [
        f"task:{number}" for number in range(5)
    ]
    mine = LeaseFilter(resource="task:other", holder="agent_2")
    (other,) = (
        await database.read(lambda transaction: leases.listing(transaction, mine, after=0, limit=9))
    ).values()
    assert other.holder == "agent_2"
