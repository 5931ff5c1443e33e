"""Fetches documents of a directory with the prober's own fetcher.

The fetcher protects the prober from directories as it does from agents: both are untrusted.
"""

import asyncio
from typing import Final

from yarl import URL

from lifesign.prober.definition.pacing_settings import Timeouts
from lifesign.prober.directories.source import DOCUMENT_TIMEOUT_S, Get, WantedDocument
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.request import Request

TIMEOUTS: Final = Timeouts(first_byte_seconds=30, total_seconds=DOCUMENT_TIMEOUT_S)
"""Time limits of requests to directories: a list of a million agents takes longer than a card."""
ACCEPTED: Final = (
    "application/json, application/ai-catalog+json, application/linkset+json, "
    "text/csv, text/plain;q=0.9, */*;q=0.1"
)


def fetching_with(fetcher: Fetcher) -> Get:
    """Return a function that requests documents of directories through a fetcher, with its `TIMEOUTS`."""

    async def get(wanted: WantedDocument) -> Fetched:
        async def kept_out(url: URL) -> str | None:
            is_in_scope = wanted.key_scope is None or wanted.key_scope.covers(str(url))
            return None if is_in_scope else "the key of the directory is not sent"

        return await fetcher.fetch(
            Request(
                url=URL(wanted.url, encoded=True),
                headers={} if wanted.key is None else {"Authorization": f"Bearer {wanted.key}"},
                etag=wanted.etag,
                modified_since=wanted.modified_since,
                max_bytes=wanted.max_bytes,
                deadline_s=asyncio.get_running_loop().time() + wanted.timeout_s,
                own_secret=wanted.key,
                # Directories move, but their key does not move with them.
                may_leave_origin=wanted.key is None,
                kept_out=kept_out,
                accept=ACCEPTED,
            )
        )

    return get
