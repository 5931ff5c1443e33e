"""Payloads of events about leases, shards, and writes that a fencing token guards."""

from typing import Annotated

from pydantic import Field

from lifesign.domain.events.payload_fields import (
    MAX_SHARDS,
    Epoch,
    Label,
    Moment,
    Number,
    OwnId,
    Payload,
    Positive,
    Resource,
)
from lifesign.domain.models.base import Name
from lifesign.domain.tasks.lease import EndReason, RefusalCode


class LeaseAcquired(Payload):
    """The lease of a resource was granted."""

    resource: Resource
    lease_id: OwnId
    holder: Label
    """Agent id, or the name of the key if the holder is not an agent."""
    holder_incarnation: Number = 0
    """Incarnation of the agent; 0 if the holder is not an agent."""
    fencing_token: Positive
    expires_at: Moment
    """Expiry of the lease when it was granted; renewals are not logged."""


class LeaseEnded(Payload):
    """A lease ended. `lease.released`: it was released or revoked. `lease.expired`: any other reason."""

    resource: Resource
    lease_id: OwnId
    holder: Label
    fencing_token: Positive
    reason: EndReason


class ShardLease(Payload):
    """The lease of one shard, as part of an event about several."""

    shard: Number
    lease_id: OwnId
    fencing_token: Positive


class ShardsGranted(Payload):
    """A prober's worker was granted leases on shards, whose targets it now probes."""

    holder: Label
    """Id of the prober's key, a slash, and the name of the worker."""
    shards: Annotated[list[ShardLease], Field(min_length=1, max_length=MAX_SHARDS)]
    expires_at: Moment
    """Expiry of the leases when they were granted; renewals are not logged."""


class ShardsEnded(Payload):
    """Leases on shards that a prober's worker held have ended."""

    holder: Label
    """Id of the prober's key, a slash, and the name of the worker."""
    shards: Annotated[list[ShardLease], Field(min_length=1, max_length=MAX_SHARDS)]
    reason: EndReason


class FencedWriteRejected(Payload):
    """The registry refused a write because of its fencing token. The write changed nothing."""

    resource: Resource
    writer: Label
    """Caller that tried to write."""
    fencing_token: Number
    """Fencing token of the request."""
    current_token: Number | None = None
    """Latest granted fencing token; 0 if none was granted. Absent if the writer may not know it."""
    reason: RefusalCode


class StateWritten(Payload):
    """The holder of a lease wrote the state that the lease protects. The event does not contain the state."""

    resource: Resource
    holder: Label
    fencing_token: Positive
    version: Positive
    """Version of the state after the write."""


class EpochRaised(Payload):
    """The epoch of fencing tokens was raised, after a restored backup or `lifesign database adopt`.

    The epoch is the high part of each fencing token. So all new tokens are higher than all earlier ones.
    """

    previous_epoch: Epoch
    new_epoch: Epoch
    reason: Name | None = None
