"""Requests to token endpoints, over the prober's guarded connections.

A client secret goes to the URL of the definition and nowhere else: no redirect is followed.
"""

import asyncio
import json
import logging
from collections.abc import Collection, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from yarl import URL

from lifesign.domain.credentials.token import (
    JWT_BEARER,
    AccessToken,
    TokenFault,
    TokenFaultKind,
    basic_client,
    form_body,
    read_token,
    refresh_token_fault,
    rotated_token,
    token_form,
)
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.redirects import REDIRECTS
from lifesign.prober.definition.credentials import AuthMethod, OAuthClient
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.request import Request
from lifesign.prober.secrets.client_assertion import client_assertion
from lifesign.prober.secrets.credential_store import Credential
from lifesign.prober.secrets.refresh_token_file import RefreshTokenFile
from lifesign.serving.ending_signals import finishing

MAX_ANSWER_BYTES: Final = 65_536
"""Maximum size of the answer of a token endpoint."""
_NO_HTTP: Final = "the connection broke, or the answer is not HTTP"
# With these a complete answer arrived; its status means something else than that of an agent.
_ANSWERED: Final = frozenset({
    ResultClass.OK, ResultClass.GATED, ResultClass.NOT_AN_AGENT, ResultClass.RATE_LIMITED,
    ResultClass.HTTP_ERROR,
})  # fmt: skip

_log = logging.getLogger("lifesign.prober")


class OAuthTokenClient:
    """Requests access tokens from the token endpoints of a definition's OAuth 2 clients."""

    def __init__(self, fetcher: Fetcher, seconds: float) -> None:
        """`fetcher`: one without credentials, which would remove a token from an answer. `seconds`: limit."""
        self._fetcher = fetcher
        self._seconds = seconds
        self._files: dict[Path, RefreshTokenFile] = {}
        self._exchanges: set[asyncio.Task[AccessToken | TokenFault]] = set()
        self._wait_text = f"waiting up to {seconds:g} s for a token endpoint, which replaces a refresh token"

    async def request(self, credential: Credential, _rejected: str | None) -> AccessToken | TokenFault:
        """Request an access token for an OAuth 2 credential, once; return it, or why there is none."""
        client = credential.oauth2
        assert client is not None  # noqa: S101 - the store asks for tokens of clients only
        if client.token_file is None:
            _, found = await self._ask(credential, client, {"grant_type": "client_credentials"})
            return _plausible(found, credential)
        # A prober that ends must not lose the token that replaces the one that it has just used.
        exchange = asyncio.create_task(self._refresh(credential, client, client.token_file))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)
        return _plausible(await asyncio.shield(exchange), credential)

    async def exchange_code(self, credential: Credential, grant: Mapping[str, str]) -> str | TokenFault:
        """Exchange an authorization code; return the refresh token, or the reason why there is none."""
        client = credential.oauth2
        assert client is not None  # noqa: S101 - a login is that of an OAuth 2 client
        fetched, found = await self._ask(credential, client, grant, with_scope=False)
        if isinstance(found, TokenFault):
            return found
        token = rotated_token(_answer(fetched), "")
        if token is None or refresh_token_fault(token) is not None:
            return TokenFault(kind=TokenFaultKind.TOKEN_FORM, reason="the answer has no usable refresh_token")
        return token

    async def close(self) -> None:
        """Wait for token requests that exchange a refresh token, and close the files of refresh tokens."""
        if self._exchanges:
            _log.warning(self._wait_text)
            await asyncio.wait(self._exchanges)
        for file in self._files.values():
            file.close()

    async def _refresh(
        self, credential: Credential, client: OAuthClient, path: Path
    ) -> AccessToken | TokenFault:
        """Use the refresh token in a file, while no signal but the first one ends the process."""
        # Two clients may have the same file: a token is used once.
        file = self._file(path)
        async with file.turn:
            former = file.read()
            if isinstance(former, TokenFault):
                return former
            with finishing(f"lifesign: {self._wait_text}"):
                return await self._exchange(credential, client, file, former)

    async def _exchange(
        self, credential: Credential, client: OAuthClient, file: RefreshTokenFile, former: str
    ) -> AccessToken | TokenFault:
        """Use a refresh token, and store the one that replaces it."""
        grant = {"grant_type": "refresh_token", "refresh_token": former}
        fetched, found = await self._ask(credential, client, grant)
        # The former one may be spent, even if the access token of the same answer is unusable.
        new = rotated_token(_answer(fetched), former) if fetched.status == HTTPStatus.OK else None
        fault = None if new is None else refresh_token_fault(new)
        if fault is not None:
            _log.error("the new refresh token for %s is not stored: expected %s", client.token_file, fault)
        elif new is not None:
            await asyncio.to_thread(file.replace, new)
        return _unless(found, (new,), "access_token is the new refresh token")

    def _file(self, path: Path) -> RefreshTokenFile:
        """Return the file at a path; a symbolic link counts as the file that it leads to."""
        return self._files.setdefault(path.resolve(), RefreshTokenFile(path))

    async def _ask(
        self,
        credential: Credential,
        client: OAuthClient,
        grant: Mapping[str, str],
        *,
        with_scope: bool = True,
    ) -> tuple[Fetched, AccessToken | TokenFault]:
        """Send a request for a token; return the answer, and the access token in it."""
        fields = token_form(grant, scope=client.scope if with_scope else None, resource=client.resource)
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
                tls=credential.token_tls(),
            )
        )
        # A refresh token, or an assertion of the client, is only for the token endpoint.
        return fetched, _unless(_read(fetched), fields.values(), "access_token is a value of the request")


def _authenticated(
    client: OAuthClient, secret: str, fields: dict[str, str], headers: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return fields and headers with the client's authentication."""
    if client.auth_method is AuthMethod.CLIENT_SECRET_BASIC:
        return fields, {**headers, "Authorization": basic_client(client.client_id, secret)}
    fields = fields | {"client_id": client.client_id}
    if client.auth_method is AuthMethod.CLIENT_SECRET_POST:
        return fields | {"client_secret": secret}, dict(headers)
    if client.auth_method is AuthMethod.NONE:
        return fields, dict(headers)
    assertion = client_assertion(client.client_id, client.token_url, secret, key_id=client.key_id)
    proof = {"client_assertion_type": JWT_BEARER, "client_assertion": assertion}
    return fields | proof, dict(headers)


def _read(fetched: Fetched) -> AccessToken | TokenFault:
    is_redirect = fetched.status in REDIRECTS
    if fetched.status is None or fetched.result not in _ANSWERED or is_redirect:
        reason = _unquoted_reason(fetched, is_redirect=is_redirect)
        return TokenFault(kind=TokenFaultKind.NO_ANSWER, reason=f"{fetched.result}{reason and f': {reason}'}")
    return read_token(fetched.status, _answer(fetched), fetched.retry_after_seconds)


def _plausible(found: AccessToken | TokenFault, credential: Credential) -> AccessToken | TokenFault:
    """Return a token, or a fault if it is no new secret.

    A part of the credential's URL occurs in answers. The client's secret is only for the token endpoint.
    """
    scope = credential.scope
    if isinstance(found, AccessToken) and found.value in f"{scope.origin}{scope.path}":
        reason = "access_token is a part of the credential's URL"
        return TokenFault(kind=TokenFaultKind.TOKEN_FORM, reason=reason)
    return _unless(found, (credential.secret,), "access_token is the client's secret")


def _unless(
    found: AccessToken | TokenFault, others: Collection[str | None], reason: str
) -> AccessToken | TokenFault:
    """Return a token, or the fault that it is one of these values."""
    is_other = isinstance(found, AccessToken) and found.value in others
    return TokenFault(kind=TokenFaultKind.TOKEN_FORM, reason=reason) if is_other else found


def _unquoted_reason(fetched: Fetched, *, is_redirect: bool) -> str:
    """Return why there is no answer, without the bytes that arrived: they may be a new token."""
    if is_redirect:
        return f"HTTP {fetched.status}: the prober follows no redirect of a token endpoint"
    return _NO_HTTP if fetched.result is ResultClass.HTTP_ERROR else fetched.reason


def _answer(fetched: Fetched) -> Any:
    """Return the parsed JSON of an answer; None if it is not JSON."""
    try:
        return json.loads(fetched.body)
    except (ValueError, RecursionError):
        return None


async def _no_redirect(_url: URL) -> str:
    """Return why no redirect is followed."""
    return "a client secret must not be sent"
