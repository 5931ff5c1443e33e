"""Links and claims in the API, and the body of a request for a token."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from lifesign.domain.health.document import Time
from lifesign.domain.targets.link_proof import LinkState, Proof


class LinkShown(BaseModel):
    """One target that an agent claims to be, in the agent's record."""

    target_id: str
    url: str
    """URL of the target."""
    state: LinkState
    proof: Proof | None = None
    """Proof of the claim; absent without one."""
    proven_at: Time | None = None
    """Time at which the proof was last found."""
    linked_at: Time | None = None
    """Time since which agent and target are one record; absent if they are not linked."""
    token_requested_at: Time | None = None
    """Time at which a token for this claim was requested; absent without one."""
    token_checked_at: Time | None = None
    """Time of the registry's last search for the token."""
    token_refusal: str | None = None
    """Reason why the registry never requests the token from the target's origin; absent if it does."""


class LinkRequest(BaseModel):
    """The body of `POST /api/v1/agents/{agent_id}/links`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    """URL of the target that the agent claims."""


class LinkToken(BaseModel):
    """A token that the target's origin has to serve, to prove that the target is the agent."""

    target_id: str
    url: str
    token: Annotated[str, Field(repr=False)]
    """Token. Put it on a line by itself into the file at `proof_url`."""
    proof_url: str
    requested_at: Time
    expires_at: Time | None = None
    """Expiry of the token if it is not found; absent once it was found."""
    checked_at: Time | None = None
    """Time of the registry's last search for the token."""
    proven_at: Time | None = None
    """Time at which the token was last found."""
