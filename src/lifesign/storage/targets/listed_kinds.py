"""Kind of a target, from the directories that list it.

Each directory states a kind for its own entry, so that a kind leaves with the list that stated it. An entry
without a kind counts as one of an A2A agent (docs/prober.md, 4).
"""

from collections.abc import Sequence

from sqlalchemy import text

from lifesign.storage.engine.array_params import given
from lifesign.storage.engine.transaction import Transaction

# The values are those of `StatedKind`.
_UPDATE = """
    UPDATE targets SET kind = stated.kind, version = :version
    FROM (
        SELECT listings.target,
            CASE WHEN min(coalesce(listings.kind, 'a2a')) = max(coalesce(listings.kind, 'a2a'))
                THEN max(listings.kind) ELSE 'disputed' END AS kind
        FROM listings JOIN targets AS listed ON listed.id = listings.target
        WHERE {is_given} GROUP BY listings.target
    ) AS stated
    WHERE targets.id = stated.target AND coalesce(targets.kind, '') <> coalesce(stated.kind, '')
"""
_LISTED_SQLITE = text(_UPDATE.format(is_given="listed.subject_id IN (SELECT value FROM json_each(:given))"))
_LISTED_POSTGRESQL = text(_UPDATE.format(is_given="listed.subject_id = ANY(:given)"))
_DELISTED_SQLITE = text(_UPDATE.format(is_given="listed.id IN (SELECT value FROM json_each(:given))"))
_DELISTED_POSTGRESQL = text(_UPDATE.format(is_given="listed.id = ANY(:given)"))


def update_listed(transaction: Transaction, subject_ids: Sequence[str], version: int) -> None:
    """Store the kinds of targets, given by their ids, that a directory has listed, as of `version`."""
    statement = _LISTED_POSTGRESQL if transaction.is_postgresql else _LISTED_SQLITE
    transaction.connection.execute(statement, {"version": version, **given(transaction, subject_ids)})


def update_delisted(transaction: Transaction, numbers: Sequence[int], version: int) -> None:
    """Store the kinds of targets, given by row numbers, that a directory no longer lists, as of `version`."""
    statement = _DELISTED_POSTGRESQL if transaction.is_postgresql else _DELISTED_SQLITE
    transaction.connection.execute(statement, {"version": version, **given(transaction, numbers)})
