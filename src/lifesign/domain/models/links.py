"""Links and claims as the API shows them, and the body that asks for a token."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from lifesign.domain.health.document import Time
from lifesign.domain.lifecycle.target_claim import LinkState, Proof


class LinkShown(BaseModel):
    """One target that an agent claims, in the agent's own record."""

    target_id: str
    url: str
    """URL of the target."""
    state: LinkState
    proof: Proof | None = None
    """Absent if nothing proves the claim."""
    proven_at: Time | None = None
    """When the proof was last seen."""
    linked_at: Time | None = None
    """Since when the two are one record; absent unless they are."""
    token_requested_at: Time | None = None
    """When a token for this claim was asked for; absent if there is none."""
    token_checked_at: Time | None = None
    """When the registry last looked for the token."""
    token_refusal: str | None = None
    """Why the registry never asks the target's origin for the token; absent if it does."""


class LinkRequest(BaseModel):
    """The body of `POST /api/v1/agents/{agent_id}/links`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    """URL of the target that the agent claims."""


class LinkToken(BaseModel):
    """The answer: a token that the target's origin has to serve."""

    target_id: str
    url: str
    token: Annotated[str, Field(repr=False)]
    """Put it on a line of its own into the file at `proof_url`."""
    proof_url: str
    requested_at: Time
    expires_at: Time | None = None
    """A token that was not found by then ends; absent once it was found."""
    checked_at: Time | None = None
    """When the registry last looked for it."""
    proven_at: Time | None = None
    """When it was last found."""
