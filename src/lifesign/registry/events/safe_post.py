"""POST requests to URLs that callers chose.

Only vetted addresses are contacted. Redirects are refused, of the answer only the status and `Retry-After`
are read, and an attempt ends after `SEND_SECONDS`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from yarl import URL

from lifesign.domain.net.allowed_addresses import Network
from lifesign.http_client.address_guard import PrivateAddressRefused
from lifesign.http_client.failures import FAILURES, ListenerChanged
from lifesign.http_client.guarded_sessions import GuardedSessions
from lifesign.loopback.listeners import IN_THIS_PROCESS

SEND_SECONDS = 15.0
"""Time limit from the name's lookup to the status. Standard Webhooks recommends 15 to 30 s."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of one POST request."""

    status: int | None
    """None without an answer."""
    error: str | None
    """Error as a text without the URL, which may contain a secret. None if the status is 200 to 299."""
    retry_after_s: float | None = None
    """`Retry-After` in seconds; None if it is absent, or a date."""


async def safe_post(url: str, body: bytes, headers: Mapping[str, str], allowed: Sequence[Network]) -> Sent:
    """Send a POST request to a public address or a network in `allowed`; a failure is returned."""
    # The URL may contain a secret.
    guarded = GuardedSessions(allowed, listeners=IN_THIS_PROCESS)
    try:
        async with asyncio.timeout(SEND_SECONDS), guarded as sessions:
            return await _post(sessions, URL(url), body, headers)
    except TimeoutError:
        return Sent(None, f"no answer within {SEND_SECONDS:g} s")
    except PrivateAddressRefused as error:
        return Sent(None, error.refused.reason)
    except ListenerChanged as error:
        return Sent(None, str(error))
    except FAILURES as error:
        return Sent(None, f"cannot be reached ({type(error).__name__})")


async def _post(sessions: GuardedSessions, url: URL, body: bytes, headers: Mapping[str, str]) -> Sent:
    session = sessions.session_for(url)
    async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
        # The body stays unread: the connection ends with the block.
        status, retry_after = response.status, response.headers.get("Retry-After", "")
    if 200 <= status <= 299:
        return Sent(status, None)
    is_number = retry_after.isascii() and retry_after.isdecimal()
    return Sent(status, f"answered {status}", float(retry_after) if is_number else None)
