"""The credentials of a prober: the one place that decides which request carries which one."""

import logging
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from yarl import URL

from lifesign.domain.credentials.acceptance import CredentialState, CredentialStatus, CredentialUse
from lifesign.domain.credentials.api_key import key_place
from lifesign.domain.credentials.missing_credentials import (
    OtherCredential,
    credential_of_other,
    lacking_place,
)
from lifesign.domain.credentials.request_scope import CredentialScope, ScopeIndex
from lifesign.domain.credentials.secret import NO_SECRETS, Scrubber, secrets_in_header
from lifesign.domain.credentials.secret_place import SecretPlace
from lifesign.domain.credentials.token import AccessToken, TokenFault
from lifesign.domain.targets.target import origin_of
from lifesign.errors import InvalidValue
from lifesign.prober.definition.credentials import (
    CERTIFICATE_METHOD,
    KEY_MEMBER,
    CredentialSettings,
    OAuthClient,
    sources_of,
)
from lifesign.prober.secrets.changed_files import ChangedFiles
from lifesign.prober.secrets.client_tls import ClientTls
from lifesign.prober.secrets.secret_reader import (
    FileStamp,
    Secrets,
    file_of,
    file_stamp,
    has_tls,
    read_secret,
)
from lifesign.prober.secrets.tls_files import TlsFiles
from lifesign.prober.secrets.token_source import TokenSource

RELOAD_SECONDS: Final = 5.0
"""Interval at which files with secrets are checked for changes."""
MAX_PAST_SECRETS: Final = 4
"""Former values of a secret that are still removed from texts."""

# `TlsFiles` reads keys, and the prober itself replaces refresh tokens: neither begins another secret.
_READ_ELSEWHERE: Final = (f".{KEY_MEMBER}", ".token_file")

_log = logging.getLogger("lifesign.prober")


class Credential:
    """One credential of a prober with its secret, which its repr never shows."""

    def __init__(self, settings: CredentialSettings, secret: str | None) -> None:
        """`secret`: None for an OAuth 2 client whose tokens come from another process."""
        self.scope: CredentialScope = settings.scope
        self.is_for_all_targets = settings.for_all_targets
        """Whether targets that the definition does not name receive it too."""
        self.has_certificate = settings.client_certificate is not None
        """Whether its connections use a client certificate."""
        self.shares_connections = not has_tls(settings) and not self.scope.place[1]
        """Whether requests to its origin without a credential may use its connections.

        A server that chooses a backend by the first request of a connection would send the credential of a
        path to the backend of another path.
        """
        self.tokens: TokenSource | None = None
        """Its access tokens, if it is an OAuth 2 client."""
        self.token_tls: Callable[[], ClientTls | None] = lambda: None
        """Returns the TLS of its token endpoint; None for the usual one."""
        self._settings = settings
        self._secrets = [] if secret is None else [secret]
        self._searched: Sequence[str] = ()
        """Secrets of `_scrubber`."""
        self._scrubber = NO_SECRETS

    @property
    def name(self) -> str:
        """Name of the credential, for results and logs."""
        return self.scope.name

    @property
    def oauth2(self) -> OAuthClient | None:
        """Settings of the OAuth 2 client; None for another kind of credential."""
        return self._settings.oauth2

    @property
    def secret(self) -> str:
        """The secret or private key as last read. For OAuth 2, the client's secret."""
        return self._secrets[0]

    @property
    def fault(self) -> TokenFault | None:
        """Reason why there is no access token; None if no fault is known."""
        return None if self.tokens is None else self.tokens.fault

    def __repr__(self) -> str:
        return f"<Credential {self.name}>"

    def change(self, secret: str) -> None:
        """Replace the credential's secret by another one."""
        self._secrets = [secret, *self._secrets][: 1 + MAX_PAST_SECRETS]
        if self.tokens is not None:
            self.tokens.retry()

    def request_target(self, path_qs: str, card_schemes: Sequence[str] = ()) -> str:
        """Return a request's path and query, with the API key added if it is sent in the query."""
        api_key = self._settings.api_key
        if api_key is None:
            return path_qs
        return key_place(card_schemes, api_key.configured).target(path_qs, self._secrets[0])

    @property
    def sent_in(self) -> str | None:
        """Part of a request that has the secret, in words; None if there is only a client certificate.

        For an API key, that of the definition: an agent card may name another one.
        """
        api_key, header = self._settings.api_key, self._settings.header
        if api_key is not None:
            return api_key.configured.text
        if header is not None:
            return f"the header {header.name}"
        return None if self._settings.method == CERTIFICATE_METHOD else "the header Authorization"

    @property
    def follows_card(self) -> bool:
        """Whether only an agent card can say where the secret is sent."""
        api_key = self._settings.api_key
        return api_key is not None and api_key.model_fields_set.isdisjoint({"place", "name"})

    def header(self, card_schemes: Sequence[str] = ()) -> tuple[str, str] | None:
        """Return the HTTP header that contains the secret, as name and value.

        None if there is only a client certificate, or if the query has the key. `card_schemes`: security
        schemes of the agent card.
        """
        if self.tokens is not None:
            # Without a token the request is not sent with this credential.
            return "Authorization", f"Bearer {self.tokens.token or self.tokens.secrets()[0]}"
        settings, secret = self._settings, self._secrets[0]
        if settings.api_key is not None:
            return key_place(card_schemes, settings.api_key.configured).header(secret)
        if settings.header is not None:
            return settings.header.name, secret
        if settings.basic is not None:
            return "Authorization", f"Basic {_basic(settings.basic.username, secret)}"
        if settings.method == CERTIFICATE_METHOD:
            return None
        return "Authorization", f"Bearer {secret}"

    @property
    def scrubber(self) -> Scrubber:
        """Removes what requests with this credential have sent from answers of its receiver."""
        secrets = self.secrets()
        if secrets is not self._searched and secrets != self._searched:
            self._searched, self._scrubber = secrets, Scrubber(secrets)
        return self._scrubber

    def secrets(self) -> Sequence[str]:
        """Return what requests with this credential send, or have sent before a change of the secret."""
        if self.tokens is not None:
            return self.tokens.secrets()
        basic = self._settings.basic
        if self._settings.method == CERTIFICATE_METHOD:
            # A private key is sent nowhere.
            return []
        pairs = [] if basic is None else [_basic(basic.username, secret) for secret in self._secrets]
        headers = [] if self._settings.header is None else self._secrets
        parts = [part for value in headers for part in secrets_in_header(value)]
        return [*self._secrets, *pairs, *parts]


RequestToken = Callable[[Credential, str | None], Awaitable[AccessToken | TokenFault]]
"""Obtains a token for a credential; the argument is the rejected token, or None."""


class CredentialStore:
    """All credentials of a prober. Files with secrets are read again when they change."""

    def __init__(
        self,
        settings: Sequence[CredentialSettings] = (),
        secrets: Secrets | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        request_token: RequestToken | None = None,
        interval_s: float = 0.0,
        owns_tokens: bool = True,
    ) -> None:
        """`secrets`: those of all `settings`, as `read_secrets` returns them. `clock`: monotonic seconds.

        Without `owns_tokens`, the secrets of `Secrets.for_worker` are enough. `request_token`: obtains tokens
        for those of `settings` that are OAuth 2 clients. `owns_tokens`: whether this process calls token
        endpoints, instead of another process. `interval_s`: interval of the crawl; an answer determines the
        state of a credential for three intervals.
        """
        secrets = secrets or Secrets()
        values = secrets.values
        self._tls_files = TlsFiles(settings, secrets.tls, secrets.stamps)
        self._credentials = {
            each.name: Credential(each, _secret_of(each, values, owns_tokens=owns_tokens))
            for each in settings
        }
        sources: dict[OAuthClient, TokenSource] = {}
        for credential in self._credentials.values():
            if (client := credential.oauth2) is None:
                continue
            credential.token_tls = partial(self._tls_files.of_origin, client.token_origin)
            if request_token is None:
                raise ValueError(f"credential {credential.name} needs `request_token`")
            # Credentials of the same client, scope and resource share their tokens.
            if client not in sources:
                renew = partial(request_token, credential)
                sources[client] = TokenSource(credential.name, renew, clock, is_owner=owns_tokens)
            credential.tokens = sources[client]
        self.token_sources = list(sources.values())
        """One for each OAuth 2 client, with the name of the first of its credentials."""
        self._scopes = [credential.scope for credential in self._credentials.values()]
        self._index = ScopeIndex(self._scopes)
        self._sources = [
            (each.name, setting, source)
            for each in settings
            for setting, source in sources_of([each])
            if source in values and source.env is None and not setting.endswith(_READ_ELSEWHERE)
        ]
        self._uses: dict[str | None, CredentialUse] = {
            scope.name: CredentialUse(clock, interval_s) for scope in self._scopes
        }
        self._missing: Sequence[OtherCredential] = ()
        self._others: Sequence[OtherCredential] = ()
        """The missing ones, and those of other probers that worked later than this prober's."""
        self._rejected: set[str] = set()
        """Names of the credentials that the log has reported as rejected."""
        self._clock = clock
        # At the first use: the files may have changed since they were read.
        self._read_at_s = clock() - RELOAD_SECONDS
        self._files = ChangedFiles(
            "secret",
            {name: _stamp(source, setting, secrets.stamps.get) for name, setting, source in self._sources},
        )

    def __bool__(self) -> bool:
        return bool(self._credentials)

    async def close(self) -> None:
        """Cancel running requests for access tokens."""
        for source in self.token_sources:
            await source.close()

    def for_url(self, url: str) -> Credential | None:
        """Return the credential to use for a URL; None if there is none."""
        if not self._credentials:
            return None
        self._reload()
        scope = self._index.find(url)
        return None if scope is None else self._credentials[scope.name]

    def name_of_withheld(self, url: str) -> str | None:
        """Return the name of a credential that some servers may expect at a URL for which there is none."""
        scope = self._index.find_ambiguous(url) if self._credentials else None
        return None if scope is None else scope.name

    def named(self, name: str) -> Credential:
        """Return the credential with this name, with its present secret."""
        self._reload()
        return self._credentials[name]

    def tls_for(self, url: URL, credential: Credential | None) -> ClientTls | None:
        """Return the TLS settings for a request to a URL with this credential; None for the usual ones."""
        if not self._tls_files:
            return None
        tls = None if credential is None else self._tls_files.of(credential.name)
        return tls or self._tls_files.of_origin(origin_of(str(url)))

    def has_certificate_for(self, url: URL) -> bool:
        """Return whether any credential for a URL's origin has a client certificate."""
        return bool(self._tls_files) and self._tls_files.has_certificate_for(origin_of(str(url)))

    @property
    def states(self) -> Sequence[CredentialStatus]:
        """Return the name, the places and the state of each credential."""
        return [self._uses[scope.name].status(scope) for scope in self._scopes]

    def note_use(
        self,
        url: URL,
        state: CredentialState,
        name: str | None = None,
        detail: str | None = None,
        target: str | None = None,
    ) -> None:
        """Record how a server took a credential. `name` None: the credential that is used for the URL.

        `detail`: the answer that rejected it. `target`: URL of the target whose probe showed it.
        """
        scope = self._index.find(str(url)) if name is None else None
        use = self._uses.get(name if scope is None else scope.name)
        if use is not None:
            scope = scope or self._credentials[name or ""].scope
            if state is CredentialState.TOKEN_ERROR:
                fault = self._credentials[scope.name].fault
                detail = None if fault is None else str(fault)
            if state is CredentialState.WORKS and not use.has_faults and scope.name not in self._rejected:
                # Nearly all answers: no place has to be remembered, and nothing has changed.
                use.note_success()
                return
            # A query may differ in each probe: that of an old MCP server's endpoint names a session.
            use.note(str(url.with_query(None)), state, detail, target)
            self._log_change(scope, use.state)

    def forget_targets(self, targets: Collection[str]) -> None:
        """Forget the faults that probes of these targets have shown, as another prober probes them now."""
        for use in self._uses.values():
            use.forget_targets(targets)

    def _log_change(self, scope: CredentialScope, state: CredentialState | None) -> None:
        """Log once that a credential is rejected, and once that it works again.

        `TokenSource` does so for tokens.
        """
        is_rejected = state is CredentialState.CREDENTIALS_REJECTED
        was_rejected = scope.name in self._rejected
        if is_rejected and not was_rejected:
            self._rejected.add(scope.name)
            _log.warning("credential %s is rejected: %s%s refuses it", scope.name, scope.origin, scope.path)
        elif was_rejected and state is CredentialState.WORKS:
            self._rejected.remove(scope.name)
            _log.warning("credential %s works again", scope.name)

    def note_others(
        self, missing: Sequence[OtherCredential], working: Sequence[OtherCredential] = ()
    ) -> None:
        """Store which credentials other probers have and this one lacks. Each change is logged once.

        `working`: those that worked later than this prober's, which have no known fault.
        """
        known = {(each.scope.place, each.target_origins) for each in self._missing}
        for each in missing:
            if (each.scope.place, each.target_origins) not in known:
                self._log_missing(each)
        self._missing = missing
        self._others = [*missing, *working]

    def _log_missing(self, missing: OtherCredential) -> None:
        origin, path = missing.scope.place
        ours = self._index.find(f"{origin}{path}")
        if ours is not None and ours.place != missing.scope.place:
            _log.warning(
                "prober %s has the credential %s for %s%s, where this prober sends the credential %s",
                missing.holder, missing.scope.name, origin, path, ours.name,
            )  # fmt: skip
            return
        _log.warning(
            "this prober lacks a working credential for %s, which prober %s has (%s)",
            lacking_place(origin, path, missing.target_origins), missing.holder, missing.scope.name,
        )  # fmt: skip

    def missing_for(self, url: str, target: str) -> OtherCredential | None:
        """Return the credential that another prober would send to a URL and this one lacks; None if none."""
        return credential_of_other(self._scopes, self._missing, url, target) if self._missing else None

    def working_elsewhere(self, url: str, target: str) -> OtherCredential | None:
        """Return the credential of another prober that a URL may accept after it refused this prober's."""
        return credential_of_other(self._scopes, self._others, url, target) if self._others else None

    def _reload(self) -> None:
        """Read changed files again; if a secret cannot be read any more, the last one stays in use."""
        now_s = self._clock()
        if now_s - self._read_at_s < RELOAD_SECONDS:
            return
        self._read_at_s = now_s
        self._tls_files.reload()
        for name, setting, source in self._sources:
            secret = self._files.read_again(
                name, _stamp(source, setting), partial(read_secret, source, setting)
            )
            if secret is not None and secret != self._credentials[name].secret:
                self._credentials[name].change(secret)
                self._uses[name].note_change()


def _secret_of(
    settings: CredentialSettings, values: Mapping[SecretPlace, str], *, owns_tokens: bool
) -> str | None:
    if settings.oauth2 is not None and not owns_tokens:
        return values.get(settings.source)
    return values[settings.source]


def _basic(username: str, password: str) -> str:
    return b64encode(f"{username}:{password}".encode()).decode()


def _stamp(
    source: SecretPlace, setting: str, stamp_of: Callable[[Path], FileStamp | None] = file_stamp
) -> FileStamp | None:
    """Return a value that changes with the file of a secret; None if the file is missing."""
    try:
        return stamp_of(file_of(source, setting))
    except InvalidValue:
        return None
