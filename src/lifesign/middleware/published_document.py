"""Published document: the document that one worker of an agent publishes for all of them.

This module needs no file locks: an agent without a state directory runs on systems that have none.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedDocument:
    """The health document that one worker publishes for all workers, with its times."""

    computed_ns: int
    expires_ns: int
    """Expiry; for a coarse document, the wall clock's next grid point."""
    last_healthy_ms: int
    """When the agent was last seen healthy, in ms since 1970; 0 is never."""
    document: bytes
