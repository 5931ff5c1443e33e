"""Messages and streams of all generations of A2A."""

import json
from typing import Any

from lifesign.domain.a2a.response_outcome import classify_json
from lifesign.domain.a2a.stream_outcome import EventStreamReader, StreamEnd, read_event_stream
from lifesign.domain.health.outcome import Outcome


def rpc(**members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, **members}


def rpc_error(code: object) -> dict[str, Any]:
    return rpc(error={"code": code, "message": "no"})


def task_10(state: str) -> dict[str, Any]:
    return {"task": {"id": "t", "contextId": "c", "status": {"state": f"TASK_STATE_{state}"}}}


def update_10(state: str) -> dict[str, Any]:
    return {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": f"TASK_STATE_{state}"}}}


def task_0x(state: str) -> dict[str, Any]:
    return {"kind": "task", "id": "t", "contextId": "c", "status": {"state": state}}


def update_0x(state: str) -> dict[str, Any]:
    return {"kind": "status-update", "taskId": "t", "final": True, "status": {"state": state}}


def outcome_of_json(message: object) -> Outcome:
    return classify_json(json.dumps(message).encode()).outcome


def event_of(data: str, name: str = "", line_end: str = "\r\n") -> bytes:
    """One event in the spelling of the SDK."""
    lines = [f"event: {name}"] if name else []
    return line_end.join([*lines, f"data: {data}", "", ""]).encode()


def event(message: object, name: str = "", line_end: str = "\r\n") -> bytes:
    return event_of(json.dumps(message), name, line_end)


def streamed(*events: bytes) -> Outcome:
    return read_event_stream(b"".join(events)).outcome


def read_pieces(*pieces: bytes, max_event_bytes: int = 1_048_576) -> StreamEnd:
    reader = EventStreamReader(max_event_bytes)
    for piece in pieces:
        reader.append(piece)
        assert reader.held_bytes <= max_event_bytes
    return reader.end()


def artifact(text: str = "...", **more: Any) -> bytes:
    update = {"taskId": "t", "contextId": "c", "artifact": {"parts": [{"text": text}]}, **more}
    return event(rpc(result={"artifactUpdate": update}))
