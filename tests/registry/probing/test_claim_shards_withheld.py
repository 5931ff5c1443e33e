"""Shards that move away from a worker that reaches less than another one, or makes no progress."""

import logging
from typing import Any

import pytest
from tests.support.databases import WoundClock
from tests.support.directory_api import SHARDS as PATH
from tests.support.directory_api import put
from tests.support.registry_api import RegistryApi
from tests.support.repetitions import in_faults

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import SHARDS, host_of, shard_of
from lifesign.domain.text.times import utc_text
from lifesign.registry.events.verify_events import verify_log
from lifesign.registry.policies import Policies
from lifesign.storage.probing import prober_result_counts

V4, V6 = "public_ipv4", "public_ipv6"
URLS = {V4: "https://four.example/", V6: "https://six.example/"}


class Workers:
    """Workers of one key that claim shards, each with those that it holds."""

    def __init__(self, api: RegistryApi, key: Role | str = Role.PROBER) -> None:
        self._api = api
        self.key = key
        self.held: dict[str, dict[int, int]] = {}

    async def ask(self, worker: str, **members: object) -> Any:
        held = {str(shard): token for shard, token in self.held.get(worker, {}).items()}
        body = {"worker": worker, "held": held, "interval_s": 300, "ttl_seconds": 300, **members}
        return await self._api.ask("POST", f"{PATH}/claim", body, key=self.key)

    async def claim(self, worker: str, **members: object) -> dict[str, Any]:
        answer = await self.ask(worker, **members)
        assert answer.status == 200, answer.body
        grant: dict[str, Any] = answer.json()
        self.held[worker] = {each["shard"]: each["fencing_token"] for each in grant["shards"]}
        return grant

    async def report(
        self,
        worker: str,
        network_class: str,
        inconclusive_reason: str | None = None,
        as_class: str | None = None,
    ) -> str:
        """Let a worker report a result of the target that is in this class; return what became of it."""
        url = URLS[network_class]
        seen = {
            "target_url": url,
            "observed_at": self._api.time_text(),
            "network_class": as_class or network_class,
            "address": "192.0.2.1" if network_class == V4 else "2001:db8::/64",
            "discovery": {"result": "ok" if inconclusive_reason is None else "not_measured"},
            "inconclusive_reason": inconclusive_reason,
        }
        shard = _shard(network_class)
        answer = await self._api.report(seen, tokens={str(shard): self.held[worker][shard]}, key=self.key)
        assert answer.status == 200, answer.body
        return str(answer.json()["results"][0]["outcome"])


@pytest.fixture
async def workers(api: RegistryApi) -> Workers:
    """Workers, and a target that answers in each of two classes."""
    await put(api, "dir", "one", list(URLS.values()))
    workers = Workers(api)
    await workers.claim("first")
    for network_class in URLS:
        assert await workers.report("first", network_class) == "accepted"
    await api.ask("DELETE", f"{PATH}?worker=first", key=Role.PROBER)
    return workers


def _shard(network_class: str) -> int:
    return shard_of(host_of(URLS[network_class]))


async def assert_log_is_good(api: RegistryApi) -> None:
    report = await api.database.read(verify_log)
    assert report.is_good, (report.fault, report.differences[:3])


async def test_worker_that_lost_a_network_class_gives_all_shards_to_another(
    api: RegistryApi, workers: Workers
) -> None:
    both = [V4, V6]
    whole, other = await share(workers)
    grant = await workers.claim(whole, reached_classes=both)
    assert (len(grant["shards"]), grant["share"]) == (SHARDS // 2, SHARDS // 2)
    await workers.report(whole, V4)

    cut_off = await workers.claim(other, reached_classes=[V4])
    assert (cut_off["shards"], cut_off["reason"]) == ([], "reaches_less")
    assert (cut_off["workers"], cut_off["share"]) == (2, SHARDS)
    rest = await workers.claim(whole, reached_classes=both)
    assert len(rest["shards"]) == SHARDS
    assert (await workers.claim(other, reached_classes=[V4]))["shards"] == []

    # The worker gets its share back as soon as it reaches the same network classes.
    await workers.claim(other, reached_classes=both)
    await workers.claim(whole, reached_classes=both)
    again = await workers.claim(other, reached_classes=both)
    assert len(again["shards"]) == SHARDS // 2
    assert "reason" not in again
    await assert_log_is_good(api)


async def test_workers_that_reach_different_classes_keep_their_shards(workers: Workers) -> None:
    await workers.claim("a", reached_classes=[V4])
    await workers.claim("b", reached_classes=[V6])
    grant = await workers.claim("a", reached_classes=[V4])
    assert len(grant["shards"]) == SHARDS // 2
    assert "reason" not in grant


async def test_worker_with_unused_classes_takes_no_shard(workers: Workers) -> None:
    await workers.claim("a", reached_classes=[V4, V6])
    await workers.claim("b", reached_classes=[V4, V6, "office", "made-up"])
    assert len((await workers.claim("a", reached_classes=[V4, V6]))["shards"]) == SHARDS // 2


async def test_invented_network_class_takes_no_shard_from_another_key(
    api: RegistryApi, workers: Workers
) -> None:
    hostile = Workers(api, Role.ADMIN)
    for _ in range(2):
        await hostile.claim("w")
        await workers.claim("honest", reached_classes=[V4, V6])
    own = next(network_class for network_class in URLS if _shard(network_class) in hostile.held["w"])
    assert await hostile.report("w", own, as_class="invented") == "accepted"
    grant = await hostile.claim("w", reached_classes=[V4, V6, "invented"], interval_s=86_400)
    assert len(grant["shards"]) == SHARDS // 2
    honest = await workers.claim("honest", reached_classes=[V4, V6])
    assert (len(honest["shards"]), "reason" in honest) == (SHARDS // 2, False)
    await assert_log_is_good(api)


async def test_new_worker_with_unknown_classes_gets_exactly_its_share(
    workers: Workers,
) -> None:
    await workers.claim("a", reached_classes=[V4])
    await workers.claim("b")
    await workers.claim("a", reached_classes=[V4])
    assert len((await workers.claim("b"))["shards"]) == SHARDS // 2


async def share(workers: Workers) -> tuple[str, str]:
    """Let two workers hold half of the shards each; return the one with the first target, and the other."""
    await workers.claim("a")
    await workers.claim("b")
    await workers.claim("a")
    await workers.claim("b")
    has = "a" if shard_of(host_of(URLS[V4])) in workers.held["a"] else "b"
    return has, "b" if has == "a" else "a"


async def test_a_worker_that_reports_nothing_for_two_intervals_loses_its_shards(
    api: RegistryApi, clock: WoundClock, workers: Workers
) -> None:
    await workers.claim("alone")
    for _ in range(5):
        clock.advance(150)
        # No other worker does better.
        assert len((await workers.claim("alone"))["shards"]) == SHARDS
    await api.ask("DELETE", f"{PATH}?worker=alone", key=Role.PROBER)
    active, other = await share(workers)
    for _ in range(4):
        clock.advance(150)
        # A result that measured nothing is progress too.
        await workers.report(active, V4, inconclusive_reason="prober_slow")
        await workers.claim(active)
        assert len((await workers.claim(other))["shards"]) == SHARDS // 2
    clock.advance(1)
    lost = await workers.claim(other)
    assert (lost["shards"], lost["reason"]) == ([], "no_progress")
    assert len((await workers.claim(active))["shards"]) == SHARDS
    shown = {
        each["holder"].partition("/")[2]: each["makes_no_progress"]
        for each in (await api.ask("GET", PATH)).json()["probers"]
    }
    assert shown == {active: False, other: True}

    for _ in range(4):
        clock.advance(150)
        await workers.report(active, V4)
        await workers.claim(active)
        assert (await workers.claim(other))["reason"] == "no_progress"
    clock.advance(2)
    assert "reason" not in await workers.claim(other)
    await workers.claim(active)
    assert len((await workers.claim(other))["shards"]) == SHARDS // 2
    await assert_log_is_good(api)


async def halves(workers: Workers, hostile: Workers) -> tuple[str, str]:
    """Let two keys hold half of the shards each; return the classes of the honest and the hostile target."""
    for _ in range(2):
        await hostile.claim("w")
        await workers.claim("honest")
    mine = next(name for name in URLS if _shard(name) in workers.held["honest"])
    return mine, V6 if mine == V4 else V4


async def test_key_that_requests_all_witnesses_leaves_some_to_another_key(
    api: RegistryApi, workers: Workers
) -> None:
    urls = [f"https://host-{number}.example/" for number in range(30)]
    await put(api, "more", "one", urls)
    await workers.claim("a")
    seen = [
        {
            "target_url": url,
            "observed_at": api.time_text(),
            "network_class": V4,
            "address": f"192.0.2.{number}",
            "discovery": {"result": "ok"},
        }
        for number, url in enumerate(urls)
    ]
    tokens = {str(shard): token for shard, token in workers.held["a"].items()}
    assert (await api.report(*seen, tokens=tokens)).status == 200
    hostile = Workers(api, Role.ADMIN)
    for _ in range(2):
        for number in range(16):
            await hostile.claim(f"w{number}", wanted_witnesses={V4: 3})
        await workers.claim("a")
    grant = await workers.claim("a", wanted_witnesses={V4: 3})
    assert {witness["network_class"] for witness in grant["witnesses"]} == {V4}


async def report_answers(api: RegistryApi, workers: Workers, worker: str, urls: list[str]) -> None:
    """Let a worker report that the targets of its shards among these answered."""
    held = workers.held[worker]
    mine = [url for url in urls if shard_of(host_of(url)) in held]
    seen = [
        {
            "target_url": url,
            "observed_at": api.time_text(),
            "network_class": V4,
            "address": f"192.0.2.{number}",
            "discovery": {"result": "ok"},
        }
        for number, url in enumerate(mine)
    ]
    tokens = {str(shard): token for shard, token in held.items()}
    assert (await api.report(*seen, tokens=tokens, key=workers.key)).status == 200


@pytest.mark.both_databases
async def test_a_key_that_reports_many_answers_is_not_the_only_source_of_witnesses(
    api: RegistryApi, clock: WoundClock, workers: Workers
) -> None:
    urls = [f"https://host-{number}.example/{page}" for number in range(60) for page in range(4)]
    await put(api, "more", "one", urls)
    created = await api.ask("POST", "/api/v1/keys", {"name": "third", "role": "prober"})
    hostile, third = Workers(api, Role.ADMIN), Workers(api, created.json()["key"])
    for _ in range(2):
        for each in (workers, hostile, third):
            await each.claim("a")
    await report_answers(api, workers, "a", urls[::4])
    clock.advance(1)
    await report_answers(api, hostile, "a", urls)
    by_hostile = {host_of(url) for url in urls if shard_of(host_of(url)) in hostile.held["a"]}
    for _ in range(3):
        grant = await third.claim("a", wanted_witnesses={V4: 3})
        hosts = [host_of(witness["url"]) for witness in grant["witnesses"]]
        assert len(set(hosts)) == len(hosts) == 3
        assert not set(hosts) <= by_hostile
        assert not any(shard_of(host) in third.held["a"] for host in hosts)
        clock.advance(61)


async def test_key_with_a_short_interval_does_not_bar_another_key(
    api: RegistryApi, clock: WoundClock, workers: Workers
) -> None:
    hostile = Workers(api, Role.ADMIN)
    _, theirs = await halves(workers, hostile)
    for _ in range(5):
        clock.advance(100)
        await hostile.report("w", theirs)
        await hostile.claim("w", interval_s=10)
        grant = await workers.claim("honest")
        assert (len(grant["shards"]), "reason" in grant) == (SHARDS // 2, False)


async def test_more_workers_give_a_key_no_more_shards(api: RegistryApi, workers: Workers) -> None:
    hostile = Workers(api, Role.ADMIN)
    for _ in range(2):
        for number in range(3):
            await hostile.claim(f"w{number}")
        await workers.claim("honest")
    # Each of the three hostile workers gets one third of one half, rounded up.
    assert len(workers.held["honest"]) == SHARDS // 2 - 1
    assert (await workers.claim("honest"))["share"] == SHARDS // 2
    assert (await hostile.claim("w0"))["share"] == -(-SHARDS // 6)
    assert (await api.ask("GET", PATH)).json()["share"] == SHARDS // 2
    await assert_log_is_good(api)


async def test_time_in_which_the_clock_may_have_jumped_counts_against_no_key(
    api: RegistryApi, clock: WoundClock, workers: Workers
) -> None:
    async def counted() -> set[tuple[str, float, float]]:
        rows = await api.database.read(prober_result_counts.all_of)
        return {(row.holder, row.idle.at_s, row.idle.idle_s) for row in rows if row.idle is not None}

    other = Workers(api, Role.ADMIN)
    await halves(workers, other)
    await api.sweep()
    before = await counted()
    clock.advance(7_200)
    await workers.claim("honest")
    await other.claim("w")
    assert len(before) == 4
    assert await counted() <= before
    await api.sweep()
    await workers.claim("honest")
    assert not await counted() <= before


async def test_key_whose_claims_expire_is_barred(
    api: RegistryApi, clock: WoundClock, workers: Workers
) -> None:
    """It holds shards for the duration of a claim, and is gone before its results are due."""
    hostile = Workers(api, Role.ADMIN)
    for _ in range(3):
        mine, _ = await halves(workers, hostile)
        assert len((await hostile.claim("w"))["shards"]) == SHARDS // 2
        hostile.held.clear()
        for seconds in (150, 151):
            clock.advance(seconds)
            await workers.report("honest", mine)
            await workers.claim("honest")
        assert len(workers.held["honest"]) == SHARDS
    assert (await hostile.claim("w"))["reason"] == "no_progress"
    assert len((await workers.claim("honest"))["shards"]) == SHARDS
    await assert_log_is_good(api)


@pytest.mark.parametrize(("renames", "rounds"), [(True, 50), *in_faults((True, 80), (False, 80))])
async def test_key_that_never_reports_is_barred_for_longer_each_time(
    api: RegistryApi, clock: WoundClock, workers: Workers, *, renames: bool, rounds: int
) -> None:
    hostile = Workers(api, Role.ADMIN)
    had_all: list[bool] = []
    reasons: list[str | None] = []
    for number in range(rounds):
        # It names none of its shards, and says that it reaches more than others and probes seldom.
        hostile.held.clear()
        name = f"w{number}" if renames else "w"
        grant = await hostile.claim(name, interval_s=600, reached_classes=[V4, V6])
        reasons.append(grant.get("reason"))
        await workers.claim("honest", reached_classes=[V4])
        had_all.append(len(workers.held["honest"]) == SHARDS)
        for network_class in URLS:
            if _shard(network_class) in workers.held["honest"]:
                await workers.report("honest", network_class)
        clock.advance(150)
    late = rounds // 2
    assert had_all[-late:].count(True) > 5 * late // 8
    assert reasons[-late:].count("no_progress") > 5 * late // 8
    await assert_log_is_good(api)


async def test_key_that_reports_only_one_agent_is_barred(api: RegistryApi, clock: WoundClock) -> None:
    hosts = [f"host{number}.example" for number in range(40)]
    for host in hosts:
        await api.register(host, monitoring="probe", card_url=f"https://{host}/card.json")
    keys = {"hostile": Workers(api, Role.ADMIN), "honest": Workers(api)}
    for _ in range(2):
        for workers in keys.values():
            await workers.claim("w")
    reasons: dict[str, list[str | None]] = {name: [] for name in keys}
    for _ in range(12):
        clock.advance(239)
        for name, workers in keys.items():
            reasons[name].append((await workers.claim("w")).get("reason"))
        clock.advance(1)
        for name, workers in keys.items():
            tokens = {str(shard): token for shard, token in workers.held["w"].items()}
            own = [host for host in hosts if str(shard_of(host)) in tokens]
            seen = [
                {"agent_id": host, "observed_at": api.time_text(), "discovery": {"result": "not_measured"}}
                for host in (own[:1] if name == "hostile" else own)
            ]
            if seen:
                answer = await api.report(*seen, tokens=tokens, key=workers.key)
                assert answer.json()["counts"] == {"accepted": len(seen)}, answer.body
    assert set(reasons["honest"]) == {None}
    # Most of its agents never had a result: the third claim comes after two intervals of 300 s.
    assert reasons["hostile"].index("no_progress") == 2


async def test_worker_whose_shards_have_no_alive_agent_keeps_its_shards(
    api: RegistryApi, clock: WoundClock, workers: Workers
) -> None:
    await put(api, "dir", "two", [URLS[V4]])
    active, idle = await share(workers)
    for _ in range(6):
        clock.advance(150)
        await workers.report(active, V4)
        await workers.claim(active)
        assert len((await workers.claim(idle))["shards"]) == SHARDS // 2


async def test_worker_whose_only_agent_sent_retry_after_keeps_its_shards(
    api: RegistryApi, clock: WoundClock, workers: Workers
) -> None:
    active, waiting = await share(workers)
    await workers.report(waiting, V6, inconclusive_reason="asked_to_wait")
    for _ in range(6):
        clock.advance(150)
        await workers.report(active, V4)
        await workers.claim(active)
        assert len((await workers.claim(waiting))["shards"]) == SHARDS // 2


async def test_workers_of_one_key_are_bounded(api: RegistryApi, workers: Workers) -> None:
    most = Policies().prober_workers
    assert most == 16
    for number in range(most):
        await workers.claim(f"w{number}")
    refused = await workers.ask("one-more")
    assert (refused.status, refused.json()["error"]["code"]) == (409, "too_many")
    assert (await workers.ask("w3")).status == 200
    other_key = await api.ask("POST", f"{PATH}/claim", {"worker": "one-more"}, key=Role.ADMIN)
    assert other_key.status == 200


@pytest.mark.both_databases
async def test_worker_limit_can_be_set_for_a_key(api: RegistryApi, workers: Workers) -> None:
    path = "/api/v1/keys/key_prober_"
    limited = await api.ask("PATCH", path, {"max_workers": 2})
    assert (limited.status, limited.json()["max_workers"]) == (200, 2)
    await workers.claim("a")
    await workers.claim("b")
    refused = await workers.ask("c")
    error = refused.json()["error"]
    assert (refused.status, error["code"], error["details"]["most"]) == (409, "too_many", 2)
    assert "2 living workers" in error["message"]
    assert "lifesign keys limit" in error["message"]
    assert error["details"]["frees_at"] == utc_text(moment(api.clock.at_s + 300), "seconds")
    assert (await api.ask("PATCH", path, {"max_workers": 3})).status == 200
    await workers.claim("c")
    # Living workers continue.
    assert (await api.ask("PATCH", path, {"max_workers": 1})).status == 200
    assert (await workers.ask("c")).status == 200
    assert (await workers.ask("d")).status == 409
    back = await api.ask("PATCH", path, {"max_workers": None})
    assert "max_workers" not in back.json() or back.json()["max_workers"] is None
    await workers.claim("d")
    events = await api.events(type="key.limited")
    assert [event["payload"].get("max_workers") for event in events] == [2, 3, 1, None]
    assert [event["actor"] for event in events] == ["key:key_admin_"] * 4


async def _revoked(api: RegistryApi) -> dict[str, int]:
    """Return how many shards ended with their key, by the revoking key."""
    found: dict[str, int] = {}
    for event in await api.events(type="shards.ended"):
        if event["payload"]["reason"] == "revoked":
            found[event["actor"]] = found.get(event["actor"], 0) + len(event["payload"]["shards"])
    return found


async def test_revoking_a_key_ends_the_leases_of_its_workers_at_once(
    api: RegistryApi, workers: Workers
) -> None:
    await workers.claim("a", companions=1)
    await workers.claim("b")
    assert (await api.ask("DELETE", "/api/v1/keys/key_prober_")).status == 204
    assert await _revoked(api) == {"key:key_admin_": SHARDS}
    shown = (await api.ask("GET", PATH)).json()
    assert shown["probers"] == []
    claimed = await api.ask("POST", f"{PATH}/claim", {"worker": "other"}, key=Role.ADMIN)
    assert len(claimed.json()["shards"]) == SHARDS
    await assert_log_is_good(api)


@pytest.mark.both_databases
async def test_next_check_ends_shard_leases_of_an_expired_key(
    api: RegistryApi, clock: WoundClock, workers: Workers
) -> None:
    await workers.claim("a")
    rotated = await api.ask("POST", "/api/v1/keys/key_prober_/rotate", {"overlap_seconds": 60})
    assert rotated.status == 201
    clock.advance(59)
    await api.sweep()
    assert await _revoked(api) == {}
    clock.advance(15)
    await api.sweep()
    assert await _revoked(api) == {"monitor": SHARDS}


async def test_wrong_clock_of_a_worker_is_reported_once_and_changes_nothing(
    api: RegistryApi, clock: WoundClock, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    def at(offset_s: float) -> str:
        return moment(clock.at_s + offset_s).isoformat()

    with caplog.at_level(logging.INFO, "lifesign.registry"):
        assert (await workers.claim("a", sent_at=at(30)))["clock_offset_s"] == 30
        assert not caplog.records
        grant = await workers.claim("a", sent_at=at(-3_600))
        await workers.claim("a", sent_at=at(-3_600))
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        (shown,) = (await api.ask("GET", PATH)).json()["probers"]
        await workers.claim("a", sent_at=at(0))
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert (grant["clock_offset_s"], shown["clock_offset_s"]) == (-3_600, -3_600)
    assert len(grant["shards"]) == SHARDS
    assert "clock_offset_s" not in await workers.claim("a")
