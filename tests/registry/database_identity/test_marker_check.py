from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from tests.registry.events.test_archive_events import archive_everything
from tests.support.databases import WoundClock, bare_url, migrated_url
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.events.chain import Checkpoint
from lifesign.domain.events.database_marker import DatabaseMarker, Mismatch
from lifesign.registry.backup.create_backup import back_up, restore
from lifesign.registry.database_identity.marker_check import (
    KnownIdentity,
    adopt,
    check_filled,
    check_known,
    check_present,
    check_tables,
    current_marker,
    is_uncomparable,
)
from lifesign.registry.errors import DatabaseMismatch
from lifesign.storage.engine import registry_row, schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import ForeignDatabase

FILE = Path("/state/marker.json")
LEASES = "/api/v1/leases"
Made = Callable[..., Awaitable[RegistryApi]]


@pytest.fixture
async def made(database_kind: str, tmp_path: Path, clock: WoundClock) -> AsyncIterator[Made]:
    """Creates registries of one kind, each with a separate database and an agent."""
    async with AsyncExitStack() as stack:

        async def make() -> RegistryApi:
            database = open_database(migrated_url(database_kind, tmp_path), clock=clock.now_s)
            stack.push_async_callback(database.close)
            api = RegistryApi(database, clock)
            await api.add_keys()
            await api.register("agent-1")
            return api

        yield make


async def known_of(api: RegistryApi) -> KnownIdentity:
    """Write the marker, as a server does, and return the facts that the host then knows."""
    return KnownIdentity(FILE, await api.database.write(current_marker))


async def difference(database: Database, known: KnownIdentity) -> str | None:
    def look(transaction: Transaction) -> str | None:
        try:
            check_filled(transaction, known)
            check_tables(transaction, known)
            check_known(transaction, known)
        except DatabaseMismatch as error:
            return error.mismatch
        return None

    return await database.read(look)


async def test_a_database_gets_one_id_and_keeps_it(made: Made) -> None:
    api, other = await made(), await made()
    first, second = [await api.database.write(current_marker) for _ in range(2)]
    assert first == second
    assert first.installation_id.startswith("ins_")
    assert (await other.database.write(current_marker)).installation_id != first.installation_id


async def test_database_with_new_events_is_no_mismatch(made: Made) -> None:
    api = await made()
    known = await known_of(api)
    assert await difference(api.database, known) is None
    await api.register("agent-2")
    assert await difference(api.database, known) is None


async def test_events_erased_or_archived_after_the_marker_are_no_mismatch(made: Made, tmp_path: Path) -> None:
    api = await made()
    known = await known_of(api)
    assert (await api.ask("DELETE", f"{AGENTS}/agent-1/record")).status == 200
    assert await difference(api.database, known) is None
    # Up to just this event, and beyond it.
    await archive_everything(api, tmp_path)
    assert await difference(api.database, known) is None
    known = await known_of(api)
    await api.register("agent-3")
    api.clock.advance(1)
    await archive_everything(api, tmp_path)
    assert await difference(api.database, known) is None


@pytest.mark.both_databases
async def test_older_copy_is_behind_and_a_separately_used_copy_has_diverged(
    made: Made, tmp_path: Path
) -> None:
    api = await made()
    backup = tmp_path / "copy.gz"
    await api.database.write(current_marker)
    await api.database.read(lambda transaction: back_up(transaction, backup))
    await api.register("agent-2")
    known = await known_of(api)
    copy = await made()

    def set_back(transaction: Transaction) -> None:
        """Restore a plain copy of the file: without a raised epoch, and with the installation id."""
        restore(transaction, backup, is_forced=True, actor="test", trusts_all_keys=True)
        assert known.marker is not None
        row = registry_row.lock(transaction)
        changed = replace(row, token_floor=0, installation_id=known.marker.installation_id)
        registry_row.store(transaction, changed)

    await copy.database.write(set_back)
    head = (await copy.database.write(current_marker)).head
    assert known.marker is not None
    ahead = replace(known.marker, head=Checkpoint(head.sequence + 1, "a" * 64))
    assert await difference(copy.database, KnownIdentity(FILE, ahead)) == Mismatch.BEHIND
    same_place = replace(known.marker, head=Checkpoint(head.sequence, "a" * 64))
    assert await difference(copy.database, KnownIdentity(FILE, same_place)) == Mismatch.DIVERGED
    await copy.register("agent-4")
    assert await difference(copy.database, KnownIdentity(FILE, same_place)) == Mismatch.DIVERGED
    later_epoch = replace(known.marker, epoch=1, head=head)
    assert await difference(copy.database, KnownIdentity(FILE, later_epoch)) == Mismatch.BEHIND


async def test_database_of_another_installation_is_foreign(made: Made) -> None:
    known, other = await known_of(await made()), await made()
    assert await difference(other.database, known) == Mismatch.FOREIGN
    await other.database.write(current_marker)
    assert await difference(other.database, known) == Mismatch.FOREIGN


async def test_empty_database_is_refused_if_a_marker_exists(
    made: Made, database_kind: str, tmp_path: Path
) -> None:
    known = await known_of(await made())
    empty = open_database(bare_url(database_kind, tmp_path))
    assert await difference(empty, known) == Mismatch.EMPTY
    with pytest.raises(DatabaseMismatch):
        await empty.read(lambda transaction: check_tables(transaction, known))
    # A marker that is damaged still says that there was one.
    assert await difference(empty, KnownIdentity(FILE, None, "it is damaged")) == Mismatch.EMPTY
    assert await difference(empty, KnownIdentity(FILE, None)) is None
    await empty.close()


def test_an_absent_file_is_refused_before_it_is_created(tmp_path: Path) -> None:
    url = make_url(f"sqlite:///{tmp_path}/registry.db")
    check_present(KnownIdentity(FILE, None), url)
    marker = DatabaseMarker(installation_id="ins_1", epoch=0, head=Checkpoint(1, "a" * 64))
    for known in (KnownIdentity(FILE, marker), KnownIdentity(FILE, None, "it is damaged")):
        with pytest.raises(DatabaseMismatch) as refused:
            check_present(known, url)
        assert refused.value.mismatch == Mismatch.EMPTY
    (tmp_path / "registry.db").symlink_to("absent.db")
    with pytest.raises(DatabaseMismatch):
        check_present(known, url)
    check_present(known, make_url("postgresql://ah@db/ah"))


@pytest.mark.parametrize("has_same_id", [True, False])
async def test_a_restored_database_is_accepted(made: Made, tmp_path: Path, *, has_same_id: bool) -> None:
    """It replaces the former database on every host: it keeps its id, whatever backup it came from."""
    api, other = await made(), await made()
    backup = tmp_path / "backup.gz"
    source = api if has_same_id else other
    await source.database.write(current_marker)
    await source.database.read(lambda transaction: back_up(transaction, backup))
    await api.register("agent-2")
    known = await known_of(api)
    await api.database.write(lambda transaction: restore(transaction, backup, is_forced=True, actor="test"))
    assert await difference(api.database, known) is None


async def test_a_backup_that_is_restored_into_an_empty_database_is_accepted(
    made: Made, database_kind: str, tmp_path: Path, clock: WoundClock
) -> None:
    api = await made()
    backup = tmp_path / "backup.gz"
    await api.database.write(current_marker)
    await api.database.read(lambda transaction: back_up(transaction, backup))
    await api.register("agent-2")
    known = await known_of(api)
    empty = open_database(bare_url(database_kind, tmp_path), clock=clock.now_s)
    await empty.write(lambda transaction: restore(transaction, backup, is_forced=False, actor="test"))
    assert await difference(empty, known) is None
    await empty.close()


async def adopted(database: Database, known: KnownIdentity, *, is_forced: bool = False) -> int | None:
    return await database.write(lambda transaction: adopt(transaction, known, "test", is_forced=is_forced))


async def test_adopting_a_database_ends_all_leases_and_raises_new_tokens(made: Made) -> None:
    api = await made()
    key = await api.add_agent_key("agent-1")
    lease = (await api.ask("POST", LEASES, {"resource": "task:1"}, key=key)).json()
    known = await known_of(api)
    assert known.marker is not None
    assert await adopted(api.database, known) is None
    elsewhere = replace(known.marker, installation_id="ins_other", epoch=70_000)
    epoch = await adopted(api.database, KnownIdentity(FILE, elsewhere))
    assert epoch == 70_001
    assert await difference(api.database, known) is None
    again = (await api.ask("POST", LEASES, {"resource": "task:1"}, key=key)).json()
    assert again["fencing_token"] > lease["fencing_token"]
    (ended,) = await api.events(type="lease.expired")
    assert ended["payload"]["reason"] == "epoch_raised"
    (raised,) = await api.events(type="epoch.raised")
    assert raised["payload"]["reason"] == "adopted"


async def test_database_that_has_archived_the_event_of_the_marker_cannot_be_compared(
    made: Made, tmp_path: Path
) -> None:
    api = await made()
    known = await known_of(api)

    async def cannot_be_compared() -> bool:
        return await api.database.read(lambda transaction: is_uncomparable(transaction, known))

    await archive_everything(api, tmp_path)
    # The hash up to which events were archived is known.
    assert not await cannot_be_compared()
    api.clock.advance(1)
    await archive_everything(api, tmp_path)
    assert await cannot_be_compared()
    assert await difference(api.database, known) is None
    # The old tokens are invalid then.
    assert await adopted(api.database, known, is_forced=True)
    assert not await cannot_be_compared()


@pytest.mark.both_databases
async def test_an_empty_database_is_set_up_when_it_is_adopted(
    made: Made, database_kind: str, tmp_path: Path
) -> None:
    known = await known_of(await made())
    empty = open_database(bare_url(database_kind, tmp_path))
    assert await adopted(empty, KnownIdentity(FILE, None)) is None
    assert await empty.read(schema_version.revision) is None
    assert await adopted(empty, known)
    marker = await empty.write(current_marker)
    assert await difference(empty, KnownIdentity(FILE, marker)) is None
    assert await adopted(empty, KnownIdentity(FILE, None, "it is damaged"))
    await empty.close()


@pytest.mark.both_databases
async def test_a_database_of_another_program_is_not_adopted(database_kind: str, tmp_path: Path) -> None:
    other = open_database(bare_url(database_kind, tmp_path))
    await other.write(lambda transaction: transaction.connection.execute(text("CREATE TABLE a (b INTEGER)")))
    known = KnownIdentity(
        FILE, DatabaseMarker(installation_id="ins_1", epoch=0, head=Checkpoint(1, "a" * 64))
    )
    with pytest.raises(ForeignDatabase):
        await adopted(other, known)
    await other.close()
