import asyncio

import pytest
from tests.support.asgi_client import Answer
from tests.support.databases import WoundClock
from tests.support.directory_api import feed, put
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import shard_of, target_id

URL = "https://agent.example/"
TARGET = target_id(URL)
SHARD = shard_of("agent.example")


async def recheck(api: RegistryApi, target: str = TARGET, key: str | Role = Role.COORDINATOR) -> Answer:
    return await api.ask("POST", f"/api/v1/targets/{target}/probe", key=key)


async def test_prober_receives_the_requested_recheck(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", [URL])
    version = (await feed(api, SHARD))["version"]
    answer = await recheck(api)
    assert answer.status == 202
    assert answer.json() == {"target_id": TARGET, "recheck_at": moment(clock.at_s).isoformat()[:19] + ".000Z"}
    (changed,) = (await feed(api, SHARD, version))["targets"]
    assert changed["recheck_at"].startswith(moment(clock.at_s).isoformat()[:19])


async def test_target_is_rechecked_at_most_once_a_minute(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", [URL])
    await recheck(api)
    clock.advance(20.5)
    early = await recheck(api)
    assert (early.status, early.header("retry-after")) == (429, "40")
    clock.advance(39.5)
    assert (await recheck(api)).status == 202
    clock.advance(-7_200)
    # Another key: to the rate limit of the first one the clock is not set back.
    assert (await recheck(api, key=Role.ADMIN)).status == 202


@pytest.mark.parametrize(
    ("wait_s", "expected_s"), [(3_600.0, 3_600.0), (0.0, None), (-5.0, None), (1e9, 86_400.0)]
)
async def test_opted_out_target_is_refused_with_its_end_time(
    api: RegistryApi, clock: WoundClock, wait_s: float, expected_s: float | None
) -> None:
    await put(api, "dir", "one", [URL])
    seen = {
        "target_url": URL,
        "observed_at": moment(clock.at_s - 1).isoformat(),
        "discovery": {"result": "rate_limited"},
    }
    memory = {"probed_at_s": clock.at_s - 1, "not_before_s": clock.at_s + wait_s}
    assert (await api.report(seen, memories=[memory])).status == 200
    answer = await recheck(api)
    assert answer.status == 202
    reply = answer.json().get("not_before")
    if expected_s is None or wait_s > 2 * expected_s:
        # Values that peers must not request are ignored.
        assert reply is None
    else:
        assert reply[:19] == moment(clock.at_s + expected_s).isoformat()[:19]


@pytest.mark.both_databases
async def test_one_of_many_concurrent_requests_is_accepted(api: RegistryApi) -> None:
    await put(api, "dir", "one", [URL])
    answers = await asyncio.gather(*(recheck(api) for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [202, 429, 429, 429, 429]


@pytest.mark.both_databases
async def test_former_target_cannot_be_rechecked(api: RegistryApi) -> None:
    await put(api, "dir", "one", [URL])
    await put(api, "dir", "two", [])
    gone = await recheck(api)
    assert (gone.status, gone.json()["error"]["code"]) == (410, "target_gone")
    assert gone.json()["error"]["details"]["reason"] == "left"
    unknown = await recheck(api, "tgt_0")
    assert (unknown.status, unknown.json()["error"]["code"]) == (404, "target_not_found")


async def test_agents_key_reads_only_its_agent(api: RegistryApi) -> None:
    await put(api, "dir", "one", [URL])
    key = (await api.register("one", monitoring="probe", card_url="https://one.example/"))["agent_key"]
    assert (await recheck(api, "one", key)).status == 202
    assert (await recheck(api, TARGET, key)).status == 403


@pytest.mark.parametrize("role", [Role.READER, Role.PROBER, Role.ENROLL])
async def test_other_roles_cannot_request_a_recheck(api: RegistryApi, role: Role) -> None:
    await put(api, "dir", "one", [URL])
    assert (await recheck(api, key=role)).status == 403
