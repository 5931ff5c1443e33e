import asyncio
import re
from typing import Any

import pytest
from tests.support.databases import WoundClock
from tests.support.directory_api import SHARDS as PATH
from tests.support.directory_api import claim, put
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.probing import shard_eligibility
from lifesign.domain.targets.target import SHARDS, host_of, shard_of
from lifesign.registry.events.verify_events import verify_log
from lifesign.registry.leases.raise_epoch import raise_epoch
from lifesign.registry.probing import claim_shards

ALL = set(range(SHARDS))


async def shown(api: RegistryApi, query: str = "") -> dict[str, Any]:
    answer = await api.ask("GET", f"{PATH}{query}", key=Role.READER)
    assert answer.status == 200, answer.body
    return dict(answer.json())


async def leave(api: RegistryApi, worker: str) -> None:
    assert (await api.ask("DELETE", f"{PATH}?worker={worker}", key=Role.PROBER)).status == 204


async def assert_log_is_good(api: RegistryApi) -> None:
    report = await api.database.read(verify_log)
    assert report.is_good, (report.fault, report.differences[:3])


async def test_only_worker_gets_all_shards_and_keeps_their_tokens(
    api: RegistryApi, clock: WoundClock
) -> None:
    first = await claim(api)
    assert set(first) == ALL
    clock.advance(40)
    again = await claim(api, held=first)
    assert again == first
    leases = (await api.ask("GET", "/api/v1/leases?resource=shard:7")).json()["leases"]
    assert leases[0]["fencing_token"] == first[7]
    assert leases[0]["holder"] == "key:key_prober_/w"
    assert leases[0]["expires_at"] == moment(clock.at_s + 60).isoformat().replace("+00:00", ".000Z")
    await assert_log_is_good(api)


async def test_surplus_shards_move_to_a_new_worker(api: RegistryApi) -> None:
    first = await claim(api, "a")
    assert await claim(api, "b") == {}
    kept = await claim(api, "a", first)
    assert len(kept) == SHARDS // 2
    assert kept.items() <= first.items()
    second = await claim(api, "b")
    assert set(second) == ALL - set(kept)
    assert all(second[shard] > first[shard] for shard in second)
    third = await claim(api, "c")
    assert third == {}
    for worker, held in (("a", kept), ("b", second)):
        assert len(await claim(api, worker, held)) == -(-SHARDS // 3)
    assert len(await claim(api, "c")) == SHARDS - 2 * -(-SHARDS // 3)
    await assert_log_is_good(api)


@pytest.mark.parametrize("leaves", [False, True])
async def test_key_that_repeatedly_drops_its_shards_gets_few_new_ones(
    api: RegistryApi,
    clock: WoundClock,
    monkeypatch: pytest.MonkeyPatch,
    leaves: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    monkeypatch.setattr(shard_eligibility, "MAX_GRANTS", 8 * SHARDS)

    async def granted(name: str) -> int:
        """Claim shards and drop them at once; return how many they were."""
        shards = await claim(api, name)
        if leaves:
            await leave(api, name)
        return len(shards)

    # A key may restart and hand over between its workers, several times at once.
    assert [await granted("w") for _ in range(8)] == [SHARDS] * 8
    body = {"worker": "w", "held": {}}
    answer = (await api.ask("POST", f"{PATH}/claim", body, key=Role.PROBER)).json()
    assert (answer["shards"], answer["reason"]) == ([], "too_many_grants")
    few = []
    for number in range(15):
        clock.advance(20)
        few.append(await granted(f"w{number}" if leaves else "w"))
    assert SHARDS - 1 <= sum(few) <= SHARDS
    assert max(few) <= 70
    clock.advance(8 * 300)
    assert await granted("w") == SHARDS
    await assert_log_is_good(api)


@pytest.mark.parametrize("name", ["07", "+7", " 7", "7.0", "1_0", "\u0667", "", "9" * 5000])
async def test_shard_number_in_another_notation_is_refused(api: RegistryApi, name: str) -> None:
    for path, body in (
        (f"{PATH}/claim", {"worker": "w", "held": {"7": 1, name: 2}}),
        ("/api/v1/observations", {"observations": [], "tokens": {"7": 1, name: 2}}),
    ):
        answer = await api.ask("POST", path, body, key=Role.PROBER)
        assert answer.status == 422, answer.body
        fields = [each["pointer"] for each in answer.json()["error"]["details"]["faults"]]
        assert any(field.startswith(("/held/", "/tokens/")) for field in fields), fields


@pytest.mark.parametrize(("step_s", "is_over"), [(30, False), (86_400, True)])
async def test_worker_expires_after_the_clock_was_set_back(
    api: RegistryApi,
    clock: WoundClock,
    step_s: float,
    is_over: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    await claim(api, "old", ttl_seconds=300)
    clock.advance(-step_s)
    assert [prober["holder"].partition("/")[2] for prober in (await shown(api))["probers"]] == (
        [] if is_over else ["old"]
    )


async def test_no_shard_gets_a_new_end_until_a_sweep_corrects_a_clock_that_was_set_back(
    api: RegistryApi, clock: WoundClock
) -> None:
    held = await claim(api, "one")
    await api.registry.sweeper.sweep_once()
    clock.advance(-6)
    refused = await api.ask("POST", f"{PATH}/claim", {"worker": "two", "held": {}}, key=Role.PROBER)
    assert (refused.status, refused.json()["error"]["code"]) == (503, "lease_end_uncertain")
    await api.registry.sweeper.sweep_once()
    assert await claim(api, "one", held) == held


async def test_silent_worker_loses_its_shards(api: RegistryApi, clock: WoundClock) -> None:
    dead = await claim(api, "dead", ttl_seconds=60)
    clock.advance(59.9)
    assert await claim(api, "heir") == {}
    clock.advance(0.2)
    heir = await claim(api, "heir")
    assert set(heir) == ALL
    assert all(heir[shard] > dead[shard] for shard in ALL)
    assert await claim(api, "dead", dead) == {}
    assert [prober["holder"] for prober in (await shown(api))["probers"]] == [
        "key:key_prober_/dead",
        "key:key_prober_/heir",
    ]
    await assert_log_is_good(api)


async def test_sweep_ends_expired_shard_claims_with_few_events(api: RegistryApi, clock: WoundClock) -> None:
    await claim(api, "dead")
    clock.advance(61)
    await api.sweep()
    ended = await api.events(type="shards.ended")
    assert [[lease["shard"] for lease in event["payload"]["shards"]] for event in ended] == [
        list(range(first, first + 256)) for first in range(0, 1024, 256)
    ]
    assert {event["payload"]["reason"] for event in ended} == {"expired"}
    assert (await api.ask("GET", "/api/v1/leases")).json()["total"] == 0
    await assert_log_is_good(api)


async def test_shards_are_reserved_for_companions_that_have_not_joined(api: RegistryApi) -> None:
    body = {"worker": "a", "companions": 2}
    first = (await api.ask("POST", f"{PATH}/claim", body, key=Role.PROBER)).json()
    # One lives, so that one companion counts.
    assert (len(first["shards"]), first["workers"], first["share"]) == (512, 1, 512)
    second = (await api.ask("POST", f"{PATH}/claim", body | {"worker": "b"}, key=Role.PROBER)).json()
    assert (len(second["shards"]), second["workers"], second["share"]) == (342, 2, 342)
    held = {str(shard["shard"]): shard["fencing_token"] for shard in first["shards"]}
    first = (await api.ask("POST", f"{PATH}/claim", body | {"held": held}, key=Role.PROBER)).json()
    assert (len(first["shards"]), first["share"]) == (342, 342)
    # A worker that is one of more than it knows has no more than its fair share.
    for worker in "cd":
        await claim(api, worker)
    held = {str(shard["shard"]): shard["fencing_token"] for shard in first["shards"]}
    later = (await api.ask("POST", f"{PATH}/claim", body | {"held": held}, key=Role.PROBER)).json()
    assert (len(later["shards"]), later["share"]) == (256, 256)
    refused = await api.ask("POST", f"{PATH}/claim", body | {"companions": SHARDS}, key=Role.PROBER)
    assert refused.status == 422
    await assert_log_is_good(api)


async def test_absent_companions_reserve_few_shards_for_a_limited_time(
    api: RegistryApi, clock: WoundClock
) -> None:
    body = {"worker": "a", "companions": SHARDS - 1, "ttl_seconds": 300}
    held: dict[str, int] = {}
    shares = []
    for _ in range(3):
        answer = await api.ask("POST", f"{PATH}/claim", body | {"held": held}, key=Role.PROBER)
        held = {str(shard["shard"]): shard["fencing_token"] for shard in answer.json()["shards"]}
        shares.append((answer.json()["share"], len(held)))
        clock.advance(31)
    assert shares == [(SHARDS // 2,) * 2, (SHARDS // 2,) * 2, (SHARDS,) * 2]


async def test_leaving_worker_releases_all_shards_at_once(api: RegistryApi) -> None:
    first = await claim(api, "a")
    await leave(api, "a")
    await leave(api, "a")
    second = await claim(api, "b")
    assert set(second) == ALL
    assert all(second[shard] > first[shard] for shard in ALL)
    assert len(await api.events(type="shards.ended")) == 4
    await assert_log_is_good(api)


async def test_worker_that_omits_its_shards_gets_them_with_new_tokens(api: RegistryApi) -> None:
    """It was restarted, or an answer was lost: its former tokens are refused."""
    before = await claim(api, "a")
    known = {shard: token for shard, token in before.items() if shard < 10}
    wrong = {10: before[10] + 1}
    after = await claim(api, "a", known | wrong)
    assert set(after) == ALL
    assert {shard for shard in ALL if after[shard] == before[shard]} == set(range(10))
    assert all(after[shard] > before[shard] for shard in range(10, SHARDS))
    await assert_log_is_good(api)


async def test_shard_of_another_worker_cannot_be_claimed_by_name(api: RegistryApi) -> None:
    theirs = await claim(api, "a")
    assert await claim(api, "b", theirs) == {}
    assert set(await claim(api, "a", theirs)) < ALL


async def test_a_worker_of_the_same_name_with_another_key_is_another_worker(api: RegistryApi) -> None:
    held = await claim(api, "a")
    body = {"worker": "a", "held": {str(shard): token for shard, token in held.items()}}
    answer = await api.ask("POST", f"{PATH}/claim", body, key=Role.ADMIN)
    assert (answer.json()["shards"], answer.json()["workers"], answer.json()["share"]) == ([], 2, SHARDS // 2)


@pytest.mark.both_databases
async def test_concurrent_claims_never_grant_a_shard_twice(api: RegistryApi) -> None:
    held: dict[str, dict[int, int]] = {worker: {} for worker in "abcde"}
    for _ in range(3):
        claims = await asyncio.gather(*(claim(api, worker, held[worker]) for worker in held))
        held = dict(zip(held, claims, strict=True))
        shards = [shard for claims in held.values() for shard in claims]
        assert len(shards) == len(set(shards))
    assert sorted(len(claims) for claims in held.values()) == [204, 205, 205, 205, 205]
    await assert_log_is_good(api)


async def test_tokens_are_above_a_raised_epoch(api: RegistryApi) -> None:
    before = await claim(api, "a")
    await api.database.write(lambda transaction: raise_epoch(transaction, "test", "restored"))
    after = await claim(api, "a", before)
    assert set(after) == ALL
    assert min(after.values()) > max(before.values())
    await assert_log_is_good(api)


async def test_number_of_active_workers_is_bounded(api: RegistryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_shards, "MAX_PROBERS", 1)
    held = await claim(api, "a")
    answer = await api.ask("POST", f"{PATH}/claim", {"worker": "b"}, key=Role.PROBER)
    assert (answer.status, answer.json()["error"]["code"]) == (409, "too_many")
    assert await claim(api, "a", held) == held


@pytest.mark.both_databases
async def test_claim_returns_the_shards_with_changes(api: RegistryApi) -> None:
    assert (await shown(api, "?changed_after=0"))["changed"] == {}
    urls = [f"https://agent-{number}.example/" for number in range(3)]
    shards = {str(shard_of(host_of(url))) for url in urls}
    await put(api, "dir", "one", urls)
    first = await shown(api, "?changed_after=0")
    assert set(first["changed"]) == shards
    assert set(first["changed"].values()) == {first["version"]}
    assert (await shown(api, f"?changed_after={first['version']}"))["changed"] == {}
    await put(api, "dir", "two", urls[:2])
    second = await shown(api, f"?changed_after={first['version']}")
    assert str(shard_of(host_of(urls[2]))) in second["changed"]
    assert "changed" in await shown(api)
    assert "unprobed" not in second


async def test_claim_returns_the_number_of_unprobed_targets(api: RegistryApi, clock: WoundClock) -> None:
    urls = [f"https://agent-{number}.example/" for number in range(3)]
    await put(api, "dir", "one", urls)

    async def unprobed(since_s: float) -> int:
        since = moment(since_s).isoformat().replace("+00:00", "Z")
        return int((await shown(api, f"?unprobed_since={since}"))["unprobed"])

    assert await unprobed(clock.at_s) == 3
    clock.advance(2)
    seen = {
        "target_url": urls[0],
        "observed_at": moment(clock.at_s).isoformat(),
        "discovery": {"result": "refused"},
    }
    await api.report(seen)
    assert await unprobed(clock.at_s) == 2
    assert await unprobed(clock.at_s + 1) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"worker": ""},
        {"worker": "a/b"},
        {"worker": "a" * 49},
        {"ttl_seconds": 0},
        {"ttl_seconds": 301},
        {"held": {"1024": 1}},
        {"held": {"-1": 1}},
        {"held": {"x": 1}},
        {"held": {"1": 0}},
        {"held": {"1": "1"}},
        {"reached_classes": ["a\0b"]},
        {"reached_classes": ["made up"]},
        {"wanted_witnesses": {"a\0b": 3}},
    ],
)
async def test_invalid_claim_is_refused(api: RegistryApi, wrong: dict[str, Any]) -> None:
    answer = await api.ask("POST", f"{PATH}/claim", {"worker": "a", **wrong}, key=Role.PROBER)
    assert answer.status == 422
    assert (await shown(api))["probers"] == []


@pytest.mark.parametrize("role", [Role.READER, Role.ENROLL, Role.COORDINATOR])
async def test_only_prober_keys_can_claim_shards(api: RegistryApi, role: Role) -> None:
    assert (await api.ask("POST", f"{PATH}/claim", {"worker": "a"}, key=role)).status == 403
    assert (await api.ask("DELETE", f"{PATH}?worker=a", key=role)).status == 403


@pytest.mark.both_databases
async def test_holder_separates_key_and_worker_unambiguously(api: RegistryApi) -> None:
    await claim(api, "a:b.c")
    (prober,) = (await shown(api))["probers"]
    assert re.fullmatch(r"key:key_prober_/a:b\.c", prober["holder"])
