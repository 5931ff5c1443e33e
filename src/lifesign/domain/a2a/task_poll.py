"""Requests for the state of a task that a message started (`tasks/get`, `GetTask`).

The answer is put into the form of an answer to a message: readers need not know which request it answers.
Section numbers are those of the A2A 1.0 specification.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import quote

from lifesign.domain.a2a.message_variants import MessageVariant, place_of
from lifesign.domain.a2a.response_outcome import task_state
from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.parsing.bounded_json import parse_or_none

MAX_TASK_ID_CHARS: Final = 256
UNFINISHED: Final = frozenset({"submitted", "working", "TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"})
"""States of a task that has no answer yet; one that waits for the caller has answered."""
_SEND: Final = "/message:send"
_HISTORY: Final = "historyLength=0"


@fast_dataclass()
class StateRequest:
    """A request for a task's current state (3.1.3)."""

    method: Literal["GET", "POST"]
    url: str
    body: bytes | None


@fast_dataclass()
class UnfinishedTask:
    """A task that a message has started, and how to request its state."""

    spelling: MessageVariant
    """Of the message."""
    url: str
    """Of the interface."""
    tenant: str | None
    task_id: str

    def request(self, call_id: str) -> StateRequest:
        """Return the request for the task's state; `call_id` is the id of the JSON-RPC call."""
        spelling, tenant = self.spelling, self.tenant
        if not spelling.is_rpc:
            path, _, query = place_of(spelling, self.url, tenant).partition("?")
            place = f"{path.removesuffix(_SEND)}/tasks/{quote(self.task_id, safe='')}"
            return StateRequest(
                "GET", f"{place}?{query}&{_HISTORY}" if query else f"{place}?{_HISTORY}", None
            )
        params: dict[str, Any] = {"id": self.task_id, "historyLength": 0}
        if tenant and spelling.takes_tenant:
            params["tenant"] = tenant
        name = "tasks/get" if spelling.version is None else "GetTask"
        call = {"jsonrpc": "2.0", "id": call_id, "method": name, "params": params}
        return StateRequest("POST", self.url, json.dumps(call).encode())


def unfinished_task(
    spelling: MessageVariant, url: str, tenant: str | None, body: bytes
) -> UnfinishedTask | None:
    """Return the unfinished task that an answer to a message names; None if it names none."""
    message = parse_or_none(body)
    found = _task_id(message) if task_state(message) in UNFINISHED else None
    return None if found is None else UnfinishedTask(spelling, url, tenant, found)


def _task_id(message: object) -> str | None:
    """Return the identifier of the task in an answer to a message; None if there is none that can be sent."""
    result = message.get("result", message) if isinstance(message, Mapping) else None
    task = result.get("task", result) if isinstance(result, Mapping) else None
    found = task.get("id") if isinstance(task, Mapping) else None
    is_usable = isinstance(found, str) and 0 < len(found) <= MAX_TASK_ID_CHARS and found.isprintable()
    return found if is_usable else None


def as_sent_answer(spelling: MessageVariant, body: bytes) -> bytes:
    """Convert the answer to a state request into the form of an answer to the message itself.

    1.0 and HTTP+JSON send a bare task here, and one under `task` there. Other answers stay as they are.
    """
    message = parse_or_none(body)
    if not isinstance(message, dict):
        return body
    if not spelling.is_rpc:
        return json.dumps({"task": message}).encode() if "status" in message else body
    result = message.get("result")
    if spelling.version is None or not isinstance(result, dict) or "task" in result:
        return body
    return json.dumps(message | {"result": {"task": result}}).encode()
