"""How does an owner ask that nobody probe an origin, and how is that shown? (`/api/v1/opt-outs`)

The proof is a token that the origin serves; see `opt_out_proof`.
"""

from typing import Annotated

from pydantic import BaseModel, StringConstraints

from lifesign.domain.health.document import Time
from lifesign.domain.models.base import NAME_PATTERN, Body
from lifesign.domain.net.target_address import MAX_URL_CHARACTERS

OptOutUrl = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_URL_CHARACTERS, pattern=NAME_PATTERN)
]
"""Any URL on the origin, or its host alone."""


class OptOutRequest(Body):
    """The body of `POST /api/v1/opt-outs`."""

    url: OptOutUrl


class OptOutRecord(BaseModel):
    """An origin that is not to be probed, or whose owner has yet to prove that."""

    origin: str
    token: str
    """To be served in a line of its own."""
    proof_url: str
    """Where."""
    requested_at: Time
    expires_at: Time | None = None
    """Until when the token is looked for; absent once it was found."""
    checked_at: Time | None = None
    """When it was last looked for."""
    proven_at: Time | None = None
    """Since when the origin is not probed; absent: it still is."""


class OptOutList(BaseModel):
    """One page of `GET /api/v1/opt-outs`."""

    opt_outs: list[OptOutRecord]
    total: int
    cursor: str | None = None
    """Where the next page begins; absent on the last one."""
