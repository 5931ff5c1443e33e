"""Credentials of the definition in one probe: which request carries which one, and why one is withheld."""

from functools import cached_property
from typing import Final

from yarl import URL

from lifesign.client.candidate_urls import ParsedAgentUrl, parse_agent_url
from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.missing_credentials import OtherCredential
from lifesign.domain.credentials.request_scope import Purpose
from lifesign.prober.secrets.credential_store import Credential, CredentialStore

_OF_A_CARD: Final = frozenset({Purpose.INTERFACE, Purpose.MESSAGE})
"""Purposes of requests whose URL a card names, unless it is that of an MCP server."""


class ProbeCredentials:
    """The credentials that one probe of one target may send."""

    def __init__(self, store: CredentialStore, target_url: str, *, is_named: bool) -> None:
        """`is_named`: whether the definition itself names the target."""
        self._store = store
        self._target_url = target_url
        self._is_named = is_named

    @property
    def are_defined(self) -> bool:
        """Whether the prober has any credential."""
        return bool(self._store)

    @cached_property
    def received(self) -> list[Credential]:
        """The credentials that answers may quote: that of the target's URL, and those sent in this probe."""
        # A target that receives no credential could test guesses of its secret.
        return [self._own] if self._own is not None and self._may_receive(self._own) else []

    def note_sent(self, credential: Credential) -> None:
        """Note that a request of this probe carries a credential."""
        if credential not in self.received:
            # The request that is about to be sent has this list.
            self.received.append(credential)

    def for_request(
        self, url: URL, purpose: Purpose, *, has_read_card: bool
    ) -> tuple[Credential | None, str | None]:
        """Return the credential to send to a URL. If none is sent although there is one, return why.

        `has_read_card`: whether this prober has read the card that names the URL.
        """
        credential = self._store.for_url(str(url))
        if credential is None:
            name = self._store.name_of_withheld(str(url))
            return None, None if name is None else f"credential {name} is not sent to such a path"
        why = self._why_withheld(credential, url, purpose, has_read_card=has_read_card)
        return (credential, None) if why is None else (None, f"credential {credential.name} {why}")

    def _why_withheld(
        self, credential: Credential, url: URL, purpose: Purpose, *, has_read_card: bool
    ) -> str | None:
        """Return why a credential is not sent to a URL, as "is not for ..."; None if it is sent."""
        if not self._may_receive(credential):
            # Who can add an entry to a directory must not choose requests with a credential.
            return "is only for targets that the definition names"
        if purpose is Purpose.ENDPOINT and credential is not self._store.for_url(str(self._given.url)):
            return "is not that of the event stream"
        if purpose in _OF_A_CARD and url != self._given.url and not has_read_card:
            # A prober with another key may have invented the interface.
            return "is not sent before this prober has read the card"
        if purpose is not Purpose.PATH and credential is self._own:
            return None
        # The definition chooses paths; cards and servers choose the other URLs.
        base = str(self._given.url.origin()) if purpose is Purpose.PATH else self._given.base
        if credential.scope.is_for_target(base) or credential is self._store.for_url(base):
            return None
        return f"is not for cards of {base}"

    def _may_receive(self, credential: Credential) -> bool:
        """Return whether the credential is for this target, as the definition says."""
        return self._is_named or credential.is_for_all_targets

    @cached_property
    def _given(self) -> ParsedAgentUrl:
        return parse_agent_url(self._target_url)

    @cached_property
    def _own(self) -> Credential | None:
        """The credential of the target's URL."""
        return self._store.for_url(self._given.base)

    def named(self, name: str) -> Credential:
        """Return the credential of this name."""
        return self._store.named(name)

    def has_certificate_for(self, url: URL) -> bool:
        """Return whether a credential with a client certificate is for a URL."""
        return self._store.has_certificate_for(url)

    def note_use(self, url: URL, state: CredentialState, name: str | None, detail: str | None) -> None:
        """Note what an answer shows about a credential, as `CredentialStore.note_use`."""
        self._store.note_use(url, state, name, detail, self._target_url)

    def missing_for(self, url: str) -> OtherCredential | None:
        """Return the credential that another prober would send to a URL and this one lacks; None if none."""
        return self._store.missing_for(url, str(self._given.url))

    def working_elsewhere(self, url: str) -> OtherCredential | None:
        """Return the credential of another prober that a URL may accept after it refused this prober's."""
        return self._store.working_elsewhere(url, str(self._given.url))
