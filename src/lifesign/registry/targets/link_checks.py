"""Upkeep of links: decisions about claims that are due, and searches for tokens.

Each server process works on a few targets at a time. A card's proof is checked when a prober reads the card,
once a day. A token that was found is looked for again once a day, any other one every ten minutes.
"""

import asyncio
from functools import partial

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.domain.targets.link_proof import CHECK_SECONDS
from lifesign.domain.targets.opt_out_proof import TOKEN_TTL_SECONDS, is_proven, origin_of
from lifesign.registry.settings import RegistrySettings
from lifesign.registry.targets.check_opt_outs import repeat, served_file
from lifesign.registry.targets.link_decisions import settle
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.targets import target_links

OPEN_CHECK_SECONDS = 600.0
"""Interval of checks for a token that was not found yet."""
MAX_SETTLED = 500
"""Number of targets that are decided in one round."""
MAX_CHECKS = 10
"""Number of targets whose origins are requested concurrently, per server process."""


class LinkChecker:
    """Looks for the tokens that link agents to targets, and decides the links; one per server process."""

    def __init__(self, database: Database, settings: RegistrySettings) -> None:
        self._database = database
        self._public_url = settings.public_url
        self._allowed = read_networks(settings.webhook_networks, "webhook_networks")

    async def run(self) -> None:
        """Check until cancelled."""
        await repeat(self.check_some, "check links between agents and targets")

    async def check_some(self) -> None:
        """Search for some of the tokens that are due, then decide the claims that are due.

        Raises StoreUnavailable.
        """
        if await self._database.read(_are_checks_due):
            found = await self._database.write(_claim_checks)
            await asyncio.gather(*(self._check(target, url) for target, url in found))
        for target in await self._database.read(
            lambda transaction: target_links.due(transaction, MAX_SETTLED)
        ):
            await self._database.write(partial(settle, number=target, public_url=self._public_url))

    async def _check(self, target: int, url: str) -> None:
        origin = origin_of(url)
        served = await served_file(origin, self._allowed) if isinstance(origin, str) else None
        if served is not None:
            await self._database.write(partial(_note, target=target, served=served))


def _are_checks_due(transaction: Transaction) -> bool:
    return target_links.are_checks_due(
        transaction,
        open_before_s=transaction.now_s - OPEN_CHECK_SECONDS,
        proven_before_s=transaction.now_s - CHECK_SECONDS,
    )


def _claim_checks(transaction: Transaction) -> list[tuple[int, str]]:
    """Return targets whose origins no other process checks now; tokens that were not found in time expire."""
    target_links.forget_tokens(transaction, transaction.now_s - TOKEN_TTL_SECONDS)
    return target_links.claim_checks(
        transaction,
        open_before_s=transaction.now_s - OPEN_CHECK_SECONDS,
        proven_before_s=transaction.now_s - CHECK_SECONDS,
        limit=MAX_CHECKS,
    )


def _note(transaction: Transaction, target: int, served: bytes) -> None:
    claims = [claim for claim in target_links.claims_of(transaction, target, to_change=True) if claim.token]
    seen = {claim.agent: is_proven(claim.token or "", served) for claim in claims}
    changed = {
        claim.agent: seen[claim.agent]
        for claim in claims
        if seen[claim.agent] or claim.token_at_s is not None
    }
    target_links.set_tokens_found(transaction, target, changed)
