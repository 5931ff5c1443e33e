"""Which addresses may a model have asked?

`agent-health check` asks whatever its user types. A model is not that user: what it asks for may stand in
a text that a stranger wrote, and through us it would reach what no stranger reaches. So every hop goes
through the prober's connector: the name is looked up once, each address is judged, and the connection goes
to one that was judged. Private networks are asked only if whoever runs the server named them.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from yarl import URL

from agent_health.client.bounded_get import Answer, Ask, user_agent
from agent_health.client.health import Get
from agent_health.observation import ResultClass
from agent_health.prober.definition import Timeouts
from agent_health.prober.fetch import Fetcher, Request
from agent_health.prober.resolve import Resolver
from agent_health.target_address import Network

MAX_SECONDS: Final = 60.0
"""For one request, if whoever asks would wait longer."""

_log = logging.getLogger("agent_health.mcp")
_TIMEOUTS: Final = Timeouts(total_seconds=MAX_SECONDS)


@asynccontextmanager
async def judged_get(allowed: Sequence[Network], *, name_servers: Sequence[str] = ()) -> AsyncIterator[Get]:
    """Yield what asks the public internet and the networks in `allowed`, and nobody else.

    `name_servers`: those of the system, if empty.
    """
    async with (
        Resolver(name_servers, timeout_s=_TIMEOUTS.dns_seconds) as resolver,
        Fetcher(timeouts=_TIMEOUTS, networks=allowed, user_agent=user_agent(), resolver=resolver) as fetcher,
    ):

        async def get(url: URL, ask: Ask) -> Answer:
            headers = {} if ask.token is None else {"Authorization": f"Bearer {ask.token}"}
            fetched = await fetcher.fetch(
                Request(
                    url=url,
                    max_bytes=ask.max_bytes,
                    deadline_s=ask.deadline_s,
                    headers=headers,
                    may_leave_origin=ask.may_leave_origin,
                )
            )
            was_looked_up = fetched.phases is not None
            if fetched.result is ResultClass.BLOCKED_ADDRESS and was_looked_up:
                # Which addresses the names of our own network have is told to whoever runs it alone.
                _log.warning("%s is not asked: %s", fetched.url.raw_host, fetched.reason)
                return replace(
                    fetched, reason=f"{fetched.url.raw_host} leads to an address that is not asked"
                )
            return fetched

        yield get
