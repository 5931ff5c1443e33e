"""Reads archived events, and checks a chain of events from its first one."""

from collections.abc import Iterable
from pathlib import Path

from pydantic_core import from_json

from lifesign.domain.events.chain import GENESIS, Checkpoint, Event, link, read_event


def verify(events: Iterable[Event], after: Checkpoint = GENESIS) -> Checkpoint:
    """Return the checkpoint after these events; BrokenChain at the first event that does not follow."""
    for event in events:
        after = link(after, event)
    return after


def read_archive(path: Path) -> list[Event]:
    """Read the events of an archived file."""
    return [read_event(from_json(line)) for line in path.read_bytes().splitlines()]
