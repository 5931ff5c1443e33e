"""How is a body sent to an address that somebody else chose?

Only addresses that were judged are contacted (`judged_session`). Redirects are not followed, what comes
back is not read beyond its status, and nothing takes longer than `SEND_SECONDS`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_health.registry.judged_session import FAILURES, NotContacted, judged_session
from agent_health.target_address import Network

SEND_SECONDS = 10.0
"""From the look-up of the name to the status."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of it."""

    status: int | None
    """None if there was no answer."""
    error: str | None
    """In words, without the URL: it may hold a secret. None if it was taken: 200 to 299."""


async def safe_post(url: str, body: bytes, headers: Mapping[str, str], allowed: Sequence[Network]) -> Sent:
    """Send one POST; whatever goes wrong is told, not raised."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            return await _post(url, body, headers, allowed)
    except TimeoutError:
        return Sent(None, f"no answer within {SEND_SECONDS:g} s")
    except NotContacted as refusal:
        return Sent(None, str(refusal))
    except FAILURES as error:
        return Sent(None, f"cannot be reached ({type(error).__name__})")


async def _post(url: str, body: bytes, headers: Mapping[str, str], allowed: Sequence[Network]) -> Sent:
    async with (
        judged_session(url, allowed) as (session, place),
        session.post(place, data=body, headers=headers, allow_redirects=False) as response,
    ):
        # The body stays unread: the connection ends with the block.
        status = response.status
    return Sent(status, None if 200 <= status <= 299 else f"answered {status}")
