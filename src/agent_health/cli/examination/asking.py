"""What does a server answer, and how long is it waited for?"""

from email.utils import parsedate_to_datetime
from typing import Final

ASK_SECONDS: Final = 5.0
"""For one question to a registry."""
MAX_ANSWER_BYTES: Final = 65_536


def answer_of(url: str, key: str = "") -> tuple[int, float | None, bytes] | None:
    """Return the status of an answer, the time in it and the beginning of its body; None without one.

    The time is in seconds since the epoch; the body is cut to MAX_ANSWER_BYTES.
    """
    import asyncio  # noqa: PLC0415 - with aiohttp it takes 200 ms

    from agent_health.http.bounded_body import read_beginning  # noqa: PLC0415
    from agent_health.http.counted_sessions import (  # noqa: PLC0415
        CountedConnector,
        counted_session,
        counter_of,
    )
    from agent_health.http.failures import FAILURES  # noqa: PLC0415

    async def ask() -> tuple[int, float | None, bytes]:
        headers = {"X-API-Key": key} if key else {}
        async with (
            asyncio.timeout(ASK_SECONDS),
            counted_session(CountedConnector()) as session,
            session.get(url, headers=headers, allow_redirects=False, auto_decompress=True) as answer,
        ):
            date = answer.headers.get("Date")
            body, _ = await read_beginning(answer, MAX_ANSWER_BYTES, counter_of(answer))
            return answer.status, None if date is None else parsedate_to_datetime(date).timestamp(), body

    try:
        return asyncio.run(ask())
    except FAILURES:
        return None
