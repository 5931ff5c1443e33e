"""Credentials of probers in the API: names and places, never secrets (protocol 8)."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from lifesign.domain.credentials.acceptance import MAX_DETAIL_CHARS, CredentialState, CredentialStatus
from lifesign.domain.credentials.missing_credentials import OtherCredential
from lifesign.domain.credentials.request_scope import MAX_CARD_ORIGINS, ORIGIN_PATTERN, CredentialScope
from lifesign.domain.health.document import Time
from lifesign.domain.models.base import Body
from lifesign.domain.targets.target import origin_of

MAX_STATE_SECONDS = 2_592_000.0
MAX_CLAIMED_CARD_ORIGINS = 1_000
"""Maximum number of `card_origins` in one claim; a prober does not report further ones."""
StateSeconds = Annotated[float, Field(ge=0, le=MAX_STATE_SECONDS, allow_inf_nan=False, strict=True)]
FaultDetail = Annotated[str, StringConstraints(pattern=f"^[ -~]{{1,{MAX_DETAIL_CHARS}}}$")]
CredentialName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


def _readable_origin(text: str) -> str:
    try:
        origin_of(text)
    except ValueError:
        raise ValueError("expected scheme, host and port, such as https://agents.example:8443") from None
    return text


Origin = Annotated[str, StringConstraints(pattern=ORIGIN_PATTERN), AfterValidator(_readable_origin)]
"""Scheme, host and port."""


class CredentialPlace(Body):
    """URLs to which a prober sends one of its credentials."""

    name: CredentialName
    """Name of the credential in the prober's definition."""
    origin: Origin
    """Scheme, host and port."""
    path: Annotated[str, StringConstraints(pattern="^/[!-~]{0,511}$")] = "/"
    """The credential is sent to this path and all paths below."""
    card_origins: Annotated[list[Origin], Field(max_length=MAX_CARD_ORIGINS)] = Field(default_factory=list)
    """Other origins whose targets may name URLs of this origin."""
    state: Annotated[CredentialState, Field(strict=False)] | None = None
    """State of the credential by the answers to the worker's requests; absent if unknown."""
    fault_seconds: StateSeconds | None = None
    """Time for which the credential has had a fault, in seconds, at most 30 days."""
    detail: FaultDetail | None = None
    """Answer that rejected the credential, or why there is no token."""
    worked_seconds: StateSeconds | None = None
    """Time since the last answer that accepted the credential, in seconds, at most 30 days."""

    @property
    def scope(self) -> CredentialScope:
        """The place's origins and path, in the form of the credential rules."""
        return CredentialScope(
            name=self.name, origin=self.origin, path=self.path, card_origins=tuple(self.card_origins)
        )


class MissingCredential(BaseModel):
    """A place for which one prober has no working credential although another one has one.

    The other prober is alive, or ended less than 15 minutes ago.
    """

    holder: str
    """Prober that lacks the credential: the id of its key, a slash, and the worker's name."""
    name: str
    """Name of the credential in the definition of the other prober."""
    origin: str
    path: str
    target_origins: list[str]
    """Origins of the targets for which the prober lacks the credential.

    Without `origin`: the prober has the credential, but its `card_origins` lack these origins.
    """
    held_by: str
    """Prober that has the credential."""

    @property
    def other(self) -> OtherCredential:
        """The other prober's credential, in the form of the credential rules."""
        scope = CredentialScope(name=self.name, origin=self.origin, path=self.path)
        return OtherCredential(holder=self.held_by, scope=scope, target_origins=tuple(self.target_origins))


def places_of(credentials: Iterable[CredentialStatus]) -> list[CredentialPlace]:
    """Return a worker's credentials as its claim of shards reports them: names, places and states."""
    places: list[CredentialPlace] = []
    left = MAX_CLAIMED_CARD_ORIGINS
    for each in credentials:
        card_origins = each.scope.card_origins[:left]
        left -= len(card_origins)
        place = CredentialPlace(
            name=each.scope.name,
            origin=each.scope.origin,
            path=each.scope.path,
            card_origins=[*card_origins],
            state=each.state,
            fault_seconds=None if each.fault_s is None else min(MAX_STATE_SECONDS, each.fault_s),
            detail=each.detail,
            worked_seconds=None if each.worked_s is None else min(MAX_STATE_SECONDS, each.worked_s),
        )
        places.append(place)
    return places


def missing_of(holder: str, missing: Iterable[OtherCredential]) -> list[MissingCredential]:
    """Return the credentials that a prober (`holder`) lacks, in the form of the API."""
    return [
        MissingCredential(
            holder=holder,
            name=each.scope.name,
            origin=each.scope.origin,
            path=each.scope.path,
            target_origins=[*(each.target_origins or each.scope.target_origins)],
            held_by=each.holder,
        )
        for each in missing
    ]


class CredentialFaultShown(BaseModel):
    """A credential of a prober's key that does not work."""

    key_id: str
    """Id of the prober's key."""
    name: str
    """Name of the credential in the definition of the prober."""
    origin: str
    path: str
    fault: CredentialState
    detail: FaultDetail | None = None
    """Answer that rejected the credential, or why there is no token."""
    since: Time
