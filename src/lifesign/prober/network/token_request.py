"""Requests to token endpoints, over the prober's guarded connections.

A client secret goes to the URL of the definition and nowhere else: no redirect is followed.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Final

from yarl import URL

from lifesign.domain.credentials.token import (
    JWT_BEARER,
    AccessToken,
    TokenFault,
    TokenFaultKind,
    basic_client,
    form_body,
    read_token,
    token_form,
)
from lifesign.domain.observation.results import ResultClass
from lifesign.http.redirects import REDIRECTS
from lifesign.prober.credentials.client_assertion import client_assertion
from lifesign.prober.credentials.store import Credential
from lifesign.prober.definition.credentials import AuthMethod, OAuthClient
from lifesign.prober.network.fetch import Fetched, Fetcher, Request

MAX_ANSWER_BYTES: Final = 65_536
"""Maximum size of the answer of a token endpoint."""
# With these a whole answer came; its status means something else than that of an agent.
_ANSWERED: Final = frozenset({
    ResultClass.OK, ResultClass.GATED, ResultClass.NOT_AN_AGENT, ResultClass.RATE_LIMITED,
    ResultClass.HTTP_ERROR,
})  # fmt: skip


class TokenEndpoints:
    """Requests tokens for the OAuth 2 clients of a definition."""

    def __init__(self, fetcher: Fetcher, seconds: float) -> None:
        """`fetcher`: one without credentials, which would remove a token from an answer. `seconds`: limit."""
        self._fetcher = fetcher
        self._seconds = seconds

    async def request(self, credential: Credential, _rejected: str | None) -> AccessToken | TokenFault:
        """Request a token for a credential that is an OAuth 2 client, once."""
        client = credential.oauth2
        assert client is not None  # noqa: S101 - the store asks for tokens of clients only
        grant = {"grant_type": "client_credentials"}
        fields = token_form(grant, scope=client.scope, resource=client.resource)
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        fields, headers = _authenticated(client, credential.secret, fields, headers)
        fetched = await self._fetcher.fetch(
            Request(
                url=URL(client.token_url, encoded=True),
                method="POST",
                headers=headers,
                body=form_body(fields),
                max_bytes=MAX_ANSWER_BYTES,
                deadline_s=asyncio.get_running_loop().time() + self._seconds,
                kept_out=_no_redirect,
                has_secret=True,
            )
        )
        return _read(fetched)


def _authenticated(
    client: OAuthClient, secret: str, fields: dict[str, str], headers: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return fields and headers with what proves who the client is."""
    if client.auth_method is AuthMethod.CLIENT_SECRET_BASIC:
        return fields, {**headers, "Authorization": basic_client(client.client_id, secret)}
    fields = fields | {"client_id": client.client_id}
    if client.auth_method is AuthMethod.CLIENT_SECRET_POST:
        return fields | {"client_secret": secret}, dict(headers)
    assertion = client_assertion(client.client_id, client.token_url, secret, key_id=client.key_id)
    proof = {"client_assertion_type": JWT_BEARER, "client_assertion": assertion}
    return fields | proof, dict(headers)


def _read(fetched: Fetched) -> AccessToken | TokenFault:
    is_redirect = fetched.status in REDIRECTS
    if fetched.status is None or fetched.result not in _ANSWERED or is_redirect:
        reason = f"{fetched.result}{f': {fetched.reason}' if fetched.reason else ''}"
        return TokenFault(kind=TokenFaultKind.NO_ANSWER, reason=reason)
    try:
        answer = json.loads(fetched.body)
    except (ValueError, RecursionError):
        answer = None
    return read_token(fetched.status, answer, fetched.retry_after_seconds)


async def _no_redirect(_url: URL) -> str:
    """Return why no redirect is followed."""
    return "a client secret must not be sent"
