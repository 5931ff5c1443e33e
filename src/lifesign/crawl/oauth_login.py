"""A login at an OAuth provider: a person's consent gives the prober a refresh token."""

import os
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from lifesign.client.environment_variables import VARIABLE_PREFIX
from lifesign.crawl.prober_assembly import open_token_endpoints
from lifesign.domain.credentials.authorization import AuthorizationRequest, RedirectFault, read_redirect
from lifesign.domain.net.allowed_addresses import Network, is_in
from lifesign.errors import InvalidValue
from lifesign.filesystem.core_dumps import forbid_core_dumps
from lifesign.prober.definition.credentials import CredentialSettings, OAuthClient
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.network.loopback_redirect import LoopbackRedirect, listening
from lifesign.prober.secrets.client_tls import ClientTls
from lifesign.prober.secrets.credential_store import Credential
from lifesign.prober.secrets.refresh_token_file import RefreshTokenFile
from lifesign.prober.secrets.secret_reader import (
    forget_variables,
    read_secret,
    read_tls,
)

RANDOM_BYTES: Final = 32
"""Of the state and of the verifier: 43 characters (RFC 7636 4.1)."""


def client_for_login(chosen: CredentialSettings, definition: ProbeDefinition) -> OAuthClient:
    """Return the OAuth client of a credential; InvalidValue if no login is possible with it."""
    setting = f"credentials.{chosen.name}.oauth2"
    client = chosen.oauth2
    if client is None or client.token_file is None:
        expected = "oauth2 with grant: refresh_token and token_file"
        raise InvalidValue(f"credentials.{chosen.name}", None, expected)
    if client.authorization_url is None:
        expected = "the URL of the provider's authorization endpoint"
        raise InvalidValue(f"{setting}.authorization_url", None, expected)
    if not _is_safe(client.authorization_url, definition.networks_allowed):
        expected = "a URL of https, or an address in networks.allow"
        raise InvalidValue(f"{setting}.authorization_url", client.authorization_url, expected)
    return client


def _is_safe(url: str, networks: Sequence[Network]) -> bool:
    """Return whether no third party can change the login on its way: TLS, or an allowed network."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return True
    try:
        return is_in(ip_address(parts.hostname or ""), networks)
    except ValueError:
        return False


async def log_in(
    definition: ProbeDefinition,
    chosen: CredentialSettings,
    seconds: float,
    *,
    open_url: Callable[[str], None],
    complain: Callable[[str], None],
    is_shown_to_all: bool = False,
) -> str | None:
    """Log in, and store the refresh token; return the reason if that failed, else None.

    `open_url` shows the provider's page to a person, who has `seconds` for it. `complain` receives warnings
    about the file of the client's secret. `is_shown_to_all`: whether other users of this machine can read the
    URL and its `state`, because it is an argument of the browser. Redirects by other users are then refused.
    """
    client = client_for_login(chosen, definition)
    assert client.token_file is not None  # noqa: S101 - as client_for_login requires
    credential = _credential(chosen, client, complain)
    tls = token_tls(client, definition.credentials, complain)
    credential.token_tls = lambda: tls
    # A browser is a child process, and would inherit them. It needs none of lifesign's own.
    own = [name for name in os.environ if name.startswith(VARIABLE_PREFIX)]
    forget_variables(definition.credentials, others=own)
    file = RefreshTokenFile(client.token_file)
    try:
        if (fault := file.claim()) is not None:
            return str(fault)
        async with (
            open_token_endpoints(definition) as endpoints,
            listening(is_for_own_user=is_shown_to_all) as redirect,
        ):
            grant = await _authorize(client, redirect, seconds, open_url)
            if isinstance(grant, str):
                return grant
            token = await endpoints.exchange_code(credential, grant)
        unstored = file.store(token) if isinstance(token, str) else token
        return None if unstored is None else str(unstored)
    finally:
        file.close()


async def _authorize(
    client: OAuthClient, redirect: LoopbackRedirect, seconds: float, open_url: Callable[[str], None]
) -> dict[str, str] | str:
    """Request the consent of a person; return the grant for the token endpoint, or why there is none."""
    request = AuthorizationRequest(
        authorization_url=client.authorization_url or "",
        client_id=client.client_id,
        redirect_uri=redirect.uri,
        scope=client.scope,
        resource=client.resource,
        issuer=client.issuer,
        state=secrets.token_urlsafe(RANDOM_BYTES),
        verifier=secrets.token_urlsafe(RANDOM_BYTES),
    )
    redirect.read = partial(read_redirect, request=request)
    open_url(request.url)
    found = await redirect.wait(seconds)
    return found.reason if isinstance(found, RedirectFault) else request.grant(found.value)


def _credential(
    chosen: CredentialSettings, client: OAuthClient, complain: Callable[[str], None]
) -> Credential:
    """Return the credential with the secret of its client. A public client has none."""
    forbid_core_dumps()
    secret = ""
    if client.client_secret is not None or client.private_key is not None:
        member, source = client.proof
        secret = read_secret(source, f"credentials.{chosen.name}.oauth2.{member}", complain)
    return Credential(chosen, secret)


def token_tls(
    client: OAuthClient, credentials: Sequence[CredentialSettings], complain: Callable[[str], None]
) -> ClientTls | None:
    """Return TLS settings with the authorities configured for a token endpoint; None: the system's."""
    for each in credentials:
        if each.ca_file is not None and each.origin == client.token_origin:
            alone = each.model_copy(update={"client_certificate": None, "client_key": None})
            return read_tls(alone, None, complain)
    return None
