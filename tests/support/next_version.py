"""A newer version of the program: this one with one more migration."""

import shutil
from pathlib import Path

import pytest
from tests.support.servers import REPOSITORY

from lifesign.storage.engine import schema_version

BEFORE = schema_version.newest_revision()
AFTER = f"{int(BEFORE) + 1:04}"
AGENT_NAME = "of version 9999"
MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{AFTER}", "{BEFORE}"


def upgrade() -> None:
    op.add_column("agents", sa.Column("of_the_next_version", sa.Integer()))
    op.execute("UPDATE agents SET name = '{AGENT_NAME}'")
"""  # noqa: S608 - constants only
_PACKAGE = REPOSITORY / "src" / "lifesign"
_MIGRATIONS = Path("storage", "migrations")


def use_next_version(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Let this process need the next version's revision until the test ends."""
    migrations = directory / "next-version"
    shutil.copytree(_PACKAGE / _MIGRATIONS, migrations)
    _add_migration(migrations)
    monkeypatch.setattr(schema_version, "MIGRATIONS", migrations)
    for name in ("known_revisions", "newest_revision"):
        monkeypatch.setattr(schema_version, name, getattr(schema_version, name).__wrapped__)


def package_of_next_version(directory: Path) -> Path:
    """Write the next version as a package, and return the directory for PYTHONPATH."""
    path = directory / "next-version"
    shutil.copytree(_PACKAGE, path / "lifesign", ignore=shutil.ignore_patterns("__pycache__"))
    _add_migration(path / "lifesign" / _MIGRATIONS)
    return path


def _add_migration(migrations: Path) -> None:
    (migrations / "versions" / f"{AFTER}_of_a_test.py").write_text(MIGRATION)
