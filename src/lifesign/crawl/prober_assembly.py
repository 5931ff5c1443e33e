"""The assembly of a prober from its definition."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lifesign.crawl.directory_import import opt_outs_of
from lifesign.crawl.token_pipe import TokenOwner
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.evidence.evidence_store import EvidenceStore
from lifesign.prober.network.exclusion_list import OptOuts
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.resolver import Resolver
from lifesign.prober.network.token_request import OAuthTokenClient
from lifesign.prober.probe.steps import Prober
from lifesign.prober.reachability.target_contact import NetworkClasses
from lifesign.prober.reachability.witness_requests import WitnessRequests
from lifesign.prober.secrets.credential_store import CredentialStore, RequestToken
from lifesign.prober.secrets.secret_reader import Secrets, read_secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProber:
    """A prober, and the parts that send its requests."""

    prober: Prober
    fetcher: Fetcher
    resolver: Resolver
    witnesses: WitnessRequests
    credentials: CredentialStore


@asynccontextmanager
async def open_prober(
    definition: ProbeDefinition,
    *,
    is_public_allowed: bool = True,
    secrets: Secrets | None = None,
    request_token: RequestToken | None = None,
) -> AsyncIterator[OpenProber]:
    """Open the prober of a definition; at the end of the block its sockets and files are closed.

    `is_public_allowed`: False to contact `networks.allow` only, for want of a contact. `secrets`: those of
    the definition's credentials; None: they are read here. `request_token`: obtains tokens from the process
    that requests them; None: this process does. InvalidValue for an invalid evidence directory, resolver,
    secret or opt-out list.
    """
    secrets = read_secrets(definition.credentials) if secrets is None else secrets
    evidence = EvidenceStore.from_settings(definition.evidence)
    opt_outs = opt_outs_of(definition)
    try:
        async with (
            _resolver(definition) as resolver,
            _fetcher(definition, resolver, is_public_allowed=is_public_allowed) as token_fetcher,
            open_credentials(definition, secrets, token_fetcher, request_token) as credentials,
            _fetcher(
                definition, resolver, opt_outs, credentials, is_public_allowed=is_public_allowed
            ) as fetcher,
        ):
            witnesses = WitnessRequests(
                fetcher.connector,
                NetworkClasses(definition.networks_allowed),
                name_servers=definition.resolver.servers,
                user_agent=definition.user_agent,
                opt_outs=opt_outs,
                note_looked_up=resolver.note_looked_up,
            )
            prober = Prober(
                fetcher, definition, evidence, opt_outs, resolver.look_up_again, credentials=credentials
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
    definition: ProbeDefinition,
    secrets: Secrets,
    fetcher: Fetcher,
    request_token: RequestToken | None = None,
) -> AsyncIterator[CredentialStore]:
    """Open the credentials of a definition. `fetcher`: one without credentials, for token endpoints.

    `request_token`: obtains tokens from another process; None: this one calls the token endpoints.
    """
    endpoints = OAuthTokenClient(fetcher, definition.timeouts.total_seconds)
    credentials = CredentialStore(
        definition.credentials,
        secrets,
        request_token=request_token or endpoints.request,
        owns_tokens=request_token is None,
        interval_s=definition.cadence.interval_seconds,
    )
    try:
        yield credentials
    finally:
        await credentials.close()
        await endpoints.close()


@asynccontextmanager
async def open_token_endpoints(definition: ProbeDefinition) -> AsyncIterator[OAuthTokenClient]:
    """Open the client for the token endpoints of a definition, for a login."""
    async with _resolver(definition) as resolver, _fetcher(definition, resolver) as fetcher:
        endpoints = OAuthTokenClient(fetcher, definition.timeouts.total_seconds)
        try:
            yield endpoints
        finally:
            await endpoints.close()


@asynccontextmanager
async def open_token_owner(definition: ProbeDefinition, secrets: Secrets) -> AsyncIterator[TokenOwner | None]:
    """Yield the object that requests OAuth tokens for all processes; None if no credential needs them."""
    if all(credential.oauth2 is None for credential in definition.credentials):
        yield None
        return
    async with (
        _resolver(definition) as resolver,
        _fetcher(definition, resolver, is_public_allowed=definition.has_contact) as fetcher,
        open_credentials(definition, secrets, fetcher) as credentials,
    ):
        yield TokenOwner(credentials, definition.timeouts.total_seconds)


def _resolver(definition: ProbeDefinition) -> Resolver:
    return Resolver(definition.resolver.servers, timeout_s=definition.timeouts.dns_seconds)


def _fetcher(
    definition: ProbeDefinition,
    resolver: Resolver,
    opt_outs: OptOuts | None = None,
    credentials: CredentialStore | None = None,
    *,
    is_public_allowed: bool = True,
) -> Fetcher:
    return Fetcher(
        timeouts=definition.timeouts,
        networks=definition.networks_allowed,
        is_public_allowed=is_public_allowed,
        user_agent=definition.user_agent,
        resolver=resolver,
        opt_outs=opt_outs,
        credentials=credentials,
    )
