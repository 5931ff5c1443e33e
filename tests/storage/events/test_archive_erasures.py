from pathlib import Path

from tests.support.databases import bare_url

from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.table_definitions import archive_erasures as table
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import archive_erasures
from lifesign.storage.events.archive_erasures import ArchiveErasure, Range
from lifesign.storage.whole_database import all_rows


def erasure(sequence: int, *remaining: Range) -> ArchiveErasure:
    return ArchiveErasure(sequence, f"agent-{sequence}", remaining, float(sequence))


async def everything(database: Database) -> list[ArchiveErasure]:
    return await database.read(lambda transaction: archive_erasures.after(transaction, 0, limit=100))


async def test_stored_erasures_are_returned_in_order(database: Database) -> None:
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
    # The row of a finished erasure stays.
    kept = await database.read(lambda transaction: list(all_rows.read(transaction, table)))
    assert kept[0] == (5, "agent-5", "[]", 5.0)


async def test_database_without_archives_has_no_pending_erasures(database_kind: str, tmp_path: Path) -> None:
    database = open_database(bare_url(database_kind, tmp_path))
    await database.write(schema_version.upgrade)
    assert await everything(database) == []
    await database.close()
