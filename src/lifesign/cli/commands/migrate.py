"""Is the database of this version? Brings it up to date on the command line."""

import sys
from typing import TYPE_CHECKING

from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.server_database import (
    DEFAULT_DATABASE,
    DatabaseUrl,
    ServerConfig,
    run_in_transaction,
)
from lifesign.cli.output.table import write_json
from lifesign.domain.net.peer_text import printable
from lifesign.storage.engine.sqlite_path import sqlite_file

if TYPE_CHECKING:
    from lifesign.storage.engine.schema import Upgrade
    from lifesign.storage.engine.transaction import Transaction


def migrate(
    *,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    as_json: AsJson = False,
) -> int:
    """Bring the registry's database up to date, or set up an empty one.

    All in one transaction: whatever fails leaves the database as it was. Make a backup first; there is
    no way back but restoring it.

    Stop all servers first: a database that one of them uses is not changed under it, and one that is
    started again afterwards without being of this version refuses the database.

    \b
    Examples:
      lifesign migrate
      LIFESIGN_SERVER_DATABASE=postgresql://ah@db/ah lifesign migrate
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    upgrade = _upgrade(database)
    if as_json:
        write_json(sys.stdout, {"before": upgrade.before, "after": upgrade.after})
        return 0
    if upgrade.before == upgrade.after:
        text = f"already at revision {upgrade.after}"
    elif upgrade.before is None:
        text = f"created at revision {upgrade.after}"
    else:
        text = f"migrated from revision {upgrade.before} to {upgrade.after}"
    sys.stdout.write(printable(text) + "\n")
    return 0


def _upgrade(database: str) -> "Upgrade":
    from lifesign.storage.engine import file_use, schema  # noqa: PLC0415 - alembic takes 200 ms
    from lifesign.storage.events import event_news  # noqa: PLC0415 - alembic takes 200 ms

    file = sqlite_file(database)
    if file is not None and file.exists() and run_in_transaction(database, schema.is_behind, is_write=False):
        file_use.check_unused(file)

    def function(transaction: "Transaction") -> "Upgrade":
        # Servers that start meanwhile wait for it.
        schema.lock(transaction)
        if schema.is_behind(transaction):
            event_news.check_unserved(transaction)
        return schema.upgrade(transaction)

    return run_in_transaction(database, function, must_exist=False)
