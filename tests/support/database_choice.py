"""On which kinds of database each test runs. A plugin of pytest.

A test that asks for `database_kind`, mostly by way of `api` or `database`, exists once for each kind. Plain
`pytest` runs it on SQLite, and on PostgreSQL too where the SQL itself is the subject: in `tests/storage`, and
where the test is marked `both_databases`. `make test` runs only those of `tests/storage` on PostgreSQL:
`make test-postgres`, which follows it in continuous integration, runs all of them there. A test that is
marked `postgresql_only` never runs on SQLite.
"""

from pathlib import Path
from typing import Final

import pytest
from tests.support.databases import KINDS

_SQL_TESTS: Final = f"{Path(__file__).parents[1] / 'storage'}/"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--databases`."""
    parser.addoption(
        "--databases",
        choices=("usual", "storage", "both", *KINDS),
        default="usual",
        help="usual: all tests, on PostgreSQL only those about SQL. storage: all tests, on PostgreSQL only "
        "those of tests/storage. both: each test on each database. sqlite, postgresql: the tests that use "
        "this database and no others.",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that `--databases` leaves out."""
    choice = config.getoption("databases")
    chosen: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        (chosen if _is_chosen(item, choice) else deselected).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = chosen


def _is_chosen(item: pytest.Item, choice: str) -> bool:
    callspec = getattr(item, "callspec", None)
    kind = callspec.params.get("database_kind") if callspec else None
    if kind is None:
        return choice not in KINDS
    is_only_for_postgresql = item.get_closest_marker("postgresql_only") is not None
    if is_only_for_postgresql and kind != "postgresql":
        return False
    if choice in KINDS:
        return bool(kind == choice)
    if choice == "both" or kind != "postgresql" or str(item.path).startswith(_SQL_TESTS):
        return True
    is_marked = is_only_for_postgresql or item.get_closest_marker("both_databases") is not None
    return choice == "usual" and is_marked
