from typing import Any

import pytest
from tests.support.databases import WoundClock
from tests.support.directory_api import feed, put, urls_in
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.targets.opt_out_proof import TOKEN_TTL_SECONDS
from lifesign.domain.targets.target import shard_of, target_id
from lifesign.registry.events.verify_events import verify_log
from lifesign.registry.targets import opt_out_origins
from lifesign.registry.targets.opt_out_origins import prove

PATH = "/api/v1/opt-outs"
ORIGIN = "https://agent.example"
HERE = [f"{ORIGIN}/", f"{ORIGIN}/other", "http://agent.example/plain"]
NEAR = ["https://agent.example:8443/", "https://sub.agent.example/"]
SHARDS = {shard_of(host) for host in ("agent.example", "sub.agent.example")}


async def ask(api: RegistryApi, url: str = ORIGIN) -> dict[str, Any]:
    answer = await api.ask("POST", PATH, {"url": url}, key=Role.COORDINATOR)
    assert answer.status == 201, answer.body
    return dict(answer.json())


async def proven(api: RegistryApi, url: str = ORIGIN) -> bool:
    asked = await ask(api, url)
    return await api.database.write(
        lambda transaction: prove(transaction, asked["origin"], asked["token"], "server")
    )


async def see_alive(api: RegistryApi, clock: WoundClock, **members: Any) -> None:
    clock.advance(1)
    seen = {"observed_at": moment(clock.at_s).isoformat(), "transport": {"result": "ok"}, **members}
    answer = await api.report(seen)
    assert answer.json()["counts"] == {"accepted": 1}


async def test_opt_out_token_is_issued_for_an_origin(api: RegistryApi, clock: WoundClock) -> None:
    asked = await ask(api, "HTTPS://Agent.example:443/some/path")
    assert asked == {
        "origin": ORIGIN,
        "token": asked["token"],
        "proof_url": f"{ORIGIN}/.well-known/lifesign-proof",
        "requested_at": moment(clock.at_s).isoformat()[:19] + ".000Z",
        "expires_at": moment(clock.at_s + TOKEN_TTL_SECONDS).isoformat()[:19] + ".000Z",
    }
    clock.advance(TOKEN_TTL_SECONDS - 1)
    assert await ask(api) == asked
    clock.advance(1)
    assert (await ask(api))["token"] != asked["token"]
    assert (await ask(api, "http://agent.example"))["token"] != asked["token"]


async def test_targets_of_an_opted_out_origin_end(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", [*HERE, *NEAR])
    await see_alive(api, clock, target_url=HERE[0])
    await api.register("own", monitoring="both", card_url=HERE[1])
    (shard,) = {shard_of("agent.example")}
    version = (await feed(api, shard))["version"]
    assert await proven(api)
    assert await urls_in(api, *SHARDS) == sorted(NEAR)
    assert set((await feed(api, shard, version))["gone"]) == {*map(target_id, HERE), "own"}
    agent = await api.record(target_id(HERE[0]))
    assert (agent["status"], agent["explanation"].split()[-2:]) == ("deregistered", ["opted", "out"])
    # It sends heartbeats and is monitored by them.
    assert (await api.record("own"))["status"] == "active"
    (event,) = await api.events(type="origin.opted_out")
    assert (event["actor"], event["payload"]) == ("server", {"origin": ORIGIN, "targets": 4})
    shown = (await api.ask("GET", PATH)).json()
    assert (shown["total"], "proven_at" in shown["opt_outs"][0], "expires_at" in shown["opt_outs"][0]) == (
        1,
        True,
        False,
    )
    report = await api.database.read(verify_log)
    assert report.is_good, report


async def unknown_reason(api: RegistryApi, agent_id: str) -> str | None:
    reason: str | None = (await api.record(agent_id)).get("unknown_reason")
    return reason


@pytest.mark.both_databases
async def test_registered_agent_is_unknown_because_its_owner_opted_out(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", [HERE[0]])
    await api.register("own", monitoring="probe", card_url=HERE[1])
    await api.register("new", monitoring="probe", card_url=HERE[2])
    await see_alive(api, clock, agent_id="own")
    assert await unknown_reason(api, "own") is None
    assert await proven(api)
    # The last result still counts.
    assert await unknown_reason(api, "own") is None
    clock.advance(10 * 86_400)
    await api.sweep()
    assert [await unknown_reason(api, each) for each in ("own", "new")] == ["not_allowed", "not_allowed"]
    assert (await api.ask("DELETE", f"{PATH}?url={ORIGIN}", key=Role.COORDINATOR)).status == 204
    await see_alive(api, clock, agent_id="own")
    assert await unknown_reason(api, "own") is None
    clock.advance(1_000)
    assert await unknown_reason(api, "own") == "no_prober"


async def test_opted_out_origin_is_excluded_for_each_source(api: RegistryApi) -> None:
    assert await proven(api)
    await put(api, "dir", "one", [*HERE, *NEAR])
    await put(api, "second", "one", HERE)
    await put(api, "dir", "two", [*HERE, NEAR[0]])
    assert await urls_in(api, *SHARDS) == NEAR[:1]
    body = {"agent_id": "one", "monitoring": "probe", "card_url": HERE[2]}
    refused = await api.ask("POST", "/api/v1/agents", body)
    assert (refused.status, refused.json()["error"]["details"]["faults"][0]["name"]) == (422, "opted_out")
    await api.register("two", monitoring="probe", card_url=NEAR[0])
    moved = await api.ask("PATCH", "/api/v1/agents/two", {"card_url": HERE[0]}, headers={"If-Match": "*"})
    assert moved.status == 422


@pytest.mark.both_databases
async def test_withdrawn_opt_out_is_probed_again(api: RegistryApi) -> None:
    await put(api, "dir", "one", [*HERE, *NEAR])
    assert await proven(api)
    assert await proven(api, "http://agent.example")
    await put(api, "dir", "two", [*HERE[1:], *NEAR])
    answer = await api.ask("DELETE", f"{PATH}?url=agent.example", key=Role.COORDINATOR)
    assert answer.status == 204
    # Plain http opted out by itself, and the first one has left its directory.
    assert await urls_in(api, *SHARDS) == sorted([HERE[1], *NEAR])
    (event,) = await api.events(type="origin.opted_in")
    assert event["payload"]["targets"] == 1
    await put(api, "dir", "three", [*HERE, *NEAR])
    assert await urls_in(api, *SHARDS) == sorted([*HERE[:2], *NEAR])
    again = await api.ask("DELETE", f"{PATH}?url=agent.example")
    assert (again.status, again.json()["error"]["code"]) == (404, "opt_out_not_found")


async def test_registered_agent_is_probed_after_an_opt_out_unless_deregistered(api: RegistryApi) -> None:
    await api.register("stays", monitoring="both", card_url=HERE[0])
    await api.register("goes", monitoring="both", card_url=HERE[1])
    assert await proven(api)
    await api.ask("DELETE", "/api/v1/agents/goes")
    await api.ask("DELETE", f"{PATH}?url={ORIGIN}")
    (shard,) = {shard_of("agent.example")}
    assert [target["subject_id"] for target in (await feed(api, shard))["targets"]] == ["stays"]


async def test_only_the_current_opt_out_token_is_a_proof(api: RegistryApi) -> None:
    await put(api, "dir", "one", HERE)
    asked = await ask(api)

    async def tried(token: str) -> bool:
        return await api.database.write(lambda transaction: prove(transaction, ORIGIN, token, "server"))

    assert not await tried("aho_" + "A" * 43)
    await api.ask("DELETE", f"{PATH}?url={ORIGIN}")
    assert not await tried(asked["token"])
    assert await urls_in(api, *SHARDS) == sorted(HERE)
    token = (await ask(api))["token"]
    assert [await tried(token), await tried(token)] == [True, False]


@pytest.mark.both_databases
async def test_opt_outs_come_in_pages_and_are_bounded(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opt_out_origins, "MAX_OPT_OUTS", 3)
    long = "https://" + ".".join(["a" * 60] * 4)
    for url in ("https://b.example", "http://c.example:8080", long):
        await ask(api, url)
    too_many = await api.ask("POST", PATH, {"url": "https://d.example"})
    assert (too_many.status, too_many.json()["error"]["code"]) == (409, "too_many")
    assert (await ask(api, "https://b.example"))["origin"] == "https://b.example"
    pages = [(await api.ask("GET", f"{PATH}?limit=1")).json()]
    while cursor := pages[-1].get("cursor"):
        pages.append((await api.ask("GET", f"{PATH}?limit=1&cursor={cursor}")).json())
    found = [one["origin"] for page in pages for one in page["opt_outs"]]
    assert found == sorted(["https://b.example", "http://c.example:8080", long])


@pytest.mark.parametrize(
    "url", ["", "ftp://a.example", "https://a b", "https://{x}/", "https://u:p@a.example"]
)
async def test_invalid_origin_is_refused(api: RegistryApi, url: str) -> None:
    assert (await api.ask("POST", PATH, {"url": url})).status == 422


@pytest.mark.parametrize("role", [Role.READER, Role.PROBER, Role.ENROLL])
async def test_key_without_permission_is_refused(api: RegistryApi, role: Role) -> None:
    assert (await api.ask("POST", PATH, {"url": ORIGIN}, key=role)).status == 403
    assert (await api.ask("GET", PATH, key=role)).status == 403
