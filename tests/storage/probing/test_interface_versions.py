"""Statements about versions of published interfaces, on both databases."""

import pytest
from tests.support.databases import WoundClock
from tests.support.directory_api import put
from tests.support.registry_api import RegistryApi

from lifesign.domain.published_interface.version_history import VersionState
from lifesign.domain.targets.target import target_id
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.probing import interface_versions
from lifesign.storage.probing.interface_versions import InterfaceVersion
from lifesign.storage.targets import target_rows

URLS = [f"https://agent.example/{number}" for number in range(3)]


@pytest.fixture
async def targets(api: RegistryApi) -> list[int]:
    await put(api, "dir", "one", URLS)

    def numbers(transaction: Transaction) -> list[int]:
        return target_rows.present(transaction, [target_id(url) for url in URLS])

    return await api.database.read(numbers)


def version(target: int, number: int, at_s: float) -> InterfaceVersion:
    return InterfaceVersion(target, number, at_s, None, f"{number:064}", "{}")


async def test_only_replaced_versions_are_deleted_in_small_batches(
    api: RegistryApi, targets: list[int]
) -> None:
    def fill(transaction: Transaction) -> None:
        for number in (1, 2, 3):
            added = [version(target, number, number * 10.0) for target in targets]
            interface_versions.add(transaction, added)
        states = {target: VersionState(3, 2) for target in targets}
        interface_versions.set_states(transaction, states, are_new=True)

    await api.database.write(fill)
    counts = []
    for _ in range(3):
        forget = await api.database.write(
            lambda transaction: interface_versions.forget(transaction, 100.0, 2)
        )
        counts.append(forget)
    assert counts == [True, False, False]

    def kept(transaction: Transaction) -> list[list[tuple[int, float | None]]]:
        return [
            [(one.number, one.until_s) for one in interface_versions.versions_of(transaction, target)]
            for target in targets
        ]

    # The baseline of the next event and the newest version stay.
    assert await api.database.read(kept) == [[(3, None), (2, 30.0)]] * 3


async def test_due_targets_are_returned_oldest_first_up_to_the_limit(
    api: RegistryApi, targets: list[int], clock: WoundClock
) -> None:
    first, second, third = targets

    def fill(transaction: Transaction) -> None:
        interface_versions.add(transaction, [version(target, 1, 1.0) for target in targets])
        due = {first: clock.at_s, second: clock.at_s - 5, third: clock.at_s + 5}
        states = {target: VersionState(1, 1, None, at_s) for target, at_s in due.items()}
        interface_versions.set_states(transaction, states, are_new=True)

    await api.database.write(fill)
    assert await api.database.read(lambda one: interface_versions.due_targets(one, 10)) == [second, first]
    assert await api.database.read(lambda one: interface_versions.due_targets(one, 1)) == [second]
    states = await api.database.write(lambda one: interface_versions.states_of(one, targets))
    assert states[third].state.due_at_s == clock.at_s + 5
    assert states[third].digest == f"{1:064}"


async def test_only_the_newest_versions_and_the_baseline_are_kept_of_a_target(
    api: RegistryApi, targets: list[int]
) -> None:
    first, second, _ = targets

    def fill(transaction: Transaction) -> None:
        for number in range(1, 6):
            interface_versions.add(transaction, [version(first, number, 1.0), version(second, number, 1.0)])
        interface_versions.trim(transaction, {first: (4, 2)})

    def numbers(transaction: Transaction) -> list[list[int]]:
        return [
            [one.number for one in interface_versions.versions_of(transaction, target)]
            for target in (first, second)
        ]

    await api.database.write(fill)
    assert await api.database.read(numbers) == [[5, 4, 2], [5, 4, 3, 2, 1]]
    found = await api.database.read(
        lambda one: interface_versions.bodies_of(one, {first: [5, 3], second: [1]})
    )
    assert found == {(first, 5): "{}", (second, 1): "{}"}


async def test_version_of_the_same_number_is_replaced(api: RegistryApi, targets: list[int]) -> None:
    again = version(targets[0], 1, 20.0)._replace(body='{"a":1}')

    def fill(transaction: Transaction) -> None:
        interface_versions.add(transaction, [version(targets[0], 1, 10.0)])
        interface_versions.add(transaction, [again])

    await api.database.write(fill)
    assert await api.database.read(lambda one: interface_versions.versions_of(one, targets[0])) == [again]


async def test_nothing_is_stored_for_no_targets(api: RegistryApi, targets: list[int]) -> None:
    def fill(transaction: Transaction) -> None:
        interface_versions.add(transaction, [])
        interface_versions.set_states(transaction, {})
        interface_versions.trim(transaction, {})

    await api.database.write(fill)
    assert await api.database.write(lambda one: interface_versions.states_of(one, targets)) == {}
