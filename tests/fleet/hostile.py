"""A prober key in the wrong hands: it claims all it can, floods, and reports nothing true."""

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
from tests.fleet.hosts import CLASS

from lifesign.domain.targets.target import target_id

WORKERS: Final = 40
PAUSE_S: Final = 0.2
INVENTED_CLASSES: Final = [f"10.{number}.0.0/16" for number in range(50)]


async def hostile_key(url: str, key: str, targets: Sequence[str]) -> None:
    """Misuse a prober key until cancelled."""
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(5)) as session:
        for turn in itertools.count():
            await _send(session, f"{url}/api/v1/shards/claim", _claim(turn))
            await _send(session, f"{url}/api/v1/observations", _lies(targets, turn))
            await _send(session, f"{url}/api/v1/monitor/illness", {"ill": True, "seconds": 600.0})
            await asyncio.sleep(PAUSE_S)


def _claim(turn: int) -> dict[str, Any]:
    return {
        "worker": f"w{turn % WORKERS}",
        "ttl_seconds": 30.0,
        "held": {},
        "interval_s": 10.0,
        "reached_classes": [CLASS, "public_ipv4", "public_ipv6", "this_machine", *INVENTED_CLASSES],
    }


def _lies(targets: Sequence[str], turn: int) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    observations = [
        {
            "target_url": target,
            "observed_at": now,
            "discovery": {"result": "refused"},
        }
        for target in targets
    ]
    return {
        "observations": observations,
        "ages_s": [0.0] * len(observations),
        "numbers": [turn + 1] * len(observations),
        "interval_s": 10.0,
        "tokens": {str(int(target_id(target)[4:8], 16) % 1024): 2**40 + turn for target in targets},
    }


async def _send(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.post(url, json=body) as answer:
            await answer.read()
