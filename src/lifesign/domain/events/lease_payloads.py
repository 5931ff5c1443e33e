"""Payloads of events about leases, shards and guarded writes."""

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
    """Agent id; the key's name where no agent is behind it."""
    holder_incarnation: Number = 0
    """The life of the agent; 0 without an agent."""
    fencing_token: Positive
    expires_at: Moment
    """As it was granted; renewals are not logged."""


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
    """The key that it shows, and its own name behind a slash."""
    shards: Annotated[list[ShardLease], Field(min_length=1, max_length=MAX_SHARDS)]
    expires_at: Moment
    """As they were granted; renewals are not logged."""


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
    current_token: Number
    """The last one granted; 0 if there was none."""
    reason: RefusalCode


class StateWritten(Payload):
    """The holder of a resource wrote its state; what it wrote is not told here."""

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
