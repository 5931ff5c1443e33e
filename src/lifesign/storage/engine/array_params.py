"""Parameters with many values.

They are passed as one: an array on PostgreSQL, JSON on SQLite. With a parameter for each value, there would
be another statement for every number of values.
"""

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json
from sqlalchemy import ColumnElement, any_, bindparam, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY

from lifesign.storage.engine.transaction import Transaction


def is_given(wanted: ColumnElement[Any], *, is_postgresql: bool) -> ColumnElement[bool]:
    """Return the condition that a column has one of the values that the statement gets by `given`."""
    if is_postgresql:
        return wanted == any_(bindparam("given", type_=ARRAY(wanted.type)))
    return wanted.in_(select(column("value")).select_from(func.json_each(bindparam("given"))))


def given(transaction: Transaction, values: Sequence[Any]) -> dict[str, Any]:
    """Return the parameters by which a statement with `is_given` gets its values; there may be none."""
    return {"given": [*values] if transaction.is_postgresql else to_json(values).decode()}
