"""Writes missing examples of events, and links new ones into the chain. `make schemas` runs it.

An event type without an example gets one: each required member has the least value of its schema, and a text
has the value of an earlier example. An example without `hash` gets its sequence, the hash of the example
before it, and its own hash. The others stay as they are: tests compare them with the code.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lifesign.domain.events.chain import GENESIS, Checkpoint, Event, chain, read_event
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import PAYLOADS, EventType
from lifesign.domain.events.payload_fields import Payload

EXAMPLES = Path(__file__).parents[1] / "schemas/examples/event/valid"


def link_examples(directory: Path) -> list[Event]:
    """Complete the examples without a hash in a directory, and return all in the order of their names."""
    events: list[Event] = []
    for path in sorted(directory.glob("*.json")):
        members = json.loads(path.read_text())
        if "hash" not in members:
            members = _linked(events[-1].checkpoint if events else GENESIS, members).members()
            _write(path, members)
        events.append(read_event(members))
    return events


def add_examples(directory: Path) -> None:
    """Write an example of each event type that has none in a directory of linked examples.

    A type whose texts have a pattern that no earlier example matches is passed over: a test names it.
    """
    events = link_examples(directory)
    payloads = [event.payload for event in reversed(events)]
    texts = {name: value for of_one in payloads for name, value in of_one.items() if isinstance(value, str)}
    for event_type in [kind for kind in PAYLOADS if kind not in {event.type for event in events}]:
        last = events[-1]
        number = last.sequence + 1
        members = {
            "id": f"{last.id[:-3]}{number:03}",
            "type": event_type.value,
            "actor": "server",
            "payload": example_payload(PAYLOADS[event_type], texts),
            "created_at": (datetime.fromisoformat(last.created_at) + timedelta(minutes=1)).isoformat(),
        }
        with suppress(ValidationError):
            events.append(_linked(last.checkpoint, members))
            name = event_type.value.replace(".", "-").replace("_", "-")
            _write(directory / f"{number:02}-{name}.json", events[-1].members())


def example_payload(payload: type[Payload], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the required members of a payload; `texts` are values of earlier examples by their names."""
    schema = payload.model_json_schema()
    return dict(_example("", schema, texts, schema.get("$defs", {})))


def _example(name: str, schema: Mapping[str, Any], texts: Mapping[str, str], parts: Mapping[str, Any]) -> Any:
    """Return the least value of a member's schema; for a text without an earlier value, the name."""
    if "$ref" in schema:
        return _example(name, parts[schema["$ref"].rpartition("/")[2]], texts, parts)
    value: Any = texts.get(name, name)
    match schema:
        case {"enum": [first, *_]} | {"const": first}:
            value = first
        case {"format": "date-time"}:
            value = "2026-02-08T12:00:00.000Z"
        case {"type": "integer" | "number"}:
            value = max(0, schema.get("minimum", 0))
        case {"type": "boolean"}:
            value = False
        case {"type": "array", "items": items}:
            value = [_example(name, items, texts, parts)]
        case {"type": "object", "properties": members}:
            required = schema.get("required", [])
            value = {member: _example(member, members[member], texts, parts) for member in required}
    return value


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


def _write(path: Path, members: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(members, indent=2) + "\n")


if __name__ == "__main__":
    add_examples(EXAMPLES)
