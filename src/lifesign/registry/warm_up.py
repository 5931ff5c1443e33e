"""Warm-up of a server process before its first answer.

A new process has no prepared statements, no counts and few connections, and all background work starts at the
same moment. Early requests wait in the socket's queue meanwhile, no longer than their answer would have
taken.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from lifesign.storage.agents import search
from lifesign.storage.agents.search import AgentFilter
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.keys import key_rows

WARM_UP_SECONDS: Final = 2.0
"""Maximum delay of the start; a count that is running by then is finished."""
_UNKNOWN_DIGEST: Final = bytes(32)
"""A digest that no key has."""

_log = logging.getLogger("lifesign.registry")


async def warm_up(database: Database, face: Callable[[], Awaitable[None]] | None) -> None:
    """Run the most frequent queries, and let a frontend warm up; the server starts even if that fails."""
    try:
        async with asyncio.timeout(WARM_UP_SECONDS):
            await database.read(_ask)
            if face is not None:
                await face()
    except TimeoutError:
        _log.info("the warm-up was ended after %g s: the first answers will take longer", WARM_UP_SECONDS)
    except StoreUnavailable as error:
        _log.warning("the warm-up failed: the first answers will take longer: %s", error)
    except Exception:  # noqa: BLE001 - it is logged, and each request reports the fault
        _log.exception("the warm-up failed: the first answers will take longer")


def _ask(transaction: Transaction) -> None:
    key_rows.find(transaction, _UNKNOWN_DIGEST)
    search.listing(transaction, AgentFilter(statuses=("active",)), after=None, limit=1)
