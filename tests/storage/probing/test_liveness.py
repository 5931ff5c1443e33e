"""Liveness of targets, as it is stored and counted."""

from collections.abc import Callable
from typing import Any, TypeVar

from lifesign.domain.lifecycle.network_silence import ClassCounts
from lifesign.domain.targets.target import shard_of, target_id
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.probing import liveness
from lifesign.storage.probing.liveness import LiveTarget, SilentTarget
from lifesign.storage.targets import target_rows

T = TypeVar("T")
NOW_S = 1_763_640_000.25
V4, V6 = "public_ipv4", "public_ipv6"


async def add_targets(database: Database, count: int) -> list[int]:
    """Store targets, and return our numbers for them."""
    urls = [f"https://agent-{number}.example/" for number in range(count)]

    def add(transaction: Transaction) -> list[int]:
        target_rows.add(transaction, {target_id(url): url for url in urls}, 1)
        found = [target_rows.find(transaction, target_id(url)) for url in urls]
        return [target.id for target in found if target is not None]

    return await database.write(add)


def noting(
    *, answered: list[LiveTarget] | None = None, silent: list[SilentTarget] | None = None
) -> Callable[[Transaction], None]:
    return lambda transaction: liveness.note(transaction, answered or [], silent or [])


def counting(since_s: float = NOW_S - 100) -> Callable[[Transaction], dict[str, dict[str, ClassCounts]]]:
    return lambda transaction: liveness.counts(transaction, since_s)


async def test_addresses_are_counted_by_class_and_silent_if_all_their_targets_are(
    database: Database,
) -> None:
    a, b, c, d, e = await add_targets(database, 5)
    await database.write(
        noting(
            answered=[
                LiveTarget(a, V4, "192.0.2.1", NOW_S),
                LiveTarget(b, V4, "192.0.2.1", NOW_S + 1),
                LiveTarget(c, V4, "192.0.2.2", NOW_S + 2),
                LiveTarget(d, V6, "2001:db8::/64", NOW_S + 3),
                LiveTarget(e, V4, "192.0.2.3", NOW_S - 101),
            ]
        )
    )
    assert await database.read(counting()) == {
        V4: {"": ClassCounts(addresses=2, silent_s=())},
        V6: {"": ClassCounts(addresses=1, silent_s=())},
    }
    await database.write(
        noting(silent=[SilentTarget(a, None, None, NOW_S + 9), SilentTarget(d, V6, None, NOW_S + 9)])
    )
    assert await database.read(counting()) == {
        V4: {"": ClassCounts(addresses=2, silent_s=())},
        V6: {"": ClassCounts(addresses=1, silent_s=(NOW_S + 3,))},
    }
    await database.write(noting(silent=[SilentTarget(b, V4, "192.0.2.1", NOW_S + 10)]))
    counted = await database.read(counting())
    assert counted[V4] == {"": ClassCounts(addresses=2, silent_s=(NOW_S + 1,))}
    assert await database.read(lambda transaction: liveness.is_any_silent(transaction, 3))
    assert not await database.read(lambda transaction: liveness.is_any_silent(transaction, 4))
    await database.write(noting(answered=[LiveTarget(a, V4, "192.0.2.1", NOW_S + 20)]))
    assert (await database.read(counting()))[V4] == {"": ClassCounts(addresses=2, silent_s=())}


async def test_addresses_are_counted_for_the_key_that_last_reported_them(database: Database) -> None:
    a, b, c = await add_targets(database, 3)
    known = [LiveTarget(each, V4, "192.0.2.1", NOW_S, "key:one") for each in (a, b, c)]
    await database.write(noting(answered=known))
    assert await database.read(counting()) == {V4: {"key:one": ClassCounts(addresses=1, silent_s=())}}
    silent = [SilentTarget(b, None, None, NOW_S + 1, "key:two")]
    answered = [LiveTarget(c, V4, "192.0.2.1", NOW_S + 1, "key:three")]
    await database.write(noting(answered=answered, silent=silent))
    assert await database.read(counting()) == {
        V4: {
            "key:one": ClassCounts(addresses=1, silent_s=()),
            "key:two": ClassCounts(addresses=1, silent_s=(NOW_S,)),
            "key:three": ClassCounts(addresses=1, silent_s=()),
        }
    }


async def test_a_target_that_never_answered_or_has_no_address_is_not_counted(database: Database) -> None:
    a, b, c = await add_targets(database, 3)
    unknown = [LiveTarget(a, None, None, NOW_S), LiveTarget(b, V4, None, NOW_S)]
    await database.write(noting(answered=unknown, silent=[SilentTarget(c, V4, "192.0.2.1", NOW_S)]))
    assert await database.read(counting()) == {}


async def test_a_target_that_died_or_left_is_not_expected_any_more(database: Database) -> None:
    a, b, c = await add_targets(database, 3)
    known = [LiveTarget(each, V4, f"192.0.2.{each}", NOW_S) for each in (a, b, c)]
    await database.write(noting(answered=known))
    agent_id = target_id("https://agent-1.example/")
    await database.write(lambda transaction: liveness.forget_agents(transaction, [agent_id]))
    assert (await database.read(counting()))[V4][""].addresses == 2


async def test_witness_with_the_latest_answer_is_used_first_and_not_again_at_once(
    database: Database,
) -> None:
    a, b, c, d = await add_targets(database, 4)
    known = [
        LiveTarget(each, V4, f"192.0.2.{each}", NOW_S + place) for place, each in enumerate((a, b, c, d))
    ]
    await database.write(noting(answered=known, silent=[SilentTarget(c, None, None, NOW_S)]))

    def found(since_s: float = NOW_S, before_s: float = 0.0) -> Callable[[Transaction], list[int]]:
        return lambda transaction: [
            candidate.target
            for candidate in liveness.candidates(
                transaction, V4, answered_since_s=since_s, handed_out_before_s=before_s, limit=10
            )
        ]

    assert await database.read(found()) == [d, b, a]
    assert await database.read(found(since_s=NOW_S + 1)) == [d, b]
    handed_out_s = await database.write(_hand_out([d]))
    assert await database.read(found()) == [b, a]
    assert await database.read(found(before_s=handed_out_s)) == [d, b, a]


async def test_witness_candidates_are_filtered_by_shard_and_prober_key(database: Database) -> None:
    numbers = await add_targets(database, 4)
    keys = ("key:one", "key:two", "", "key:one")
    known = [
        LiveTarget(each, V4, f"192.0.2.{each}", NOW_S + place, key)
        for place, (each, key) in enumerate(zip(numbers, keys, strict=True))
    ]
    await database.write(noting(answered=known))

    def found(**members: Any) -> Callable[[Transaction], list[int]]:
        return lambda transaction: [
            candidate.target
            for candidate in liveness.candidates(
                transaction, V4, answered_since_s=0.0, handed_out_before_s=0.0, limit=10, **members
            )
        ]

    a, b, c, d = numbers
    assert await database.read(found(of_key="key:one")) == [d, a]
    assert await database.read(found(not_of_keys=["key:one"])) == [c, b]
    shard = shard_of("agent-0.example")
    assert await database.read(found(not_in_shards=[shard])) == [d, c, b]


def _hand_out(numbers: list[int]) -> Callable[[Transaction], float]:
    def hand_out(transaction: Transaction) -> float:
        liveness.hand_out(transaction, numbers)
        return transaction.now_s

    return hand_out


async def test_empty_selections_change_no_target(database: Database) -> None:
    [a] = await add_targets(database, 1)
    await database.write(noting(answered=[LiveTarget(a, V4, "192.0.2.1", NOW_S, "key:one")]))
    before = await database.read(counting())

    def change_nothing(transaction: Transaction) -> list[float]:
        liveness.note_reporter(transaction, [], "key:two")
        liveness.forget_agents(transaction, [])
        liveness.hand_out(transaction, [])
        return liveness.results_due_s(transaction, [], 0, 10)

    assert await database.write(change_nothing) == []
    assert await database.read(counting()) == before
