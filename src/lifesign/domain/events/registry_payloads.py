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
    """A key was created, rotated, revoked, limited, suspended or confirmed. The key itself is nowhere."""

    key_id: OwnId
    name: Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=PRINTABLE_PATTERN)]
    role: Word
    agent_id: AgentId | None = None
    """Agent to which it belongs."""
    fingerprint: Hash
    """SHA-256 of the stored form of the key."""
    expires_at: Moment | None = None
    """Expiry of the key after the change; absent if it does not expire."""
    max_workers: Positive | None = None
    """Maximum number of workers with the key, after the change; absent: the server's setting."""


class WebhookChanged(Payload):
    """A webhook was created, got a new secret, was deleted, or is disabled since it failed too often."""

    webhook_id: OwnId
    host: Host
    """Host of the webhook's URL; the rest of the URL may contain a secret."""
    failures: Number = 0
    """In a row."""


class DirectoryChanged(Payload):
    """A directory lists other targets than before, or would."""

    directory: Label
    listed: Number
    """Number of listed targets, including suspended ones."""
    added: Number
    removed: Number
    """Number of removed targets; for a suspended list, the number that would be removed."""
    reason: Annotated[str, Field(max_length=MAX_EXPLANATION_CHARACTERS)] | None = None
    """Reason of the suspension."""


class OriginChanged(Payload):
    """An origin was excluded from probes, or is probed again."""

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
    """The payloads of an erased agent's events gave way to their hashes in all archived files."""

    agent_id: AgentId
    erased_sequence: Positive
    """Sequence of the `agent.erased` event that this one completes."""


class Erased(Payload):
    """Replaces a payload that was erased."""

    erased: Hash
    """Hash of the payload's canonical form."""
