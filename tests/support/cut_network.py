"""A prober in a network of its own, of which one address family is cut while it runs.

Run within a network namespace, as root: `unshare --net python -m tests.support.cut_network drop`. It writes
one object of JSON: by target, the result classes after the cut, with why nothing was measured.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

from tests.support.hostile_server import CARD_PATH, HostileServer, as_json, serving
from tests.support.memory_ledger import MemoryLedger

from lifesign.crawl.prober_assembly import open_prober
from lifesign.domain.observation.results import Observation
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.network.clock import SYSTEM_CLOCK
from lifesign.prober.registry_exchange.ledger import ShardBatch
from lifesign.prober.worker.main_loop import ProbeWorker

FOURS, SIXES = "10.9.0.0/24", "fd00:9::/64"
OWN = "10.9.0.250"
"""The machine's own address in the IPv4 network, at which an agent runs beside the prober."""
HOSTS = 3
PATIENCE_SECONDS = 60
CARD = {
    "name": "Adder",
    "description": "Adds numbers",
    "url": "https://sums.test/a2a",
    "version": "1.0.0",
    "protocolVersion": "0.3.0",
    "capabilities": {},
    "skills": [],
}
CUTS = {
    "drop": ["nft", "add", "rule", "inet", "cut", "out", "ip6", "daddr", SIXES, "drop"],
    "reject": ["nft", "add", "rule", "inet", "cut", "out", "ip6", "daddr", SIXES, "reject"],
    "all others": ["nft", "add", "rule", "inet", "cut", "out", "ip", "daddr", "!=", OWN, "drop"],
}


def prepare() -> None:
    """Give the namespace its addresses, and a place for rules."""
    # The hosts are here, and the source of each connection to them is another address, as if they were not.
    commands = [
        "ip link set lo up",
        f"ip addr add {OWN}/32 dev lo",
        "ip addr add fd00:10::1/128 dev lo nodad",
        f"ip route add local {FOURS} dev lo src {OWN}",
        f"ip -6 route add local {SIXES} dev lo src fd00:10::1",
        "nft add table inet cut",
        "nft add chain inet cut out { type filter hook output priority 0 ; }",
    ]
    for command in commands:
        subprocess.run(command.split(" "), check=True)
    # IPv6 servers bind only to configured addresses otherwise.
    Path("/proc/sys/net/ipv6/ip_nonlocal_bind").write_text("1", encoding="ascii")


def definition(targets: list[str]) -> ProbeDefinition:
    return ProbeDefinition.model_validate(
        {
            "name": "cut",
            "contact": "mailto:tests@agent.example",
            "targets": targets,
            "ask": {"transport": False, "health": False},
            "cadence": {"allow_fast_cadence": True, "interval_seconds": 1.0, "confirm_after_seconds": 0.05},
            "timeouts": {"connect_seconds": 0.5, "first_byte_seconds": 1.0, "total_seconds": 2.0},
            "networks": {"allow": [FOURS, SIXES]},
            "opt_out": {"robots_txt": False},
            "witnesses": {"round_seconds": 0.2, "answer_seconds": 0.5, "next_answer_seconds": 0.05},
            "results": {"flush_seconds": 0.05},
            "limits": {"host_requests_per_second": 1000.0},
        }
    )


async def main(cut: str) -> None:
    """Probe, cut the network, let one IPv4 host die, and print the later results of each target."""
    async with contextlib.AsyncExitStack() as stack:
        servers: list[HostileServer] = []
        dying = contextlib.AsyncExitStack()
        for number in range(1, HOSTS + 1):
            for host in (f"10.9.0.{number}", f"fd00:9::{number}"):
                its = dying if host == "10.9.0.1" else stack
                replies = {CARD_PATH: as_json(CARD)}
                servers.append(await its.enter_async_context(serving(replies, host=host)))
        servers.append(await stack.enter_async_context(serving({CARD_PATH: as_json(CARD)}, host=OWN)))
        urls = {server.host: _url(server) for server in servers}
        news = asyncio.Event()
        ledger = MemoryLedger(SYSTEM_CLOCK)
        ledger.add(*urls.values())

        def note(_batch: ShardBatch) -> None:
            asyncio.get_running_loop().call_soon(news.set)

        ledger.on_report = note

        async def until_reported(times: int, since: dict[str, int]) -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while any(len(ledger.observations(url)) - since.get(url, 0) < times for url in urls.values()):
                    news.clear()
                    await news.wait()

        wanted = definition(list(urls.values()))
        opened = await stack.enter_async_context(open_prober(wanted))
        worker = ProbeWorker(ledger, opened.prober, wanted, worker_name="cut", asks=opened.witnesses)
        stop = asyncio.Event()
        running = asyncio.create_task(worker.run(stop))
        await until_reported(2, {})
        await asyncio.to_thread(subprocess.run, CUTS[cut], check=True)
        await dying.aclose()
        since = {url: len(ledger.observations(url)) for url in urls.values()}
        # The first of them may have been under way.
        await until_reported(4, since)
        members = {
            host: [_result_facts(one) for one in ledger.observations(url)[since[url] + 1 :]]
            for host, url in urls.items()
        }
        stop.set()
        await running
    sys.stdout.write(json.dumps(members))


def _url(server: HostileServer) -> str:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}/"


def _result_facts(observation: Observation) -> list[str | None]:
    return [observation.result.value, observation.inconclusive_reason, observation.network_class]


if __name__ == "__main__":
    prepare()
    asyncio.run(main(sys.argv[1]))
