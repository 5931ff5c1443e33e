"""Cost of a probe with a cached access token, beside the same probe of the same agents without a login.

Card, interface and document of each target are requested, in turns, in one process on uvloop. Another process
serves the agents, and closes each connection after the document: the next probe comes minutes later.
The interface gets the token. Over TLS, as users have it, and over plain HTTP: on the same machine, the prober
then also asks the kernel for the user of each server. Only processor time is compared: wall time depends on
what else runs on the machine.
"""

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

import trustme
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.fetch_cost import AT_ONCE, Contestant, staying
from benchmarks.interleaved import Measured, is_quick, print_table, verdict

from lifesign.domain.credentials.request_scope import MAX_CREDENTIALS
from lifesign.domain.credentials.token import AccessToken, TokenFault
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import target_id
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.resolver import Resolver
from lifesign.prober.probe.steps import Prober
from lifesign.prober.registry_exchange.ledger import TargetEntry
from lifesign.prober.secrets.credential_store import Credential, CredentialStore
from lifesign.prober.secrets.secret_reader import Secrets

OPEN, LOGIN = "without a login", "with a cached token"
SCHEMES = ("https", "http")
ADDRESSES = [f"127.0.0.{number + 1}" for number in range(MAX_CREDENTIALS)]
TOKEN = "a1-B_" * 200
"""As long as a signed token with some claims."""
LAST_PATH = "/.well-known/agent-health"
MAX_RATIO = 1.1


async def serve(ready: Connection, certificate: Path) -> None:
    """Serve an agent at each of the addresses, and send the ports by scheme. `certificate`: with its key."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                path, host = head.split(" ", 2)[1], head.partition("Host: ")[2].partition("\r")[0]
                scheme = "http" if writer.get_extra_info("sslcontext") is None else "https"
                writer.write(response(path, f"{scheme}://{host}"))
                if path.endswith(LAST_PATH):
                    break
        writer.close()

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    ports = {}
    for scheme in SCHEMES:
        # At all addresses. More connections are opened at once than are accepted at once by default.
        server = await asyncio.start_server(
            answer,
            "0.0.0.0",  # noqa: S104
            0,
            backlog=4 * AT_ONCE,
            ssl=tls if scheme == "https" else None,
        )
        ports[scheme] = server.sockets[0].getsockname()[1]
    ready.send(ports)
    await asyncio.Event().wait()


def response(path: str, origin: str) -> bytes:
    """Return the answer of the agent at an origin."""
    status, body = 405, {}
    if path.endswith("agent-card.json"):
        skills = [
            {"id": f"s{number}", "name": "Skill", "description": "Does", "tags": []} for number in range(5)
        ]
        status, body = 200, {
            "name": origin, "url": f"{origin}/rpc", "version": "1", "protocolVersion": "0.3.0",
            "skills": skills,
            "capabilities": {}, "defaultInputModes": [], "defaultOutputModes": [], "description": "An agent",
        }  # fmt: skip
    elif path.endswith(LAST_PATH):
        status, body = 200, {
            "agent_id": origin, "schema_version": "0.1.0", "timestamp": datetime.now(UTC).isoformat(),
            "health": {"status": "healthy"},
        }  # fmt: skip
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    if path.endswith(LAST_PATH):
        head += "Connection: close\r\n"
    return f"{head}\r\n".encode() + data


def run_server(ready: Connection, certificate: Path) -> None:
    """Serve the agents until the process is killed."""
    uvloop.run(serve(ready, certificate))


@contextlib.contextmanager
def serving(certificate: Path) -> Iterator[dict[str, int]]:
    """Serve the agents in another process; yield the ports by scheme."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_server, args=(theirs, certificate), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


class Endpoint:
    """Issues the token, and counts the requests for it."""

    def __init__(self) -> None:
        self.requests = 0

    async def request(self, _credential: Credential, _rejected: str | None) -> AccessToken | TokenFault:
        """Issue the token."""
        self.requests += 1
        return AccessToken(value=TOKEN, renew_after_s=86_400.0, lifetime_s=86_400.0)


def store_for(urls: list[str], endpoint: Endpoint) -> CredentialStore:
    """Return one credential for each target, all of one OAuth 2 client."""
    oauth2 = {
        "token_url": "https://login.example/token", "client_id": "bench", "client_secret": {"env": "BENCH"},
    }  # fmt: skip
    settings = [
        CredentialSettings.model_validate(
            {"name": f"target-{number}", "origin": url, "for_all_targets": True, "oauth2": oauth2}
        )
        for number, url in enumerate(urls)
    ]
    secrets = Secrets({each.source: "bench-client-secret" for each in settings})
    return CredentialStore(settings, secrets, request_token=endpoint.request)


class Probes:
    """Probes the targets, each as if it were seen for the first time."""

    def __init__(self, prober: Prober, urls: list[str]) -> None:
        self._prober = prober
        self._urls = urls

    async def first(self, number: int) -> None:
        """Probe a target of which nothing is known."""
        url = f"{self._urls[number]}/"
        entry = TargetEntry(subject_id=target_id(url), url=url, memory=ProbeMemory())
        seen = (await self._prober.probe(entry, time.time())).observation
        layers = [seen.discovery, seen.transport, seen.readiness]
        if [None if layer is None else layer.result for layer in layers] != [ResultClass.OK] * 3:
            raise SystemExit(f"{url} was not seen as it should: {seen}")


@contextlib.contextmanager
def trusted_certificate() -> Iterator[Path]:
    """Yield the file with certificate and key of a server that this process trusts."""
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(Path(directory) / "authority.pem")
        os.environ["SSL_CERT_FILE"] = str(Path(directory) / "authority.pem")
        certificate = Path(directory) / "server.pem"
        authority.issue_cert(*ADDRESSES).private_key_and_cert_chain_pem.write_to_path(certificate)
        yield certificate


@contextlib.asynccontextmanager
async def asking(scheme: str, port: int, endpoint: Endpoint) -> AsyncIterator[dict[str, Contestant]]:
    wanted = ProbeDefinition.model_validate(
        {
            "name": "bench",
            "contact": "https://agent.example",
            "targets": ["https://agent.example"],
            "networks": {"allow": ["127.0.0.0/8"]},
            "opt_out": {"robots_txt": False},
            "timeouts": {"connect_seconds": 20, "first_byte_seconds": 20, "total_seconds": 20},
        }
    )
    urls = [f"{scheme}://{address}:{port}" for address in ADDRESSES]
    stores = {OPEN: CredentialStore(), LOGIN: store_for(urls, endpoint)}
    contestants = {}
    async with contextlib.AsyncExitStack() as stack:
        resolver = await stack.enter_async_context(Resolver((), timeout_s=wanted.timeouts.dns_seconds))
        for name, store in stores.items():
            fetcher = await stack.enter_async_context(
                Fetcher(
                    timeouts=wanted.timeouts,
                    networks=wanted.networks_allowed,
                    user_agent=wanted.user_agent,
                    resolver=resolver,
                    credentials=store,
                )
            )
            probes = Probes(Prober(fetcher, wanted, credentials=store), urls)
            contestants[name] = Contestant(staying(probes.first), 3, itertools.cycle(range(len(urls))))
        yield contestants


async def run(scheme: str, port: int, endpoint: Endpoint, *, probes: int, rounds: int) -> Measured:
    """Let both probe in each round; the first round warms up and is dropped."""
    async with asking(scheme, port, endpoint) as contestants:
        names = list(contestants)
        for turn in range(rounds + 1):
            for name in names if turn % 2 else reversed(names):
                await contestants[name].sample(probes)
    return Measured({name: contestant.cpu_us[1:] for name, contestant in contestants.items()})


def main() -> None:
    probes, rounds = (100, 25) if is_quick(__doc__) else (100, 300)
    endpoint, rows = Endpoint(), []
    with trusted_certificate() as certificate, serving(certificate) as ports:
        for scheme, port in ports.items():
            cpu = uvloop.run(run(scheme, port, endpoint, probes=probes, rounds=rounds))
            ratio = cpu.ratio(LOGIN, OPEN)
            rows += [
                [f"{scheme}: {OPEN}", f"{cpu.median(OPEN):.0f}", "", ""],
                [
                    f"{scheme}: {LOGIN}",
                    f"{cpu.median(LOGIN):.0f}",
                    f"{ratio:.3f}",
                    verdict(ratio, at_most=MAX_RATIO),
                ],
            ]
    asked = len(SCHEMES) * probes * (rounds + 1)
    print_table(
        f"{AT_ONCE} at once, {asked:,} with a token; token requests: {endpoint.requests}",
        ["", "CPU µs per probe", "ratio", "target"],
        rows,
    )


if __name__ == "__main__":
    main()
