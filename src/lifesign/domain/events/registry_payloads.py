"""Payloads of events about keys, webhooks, directories and the log."""

from typing import Annotated

from pydantic import Field, StringConstraints

from lifesign.domain.events.payload_fields import (
    MAX_EXPLANATION_CHARACTERS,
    PRINTABLE_PATTERN,
    AgentId,
    Hash,
    Host,
    Label,
    Moment,
    Number,
    OwnId,
    Payload,
    Positive,
    Word,
)


class KeyChanged(Payload):
    """A key was created, changed, suspended or revoked. The type of the event says which.

    The event does not contain the key itself.
    """

    key_id: OwnId
    name: Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=PRINTABLE_PATTERN)]
    role: Word
    agent_id: AgentId | None = None
    """Agent to which the key belongs."""
    fingerprint: Hash
    """SHA-256 of the stored form of the key."""
    expires_at: Moment | None = None
    """Time at which the key now expires; absent if it does not expire."""
    max_workers: Positive | None = None
    """Maximum number of workers that may probe with the key now; absent: the server's setting."""


class WebhookChanged(Payload):
    """A webhook was created, got a new secret, was deleted, or was disabled. The type says which."""

    webhook_id: OwnId
    host: Host
    """Host of the webhook's URL; the rest of the URL may contain a secret."""
    failures: Number = 0
    """Number of failed deliveries in a row."""


class DirectoryChanged(Payload):
    """A directory's list changed, or its removals were suspended or confirmed. The type says which.

    Removals are suspended if more than half of the targets would go.
    """

    directory: Label
    """Name of the directory."""
    listed: Number
    """Number of the directory's targets after the event. Suspended removals do not reduce it."""
    added: Number
    """Number of added targets."""
    removed: Number
    """Number of removed targets; if the removals are suspended, the number that would be removed."""
    reason: Annotated[str, Field(max_length=MAX_EXPLANATION_CHARACTERS)] | None = None
    """Reason of the suspension."""


class OriginChanged(Payload):
    """An origin was excluded from probes, or was allowed again. The type of the event says which."""

    origin: Annotated[str, StringConstraints(pattern=r"^https?://[!-~]{1,300}$")]
    targets: Number
    """Number of affected targets."""


class LogArchived(Payload):
    """The oldest events of the log moved from the database to a file."""

    first_sequence: Positive
    last_sequence: Positive
    last_hash: Hash
    file: Label | None = None
    """Name of the archive file, without its directory."""


class ArchiveErased(Payload):
    """The payloads of an erased agent's events were erased in the archive files too; hashes replace them."""

    agent_id: AgentId
    erased_sequence: Positive
    """Sequence number of the `agent.erased` event that began the erasure."""


class Erased(Payload):
    """Stands in the place of a payload that was erased."""

    erased: Hash
    """Hash of the payload's canonical form."""
