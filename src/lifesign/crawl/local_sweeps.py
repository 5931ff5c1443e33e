"""Sweeps of a crawl in its local database, in place of a registry's server.

A server of the same database has its own settings for sweeps, and receives the heartbeats of agents. So a
crawl leaves the sweeps to servers while one runs. It never sweeps a database in which agents registered: as
long as no server runs, these agents cannot send heartbeats, and that time must count as downtime.
"""

from typing import Final

from lifesign.registry.settings import RegistrySettings
from lifesign.registry.sweep import SERVER_PREFIX, Sweeper
from lifesign.storage.engine.registry_row import RegistryRow
from lifesign.storage.engine.transaction import Clock, Database, Transaction
from lifesign.storage.keys import key_rows

SWEEP_SECONDS: Final = 2.0
"""Interval at which silent agents are searched. Deadlines of probed agents are never close."""
SERVER_SECONDS: Final = 120.0
"""Time since the last sweep of a server after which none runs: twice the longest `sweep_interval`."""
CRAWL_PREFIX: Final = "crawl_"


def local_sweeper(database: Database, monotonic_s: Clock) -> Sweeper:
    """Return what sweeps the database of a crawl."""
    settings = RegistrySettings.read(sweep_seconds=SWEEP_SECONDS)
    return Sweeper(database, settings, monotonic_s, prefix=CRAWL_PREFIX, may_sweep=_may_sweep)


def _may_sweep(transaction: Transaction, row: RegistryRow) -> bool:
    """Return whether no server runs, and no agent registered with one."""
    is_of_server = row.sweeper is not None and row.sweeper.startswith(SERVER_PREFIX)
    # A time in the future is from before the clock was set back.
    age_s = None if row.swept_at_s is None else abs(transaction.now_s - row.swept_at_s)
    is_running = is_of_server and age_s is not None and age_s < SERVER_SECONDS
    return not is_running and not key_rows.is_any_of_an_agent(transaction)
