"""Sending a body to a URL that a stranger chose.

Only vetted addresses are contacted. Redirects are not followed, what comes back is not read beyond its
status, and nothing takes longer than `SEND_SECONDS`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from yarl import URL

from agent_health.http.address_guard import PrivateAddressRefused
from agent_health.http.failures import FAILURES
from agent_health.http.guarded_sessions import GuardedSessions
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
    """Send one POST; a failure is returned, not raised."""
    try:
        async with asyncio.timeout(SEND_SECONDS), GuardedSessions(allowed) as sessions:
            return await _post(sessions, URL(url), body, headers)
    except TimeoutError:
        return Sent(None, f"no answer within {SEND_SECONDS:g} s")
    except PrivateAddressRefused as error:
        return Sent(None, error.refused.reason)
    except FAILURES as error:
        return Sent(None, f"cannot be reached ({type(error).__name__})")


async def _post(sessions: GuardedSessions, url: URL, body: bytes, headers: Mapping[str, str]) -> Sent:
    session = sessions.session_for(url)
    async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
        # The body stays unread: the connection ends with the block.
        status = response.status
    return Sent(status, None if 200 <= status <= 299 else f"answered {status}")
