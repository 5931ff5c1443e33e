"""How are directories and their imports shown?"""

from lifesign.domain.models.base import moment
from lifesign.domain.models.directories import DirectoryRecord, ImportRecord, ImportState
from lifesign.storage.targets.directories import StoredDirectory, StoredImport


def import_record(stored: StoredImport) -> ImportRecord:
    """Return an import as it is shown."""
    return ImportRecord(
        import_id=stored.import_id,
        state=ImportState(stored.state),
        state_since=moment(stored.state_since_s),
        began_at=moment(stored.began_at_s),
        source=stored.source,
        etag=stored.etag,
        pages=stored.pages,
        received=stored.counts.received,
        refused=dict(stored.counts.refused),
        duplicates=stored.counts.duplicates,
        size_before=stored.size_before,
        added=stored.added,
        removed=stored.removed,
        explanation=stored.explanation,
    )


def directory_record(
    stored: StoredDirectory, applied: StoredImport | None, held: StoredImport | None
) -> DirectoryRecord:
    """Return a directory as it is shown."""
    return DirectoryRecord(
        name=stored.name,
        size=stored.size,
        applied=None if applied is None else import_record(applied),
        suspended=None if held is None else import_record(held),
    )
