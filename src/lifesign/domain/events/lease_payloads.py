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
    """A lease ended. The type of the event says whether it was released."""

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
    """A worker of a prober got shards: parts of the targets that it now probes."""

    holder: Label
    """Id of the prober's key, a slash, and the name of the worker."""
    shards: Annotated[list[ShardLease], Field(min_length=1, max_length=MAX_SHARDS)]
    expires_at: Moment
    """Expiry of the leases when they were granted; renewals are not logged."""


class ShardsEnded(Payload):
    """The leases of shards of a worker of a prober ended."""

    holder: Label
    """Id of the prober's key, a slash, and the name of the worker."""
    shards: Annotated[list[ShardLease], Field(min_length=1, max_length=MAX_SHARDS)]
    reason: EndReason


class FencedWriteRejected(Payload):
    """The registry refused a write that a fencing token guards. The write changed nothing."""

    resource: Resource
    writer: Label
    """Caller that tried to write."""
    fencing_token: Number
    """Fencing token of the request."""
    current_token: Number | None = None
    """Latest granted fencing token; 0 if none was granted. Absent if the writer may not know it."""
    reason: RefusalCode


class StateWritten(Payload):
    """The holder of a resource wrote the state of that resource. The event does not contain the state."""

    resource: Resource
    holder: Label
    fencing_token: Positive
    version: Positive
    """Version of the state after the write."""


class EpochRaised(Payload):
    """The epoch was raised: a backup was restored, or an operator ran `lifesign database adopt`.

    The epoch is the high part of each fencing token. So all new tokens are higher than all earlier ones.
    """

    previous_epoch: Epoch
    new_epoch: Epoch
    reason: Name | None = None
