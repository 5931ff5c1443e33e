import asyncio
import json

import pytest
from pydantic import ValidationError
from tests.support.databases import WoundClock
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role, is_valid
from lifesign.domain.targets.target import SHARDS, target_id
from lifesign.registry.errors import KeyEnded, KeyNotFound, LastAdminKey
from lifesign.registry.events.verify_events import verify_log
from lifesign.registry.keys.manage_keys import (
    KeyRotation,
    NewKey,
    create_first_admin_key,
    create_key,
    revoke_key,
    rotate_key,
)
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import event_log
from lifesign.storage.keys import key_rows

KEYS = "/api/v1/keys"
LEASES = "/api/v1/leases"


async def create(database: Database, **members: object) -> str:
    """Create a key and return its id."""
    new = NewKey.model_validate({"role": "reader", "name": "somebody", **members})
    stored, _ = await database.write(lambda transaction: create_key(transaction, new, "somebody"))
    return stored.key_id


async def is_good(database: Database, key_id: str) -> bool:
    def function(transaction: Transaction) -> bool:
        stored = key_rows.find_by_id(transaction, key_id)
        return stored is not None and is_valid(stored, stored.digest, transaction.now_s)

    return await database.read(function)


async def key_events(database: Database) -> list[tuple[str, str]]:
    found = await database.read(lambda transaction: event_log.after(transaction, 0, limit=1000))
    return [(event.type.value, event.payload["key_id"]) for event in found]


async def revoke(database: Database, key_id: str) -> None:
    await database.write(lambda transaction: revoke_key(transaction, key_id, "somebody"))


async def test_key_is_valid_until_its_expiry(database: Database, clock: WoundClock) -> None:
    key_id = await create(database, expires_in_seconds=60)
    clock.advance(59.9)
    assert await is_good(database, key_id)
    clock.advance(0.1)
    assert not await is_good(database, key_id)


async def test_rotated_key_stays_valid_until_the_end_of_the_overlap(
    database: Database, clock: WoundClock
) -> None:
    old = await create(database, role="agent", agent_id="agent-1")
    new, _ = await database.write(
        lambda transaction: rotate_key(transaction, old, KeyRotation(overlap_seconds=3600), "somebody")
    )
    assert (new.role, new.agent_id, new.expires_at_s) == (Role.AGENT, "agent-1", None)
    clock.advance(3599)
    assert await is_good(database, old)
    clock.advance(1)
    assert not await is_good(database, old)
    assert await is_good(database, new.key_id)
    assert await key_events(database) == [
        ("key.created", old),
        ("key.rotated", old),
        ("key.created", new.key_id),
    ]


async def test_key_rotated_without_an_overlap_stays_ended_if_the_clock_is_set_back(
    database: Database, clock: WoundClock
) -> None:
    old = await create(database)
    rotation = KeyRotation(overlap_seconds=0)
    new, _ = await database.write(lambda transaction: rotate_key(transaction, old, rotation, "somebody"))
    clock.advance(-3600)
    assert not await is_good(database, old)
    assert await is_good(database, new.key_id)
    assert (await database.read(verify_log)).is_good


async def test_rotation_does_not_extend_the_former_key(database: Database, clock: WoundClock) -> None:
    old = await create(database, expires_in_seconds=100)
    clock.advance(90)
    rotation = KeyRotation(overlap_seconds=3600)
    new, _ = await database.write(lambda transaction: rotate_key(transaction, old, rotation, "somebody"))
    assert new.expires_at_s == clock.now_s() + 100
    clock.advance(10)
    assert not await is_good(database, old)


@pytest.mark.both_databases
@pytest.mark.parametrize("how", ["expired", "revoked"])
async def test_expired_key_cannot_be_rotated(database: Database, clock: WoundClock, how: str) -> None:
    key_id = await create(database, expires_in_seconds=60)
    if how == "revoked":
        await revoke(database, key_id)
    else:
        clock.advance(60)
    with pytest.raises(KeyEnded):
        await database.write(lambda transaction: rotate_key(transaction, key_id, KeyRotation(), "somebody"))


async def test_revocation_takes_effect_at_once_and_only_once(database: Database) -> None:
    key_id = await create(database)
    await revoke(database, key_id)
    await revoke(database, key_id)
    assert not await is_good(database, key_id)
    assert await key_events(database) == [("key.created", key_id), ("key.revoked", key_id)]


async def test_unknown_key_cannot_be_revoked(database: Database) -> None:
    with pytest.raises(KeyNotFound):
        await revoke(database, "key_nobody")


@pytest.mark.both_databases
async def test_last_valid_admin_key_cannot_be_revoked(database: Database, clock: WoundClock) -> None:
    first = await create(database, role="admin")
    brief = await create(database, role="admin", expires_in_seconds=60)
    clock.advance(60)
    with pytest.raises(LastAdminKey):
        await revoke(database, first)
    await revoke(database, brief)
    second = await create(database, role="admin")
    await revoke(database, first)
    with pytest.raises(LastAdminKey):
        await revoke(database, second)


@pytest.mark.both_databases
async def test_one_admin_remains_if_two_revoke_each_other(database: Database) -> None:
    admins = [await create(database, role="admin") for _ in range(2)]
    outcomes = await asyncio.gather(*(revoke(database, key_id) for key_id in admins), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LastAdminKey", "NoneType"]


@pytest.mark.both_databases
async def test_first_admin_key_is_created_only_once(database: Database) -> None:
    first = await database.write(lambda transaction: create_first_admin_key(transaction, "server"))
    assert first is not None
    assert await database.write(lambda transaction: create_first_admin_key(transaction, "server")) is None


async def test_a_key_is_shown_once_and_its_digest_never(api: RegistryApi) -> None:
    created = await api.ask("POST", KEYS, {"role": "reader", "name": "dashboard", "expires_in_seconds": 60})
    assert created.status == 201
    key = created.json()["key"]
    assert (await api.ask("GET", "/api/v1/agents", key=key)).status == 200
    listed = await api.ask("GET", KEYS)
    (found,) = (one for one in listed.json()["keys"] if one["name"] == "dashboard")
    assert found.keys() == {"key_id", "name", "role", "created_at", "expires_at", "is_valid", "is_suspended"}
    assert key not in listed.body.decode()
    assert key not in json.dumps(await api.events())


async def test_a_key_can_be_rotated_and_revoked_over_http(api: RegistryApi, clock: WoundClock) -> None:
    created = (await api.ask("POST", KEYS, {"role": "reader", "name": "dashboard"})).json()
    rotated = await api.ask("POST", f"{KEYS}/{created['key_id']}/rotate", {"overlap_seconds": 10})
    assert rotated.status == 201
    successor = rotated.json()
    clock.advance(10)
    assert (await api.ask("GET", "/api/v1/agents", key=created["key"])).status == 401
    assert (await api.ask("GET", "/api/v1/agents", key=successor["key"])).status == 200
    assert (await api.ask("DELETE", f"{KEYS}/{successor['key_id']}")).status == 204
    assert (await api.ask("GET", "/api/v1/agents", key=successor["key"])).status == 401
    types = [event["type"] for event in await api.events()]
    assert types == ["key.created", "key.rotated", "key.created", "key.revoked"]


async def test_leases_of_a_key_end_with_its_rotation_without_an_overlap(api: RegistryApi) -> None:
    created = (await api.ask("POST", KEYS, {"role": "admin", "name": "jobs"})).json()
    held = await api.ask("POST", LEASES, {"resource": "job"}, key=created["key"])
    assert held.status == 201
    rotation = await api.ask("POST", f"{KEYS}/{created['key_id']}/rotate", {"overlap_seconds": 0})
    again = await api.ask("POST", LEASES, {"resource": "job"}, key=rotation.json()["key"])
    assert again.status == 201


async def test_keys_are_listed_page_by_page(api: RegistryApi) -> None:
    seen: list[str] = []
    path = f"{KEYS}?limit=2"
    while True:
        page = (await api.ask("GET", path)).json()
        seen += [key["key_id"] for key in page["keys"]]
        if "cursor" not in page:
            break
        path = f"{KEYS}?limit=2&cursor={page['cursor']}"
    assert len(seen) == len(set(seen)) == page["total"] == len(Role) - 1
    assert (await api.ask("GET", f"{KEYS}?role=admin")).json()["total"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"role": "king", "name": "x"},
        {"role": "reader"},
        {"role": "agent", "name": "without an agent"},
        {"role": "reader", "name": "x", "agent_id": "agent-1"},
        {"role": "reader", "name": "x\ny"},
        {"role": "reader", "name": "x", "expires_in_seconds": 0},
        {"role": "reader", "name": "x", "key": "ahk_mine"},
    ],
)
async def test_invalid_key_request_is_refused(api: RegistryApi, body: dict[str, object]) -> None:
    assert (await api.ask("POST", KEYS, body)).status == 422


@pytest.mark.parametrize("role", [role for role in Role if role not in {Role.ADMIN, Role.AGENT}])
async def test_only_admins_manage_keys(api: RegistryApi, role: Role) -> None:
    assert (await api.ask("GET", KEYS, key=role)).status == 403
    assert (await api.ask("POST", KEYS, {"role": "admin", "name": "me"}, key=role)).status == 403


@pytest.mark.both_databases
async def test_last_admin_key_cannot_be_revoked_over_http(api: RegistryApi) -> None:
    (admin,) = (await api.ask("GET", f"{KEYS}?role=admin")).json()["keys"]
    refused = await api.ask("DELETE", f"{KEYS}/{admin['key_id']}")
    assert (refused.status, refused.json()["error"]["code"]) == (409, "last_admin_key")
    assert (await api.ask("DELETE", f"{KEYS}/key_nobody")).status == 404


@pytest.mark.parametrize("cursor", ["x", "key_reader_", "WyJsZWFzZXMiLCAxXQ"])
async def test_invalid_cursor_of_a_key_list_is_refused(api: RegistryApi, cursor: str) -> None:
    answer = await api.ask("GET", f"{KEYS}?cursor={cursor}")
    assert (answer.status, answer.json()["error"]["code"]) == (422, "invalid_request")


async def test_key_for_a_reserved_actor_name_is_refused(api: RegistryApi) -> None:
    body = {"role": "coordinator", "name": "x", "agent_id": "monitor"}
    assert (await api.ask("POST", KEYS, body)).status == 422


async def test_key_for_a_target_id_is_refused(api: RegistryApi) -> None:
    found = target_id("https://agent.example/")
    for role in (Role.AGENT, Role.COORDINATOR):
        body = {"role": role, "name": "x", "agent_id": found}
        assert (await api.ask("POST", KEYS, body)).status == 422
        with pytest.raises(ValidationError, match="probed targets"):
            NewKey(role=role, name="x", agent_id=found)


async def test_worker_limit_of_a_key_is_changed_and_removed(api: RegistryApi) -> None:
    for limit in (2, 2, None):
        answer = await api.ask("PATCH", f"{KEYS}/key_prober_", {"max_workers": limit})
        assert (answer.status, answer.json().get("max_workers")) == (200, limit)
    events = await api.events(type="key.limited")
    assert [event["payload"].get("max_workers") for event in events] == [2, None]


@pytest.mark.parametrize(
    ("key_id", "body", "status"),
    [
        ("key_prober_", {}, 422),
        ("key_prober_", {"max_workers": 0}, 422),
        ("key_prober_", {"max_workers": SHARDS + 1}, 422),
        ("key_reader_", {"max_workers": 2}, 422),
        ("key_nobody", {"max_workers": 2}, 404),
    ],
)
async def test_invalid_worker_limit_is_refused(
    api: RegistryApi, key_id: str, body: dict[str, int], status: int
) -> None:
    assert (await api.ask("PATCH", f"{KEYS}/{key_id}", body)).status == status
    assert await api.events(type="key.limited") == []
