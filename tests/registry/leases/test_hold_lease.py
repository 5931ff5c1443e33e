import asyncio
import random
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, select, text, update
from tests.registry.events.test_verify_events import execute
from tests.support.asgi_client import Answer
from tests.support.directory_api import claim
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.access.permissions import Role, digest_of
from lifesign.domain.tasks.lease import Claim
from lifesign.errors import LifesignError
from lifesign.registry.events.verify_events import verify_log
from lifesign.registry.leases.hold_lease import (
    Acquire,
    LeaseOperation,
    LeaseReleaseRequest,
    Renew,
    hold_leases,
)
from lifesign.storage.engine.table_definitions import leases
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys import key_rows
from lifesign.storage.tasks.leases import find, lock

KEYS = "/api/v1/keys"
LEASES = "/api/v1/leases"
BEGIN = "2025-11-20T12:00:00.000Z"


async def _agent(api: RegistryApi, agent_id: str = "agent-1", **members: object) -> str:
    return str((await api.register(agent_id, **members))["agent_key"])


async def _acquire(
    api: RegistryApi, resource: str, key: str | Role, *, ttl_seconds: float = 60, incarnation: str = ""
) -> Answer:
    body = {"resource": resource, "ttl_seconds": ttl_seconds}
    headers = {"x-agent-incarnation": incarnation} if incarnation else {}
    return await api.ask("POST", LEASES, body, key=key, headers=headers)


async def _lease(
    api: RegistryApi, resource: str, key: str | Role, *, ttl_seconds: float = 60
) -> dict[str, Any]:
    answer = await _acquire(api, resource, key, ttl_seconds=ttl_seconds)
    assert answer.status == 201, answer.body
    return dict(answer.json())


async def _renew(
    api: RegistryApi,
    lease: dict[str, Any],
    key: str | Role,
    *,
    token: int | None = None,
    ttl_seconds: float = 60,
) -> Answer:
    body = {"fencing_token": token or lease["fencing_token"], "ttl_seconds": ttl_seconds}
    return await api.ask("POST", f"{LEASES}/{lease['lease_id']}/renew", body, key=key)


async def _release(api: RegistryApi, lease: dict[str, Any], key: str | Role) -> Answer:
    return await api.ask("DELETE", f"{LEASES}/{lease['lease_id']}", key=key)


async def _running_leases(api: RegistryApi, resource: str) -> list[dict[str, Any]]:
    return list((await api.ask("GET", f"{LEASES}?resource={resource}")).json()["leases"])


def _status_and_code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["error"]["code"]


async def _lease_events(api: RegistryApi) -> list[tuple[str, str | None]]:
    events = await api.events()
    return [
        (event["type"], event["payload"].get("reason"))
        for event in events
        if event["type"].startswith("lease.")
    ]


async def test_a_free_resource_is_granted(api: RegistryApi) -> None:
    answer = await _acquire(api, "task:1", await _agent(api))
    lease = answer.json()
    assert answer.status == 201
    assert answer.header("location") == f"{LEASES}/{lease['lease_id']}"
    assert lease["lease_id"].startswith("lease_")
    assert {name: value for name, value in lease.items() if name != "lease_id"} == {
        "resource": "task:1",
        "holder": "agent-1",
        "fencing_token": 1,
        "acquired_at": BEGIN,
        "expires_at": "2025-11-20T12:01:00.000Z",
    }
    assert await _running_leases(api, "task:1") == [lease]


async def test_lease_lasts_five_minutes_by_default(api: RegistryApi) -> None:
    answer = await api.ask("POST", LEASES, {"resource": "task:1"}, key=await _agent(api))
    assert answer.json()["expires_at"] == "2025-11-20T12:05:00.000Z"


async def test_leased_resource_is_refused_with_the_existing_lease(api: RegistryApi) -> None:
    mine, other = await _agent(api), await _agent(api, "agent-2")
    lease = await _lease(api, "task:1", mine)
    for key in (other, mine):
        refused = await _acquire(api, "task:1", key)
        assert _status_and_code(refused) == (409, "lease_held")
        assert refused.json()["existing_lease"] == lease
    assert await _lease_events(api) == [("lease.acquired", None)]


async def test_one_of_many_concurrent_requests_is_granted(api: RegistryApi) -> None:
    keys = [await _agent(api, f"agent-{number}") for number in range(8)]
    answers = await asyncio.gather(*(_acquire(api, "task:1", key) for key in keys * 3))
    assert sorted(answer.status for answer in answers) == [201] + [409] * 23


async def test_each_grant_has_a_higher_token(api: RegistryApi) -> None:
    key = await _agent(api)
    tokens = []
    for _ in range(3):
        lease = await _lease(api, "task:1", key)
        tokens.append(lease["fencing_token"])
        assert (await _release(api, lease, key)).status == 204
    assert tokens == [1, 2, 3]


async def test_lease_ends_at_its_deadline_and_the_next_grant_records_its_expiry(api: RegistryApi) -> None:
    mine, other = await _agent(api), await _agent(api, "agent-2")
    lease = await _lease(api, "task:1", mine)
    api.clock.advance(59.999)
    assert _status_and_code(await _acquire(api, "task:1", other)) == (409, "lease_held")
    api.clock.advance(0.001)
    assert await _running_leases(api, "task:1") == []
    taken = await _lease(api, "task:1", other)
    assert taken["fencing_token"] == lease["fencing_token"] + 1
    assert await _lease_events(api) == [
        ("lease.acquired", None),
        ("lease.expired", "expired"),
        ("lease.acquired", None),
    ]
    assert (await api.record("agent-1"))["status"] == "active"


async def test_a_renewal_moves_the_deadline_and_keeps_the_token(api: RegistryApi) -> None:
    key = await _agent(api)
    lease = await _lease(api, "task:1", key)
    api.clock.advance(59)
    answer = await _renew(api, lease, key, ttl_seconds=100)
    assert answer.status == 200
    assert answer.json() == {**lease, "expires_at": "2025-11-20T12:02:39.000Z"}
    api.clock.advance(99.5)
    assert await _running_leases(api, "task:1") == [answer.json()]
    api.clock.advance(0.5)
    assert await _running_leases(api, "task:1") == []


async def test_renewal_may_shorten_a_lease(api: RegistryApi) -> None:
    key = await _agent(api)
    lease = await _lease(api, "task:1", key, ttl_seconds=600)
    assert (await _renew(api, lease, key, ttl_seconds=1)).json()["expires_at"] == "2025-11-20T12:00:01.000Z"


@pytest.mark.parametrize("is_swept", [False, True])
async def test_renewal_of_an_expired_lease_is_refused(api: RegistryApi, *, is_swept: bool) -> None:
    key = await _agent(api)
    lease = await _lease(api, "task:1", key)
    api.clock.advance(60)
    if is_swept:
        await api.sweep()
    assert _status_and_code(await _renew(api, lease, key)) == (412, "lease_ended")
    assert await _running_leases(api, "task:1") == []


async def test_renewal_of_a_released_lease_is_refused(api: RegistryApi) -> None:
    key = await _agent(api)
    lease = await _lease(api, "task:1", key)
    await _release(api, lease, key)
    assert _status_and_code(await _renew(api, lease, key)) == (412, "lease_ended")


async def test_replaced_lease_is_reported_as_ended(api: RegistryApi) -> None:
    mine, other = await _agent(api), await _agent(api, "agent-2")
    lease = await _lease(api, "task:1", mine)
    api.clock.advance(60)
    taken = await _lease(api, "task:1", other)
    assert _status_and_code(await _renew(api, lease, mine)) == (412, "lease_ended")
    assert _status_and_code(await _release(api, lease, mine)) == (412, "lease_ended")
    assert await _running_leases(api, "task:1") == [taken]


@pytest.mark.parametrize(("added", "code"), [(1, "token_not_issued"), (-1, "stale_token")])
async def test_a_renewal_needs_exactly_the_current_token(api: RegistryApi, added: int, code: str) -> None:
    key = await _agent(api)
    await _release(api, await _lease(api, "task:1", key), key)
    lease = await _lease(api, "task:1", key)
    refused = await _renew(api, lease, key, token=lease["fencing_token"] + added, ttl_seconds=999)
    assert _status_and_code(refused) == (412, code)
    assert refused.json()["error"]["details"]["current_token"] == lease["fencing_token"]
    assert await _running_leases(api, "task:1") == [lease]


def _forged_ids(lease: dict[str, Any]) -> list[str]:
    """Return ids that lead to the row of a lease, and are not its id."""
    stem, _, proof = lease["lease_id"].rpartition("_")
    _, number, token = stem.split("_")
    other = "a" if proof[0] != "a" else "b"
    return [
        stem,
        f"{stem}_{other}{proof[1:]}",
        f"lease_{number}_{int(token) + 1}_{proof}",
        f"lease_{int(number) + 1}_{token}_{proof}",
    ]


async def _refused_alike(api: RegistryApi, lease_id: str, token: int, key: str) -> None:
    """Check that renewal and release by this key are refused as those of a lease that does not exist."""
    messages = set()
    for shown in (lease_id, "lease_999999_1_" + "a" * 26):
        answers = [
            await _renew(api, {"lease_id": shown, "fencing_token": token}, key),
            await _release(api, {"lease_id": shown}, key),
        ]
        for answer in answers:
            assert _status_and_code(answer) == (404, "lease_not_found")
            error = answer.json()["error"]
            assert error["details"] == {"named": shown}
            messages.add(error["message"].replace(shown, "ID"))
    assert len(messages) == 1


async def test_lease_of_another_is_refused_like_one_that_does_not_exist(api: RegistryApi) -> None:
    mine, other = await _agent(api), await _agent(api, "agent-2")
    lease = await _lease(api, "task:1", mine)
    for lease_id in (lease["lease_id"], *_forged_ids(lease)):
        await _refused_alike(api, lease_id, lease["fencing_token"], other)
    assert await _running_leases(api, "task:1") == [lease]
    await _release(api, lease, mine)
    await _refused_alike(api, lease["lease_id"], lease["fencing_token"], other)
    api.clock.advance(1)
    await _lease(api, "task:1", other)
    await _refused_alike(api, lease["lease_id"], lease["fencing_token"], other)
    assert _status_and_code(await _renew(api, lease, mine)) == (412, "lease_ended")


async def test_caller_that_may_acquire_sees_the_holder(api: RegistryApi) -> None:
    mine, other = await _agent(api), await _agent(api, "agent-2")
    lease = await _lease(api, "intent:i/s", mine)
    refused = await _acquire(api, "intent:i/s", other)
    assert _status_and_code(refused) == (409, "lease_held")
    existing = refused.json()["existing_lease"]
    assert existing == lease
    # Knowledge of the id does not help.
    await _refused_alike(api, existing["lease_id"], existing["fencing_token"], other)


@pytest.mark.both_databases
async def test_forged_lease_id_is_not_found_even_by_the_holder(api: RegistryApi) -> None:
    key = await _agent(api)
    lease = await _lease(api, "task:1", key)
    for lease_id in (*_forged_ids(lease), "nonsense", "lease_1_0", "lease_999_1"):
        shown = {"lease_id": lease_id, "fencing_token": lease["fencing_token"]}
        assert _status_and_code(await _renew(api, shown, key)) == (404, "lease_not_found")
        assert _status_and_code(await _release(api, shown, key)) == (404, "lease_not_found")
    assert await _running_leases(api, "task:1") == [lease]


async def test_lease_ids_of_one_resource_have_different_proofs(api: RegistryApi) -> None:
    key = await _agent(api)
    proofs = set()
    for _ in range(5):
        lease = await _lease(api, "task:1", key)
        proofs.add(lease["lease_id"].rpartition("_")[2])
        await _release(api, lease, key)
    assert len(proofs) == 5


@pytest.mark.both_databases
async def test_secret_of_lease_ids_is_never_shown(api: RegistryApi) -> None:
    key = await _agent(api)
    lease = await _lease(api, "intent:i/s", key)

    def secret(transaction: Transaction) -> str:
        return str(transaction.connection.scalar(select(leases.c.id_secret)))

    found = await api.database.read(secret)
    assert len(found) == 32
    shown = [await api.ask("GET", path) for path in (f"{LEASES}?include_ended=true", "/api/v1/events")]
    shown.append(await _acquire(api, "intent:i/s", key))
    assert not [answer for answer in shown if found in answer.body.decode()]
    claim = await api.database.read(lambda transaction: find(transaction, "intent:i/s"))
    assert found not in repr(claim)
    assert lease["lease_id"] in repr(claim)


async def test_second_release_succeeds_with_one_event(api: RegistryApi) -> None:
    key = await _agent(api)
    lease = await _lease(api, "task:1", key)
    assert (await _release(api, lease, key)).status == 204
    assert (await _release(api, lease, key)).status == 204
    assert await _lease_events(api) == [("lease.acquired", None), ("lease.released", "released")]


@pytest.mark.parametrize("role", [Role.COORDINATOR, Role.ADMIN])
async def test_coordinators_and_admins_take_leases_from_others(api: RegistryApi, role: Role) -> None:
    key = await _agent(api)
    lease = await _lease(api, "task:1", key)
    assert (await _release(api, lease, role)).status == 204
    assert await _lease_events(api) == [("lease.acquired", None), ("lease.released", "revoked")]
    assert _status_and_code(await _renew(api, lease, key)) == (412, "lease_ended")


async def test_lease_for_another_agent_is_refused(api: RegistryApi) -> None:
    lease = await _lease(api, "task:1", await _agent(api))
    for role in (Role.ENROLL, Role.READER, Role.PROBER, Role.COORDINATOR):
        assert (await _acquire(api, "task:2", role)).status == 403
    for role in (Role.ENROLL, Role.READER, Role.COORDINATOR):
        assert (await _renew(api, lease, role)).status == 403
    assert (await _release(api, lease, Role.READER)).status == 403
    assert _status_and_code(await _renew(api, lease, Role.PROBER)) == (404, "lease_not_found")
    assert _status_and_code(await _renew(api, lease, Role.ADMIN)) == (403, "not_holder")


@pytest.mark.parametrize("key", [Role.PROBER, Role.ADMIN])
async def test_shard_cannot_be_leased_by_the_lease_api(api: RegistryApi, key: Role) -> None:
    agent = await _agent(api)
    assert _status_and_code(await _acquire(api, "shard:7", agent)) == (403, "not_allowed")
    refused = await _acquire(api, "shard:7", key, ttl_seconds=86_400)
    assert _status_and_code(refused) == (422, "invalid_resource")
    assert refused.json()["message"].startswith("not a resource: expected a shard to be claimed")
    await claim(api)
    (lease,) = await _running_leases(api, "shard:7")
    assert _status_and_code(await _renew(api, lease, Role.PROBER)) == (404, "lease_not_found")
    assert _status_and_code(await _release(api, lease, Role.PROBER)) == (404, "lease_not_found")


async def test_key_without_an_agent_is_refused_with_the_reason(api: RegistryApi) -> None:
    assert (await _acquire(api, "task:1", "ahk_" + "x" * 43)).status == 401
    assert (await api.ask("POST", LEASES, {"resource": "task:1"}, key=None)).status == 401
    # Nothing is left of it.
    assert (await api.ask("GET", f"{LEASES}?include_ended=true")).json()["total"] == 0


async def test_an_unhealthy_agent_keeps_its_leases_and_gets_new_ones(api: RegistryApi) -> None:
    key = await _agent(api)
    lease = await _lease(api, "task:1", key, ttl_seconds=600)
    api.clock.advance(91)
    await api.sweep()
    assert (await api.record("agent-1"))["status"] == "unhealthy"
    assert await _running_leases(api, "task:1") == [lease]
    await _lease(api, "task:2", key)


@pytest.mark.both_databases
async def test_draining_agent_gets_no_lease_and_leaves_after_releasing_all(
    api: RegistryApi,
) -> None:
    key = await _agent(api)
    leases = [await _lease(api, f"task:{number}", key) for number in range(2)]
    await api.ask(
        "PATCH", f"{AGENTS}/agent-1/status", {"status": "draining"}, key=key, headers={"if-match": '"1"'}
    )
    await api.sweep()
    assert _status_and_code(await _acquire(api, "task:9", key)) == (409, "agent_draining")
    assert (await _renew(api, leases[0], key)).status == 200
    for lease in leases:
        assert (await api.record("agent-1"))["status"] == "draining"
        assert (await _release(api, lease, key)).status == 204
        await api.sweep()
    assert (await api.record("agent-1"))["status"] == "deregistered"
    # A repeated release is answered as the first one was.
    assert (await _release(api, leases[0], key)).status == 204


async def test_dead_agent_cannot_acquire_or_renew(api: RegistryApi) -> None:
    key = await _agent(api)
    lease = await _lease(api, "task:1", key)
    await api.ask("DELETE", f"{AGENTS}/agent-1")
    assert await _running_leases(api, "task:1") == []
    assert _status_and_code(await _acquire(api, "task:2", key)) == (410, "agent_gone")
    assert _status_and_code(await _renew(api, lease, key)) == (410, "agent_gone")
    assert _status_and_code(await _release(api, lease, key)) == (412, "lease_ended")
    assert await _lease_events(api) == [("lease.acquired", None), ("lease.expired", "agent_deregistered")]


async def test_former_incarnation_cannot_acquire_or_renew(api: RegistryApi) -> None:
    key = await _agent(api)
    former = await _lease(api, "task:1", key)
    await api.ask("POST", AGENTS, {"agent_id": "agent-1", "supersede": True}, key=key)
    assert (await _acquire(api, "task:2", key, incarnation="1")).status == 410
    assert _status_and_code(await _renew(api, former, key)) == (412, "lease_ended")
    assert (await _acquire(api, "task:2", key, incarnation="2")).status == 201
    assert (await _acquire(api, "task:3", key, incarnation="two")).status == 422


async def test_agent_that_never_registered_holds_leases_like_any_other(api: RegistryApi) -> None:
    """RFC-0016 3.3: registration is optional for standalone agents."""
    key, other = await api.add_agent_key("agent-9"), await _agent(api)
    lease = await _lease(api, "intent:i/s", key, ttl_seconds=60)
    assert lease["holder"] == "agent-9"
    assert _status_and_code(await _acquire(api, "intent:i/s", other)) == (409, "lease_held")
    assert (await _renew(api, lease, key)).status == 200
    headers = {"x-fencing-token": str(lease["fencing_token"])}
    path = "/api/v1/intents/i/state/s"
    assert (await api.ask("PUT", path, {"a": 1}, key=key, headers=headers)).status == 200
    assert (await _release(api, lease, key)).status == 204
    assert (await api.ask("GET", f"{AGENTS}/agent-9")).status == 404
    found = await api.ask("GET", "/api/v1/events", key=key)
    assert [event["type"] for event in found.json()["events"]] == [
        "lease.acquired", "state.written", "lease.released"
    ]  # fmt: skip
    assert (await api.database.read(verify_log)).is_good


async def test_lease_of_an_agent_that_never_registered_ends_with_its_time(api: RegistryApi) -> None:
    key, other = await api.add_agent_key("agent-9"), await _agent(api)
    await _lease(api, "intent:i/s", key, ttl_seconds=60)
    api.clock.advance(60)
    assert (await _acquire(api, "intent:i/s", other)).status == 201
    assert (await api.database.read(verify_log)).is_good


async def test_unregistered_agent_has_no_incarnation(api: RegistryApi) -> None:
    key = await api.add_agent_key("agent-9")
    assert _status_and_code(await _acquire(api, "task:1", key, incarnation="1")) == (404, "agent_not_found")


async def test_leases_from_before_a_registration_end_with_the_agents_death(api: RegistryApi) -> None:
    key = await api.add_agent_key("agent-9")
    await _lease(api, "intent:i/s", key, ttl_seconds=3_600)
    assert (await api.ask("POST", AGENTS, {"agent_id": "agent-9"}, key=key)).status == 201
    api.clock.advance(301)
    await api.sweep()
    assert (await api.record("agent-9"))["status"] == "dead"
    assert await _running_leases(api, "intent:i/s") == []
    assert (await api.database.read(verify_log)).is_good


async def test_lease_events_of_an_intent_scope_contain_the_intent_id(api: RegistryApi) -> None:
    key = await _agent(api)
    await _release(api, await _lease(api, "intent:i1/research/web", key), key)
    await _lease(api, f"intent:{'x' * 200}/scope", key)
    intents = [event.get("intent_id") for event in await api.events() if event["type"].startswith("lease.")]
    assert intents == ["i1", "i1", None]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"resource": ""},
        {"resource": "with space"},
        {"resource": "shard:01"},
        {"resource": "x" * 513},
        {"resource": 7},
        {"resource": "task:1", "ttl_seconds": 0.5},
        {"resource": "task:1", "ttl_seconds": 86_401},
        {"resource": "task:1", "ttl_seconds": "60"},
        {"resource": "task:1", "unknown": 1},
        [],
    ],
)
async def test_invalid_arguments_are_refused(api: RegistryApi, body: object) -> None:
    assert (await api.ask("POST", LEASES, body, key=await _agent(api))).status == 422


async def test_invalid_or_overlong_json_is_refused(api: RegistryApi) -> None:
    key = await _agent(api)
    assert (await api.ask("POST", LEASES, key=key, raw=b"{")).status == 400
    assert (await api.ask("POST", LEASES, key=key, raw=b" " * 5_000)).status == 413


@pytest.mark.both_databases
async def test_requests_of_one_group_are_processed_in_order(api: RegistryApi) -> None:
    digests = [digest_of(await _agent(api, f"agent-{number}")) for number in (1, 2)]

    async def hold(asked: list[LeaseOperation]) -> list[object]:
        answers = await api.database.write(lambda transaction: hold_leases(transaction, asked))
        return [type(answer) if isinstance(answer, LifesignError) else answer for answer in answers]

    (first,) = await hold([Acquire(digest=digests[0], resource="task:1", ttl_s=60)])
    assert isinstance(first, Claim)
    lease_id = str(first.lease_id)
    answers = await hold(
        [
            Renew(digest=digests[0], lease_id=lease_id, token=1, ttl_s=90),
            Acquire(digest=digests[1], resource="task:1", ttl_s=60),
            LeaseReleaseRequest(digest=digests[0], lease_id=lease_id),
            Acquire(digest=digests[1], resource="task:1", ttl_s=60),
            Renew(digest=digests[0], lease_id=lease_id, token=1, ttl_s=90),
            Acquire(digest=digests[0], resource="task:1", ttl_s=60),
        ]
    )
    assert [getattr(answer, "__name__", "") for answer in answers] == [
        "", "LeaseHeld", "", "", "LeaseOver", "LeaseHeld",
    ]  # fmt: skip
    (held,) = await _running_leases(api, "task:1")
    assert (held["holder"], held["fencing_token"]) == ("agent-2", 2)
    assert [kind for kind, _ in await _lease_events(api)] == [
        "lease.acquired",
        "lease.released",
        "lease.acquired",
    ]


@pytest.mark.both_databases
async def test_concurrent_batches_grant_each_new_resource_once(api: RegistryApi) -> None:
    digests = [digest_of(await _agent(api, f"agent-{number}")) for number in range(4)]
    chance = random.Random(3)  # noqa: S311 - no secret
    groups = []
    for digest in digests:
        asked = [Acquire(digest=digest, resource=f"task:{number}", ttl_s=60) for number in range(60)]
        chance.shuffle(asked)
        groups.append(asked)
    answers = await asyncio.gather(
        *(
            api.database.write(lambda transaction, asked=asked: hold_leases(transaction, asked))  # type: ignore[misc]
            for asked in groups
        )
    )
    won = [answer for group in answers for answer in group if isinstance(answer, Claim)]
    assert sorted(claim.resource for claim in won) == sorted(f"task:{number}" for number in range(60))
    assert {claim.token for claim in won} == {1}


@pytest.mark.both_databases
async def test_agent_erased_meanwhile_holds_no_lease(api: RegistryApi) -> None:
    for number in range(15):
        agent_id = f"agent-{number}"
        key = await _agent(api, agent_id)
        acquiring = [_acquire(api, f"task:{agent_id}-{task}", key) for task in range(3)]
        answers = await asyncio.gather(
            *acquiring[:2], api.ask("DELETE", f"{AGENTS}/{agent_id}"), *acquiring[2:]
        )
        assert {answer.status for answer in answers} <= {201, 204, 410}
    assert (await api.ask("GET", LEASES)).json()["total"] == 0


@pytest.mark.parametrize("is_erased", [False, True])
@pytest.mark.both_databases
async def test_lease_that_waits_while_its_key_is_withdrawn_is_not_held(
    api: RegistryApi, *, is_erased: bool
) -> None:
    made = (
        {"role": "agent", "agent_id": "alone", "name": "own"}
        if is_erased
        else {"role": "admin", "name": "second"}
    )
    key = (await api.ask("POST", KEYS, made)).json()
    await _release(api, await _lease(api, "r:1", key["key"]), key["key"])

    def stall(transaction: Transaction) -> None:
        lock(transaction, to_hold=["r:1"])
        if transaction.is_postgresql:
            transaction.connection.execute(text("SELECT pg_sleep(0.6)"))

    stalled = asyncio.create_task(api.database.write(stall))
    await asyncio.sleep(0.2)
    acquired = asyncio.create_task(_acquire(api, "r:1", key["key"]))
    # The request waits for the row by now; if it did not, both orders would be right.
    await asyncio.sleep(0.2)
    path = f"{AGENTS}/alone/record" if is_erased else f"{KEYS}/{key['key_id']}"
    withdrawn = asyncio.create_task(api.ask("DELETE", path))
    await stalled
    assert (await withdrawn).status in {200, 204}
    assert (await acquired).status in {201, 401}
    assert await _running_leases(api, "r:1") == []


@pytest.mark.both_databases
async def test_draining_agent_that_releases_its_last_lease_leaves_at_once(
    api: RegistryApi,
) -> None:
    for number in range(15):
        agent_id = f"agent-{number}"
        key = await _agent(api, agent_id)
        lease = await _lease(api, f"task:{agent_id}", key)
        draining = api.ask(
            "PATCH", f"{AGENTS}/{agent_id}/status", {"status": "draining"}, key=key, headers={"if-match": "*"}
        )
        answers = await asyncio.gather(draining, _release(api, lease, key))
        assert [answer.status for answer in answers] == [200, 204]
        await api.sweep()
        assert (await api.record(agent_id))["status"] == "deregistered"


@pytest.mark.both_databases
async def test_expired_and_revoked_keys_are_refused(api: RegistryApi) -> None:
    key = await _agent(api)
    stored = (await api.database.read(lambda transaction: key_rows.of_agent(transaction, "agent-1")))[0]
    lease = await _lease(api, "task:1", key)
    for expires_at_s, revoked_at_s in ((api.clock.at_s, None), (None, api.clock.at_s)):
        await api.database.write(
            lambda transaction, ends=(expires_at_s, revoked_at_s): key_rows.end(  # type: ignore[misc]
                transaction, stored.key_id, expires_at_s=ends[0], revoked_at_s=ends[1]
            )
        )
        assert (await _acquire(api, "task:2", key)).status == 401
        assert (await _renew(api, lease, key)).status == 401
        assert (await _release(api, lease, key)).status == 401
    assert await _running_leases(api, "task:1") == [lease]
    assert await _running_leases(api, "task:2") == []


async def test_events_of_an_agent_include_its_leases(api: RegistryApi) -> None:
    key = await _agent(api)
    await _release(api, await _lease(api, "task:1", key), Role.ADMIN)
    types = [event["type"] for event in await api.events(agent_id="agent-1")]
    assert [kind for kind in types if kind.startswith("lease.")] == ["lease.acquired", "lease.released"]


@pytest.mark.parametrize("resource", ["INTENT:x/draft", "Task:1", "sharD:1", "task:", "a b"])
async def test_name_error_is_reported_once(api: RegistryApi, resource: str) -> None:
    answer = await api.ask("POST", "/api/v1/leases", {"resource": resource})
    assert answer.status == 422
    assert answer.json()["message"].startswith("/resource: expected ")
    assert "Value error" not in answer.body.decode()


async def test_header_fault_names_the_header(api: RegistryApi) -> None:
    headers = {"x-fencing-token": "x"}
    answer = await api.ask("PUT", "/api/v1/intents/i/state/s", {}, headers=headers)
    assert answer.json()["message"].startswith("X-Fencing-Token: expected a whole number")


async def test_stored_lease_with_a_now_invalid_name_still_expires_with_an_event(api: RegistryApi) -> None:
    lease = await _lease(api, "intent:i1/a/b", await _agent(api), ttl_seconds=10)
    older = update(leases).values(resource="intent:../a/./b")
    await execute(api, older)
    api.clock.advance(11)
    await api.sweep()
    (event,) = await api.events(type="lease.expired")
    assert (event["payload"]["lease_id"], event["intent_id"]) == (lease["lease_id"], "..")


@pytest.mark.both_databases
async def test_postgresql_uses_the_index_of_a_table_that_has_just_grown(api: RegistryApi) -> None:
    database = api.registry.database
    digest = digest_of(await _agent(api))

    def hold(transaction: Transaction, number: int) -> list[Claim]:
        wanted: list[LeaseOperation] = [
            Acquire(digest=digest, resource=f"task:{number}-{one}", ttl_s=60.0) for one in range(3)
        ]
        held = [claim for claim in hold_leases(transaction, wanted) if isinstance(claim, Claim)]
        released: list[LeaseOperation] = [
            LeaseReleaseRequest(digest=digest, lease_id=claim.lease_id or "") for claim in held
        ]
        return [claim for claim in hold_leases(transaction, released) if isinstance(claim, Claim)]

    def add(transaction: Transaction, rows: list[dict[str, Any]]) -> None:
        transaction.connection.execute(insert(leases), rows)

    def rows_read(transaction: Transaction) -> int:
        assert len(hold(transaction, 1_000)) == 3
        if not transaction.is_postgresql:
            return 0
        return int(transaction.connection.scalar(text(
            "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'leases'"
        )) or 0)  # fmt: skip

    # Until the statements have their plans, which are kept.
    for number in range(10):
        await database.write(partial(hold, number=number))
    others = [{"resource": f"other:{number}", "token": 0} for number in range(2_000)]
    await database.write(lambda transaction: add(transaction, others))
    assert await database.write(rows_read) == 0
