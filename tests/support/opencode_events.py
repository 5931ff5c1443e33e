"""Events of an opencode server in each of its envelopes.

`captured` reads events of a real one: ../shared/data, which is no part of the project.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CAPTURE = Path(__file__).parents[3] / "shared" / "data" / "opencode-sse-capture.txt"
Envelope = Callable[[str, dict[str, Any]], dict[str, Any]]


def plain(kind: str, members: dict[str, Any]) -> dict[str, Any]:
    """Return an event in the form of GET /event."""
    return {"id": "evt_1", "type": kind, "properties": members}


def wrapped(kind: str, members: dict[str, Any]) -> dict[str, Any]:
    """Return an event in the form of GET /global/event."""
    return {"directory": "/home/user/project", "project": "global", "payload": plain(kind, members)}


def second_version(kind: str, members: dict[str, Any]) -> dict[str, Any]:
    """Return an event in the form of GET /api/event."""
    return {"id": "evt_1", "type": kind, "location": {"directory": "/home/user/project"}, "data": members}


ENVELOPES: list[Envelope] = [plain, wrapped, second_version]


def status(session_id: str, state: str) -> tuple[str, dict[str, Any]]:
    return "session.status", {"sessionID": session_id, "status": {"type": state}}


def idle(session_id: str) -> tuple[str, dict[str, Any]]:
    return "session.idle", {"sessionID": session_id}


def tool(session_id: str, state: str = "completed") -> tuple[str, dict[str, Any]]:
    part = {
        "id": "prt_1",
        "type": "tool",
        "tool": "bash",
        "sessionID": session_id,
        "state": {"status": state},
    }
    return "message.part.updated", {"sessionID": session_id, "part": part}


def failed(
    session_id: str | None, name: str = "UnknownError", words: str = "no such model"
) -> tuple[str, Any]:
    whose = {} if session_id is None else {"sessionID": session_id}
    return "session.error", {**whose, "error": {"name": name, "data": {"message": words}}}


def text_of(event: tuple[str, dict[str, Any]], envelope: Envelope = plain) -> str:
    """The data of one message."""
    return json.dumps(envelope(*event))


def wire(*events: tuple[str, dict[str, Any]], envelope: Envelope = plain) -> bytes:
    """Messages in the stream."""
    return b"".join(b"data: " + text_of(event, envelope).encode() + b"\n\n" for event in events)


def captured(section: str) -> bytes:
    """Return the bytes of one stream of the capture, such as `GET /event`; skips where it is absent."""
    if not CAPTURE.is_file():
        pytest.skip(f"NOT COMPARED with a real server: {CAPTURE} is absent")
    found = [part for part in CAPTURE.read_text().split("\n## ") if part.partition("\n")[0] == section]
    assert len(found) == 1, section
    return found[0].partition("\n")[2].encode() + b"\n\n"
