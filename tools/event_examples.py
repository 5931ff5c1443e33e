"""Links new examples of events into the chain of the existing ones. `make schemas` runs it.

An example without `hash` gets its sequence, the hash of the example before it, and its own hash. The others
stay as they are: tests compare them with the code.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from lifesign.domain.events.chain import GENESIS, Checkpoint, Event, chain, read_event
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import PAYLOADS, EventType

EXAMPLES = Path(__file__).parents[1] / "schemas/examples/event/valid"


def link_examples(directory: Path) -> None:
    """Complete the examples without a hash in a directory; their file names give the order."""
    last = GENESIS
    for path in sorted(directory.glob("*.json")):
        members = json.loads(path.read_text())
        if "hash" not in members:
            members = _linked(last, members).members()
            path.write_text(json.dumps(members, indent=2) + "\n")
        last = read_event(members).checkpoint


def _linked(after: Checkpoint, members: Mapping[str, Any]) -> Event:
    event_type = EventType(members["type"])
    draft = EventDraft(
        type=event_type,
        actor=members["actor"],
        payload=PAYLOADS[event_type].model_validate(members["payload"]),
        intent_id=members.get("intent_id"),
    )
    created_at_s = datetime.fromisoformat(members["created_at"]).timestamp()
    return chain(after, members["id"], draft, created_at_s)


if __name__ == "__main__":
    link_examples(EXAMPLES)
