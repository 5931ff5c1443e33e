"""Streams that answer a streaming send of A2A's REST binding."""

import json
from typing import Any

import pytest
from tests.support.scripted import (
    EVENTS,
    RECEIVE,
    Server,
    Step,
    chunk,
    final,
    http_scope,
    play,
    request,
    start,
)

GOOD: list[dict[str, Any]] = [
    {"message": {"parts": []}},
    {"task": {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}}},
    {"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_COMPLETED"}}},
    {"artifactUpdate": {"artifact": {"parts": []}}},
    {"kind": "task", "id": "t", "status": {"state": "completed"}},
    {"kind": "message", "parts": []},
    {"kind": "status-update", "status": {"state": "completed"}, "final": True},
    {"kind": "artifact-update", "artifact": {"parts": []}},
]
USELESS = [
    b"Internal Server Error",
    b"null",
    b"{}",
    b"[]",
    b'{"message":"down"}',
    b'{"status":{"state":"x"}}',
]


def event(data: bytes) -> bytes:
    return b"data: %s\n\n" % data


async def outcomes_of(*events: bytes, path: str = "/v1/message:stream", method: str = "POST") -> set[str]:
    found = set()
    forms: list[list[Step]] = [[final(b"".join(events))], [*map(chunk, events), final()]]
    for form in forms:
        steps: list[Step] = [RECEIVE, start(200, EVENTS), *form]
        server = Server(request(b'{"message":{}}'))
        played = await play(steps, server=server, scope=http_scope(path, method))
        assert played.error is None
        found.add(played.outcome)
    return found


@pytest.mark.parametrize("data", USELESS)
async def test_stream_without_an_event_of_a2a_is_malformed(data: bytes) -> None:
    assert await outcomes_of(event(data)) == {"malformed"}
    assert await outcomes_of(event(data), event(data)) == {"malformed"}
    for path, method in (("/v1/message:stream", "GET"), ("/v1/tasks/7:subscribe", "POST"), ("/chat", "POST")):
        assert await outcomes_of(event(data), path=path, method=method) == {"answered"}


@pytest.mark.parametrize("message", GOOD)
async def test_stream_with_an_event_of_a2a_is_an_answer(message: dict[str, Any]) -> None:
    good = event(json.dumps(message).encode())
    assert await outcomes_of(good) == {"answered"}
    assert await outcomes_of(event(b"[DONE]"), *[good] * 9, event(b"[DONE]")) == {"answered"}
    assert await outcomes_of(*[good] * 5000) == {"answered"}


@pytest.mark.parametrize("kind", ["task", "status-update"])
async def test_bare_failed_state_in_a_rest_stream_counts(kind: str) -> None:
    failed = event(json.dumps({"kind": kind, "status": {"state": "failed"}}).encode())
    assert await outcomes_of(failed) == {"task_failed"}
    assert await outcomes_of(failed, path="/v1/tasks/7:subscribe") == {"answered"}
