"""Opt-out of an origin by its owner (`/api/v1/opt-outs`).

The proof is a token that the origin serves; see `opt_out_proof`.
"""

from typing import Annotated

from pydantic import BaseModel, StringConstraints

from lifesign.domain.health.document import Time
from lifesign.domain.models.base import NAME_PATTERN, Body
from lifesign.domain.net.allowed_addresses import MAX_URL_CHARACTERS

OptOutUrl = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_URL_CHARACTERS, pattern=NAME_PATTERN)
]
"""Any URL on the origin, or only its host."""


class OptOutRequest(Body):
    """The body of `POST /api/v1/opt-outs`."""

    url: OptOutUrl


class OptOutRecord(BaseModel):
    """An origin whose owner has opted out of probes, or has yet to prove it."""

    origin: str
    token: str
    """Token. Serve it on a line by itself."""
    proof_url: str
    """URL of the file that must contain the token."""
    requested_at: Time
    expires_at: Time | None = None
    """Expiry of the token; absent once it was found."""
    checked_at: Time | None = None
    """Time of the last search for the token."""
    proven_at: Time | None = None
    """Time since which the origin is not probed; absent while it still is."""


class OptOutList(BaseModel):
    """One page of `GET /api/v1/opt-outs`."""

    opt_outs: list[OptOutRecord]
    total: int
    cursor: str | None = None
    """Cursor of the next page; absent on the last one."""
