"""Search for opt-out tokens at the origins to which they were issued (protocol 3).

One GET under the origin's `/.well-known/`, to a vetted address, without redirects; a few at a time, and each
origin seldom. Any other content there proves nothing, and changes nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from yarl import URL

from lifesign.domain.access.event_actor import OwnActor
from lifesign.domain.net.allowed_addresses import Network, read_networks
from lifesign.domain.targets.opt_out_proof import (
    MAX_PROOF_BYTES,
    PROOF_PATH,
    TOKEN_TTL_SECONDS,
    is_proven,
)
from lifesign.http_client.address_guard import PrivateAddressRefused
from lifesign.http_client.bounded_body import read_bounded
from lifesign.http_client.bounded_get import user_agent
from lifesign.http_client.counted_sessions import counter_of
from lifesign.http_client.failures import FAILURES
from lifesign.http_client.guarded_sessions import GuardedSessions
from lifesign.registry.settings import RegistrySettings
from lifesign.registry.targets.opt_out_origins import prove
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.targets import opt_outs
from lifesign.storage.targets.opt_outs import StoredOptOut

ROUND_SECONDS = 5.0
"""Time between two rounds: a new request does not wait for long."""
CHECK_SECONDS = 600.0
"""Interval of checks of one origin, unless a new request comes."""
GET_SECONDS = 10.0
MAX_CHECKS = 10
"""Maximum number of concurrent checks per server process."""
ACTOR = OwnActor.SERVER.value
"""Actor of events about found proofs."""

_ABSENT = frozenset({404, 410})

_log = logging.getLogger("lifesign.registry")


class OptOutChecker:
    """Checks whether origins still serve the proofs of their opt-outs; one per server process."""

    def __init__(self, database: Database, settings: RegistrySettings) -> None:
        self._database = database
        self._allowed = read_networks(settings.webhook_networks, "webhook_networks")

    async def run(self) -> None:
        """Check until cancelled."""
        await repeat(self.check_some, "check proofs of opt-outs")

    async def check_some(self) -> None:
        """Check some of the origins that are due, and record the results. Raises StoreUnavailable."""
        if not await self._database.read(_are_due):
            return
        due = await self._database.write(_claim)
        await asyncio.gather(*(self._check(one) for one in due))

    async def _check(self, opt_out: StoredOptOut) -> None:
        served = await served_proof(opt_out.origin, self._allowed)
        if served is None or not is_proven(opt_out.token, served):
            return
        is_new = await self._database.write(
            lambda transaction: prove(transaction, opt_out.origin, opt_out.token, ACTOR)
        )
        if is_new:
            _log.info("%s opted out: its targets are no longer probed", opt_out.origin)


async def repeat(check: Callable[[], Awaitable[None]], what: str) -> None:
    """Call `check` every ROUND_SECONDS until cancelled, also after a failure; `what` is for the log."""
    while True:
        try:
            await check()
        except StoreUnavailable as error:
            _log.warning("could not %s: %s", what, error)
        except Exception:  # noqa: BLE001 - the next round follows, whatever failed
            _log.exception("could not %s", what)
        await asyncio.sleep(ROUND_SECONDS)


async def served_proof(origin: str, allowed: Sequence[Network]) -> bytes | None:
    """Return the file that an origin serves as a proof; None if it serves none or does not answer."""
    return (await served_file(origin, allowed)) or None


async def served_file(origin: str, allowed: Sequence[Network]) -> bytes | None:
    """Return the file that an origin serves as a proof; empty if there is none, None if that is unknown."""
    headers = {"Accept": "text/plain", "Accept-Encoding": "identity", "User-Agent": user_agent()}
    try:
        place = URL(origin + PROOF_PATH)
        async with (
            asyncio.timeout(GET_SECONDS),
            GuardedSessions(allowed) as sessions,
            sessions.session_for(place).get(place, headers=headers, allow_redirects=False) as response,
        ):
            if response.status != 200:
                return b"" if response.status in _ABSENT else None
            return await read_bounded(response, MAX_PROOF_BYTES, counter_of(response))
    except PrivateAddressRefused as error:
        _log.info("the proof file of %s is not requested: %s (see webhook_networks)", origin, error)
        return None
    except FAILURES:
        return None


def _are_due(transaction: Transaction) -> bool:
    return bool(_due(transaction))


def _claim(transaction: Transaction) -> list[StoredOptOut]:
    """Return origins that no other process checks now."""
    due = _due(transaction, to_change=True)
    for one in due:
        opt_outs.set_checked(transaction, one.origin, transaction.now_s)
    return due


def _due(transaction: Transaction, *, to_change: bool = False) -> list[StoredOptOut]:
    return opt_outs.unproven(
        transaction,
        asked_after_s=transaction.now_s - TOKEN_TTL_SECONDS,
        checked_before_s=transaction.now_s - CHECK_SECONDS,
        limit=MAX_CHECKS,
        to_change=to_change,
    )
