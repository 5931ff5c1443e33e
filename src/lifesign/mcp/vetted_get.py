"""GET requests for models: public addresses only, and networks that the operator allowed.

`lifesign check` contacts any address that its user types. For a model this is different: its URL may come
from a text that a stranger wrote. So the SSRF guard vets the first hop too.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from yarl import URL

from lifesign.domain.net.allowed_addresses import AddressRefused, Network
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.address_guard import AddressGuard
from lifesign.http_client.answer import Answer
from lifesign.http_client.bounded_get import Ask, Get, bounded_get
from lifesign.http_client.guarded_sessions import GuardedSessions

MAX_SECONDS: Final = 60.0
"""Time limit of one check."""

_log = logging.getLogger("lifesign.mcp")


@asynccontextmanager
async def vetted_get(allowed: Sequence[Network]) -> AsyncIterator[Get]:
    """Yield a function that sends GET requests to public addresses and the networks in `allowed` only."""
    guard = AddressGuard(allowed)
    async with GuardedSessions(allowed) as sessions:

        async def get(url: URL, ask: Ask) -> Answer:
            answer = await bounded_get(sessions, url, ask)
            if answer.result is not ResultClass.BLOCKED_ADDRESS:
                return answer
            if isinstance(guard.vet_url(answer.url.origin()), AddressRefused):
                return answer
            # The name was resolved. Which addresses the names of this network have is for its operator only.
            host = answer.url.raw_host
            _log.warning("a request by a model was refused: %s", answer.reason)
            return replace(answer, reason=f"{host} leads to an address that must not be contacted")

        yield get
