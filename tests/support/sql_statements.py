"""Statements that a database executes for a test."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
from sqlalchemy import event

from lifesign.storage.engine.transaction import Transaction


def recorded_statements(
    monkeypatch: pytest.MonkeyPatch, database: Any, kind: Literal["read", "write"]
) -> list[str]:
    """Return a list that gets each statement of the database's transactions of this kind from now on."""
    run, statements = getattr(database, kind), list[str]()

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    async def recording(function: Callable[[Transaction], Any]) -> Any:
        def recorded(transaction: Transaction) -> Any:
            event.listen(transaction.connection, "before_cursor_execute", note)
            return function(transaction)

        return await run(recorded)

    monkeypatch.setattr(database, kind, recording)
    return statements
