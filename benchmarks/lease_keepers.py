"""Cost of keeping a thousand leases in one process.

A thousand keepers each renew at 60 % of 300 s: 5.6 renewals a second. The benchmark counts the processor
time of their process during a window in which each renews once. Beside it, a bare loop in the same process
sends the same requests to the same server. Shares are of one core.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import is_quick, print_table, verdict
from benchmarks.over_http import serve, server

from lifesign.client import RegistryClient
from lifesign.client.lease_keeper import LeaseKeeper
from lifesign.domain.tasks.lease import TTL_SECONDS
from lifesign.domain.tasks.lease_renewal import RENEW_RATIO

KEEPERS = 1_000
TARGET = 0.05


async def renew(request: Request) -> Response:
    wanted = json.loads(await request.body())
    now = datetime.now(UTC)
    return JSONResponse(
        {
            "lease_id": request.path_params["lease_id"],
            "resource": "task:1",
            "holder": "a",
            "fencing_token": wanted["fencing_token"],
            "acquired_at": now.isoformat(),
            "expires_at": (now + timedelta(seconds=wanted["ttl_seconds"])).isoformat(),
        }
    )


def bare() -> Starlette:
    return Starlette(routes=[Route("/api/v1/leases/{lease_id}/renew", renew, methods=["POST"])])


async def keep(url: str, window_s: float) -> tuple[int, float]:
    """Keep all leases for one renewal of each; return how many there were, and the processor's seconds."""
    async with RegistryClient(url) as client:
        loop = asyncio.get_running_loop()
        keepers = [
            LeaseKeeper(
                client.leases,
                f"lease-{number}",
                fencing_token=number + 1,
                deadline_s=loop.time() + window_s,
                window_s=window_s,
            )
            for number in range(KEEPERS)
        ]
        # The first renewal opens the connections.
        keeping = [asyncio.create_task(keeper.run()) for keeper in keepers]
        await asyncio.sleep(window_s * 0.7)
        before = [keeper.deadline_s for keeper in keepers]
        began_s = time.process_time()
        await asyncio.sleep(window_s * RENEW_RATIO)
        spent_s = time.process_time() - began_s
        renewed = sum(
            keeper.deadline_s > deadline_s for keeper, deadline_s in zip(keepers, before, strict=True)
        )
        for keeper in keepers:
            keeper.stop_keeping()
        await asyncio.gather(*keeping)
        return renewed, spent_s


async def ask(url: str, window_s: float) -> tuple[int, float]:
    """Put the same requests without a keeper, spread over the same time."""
    async with RegistryClient(url) as client:
        began_s = time.process_time()
        for number in range(KEEPERS):
            await client.leases.renew(f"lease-{number}", fencing_token=number + 1)
            await asyncio.sleep(window_s * RENEW_RATIO / KEEPERS / 4)
        return KEEPERS, time.process_time() - began_s


def show(*, window_s: float) -> None:
    contestants: dict[str, Callable[[str, float], Awaitable[tuple[int, float]]]] = {
        "a bare loop of the same requests": ask,
        f"{KEEPERS} keepers": keep,
    }
    rows = []
    with server("bare", file=__file__, is_pinned=False) as served:
        for name, contestant in contestants.items():
            renewals, spent_s = asyncio.run(_timed(contestant, served.url, window_s))
            # So much for one renewal of each, which in life takes 60 % of 300 s.
            share = spent_s / renewals * KEEPERS / (TTL_SECONDS * RENEW_RATIO)
            rows.append(
                [
                    name,
                    f"{renewals}",
                    f"{spent_s / renewals * 1e6:.0f}",
                    f"{share:.4f}",
                    verdict(share, at_most=TARGET),
                ]
            )
    print_table(
        f"{KEEPERS} leases of {TTL_SECONDS} s in one process",
        ["", "renewals", "CPU µs each", "of one core", "target"],
        rows,
    )


async def _timed(
    contestant: Callable[[str, float], Awaitable[tuple[int, float]]], url: str, window_s: float
) -> tuple[int, float]:
    return await contestant(url, window_s)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(bare())
        return
    show(window_s=20 if is_quick(__doc__) else 60)


if __name__ == "__main__":
    main()
