"""Leases, and the states that they guard (protocol 6).

These are the registry's answers, which its client reads. They contain no secret: the holder's key protects a
lease.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from lifesign.domain.health.document import INTEGRAL_FLOAT, MAX_NUMBER, Time
from lifesign.domain.tasks.lease import MAX_TTL_SECONDS, MIN_TTL_SECONDS, EndReason

TtlSeconds = Annotated[float, Field(ge=MIN_TTL_SECONDS, le=MAX_TTL_SECONDS, allow_inf_nan=False, strict=True)]
Token = Annotated[int, Field(ge=1, le=MAX_NUMBER, strict=True), INTEGRAL_FLOAT]
"""Fencing token that a holder sends with its writes."""


class LeaseRecord(BaseModel):
    """A lease on a resource. Writes that it protects must contain its `fencing_token`."""

    model_config = ConfigDict(frozen=True)

    lease_id: str
    resource: str
    holder: str
    """Agent id, or `key:` and the id of the key if the holder is not an agent."""
    fencing_token: int
    acquired_at: Time
    expires_at: Time
    """Expiry by the registry's clock."""
    ended_at: Time | None = None
    """End of the lease; absent while it runs."""
    end_reason: EndReason | None = None


class LeaseList(BaseModel):
    """The answer to `GET /api/v1/leases`."""

    leases: list[LeaseRecord]
    total: int
    cursor: str | None = None
    """Cursor of the next page; absent on the last one."""


class StateRecord(BaseModel):
    """The state of an intent's scope: a small JSON object that only the holder of its lease may write."""

    resource: str
    state: dict[str, Any]
    version: int
    """Version, from 1; each write increments it."""
    fencing_token: int
    """Fencing token of the write."""
    holder: str | None = None
    """Agent that wrote the state; absent once the agent was erased."""
    written_at: Time
