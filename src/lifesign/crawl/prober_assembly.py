"""The assembly of a prober from its definition."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lifesign.crawl.directory_import import opt_outs_of
from lifesign.prober.credentials.secret_reader import Secrets, read_secrets
from lifesign.prober.credentials.store import CredentialStore
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.resolver import Resolver
from lifesign.prober.network.token_request import TokenEndpoints
from lifesign.prober.probe.layers import Prober
from lifesign.prober.results.evidence_store import EvidenceStore
from lifesign.prober.witness.target_contact import NetworkClasses
from lifesign.prober.witness.witness_requests import WitnessRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProber:
    """A prober, and what it sends requests with."""

    prober: Prober
    fetcher: Fetcher
    resolver: Resolver
    witnesses: WitnessRequests
    credentials: CredentialStore


@asynccontextmanager
async def open_prober(
    definition: ProbeDefinition, *, is_public_allowed: bool = True, secrets: Secrets | None = None
) -> AsyncIterator[OpenProber]:
    """Open what a definition asks for; at the end of the block its sockets and files are closed.

    `is_public_allowed`: False to contact `networks.allow` only, for want of a contact.
    `secrets`: those of the definition's credentials; None: they are read here. InvalidValue for a directory
    of evidence, a resolver, a secret or a list of those who opted out that cannot be.
    """
    secrets = read_secrets(definition.credentials) if secrets is None else secrets
    evidence = EvidenceStore.from_settings(definition.evidence)
    opt_outs = opt_outs_of(definition)
    try:
        async with (
            Resolver(definition.resolver.servers, timeout_s=definition.timeouts.dns_seconds) as resolver,
            Fetcher(
                timeouts=definition.timeouts,
                networks=definition.networks_allowed,
                is_public_allowed=is_public_allowed,
                user_agent=definition.user_agent,
                resolver=resolver,
            ) as token_fetcher,
            open_credentials(definition, secrets, token_fetcher) as credentials,
            Fetcher(
                timeouts=definition.timeouts,
                networks=definition.networks_allowed,
                is_public_allowed=is_public_allowed,
                user_agent=definition.user_agent,
                resolver=resolver,
                opt_outs=opt_outs,
                credentials=credentials,
            ) as fetcher,
        ):
            witnesses = WitnessRequests(
                fetcher.connector,
                NetworkClasses(definition.networks_allowed),
                name_servers=definition.resolver.servers,
                user_agent=definition.user_agent,
                opt_outs=opt_outs,
            )
            prober = Prober(
                fetcher, definition, evidence, opt_outs, resolver.forget_absence, credentials=credentials
            )
            yield OpenProber(
                prober=prober,
                fetcher=fetcher,
                resolver=resolver,
                witnesses=witnesses,
                credentials=credentials,
            )
    finally:
        if evidence is not None:
            evidence.close()


@asynccontextmanager
async def open_credentials(
    definition: ProbeDefinition, secrets: Secrets, fetcher: Fetcher
) -> AsyncIterator[CredentialStore]:
    """Open the credentials of a definition. `fetcher`: one without credentials, for token endpoints."""
    endpoints = TokenEndpoints(fetcher, definition.timeouts.total_seconds)
    credentials = CredentialStore(
        definition.credentials,
        secrets,
        request_token=endpoints.request,
        interval_s=definition.cadence.interval_seconds,
    )
    try:
        yield credentials
    finally:
        await credentials.close()
