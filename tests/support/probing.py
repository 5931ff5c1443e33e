"""Probes of a test's own server."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

from lifesign.crawl.directory_import import opt_outs_of
from lifesign.crawl.prober_assembly import open_credentials
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.targets.target import read_target, target_id
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.request import Request
from lifesign.prober.network.resolver import Resolver
from lifesign.prober.probe.session import EvidenceSink
from lifesign.prober.probe.steps import Prober
from lifesign.prober.registry_exchange.ledger import ProbeReport, TargetEntry
from lifesign.prober.secrets.credential_store import CredentialStore
from lifesign.prober.secrets.secret_reader import read_secrets

SHORT_SECONDS = 0.3
"""For what ends only when the time is up."""
PATIENT = dict.fromkeys(
    ("dns_seconds", "connect_seconds", "tls_seconds", "first_byte_seconds", "total_seconds"), 60
)
"""For everything else, so that a slow machine changes nothing."""


def definition(**settings: Any) -> ProbeDefinition:
    """A definition for servers on loopback, which asks for all but a message.

    Its credentials are for all targets: most tests probe a server that the definition does not name.
    """
    opt_out = {"robots_txt": False}
    if "credentials" in settings:
        given = [{"for_all_targets": True} | each for each in settings["credentials"]]
        settings |= {"credentials": given}
    return ProbeDefinition.model_validate(
        {
            "name": "test",
            "contact": "mailto:tests@agent.example",
            "targets": ["https://agent.example/"],
            "networks": {"allow": ["127.0.0.0/8"]},
            "opt_out": opt_out,
            "timeouts": PATIENT,
        }
        | settings
    )


def entry(
    url: str, memory: ProbeMemory | None = None, subject_id: str | None = None, **members: Any
) -> TargetEntry:
    target = read_target(url)
    assert isinstance(target, str)
    return TargetEntry(
        subject_id=subject_id or target_id(target),
        url=target,
        memory=memory or ProbeMemory(),
        **members,
    )


class Witness:
    """Sends requests like the fetcher, and stores them."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self.requests: list[Request] = []
        self.answers: list[Fetched] = []

    async def fetch(self, request: Request) -> Fetched:
        self.requests.append(request)
        self.answers.append(await self._fetcher.fetch(request))
        return self.answers[-1]


class Played:
    """Answers each request as a test sets, without a network; stores the requests."""

    def __init__(self, **answers: Callable[[Request], Fetched]) -> None:
        self._answers = answers
        self.requests: list[Request] = []

    async def fetch(self, request: Request) -> Fetched:
        self.requests.append(request)
        for part, answers in self._answers.items():
            if part in str(request.url):
                return answers(request)
        return fetched_as(request, ResultClass.NOT_AN_AGENT, status=404)

    @property
    def paths(self) -> list[str]:
        return [request.url.path for request in self.requests]


def fetched_as(request: Request, result: ResultClass, **members: Any) -> Fetched:
    return Fetched(url=request.url, result=result, reason=result.value, **members)


def always(result: ResultClass, **members: Any) -> Callable[[Request], Fetched]:
    return lambda request: fetched_as(request, result, **members)


class Bodies:
    """Keeps bodies in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def keep(self, body: bytes) -> str | None:
        digest = sha256(body).hexdigest()
        self.kept[digest] = body
        return digest


@asynccontextmanager
async def fetching(
    wanted: ProbeDefinition, credentials: CredentialStore | None = None
) -> AsyncIterator[Fetcher]:
    """A real fetcher as a definition wants it, which leaves alone whom it names."""
    async with (
        Resolver(wanted.resolver.servers, timeout_s=wanted.timeouts.dns_seconds) as resolver,
        Fetcher(
            timeouts=wanted.timeouts,
            networks=wanted.networks_allowed,
            user_agent=wanted.user_agent,
            resolver=resolver,
            opt_outs=opt_outs_of(wanted),
            credentials=credentials,
        ) as fetcher,
    ):
        yield fetcher


class Probes:
    """Probes one target again and again, with its memory."""

    def __init__(self, prober: Prober, witness: Witness, credentials: CredentialStore) -> None:
        self._prober = prober
        self.witness = witness
        self.credentials = credentials
        self.memory = ProbeMemory()

    async def report(self, url: str, *, at_s: float | None = None, **names: Any) -> ProbeReport:
        target = entry(url, self.memory, **names)
        report = await self._prober.probe(target, time.time() if at_s is None else at_s)
        # A ledger stores the memory as JSON.
        self.memory = ProbeMemory.from_json(report.memory.to_json())
        return report

    async def see(self, url: str, *, at_s: float | None = None, **members: Any) -> Observation:
        observation = (await self.report(url, at_s=at_s, **members)).observation
        # A registry receives the observation as JSON.
        assert Observation.model_validate_json(observation.model_dump_json()) == observation
        return observation


@asynccontextmanager
async def probing(evidence: EvidenceSink | None = None, **settings: Any) -> AsyncIterator[Probes]:
    wanted = definition(**settings)
    async with (
        fetching(wanted) as token_fetcher,
        open_credentials(wanted, read_secrets(wanted.credentials), token_fetcher) as credentials,
        fetching(wanted, credentials) as fetcher,
    ):
        witness = Witness(fetcher)
        prober = Prober(witness, wanted, evidence, opt_outs_of(wanted), credentials=credentials)
        yield Probes(prober, witness, credentials)


async def see(url: str, **settings: Any) -> Observation:
    """Probe a target once that was never probed before."""
    async with probing(**settings) as probes:
        return await probes.see(url)


def results(observation: Observation) -> dict[str, str]:
    """The class of each requested layer, by its name."""
    layers = {
        "discovery": observation.discovery,
        "transport": observation.transport,
        "readiness": observation.readiness,
        "message": observation.message,
    }
    return {name: layer.result.value for name, layer in layers.items() if layer is not None}


def layer(found: LayerResult | None) -> LayerResult:
    assert found is not None
    return found
