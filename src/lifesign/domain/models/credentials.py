"""Credentials of probers in the API: names and places, never secrets (protocol 8)."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, StringConstraints

from lifesign.domain.credentials.missing_credentials import OtherCredential
from lifesign.domain.credentials.scope import CredentialScope
from lifesign.domain.models.base import Body

CredentialName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class CredentialPlace(Body):
    """Where a prober sends one of its credentials."""

    name: CredentialName
    """Its name in the prober's definition."""
    origin: Annotated[str, StringConstraints(pattern=r"^https?://[!$-.0-;=A-~]{1,300}$")]
    """Scheme, host and port."""
    path: Annotated[str, StringConstraints(pattern="^/[!-~]{0,511}$")] = "/"
    """It is sent to this path and below."""

    @property
    def scope(self) -> CredentialScope:
        """The place, as rules see it."""
        return CredentialScope(name=self.name, origin=self.origin, path=self.path)


class MissingCredential(BaseModel):
    """A place for which one prober has no credential, and another living one has."""

    holder: str
    """Prober that lacks it: its key, a slash, and the worker's name."""
    name: str
    """Name of the credential in the definition of the other prober."""
    origin: str
    path: str
    held_by: str
    """Prober that has it."""

    @property
    def other(self) -> OtherCredential:
        """The credential of the other prober, as rules see it."""
        scope = CredentialScope(name=self.name, origin=self.origin, path=self.path)
        return OtherCredential(holder=self.held_by, scope=scope)


def places_of(scopes: Iterable[CredentialScope]) -> list[CredentialPlace]:
    """Return scopes as a claim names them."""
    return [CredentialPlace(name=each.name, origin=each.origin, path=each.path) for each in scopes]


def missing_of(holder: str, missing: Iterable[OtherCredential]) -> list[MissingCredential]:
    """Return what a prober lacks, as the registry answers."""
    return [
        MissingCredential(
            holder=holder,
            name=each.scope.name,
            origin=each.scope.origin,
            path=each.scope.path,
            held_by=each.holder,
        )
        for each in missing
    ]
