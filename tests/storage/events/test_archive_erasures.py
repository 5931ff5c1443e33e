from pathlib import Path

from alembic import command
from sqlalchemy import update
from tests.storage.events.test_event_log import appending, draft
from tests.support.databases import bare_url

from lifesign.domain.events.agent_payloads import AgentErased
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.storage.engine import schema
from lifesign.storage.engine.database import Database, open_database
from lifesign.storage.engine.tables import event_log as head_row
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import archive_erasures, event_log
from lifesign.storage.events.archive_erasures import ArchiveErasure, Range


def erasure(sequence: int, *remaining: Range) -> ArchiveErasure:
    return ArchiveErasure(sequence, f"agent-{sequence}", remaining)


async def everything(database: Database) -> list[ArchiveErasure]:
    return await database.read(lambda transaction: archive_erasures.after(transaction, 0, limit=100))


async def test_what_is_noted_is_found_in_its_order_and_left_as_it_is_said(database: Database) -> None:
    def note(transaction: Transaction) -> None:
        for number in (9, 5, 7):
            archive_erasures.add(transaction, erasure(number, (1, 4), (6, 6)))

    await database.write(note)
    assert [one.sequence for one in await everything(database)] == [5, 7, 9]
    page = await database.read(lambda transaction: archive_erasures.after(transaction, 5, limit=1))
    assert page == [erasure(7, (1, 4), (6, 6))]

    def leave(transaction: Transaction) -> None:
        assert [one.sequence for one in archive_erasures.lock(transaction, [5, 9, 11])] == [5, 9]
        archive_erasures.leave(transaction, [erasure(5), erasure(9, (2, 3))])

    await database.write(leave)
    assert await everything(database) == [erasure(7, (1, 4), (6, 6)), erasure(9, (2, 3))]
    assert await database.read(archive_erasures.count) == 2


async def test_who_was_erased_by_an_older_version_is_erased_in_archives_too(
    database_kind: str, tmp_path: Path
) -> None:
    database = open_database(bare_url(database_kind, tmp_path))
    gone = EventDraft(
        type=EventType.AGENT_ERASED,
        actor="key:1",
        payload=AgentErased(agent_id="agent_1", events=1),
        agent_id="agent_1",
    )

    def live_as_before(transaction: Transaction) -> None:
        command.upgrade(schema.alembic_config(transaction.connection), "0002")
        appending(draft(), draft(), draft(agent_id="agent_2"), gone)(transaction)
        event_log.remove_until(transaction, 3)
        transaction.connection.execute(update(head_row).values(archived_sequence=3))

    await database.write(live_as_before)
    await database.write(schema.upgrade)
    assert await everything(database) == [ArchiveErasure(4, "agent_1", ((1, 3),))]
    await database.close()


async def test_where_nothing_was_archived_nothing_is_to_be_erased(database_kind: str, tmp_path: Path) -> None:
    database = open_database(bare_url(database_kind, tmp_path))
    await database.write(schema.upgrade)
    assert await everything(database) == []
    await database.close()
