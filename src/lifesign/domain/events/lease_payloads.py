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
    """A resource was granted."""

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
    """A lease is over, and why."""

    resource: Resource
    lease_id: OwnId
    holder: Label
    fencing_token: Positive
    reason: EndReason


class ShardLease(Payload):
    """The lease of one shard."""

    shard: Number
    lease_id: OwnId
    fencing_token: Positive


class ShardsGranted(Payload):
    """A prober has more shards."""

    holder: Label
    """Id of the prober's key, a slash, and the name of the worker."""
    shards: Annotated[list[ShardLease], Field(min_length=1, max_length=MAX_SHARDS)]
    expires_at: Moment
    """Expiry of the leases when they were granted; renewals are not logged."""


class ShardsEnded(Payload):
    """A prober has fewer shards, and why."""

    holder: Label
    shards: Annotated[list[ShardLease], Field(min_length=1, max_length=MAX_SHARDS)]
    reason: EndReason


class FencedWriteRejected(Payload):
    """A guarded write was refused and changed nothing."""

    resource: Resource
    writer: Label
    """Caller that tried to write."""
    fencing_token: Number
    """Fencing token of the request."""
    current_token: Number | None = None
    """Latest granted fencing token; 0 without one. Absent if the writer may not know it."""
    reason: RefusalCode


class StateWritten(Payload):
    """The holder of a resource wrote its state; the event does not contain the state."""

    resource: Resource
    holder: Label
    fencing_token: Positive
    version: Positive
    """Version of the state after the write."""


class EpochRaised(Payload):
    """The store was restored or failed over: from now on all fencing tokens are higher."""

    previous_epoch: Epoch
    new_epoch: Epoch
    reason: Name | None = None
