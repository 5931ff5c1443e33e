from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.support.databases import WoundClock, migrated_url
from tests.support.directory_api import put
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.events.chain import Checkpoint
from lifesign.domain.events.database_marker import DatabaseMarker
from lifesign.domain.targets.target import target_id
from lifesign.registry.agents.erase_agent import erase_agent
from lifesign.registry.backup import create_backup as functions
from lifesign.registry.backup.carry_over_revocations import RevokedCredentials
from lifesign.registry.backup.create_backup import Restored
from lifesign.registry.database_identity.marker_check import current_marker
from lifesign.registry.events.archive_events import archive
from lifesign.registry.events.erase_archives import erase_archives
from lifesign.registry.events.verify_events import verify_log
from lifesign.registry.targets.opt_out_origins import has_opted_out, prove
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.table_definitions import directories
from lifesign.storage.events import webhooks
from lifesign.storage.keys import sessions
from lifesign.storage.keys.sessions import StoredSession
from lifesign.storage.whole_database import all_rows

KEYS = "/api/v1/keys"
WEBHOOKS = "/api/v1/webhooks"
OPT_OUTS = "/api/v1/opt-outs"
ORIGIN = "https://agent.example"
MONITOR = "/api/v1/monitor"


@pytest.fixture
async def api(database_kind: str, tmp_path: Path, clock: WoundClock) -> AsyncIterator[RegistryApi]:
    """A registry with a database that its own test restores."""
    database = open_database(migrated_url(database_kind, tmp_path), clock=clock.now_s)
    api = RegistryApi(database, clock)
    await api.add_keys()
    yield api
    await database.close()


async def back_up(api: RegistryApi, file: Path) -> None:
    """Make a backup, and then advance the clock."""
    await api.database.read(lambda transaction: functions.back_up(transaction, file))
    api.clock.advance(1)


async def restored(
    api: RegistryApi, file: Path, *, marker: DatabaseMarker | None = None, trusts_all_keys: bool = False
) -> Restored:
    """Restore the backup in place of the present content; the log stays intact."""
    found = await api.database.write(
        lambda transaction: functions.restore(
            transaction,
            file,
            is_forced=True,
            actor="command-line",
            marker=marker,
            trusts_all_keys=trusts_all_keys,
        )
    )
    assert (await api.database.read(verify_log)).is_good
    return found


async def create_key(api: RegistryApi, **members: object) -> tuple[str, str]:
    """Return a new key and its id."""
    answer = await api.ask("POST", KEYS, {"role": "reader", "name": "alice", **members})
    assert answer.status == 201, answer.body
    return answer.json()["key"], answer.json()["key_id"]


async def status_with(api: RegistryApi, key: str) -> int:
    """Return the answer that a key gets when it asks for the monitor."""
    return (await api.ask("GET", MONITOR, key=key)).status


def knows_all(withdrawn: RevokedCredentials) -> bool:
    return not (withdrawn.unknown_keys or withdrawn.unknown_agent_keys or withdrawn.unknown_webhooks)


async def test_key_revoked_after_the_backup_stays_revoked(api: RegistryApi, tmp_path: Path) -> None:
    key, key_id = await create_key(api)
    kept, _ = await create_key(api)
    await back_up(api, tmp_path / "b.gz")
    assert (await api.ask("DELETE", f"{KEYS}/{key_id}")).status == 204
    for _ in range(2):
        # The carried-over state is in the database that the next one replaces.
        found = (await restored(api, tmp_path / "b.gz")).withdrawn
        assert [one.key_id for one in found.keys] == [key_id]
        assert knows_all(found)
        assert await status_with(api, key) == 401
        assert await status_with(api, kept) == 200
    last = (await api.events(type="key.revoked"))[-1]
    assert (last["actor"], last["payload"]["key_id"]) == ("command-line", key_id)


async def test_key_rotated_after_the_backup_keeps_its_expiry_and_successor(
    api: RegistryApi, tmp_path: Path
) -> None:
    key, key_id = await create_key(api)
    await back_up(api, tmp_path / "b.gz")
    other, _ = await create_key(api, name="bob")
    answer = await api.ask("POST", f"{KEYS}/{key_id}/rotate", {"overlap_seconds": 60})
    successor = answer.json()["key"]
    found = (await restored(api, tmp_path / "b.gz")).withdrawn
    assert [one.key_id for one in found.successors] == [answer.json()["key_id"]]
    assert [await status_with(api, one) for one in (key, successor, other)] == [200, 200, 401]
    api.clock.advance(60)
    assert [await status_with(api, one) for one in (key, successor)] == [401, 200]


@pytest.mark.parametrize("is_revoked", [False, True])
@pytest.mark.both_databases
async def test_successor_of_a_key_that_ends_before_its_overlap_is_kept(
    api: RegistryApi, tmp_path: Path, *, is_revoked: bool
) -> None:
    key, key_id = await create_key(api, expires_in_seconds=1800)
    await back_up(api, tmp_path / "b.gz")
    answer = await api.ask("POST", f"{KEYS}/{key_id}/rotate", {"overlap_seconds": 3600})
    if is_revoked:
        await api.ask("DELETE", f"{KEYS}/{key_id}")
    for _ in range(2):
        found = (await restored(api, tmp_path / "b.gz")).withdrawn
        assert [one.key_id for one in found.successors] == [answer.json()["key_id"]]
        found_status = [await status_with(api, one) for one in (key, answer.json()["key"])]
        assert found_status == [401 if is_revoked else 200, 200]
    # Without a rotation, a restore logs none.
    rotations = len(await api.events(type="key.rotated"))
    await back_up(api, tmp_path / "c.gz")
    await restored(api, tmp_path / "c.gz")
    assert len(await api.events(type="key.rotated")) == rotations


@pytest.mark.both_databases
async def test_directory_belongs_to_the_newest_successor_of_its_key(api: RegistryApi, tmp_path: Path) -> None:
    """Both keys have the same name."""
    page = {"urls": ["https://agent.example/"]}
    owners = {}
    for name in ("one", "two"):
        prober, owners[name] = await create_key(api, role="prober")
        path = f"/api/v1/directories/{name}/imports/first/pages/1"
        assert (await api.ask("PUT", path, page, key=prober)).status == 200
    await back_up(api, tmp_path / "b.gz")
    for name in ("two", "one", "one", "two"):
        api.clock.advance(1)
        answer = await api.ask("POST", f"{KEYS}/{owners[name]}/rotate", {"overlap_seconds": 60})
        owners[name] = answer.json()["key_id"]
    wanted = select(directories.c.name, directories.c.owner)
    # Events may have been archived.
    await archive(api.database, tmp_path / "archive", api.clock.now_s() + 1)
    for _ in range(2):
        await restored(api, tmp_path / "b.gz")
        found = await api.database.read(lambda transaction: [*transaction.connection.execute(wanted)])
        assert {row.name: row.owner for row in found} == owners


@pytest.mark.both_databases
async def test_successor_key_revoked_after_the_backup_stays_revoked(api: RegistryApi, tmp_path: Path) -> None:
    _, key_id = await create_key(api)
    await back_up(api, tmp_path / "b.gz")
    successor = (await api.ask("POST", f"{KEYS}/{key_id}/rotate", {})).json()
    await api.ask("DELETE", f"{KEYS}/{successor['key_id']}")
    assert (await restored(api, tmp_path / "b.gz")).withdrawn.successors == ()
    assert await status_with(api, successor["key"]) == 401


async def test_expiry_in_the_backup_is_not_moved_to_a_later_time(api: RegistryApi, tmp_path: Path) -> None:
    """The database that is replaced may be the older one."""
    key, key_id = await create_key(api)
    await back_up(api, tmp_path / "older.gz")
    await api.ask("DELETE", f"{KEYS}/{key_id}")
    later, later_id = await create_key(api)
    await back_up(api, tmp_path / "b.gz")
    await api.database.write(all_rows.remove_all)
    await restored(api, tmp_path / "older.gz", trusts_all_keys=True)
    found = (await restored(api, tmp_path / "b.gz")).withdrawn
    assert await status_with(api, key) == 401
    assert await status_with(api, later) == 401
    named = {one.key_id for one in found.unknown_keys}
    assert later_id in named
    assert key_id not in named


@pytest.mark.both_databases
async def test_keys_unknown_to_the_replaced_database_need_confirmation(
    api: RegistryApi, tmp_path: Path
) -> None:
    reader, reader_id = await create_key(api)
    agents = (await api.register())["agent_key"]
    await back_up(api, tmp_path / "b.gz")
    await api.database.write(all_rows.remove_all)
    found = await restored(api, tmp_path / "b.gz")
    assert await status_with(api, reader) == 401
    assert (await api.send_heartbeat("agent-1", agents)).status == 401
    # No other admin key is valid.
    api.keys[Role.ADMIN] = str(found.admin_key)
    listed = (await api.ask("GET", f"{KEYS}?role=reader")).json()["keys"]
    assert {(one["is_valid"], one["is_suspended"]) for one in listed} == {(False, True)}
    confirmed = await api.ask("POST", f"{KEYS}/{reader_id}/confirm")
    assert confirmed.json()["is_valid"]
    assert await status_with(api, reader) == 200
    assert (await api.events(type="key.confirmed"))[-1]["payload"]["key_id"] == reader_id
    # Another restore of the same knows it, and confirms no other.
    await restored(api, tmp_path / "b.gz")
    assert await status_with(api, reader) == 200
    assert (await api.send_heartbeat("agent-1", agents)).status == 401
    assert (await api.database.read(verify_log)).is_good


async def test_suspended_key_can_be_revoked_permanently(api: RegistryApi, tmp_path: Path) -> None:
    _, key_id = await create_key(api)
    await back_up(api, tmp_path / "b.gz")
    await api.database.write(all_rows.remove_all)
    api.keys[Role.ADMIN] = str((await restored(api, tmp_path / "b.gz")).admin_key)
    assert (await api.ask("POST", f"{KEYS}/{key_id}/rotate", {})).status == 409
    assert (await api.ask("DELETE", f"{KEYS}/{key_id}")).status == 204
    assert (await api.ask("POST", f"{KEYS}/{key_id}/confirm")).status == 409
    assert (await api.ask("POST", f"{KEYS}/key_none/confirm")).status == 404
    assert (await api.database.read(verify_log)).is_good


async def test_trusted_keys_are_valid_after_a_move_to_another_database(
    api: RegistryApi, tmp_path: Path
) -> None:
    key, _ = await create_key(api)
    await back_up(api, tmp_path / "b.gz")
    await api.database.write(all_rows.remove_all)
    found = await restored(api, tmp_path / "b.gz", trusts_all_keys=True)
    assert found.admin_key is None
    assert await status_with(api, key) == 200


async def test_unreadable_old_database_lists_all_restored_keys(api: RegistryApi, tmp_path: Path) -> None:
    _, key_id = await create_key(api)
    await api.ask("DELETE", f"{KEYS}/{key_id}")
    _, good_id = await create_key(api)
    await api.register()
    hook = (await api.ask("POST", WEBHOOKS, {"url": "https://hook.example/"})).json()
    await back_up(api, tmp_path / "b.gz")
    await api.database.write(all_rows.remove_all)
    found = (await restored(api, tmp_path / "b.gz")).withdrawn
    named = {one.key_id for one in found.unknown_keys}
    assert good_id in named
    assert key_id not in named
    assert {one.role for one in found.unknown_keys} == set(Role) - {Role.AGENT}
    assert found.unknown_agent_keys == 1
    assert [one.id for one in found.unknown_webhooks] == [hook["webhook_id"]]


@pytest.mark.both_databases
@pytest.mark.parametrize("is_older", [False, True])
async def test_replaced_database_that_lacks_changes_vouches_for_no_key(
    api: RegistryApi, tmp_path: Path, *, is_older: bool
) -> None:
    """It is behind the host's marker, or it ends before the backup."""
    key, key_id = await create_key(api)
    _, revoked_id = await create_key(api)
    hook = (await api.ask("POST", WEBHOOKS, {"url": "https://hook.example/"})).json()
    await back_up(api, tmp_path / "older.gz")
    await api.ask("DELETE", f"{KEYS}/{revoked_id}")
    path = f"{WEBHOOKS}/{hook['webhook_id']}/rotate"
    secret = (await api.ask("POST", path, {"overlap_seconds": 0})).json()["secret"]
    await back_up(api, tmp_path / "b.gz")
    marker = await api.database.write(current_marker)
    if is_older:
        await api.database.write(all_rows.remove_all)
        await restored(api, tmp_path / "older.gz", trusts_all_keys=True)
        found = await restored(api, tmp_path / "b.gz")
    else:
        later = Checkpoint(marker.head.sequence + 1, "a" * 64)
        found = await restored(api, tmp_path / "b.gz", marker=replace(marker, head=later))
    assert found.may_lack_changes
    named = {one.key_id for one in found.withdrawn.unknown_keys}
    assert key_id in named
    assert revoked_id not in named
    assert [one.id for one in found.withdrawn.unknown_webhooks] == [hook["webhook_id"]]
    assert await status_with(api, key) == 401
    (stored,) = await api.database.read(lambda transaction: webhooks.listing(transaction, 10))
    assert stored.secret == secret
    # The next one replaces the known database.
    api.keys[Role.ADMIN] = str(found.admin_key)
    await back_up(api, tmp_path / "b.gz")
    known = await api.database.write(current_marker)
    again = await restored(api, tmp_path / "b.gz", marker=known)
    assert not again.may_lack_changes
    assert knows_all(again.withdrawn)


async def test_restore_ends_sessions(api: RegistryApi, tmp_path: Path) -> None:
    session = StoredSession(digest="d" * 64, key_id="key_reader_", created_at_s=1.0, expires_at_s=1e12)
    await api.database.write(lambda transaction: sessions.add(transaction, session, 1))
    await back_up(api, tmp_path / "b.gz")
    await restored(api, tmp_path / "b.gz")
    assert await api.database.read(lambda transaction: sessions.find(transaction, "d" * 64)) is None


@pytest.mark.both_databases
async def test_sessions_of_an_older_backup_are_left_out(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = StoredSession(digest="d" * 64, key_id="key_reader_", created_at_s=1.0, expires_at_s=1e12)
    await api.database.write(lambda transaction: sessions.add(transaction, session, 1))
    monkeypatch.setattr(all_rows, "KEPT", all_rows.TABLES)
    await back_up(api, tmp_path / "b.gz")
    await restored(api, tmp_path / "b.gz")
    assert await api.database.read(lambda transaction: sessions.find(transaction, "d" * 64)) is None


async def test_key_of_an_agent_erased_after_the_backup_stays_refused(
    api: RegistryApi, tmp_path: Path
) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.register("agent-2")
    await api.ask("DELETE", f"{AGENTS}/agent-2/record")
    api.clock.advance(1)
    reborn = (await api.register("agent-2"))["agent_key"]
    unregistered = await api.add_agent_key("agent-3")
    await api.ask("POST", "/api/v1/leases", {"resource": "r:1"}, key=unregistered)
    await back_up(api, tmp_path / "b.gz")
    await api.ask("DELETE", f"{AGENTS}/agent-1/record")
    await api.ask("DELETE", f"{AGENTS}/agent-3/record")
    result = await restored(api, tmp_path / "b.gz")
    found = result.withdrawn
    assert (result.agents, found.erased_agents) == (1, ("agent-1", "agent-3"))
    assert (await api.ask("GET", "/api/v1/leases?holder=agent-3")).json()["leases"] == []
    # The agent's key is revoked, so that the restore need not list it.
    assert knows_all(found)
    assert (await api.send_heartbeat("agent-1", key)).status == 401
    assert (await api.send_heartbeat("agent-2", reborn)).status == 200
    assert (await api.ask("GET", f"{AGENTS}/agent-1")).status == 404


@pytest.mark.both_databases
async def test_erasure_in_the_backup_is_not_repeated_after_a_jump_of_the_clock(
    api: RegistryApi, tmp_path: Path
) -> None:
    await api.register("agent-1")
    api.clock.advance(86_400)
    await api.database.write(lambda transaction: erase_agent(transaction, "agent-1", "admin"))
    api.clock.advance(-86_400)
    key = (await api.register("agent-1"))["agent_key"]
    await back_up(api, tmp_path / "b.gz")
    assert (await restored(api, tmp_path / "b.gz")).withdrawn.erased_agents == ()
    assert (await api.send_heartbeat("agent-1", key)).status == 200


@pytest.mark.both_databases
async def test_erasures_of_another_installation_are_not_carried_over(
    api: RegistryApi, tmp_path: Path, database_kind: str
) -> None:
    await api.register("agent-1")
    await api.database.write(current_marker)
    await back_up(api, tmp_path / "b.gz")
    (tmp_path / "other").mkdir()
    database = open_database(migrated_url(database_kind, tmp_path / "other"), clock=api.clock.now_s)
    other = RegistryApi(database, api.clock)
    await other.add_keys()
    await other.register("agent-1")
    await other.ask("DELETE", f"{AGENTS}/agent-1/record")
    await database.write(current_marker)
    found = await restored(other, tmp_path / "b.gz", trusts_all_keys=True)
    assert (found.agents, found.withdrawn.erased_agents) == (1, ())
    await database.close()


async def test_found_agent_that_was_erased_after_the_backup_stays_erased(
    api: RegistryApi, tmp_path: Path
) -> None:
    """It has a record, but no key."""
    url = f"{ORIGIN}/"
    await put(api, "directory", "first", [url])
    await api.report(
        {
            "target_url": url,
            "observed_at": api.time_text(),
            "transport": {"result": "ok"},
        }
    )
    await back_up(api, tmp_path / "b.gz")
    assert (await api.ask("DELETE", f"{AGENTS}/{target_id(url)}/record")).status == 200
    assert (await restored(api, tmp_path / "b.gz")).withdrawn.erased_agents == (target_id(url),)


async def test_agent_that_registered_while_the_clock_was_ahead_stays_erased(
    api: RegistryApi, tmp_path: Path
) -> None:
    key = await api.add_agent_key("agent-1")
    api.clock.advance(3_600)
    assert (await api.ask("POST", AGENTS, {"agent_id": "agent-1"}, key=key)).status == 201
    api.clock.advance(-3_600)
    await back_up(api, tmp_path / "b.gz")
    assert (await api.ask("DELETE", f"{AGENTS}/agent-1/record")).status == 200
    result = await restored(api, tmp_path / "b.gz", trusts_all_keys=True)
    assert (result.agents, result.withdrawn.erased_agents) == (0, ("agent-1",))
    api.clock.advance(3_600)
    assert (await api.send_heartbeat("agent-1", key)).status == 401


@pytest.mark.both_databases
async def test_agent_stays_erased_after_its_erasure_was_archived(api: RegistryApi, tmp_path: Path) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.register("agent-2")
    await back_up(api, tmp_path / "b.gz")
    await api.ask("DELETE", f"{AGENTS}/agent-1/record")
    # agent-2 is erased and registered again; the backup has the record from before its erasure.
    await api.ask("DELETE", f"{AGENTS}/agent-2/record")
    api.clock.advance(1)
    await api.register("agent-2")
    api.clock.advance(1)
    later = tmp_path / "later"
    assert await archive(api.database, later, api.clock.now_s()) is not None
    await erase_archives(api.database, later)
    assert await api.events(type="agent.erased") == []
    for _ in range(2):
        found = (await restored(api, tmp_path / "b.gz")).withdrawn
        assert found.erased_agents == ("agent-1", "agent-2")
        assert (await api.send_heartbeat("agent-1", key)).status == 401
        assert (await api.ask("GET", f"{AGENTS}/agent-1")).status == 404


@pytest.mark.both_databases
async def test_limit_of_a_key_that_was_set_or_lowered_after_the_backup_stays(
    api: RegistryApi, tmp_path: Path
) -> None:
    keys = [await create_key(api, role="prober", name=name) for name in ("set", "lowered", "raised", "kept")]
    limits = {key_id: f"{KEYS}/{key_id}" for _, key_id in keys}

    async def limit(*numbers: int | None) -> None:
        for path, number in zip(limits.values(), numbers, strict=True):
            answer = await api.ask("PATCH", path, {"max_workers": number})
            assert answer.status == 200, answer.body

    await limit(None, 8, 8, 8)
    await back_up(api, tmp_path / "b.gz")
    await limit(2, 2, 20, 8)
    for _ in range(2):
        found = (await restored(api, tmp_path / "b.gz")).withdrawn
        assert [key.key_id for key in found.limited_keys] == [key_id for _, key_id in keys[:2]]
        listed = (await api.ask("GET", KEYS)).json()["keys"]
        assert [key["max_workers"] for key in listed if key["key_id"] in limits] == [2, 2, 8, 8]
    assert [event["payload"]["max_workers"] for event in (await api.events(type="key.limited"))[-2:]] == [
        2,
        2,
    ]


@pytest.mark.both_databases
async def test_webhooks_deleted_or_disabled_after_the_backup_send_nothing(
    api: RegistryApi, tmp_path: Path
) -> None:
    made = [
        (await api.ask("POST", WEBHOOKS, {"url": f"https://hook-{number}.example/"})).json()["webhook_id"]
        for number in range(3)
    ]
    await back_up(api, tmp_path / "b.gz")
    await api.ask("DELETE", f"{WEBHOOKS}/{made[0]}")
    await api.database.write(lambda transaction: webhooks.disable(transaction, made[1]))
    found = (await restored(api, tmp_path / "b.gz")).withdrawn
    assert found.webhooks == tuple(made[:2])
    assert found.unknown_webhooks == ()
    listed = (await api.ask("GET", WEBHOOKS)).json()["webhooks"]
    assert [(hook["webhook_id"], hook["is_disabled"]) for hook in listed] == [
        (made[1], True),
        (made[2], False),
    ]


async def test_secret_rotated_after_the_backup_is_not_restored(api: RegistryApi, tmp_path: Path) -> None:
    made = [(await api.ask("POST", WEBHOOKS, {"url": "https://hook.example/"})).json() for _ in range(2)]
    await back_up(api, tmp_path / "b.gz")
    path = f"{WEBHOOKS}/{made[0]['webhook_id']}/rotate"
    rotated = (await api.ask("POST", path, {"overlap_seconds": 60})).json()
    await restored(api, tmp_path / "b.gz")
    stored = await api.database.read(lambda transaction: webhooks.listing(transaction, 10))
    now_s = api.clock.now_s()
    assert [webhook.secrets_at(now_s) for webhook in stored] == [
        [rotated["secret"], made[0]["secret"]],
        [made[1]["secret"]],
    ]
    assert stored[0].secrets_at(now_s + 60) == [rotated["secret"]]


@pytest.mark.both_databases
async def test_origin_that_opted_out_after_the_backup_is_not_probed(api: RegistryApi, tmp_path: Path) -> None:
    await back_up(api, tmp_path / "b.gz")
    token = (await api.ask("POST", OPT_OUTS, {"url": ORIGIN})).json()["token"]
    await api.database.write(lambda transaction: prove(transaction, ORIGIN, token, "server"))
    assert (await restored(api, tmp_path / "b.gz")).withdrawn.opt_outs == (ORIGIN,)
    assert await api.database.read(lambda transaction: has_opted_out(transaction, f"{ORIGIN}/a"))
