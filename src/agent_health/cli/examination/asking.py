"""What does a server answer, and how long is it waited for?"""

from email.utils import parsedate_to_datetime
from typing import Final

ASK_SECONDS: Final = 5.0
"""For one question to a registry."""
MAX_ANSWER_BYTES: Final = 65_536


def answer_of(url: str, key: str = "") -> tuple[int, float | None, bytes] | None:
    """Return the status of an answer, the time in it and the beginning of its body; None without one.

    The time is in seconds since the epoch; of the body it is what came at once, at most MAX_ANSWER_BYTES.
    """
    import asyncio  # noqa: PLC0415 - with aiohttp it takes 200 ms

    import aiohttp  # noqa: PLC0415

    async def ask() -> tuple[int, float | None, bytes]:
        timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
        headers = {"X-API-Key": key} if key else {}
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            date = answer.headers.get("Date")
            body = await answer.content.read(MAX_ANSWER_BYTES)
            return answer.status, None if date is None else parsedate_to_datetime(date).timestamp(), body

    try:
        return asyncio.run(ask())
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError):
        return None
