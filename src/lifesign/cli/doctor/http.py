"""Requests of the checks to a server, with their timeouts."""

import time
from email.utils import parsedate_to_datetime
from typing import Final

from lifesign.cli.doctor.check_result import ahead_s

TIMEOUT_SECONDS: Final = 5.0
"""Time limit of one request to a registry."""
MAX_ANSWER_BYTES: Final = 65_536
MAX_LIST_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of the list of probers, and of the monitor's record; the same as in the registry's client."""


def fetch(
    url: str, key: str = "", max_bytes: int = MAX_ANSWER_BYTES
) -> tuple[int, float | None, bytes] | None:
    """Send a GET; return the answer's status, how far the server's clock is ahead, and the body's beginning.

    None without an answer. The clock's seconds are None if the answer has no Date. The body is cut to
    `max_bytes`.
    """
    import asyncio  # noqa: PLC0415 - with aiohttp it takes 200 ms

    from lifesign.http_client.bounded_body import read_beginning  # noqa: PLC0415
    from lifesign.http_client.counted_sessions import ByteCountingConnector, counter_of, counting_session  # noqa: PLC0415
    from lifesign.http_client.failures import FAILURES  # noqa: PLC0415

    async def ask() -> tuple[int, float | None, bytes]:
        asked_s = time.time()
        headers = {"X-API-Key": key} if key else {}
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            counting_session(ByteCountingConnector(limit=1)) as session,
            session.get(url, headers=headers, allow_redirects=False, auto_decompress=True) as answer,
        ):
            answered_s = time.time()
            body, _ = await read_beginning(answer, max_bytes, counter_of(answer))
            date = answer.headers.get("Date")
            server_time_s = None if date is None else parsedate_to_datetime(date).timestamp()
            apart_s = None if server_time_s is None else ahead_s(server_time_s, asked_s, answered_s)
            return answer.status, apart_s, body

    try:
        return asyncio.run(ask())
    except FAILURES:
        return None
