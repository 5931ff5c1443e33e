"""Real A2A agents behave the same with and without the middleware, which counts each answer rightly.

Agents on both lines of the A2A SDK run on real sockets, bare and wrapped, and get the same requests.
Their answers must be equal to the byte, except for times, generated ids and one header at a card's
path: the Link to the health document.
"""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.a2a_serving import COUNTS_PATH, OUTCOMES
from tests.support.servers import REPOSITORY, Server, serving, until

AGENTS = {
    "1.3": (Path(sys.executable), "tests/support/a2a_agent_13.py"),
    "0.3.26": (REPOSITORY / ".venv-a2a03" / "bin" / "python", "tests/support/a2a_agent_03.py"),
}
LINK = b'link: </.well-known/agent-health>; rel="status"'
CARD_PATH = "/.well-known/agent-card.json"


@dataclass(frozen=True)
class Case:
    """One request, and how it must be counted."""

    name: str
    outcome: str
    path: str = "/"
    body: bytes = b""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)

    def request(self) -> bytes:
        headers = {"Host": "agent.test", "Connection": "close", **self.headers}
        if self.method == "POST":
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(self.body))}
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers)]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


def rpc(name: str, method: str, params: object, outcome: str, **headers: str) -> Case:
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return Case(name, outcome, body=json.dumps(call).encode(), headers=headers)


def message(text: str) -> dict[str, Any]:
    return {"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}]}}


def message_03(text: str) -> dict[str, Any]:
    parts = [{"kind": "text", "text": text}]
    return {"message": {"kind": "message", "messageId": "m-1", "role": "user", "parts": parts}}


def rest_message_03(text: str) -> dict[str, Any]:
    return {"message": {"messageId": "m-1", "role": "ROLE_USER", "content": [{"text": text}]}}


def rest(name: str, path: str, body: object, outcome: str, **headers: str) -> Case:
    return Case(name, outcome, path, json.dumps(body).encode(), headers=headers)


def get(name: str, path: str, outcome: str, method: str = "GET", **headers: str) -> Case:
    return Case(name, outcome, path, method=method, headers=headers)


OUTCOME_OF_BEHAVIOUR = {
    "ok": "answered",
    "message": "answered",
    "fail": "task_failed",
    "reject": "answered",
    "auth": "answered",
    "input": "answered",
    "raise": "server_fault",
    "raise-first": "server_fault",
}
V1 = {"A2A-Version": "1.0"}

CASES_13 = [
    *(rpc(f"send {b}", "SendMessage", message(b), o, **V1) for b, o in OUTCOME_OF_BEHAVIOUR.items()),
    *(
        rpc(f"stream {b}", "SendStreamingMessage", message(b), o, **V1)
        for b, o in OUTCOME_OF_BEHAVIOUR.items()
    ),
    *(rpc(f"0.3 send {b}", "message/send", message_03(b), o) for b, o in OUTCOME_OF_BEHAVIOUR.items()),
    *(rpc(f"0.3 stream {b}", "message/stream", message_03(b), o) for b, o in OUTCOME_OF_BEHAVIOUR.items()),
    *(
        rest(f"REST send {b}", "/rest/message:send", message(b), o, **V1)
        for b, o in OUTCOME_OF_BEHAVIOUR.items()
    ),
    *(
        rest(f"REST stream {b}", "/rest/message:stream", message(b), o, **V1)
        for b, o in OUTCOME_OF_BEHAVIOUR.items()
    ),
    rpc("unknown method", "NoSuchMethod", {}, "no_operation", **V1),
    Case("parse error", "no_operation", body=b"{nope", headers=V1),
    Case("invalid request", "no_operation", body=b'{"id":1,"method":"SendMessage"}', headers=V1),
    rpc("invalid params", "SendMessage", {"message": "nope"}, "caller_fault", **V1),
    rpc("empty message", "SendMessage", {}, "caller_fault", **V1),
    rpc("task not found", "GetTask", {"id": "nope"}, "caller_fault", **V1),
    rpc("subscribe to no task", "SubscribeToTask", {"id": "nope"}, "caller_fault", **V1),
    rpc("version missing", "SendMessage", message("ok"), "caller_fault"),
    rpc("version unknown", "SendMessage", message("ok"), "caller_fault", **{"A2A-Version": "9.9"}),
    get("REST task not found", "/rest/tasks/nope", "caller_fault", **V1),
    rest("REST invalid", "/rest/message:send", {"message": "nope"}, "caller_fault", **V1),
    get("REST unknown path", "/rest/nothing/here", "no_operation", **V1),
    get("unknown path", "/nothing/is/here", "no_operation"),
    get("GET at the RPC path", "/", "no_operation"),
    get("OPTIONS", "/", "excluded", "OPTIONS"),
    get("card", CARD_PATH, "excluded"),
    get("card, not changed", CARD_PATH, "excluded", **{"If-None-Match": "*"}),
    get("card, HEAD", CARD_PATH, "excluded", "HEAD"),
    get("card, old path", "/.well-known/agent.json", "excluded"),
]

# The REST binding of 0.3.26 answers a send at once: the task is submitted, whatever becomes of it.
AT_ONCE = {"fail": "answered", "raise": "answered"}
# The streams of 0.3.26 break off: the exception leaves the application.
BROKEN_STREAMS = {"raise": "raised", "raise-first": "raised"}

CASES_03 = [
    *(rpc(f"send {b}", "message/send", message_03(b), o) for b, o in OUTCOME_OF_BEHAVIOUR.items()),
    *(
        rpc(f"stream {b}", "message/stream", message_03(b), BROKEN_STREAMS.get(b, o))
        for b, o in OUTCOME_OF_BEHAVIOUR.items()
    ),
    *(
        rest(f"REST send {b}", "/rest/v1/message:send", rest_message_03(b), AT_ONCE.get(b, o))
        for b, o in OUTCOME_OF_BEHAVIOUR.items()
    ),
    *(
        rest(f"REST stream {b}", "/rest/v1/message:stream", rest_message_03(b), BROKEN_STREAMS.get(b, o))
        for b, o in OUTCOME_OF_BEHAVIOUR.items()
    ),
    rpc("unknown method", "no/such", {}, "no_operation"),
    Case("parse error", "no_operation", body=b"{nope"),
    Case("invalid request", "caller_fault", body=b'{"id":1,"method":"message/send"}'),
    rpc("invalid params", "message/send", {"message": "nope"}, "caller_fault"),
    rpc("task not found", "tasks/get", {"id": "nope"}, "caller_fault"),
    rpc("resubscribe to no task", "tasks/resubscribe", {"id": "nope"}, "caller_fault"),
    get("REST task not found", "/rest/v1/tasks/nope", "caller_fault"),
    get("unknown path", "/nothing/is/here", "no_operation"),
    get("GET at the RPC path", "/", "no_operation"),
    get("card", CARD_PATH, "excluded"),
    get("card, old path", "/.well-known/agent.json", "excluded"),
]


class Pair:
    """The same agent twice, bare and wrapped."""

    def __init__(self, bare: Server, wrapped: Server) -> None:
        self.bare = bare
        self.wrapped = wrapped
        self.expected: Counter[str] = Counter()

    def counts(self) -> Counter[str]:
        return Counter(self.wrapped.json(COUNTS_PATH))


class Pairs:
    """The pairs of both SDKs, each started on first use."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._pairs: dict[str, Pair] = {}
        self.stack = ExitStack()

    def pair(self, sdk: str) -> Pair:
        python, script = AGENTS[sdk]
        if not python.exists():
            pytest.skip(f"NOT TESTED against a2a-sdk {sdk}: {python} is absent; `make test` makes it")
        if sdk not in self._pairs:
            bare, wrapped = (
                self.stack.enter_context(
                    serving(
                        [str(python), script, kind, "{port}"],
                        log=self._log,
                        env={"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])},
                    )
                )
                for kind in ("bare", "wrapped")
            )
            self._pairs[sdk] = Pair(bare, wrapped)
        return self._pairs[sdk]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    pairs = Pairs(tmp_path_factory.mktemp("a2a") / "log")
    with pairs.stack:
        yield pairs


@pytest.fixture
def pair(pairs: Pairs, sdk: str) -> Pair:
    return pairs.pair(sdk)


CASES = [
    *(pytest.param("1.3", case, id=f"1.3-{case.name}") for case in CASES_13),
    *(pytest.param("0.3.26", case, id=f"0.3.26-{case.name}") for case in CASES_03),
]


@pytest.mark.parametrize(("sdk", "case"), CASES)
def test_wrapped_sdk_answers_are_byte_identical_and_counted_by_outcome(
    pair: Pair, sdk: str, case: Case
) -> None:
    before = pair.counts()
    bare = normalised(pair.bare.raw(case.request()))
    wrapped = normalised(pair.wrapped.raw(case.request()))
    if case.path.startswith("/.well-known/agent"):
        wrapped.headers.remove(LINK)
    assert wrapped == bare
    # A stream is classified when the app returns, a moment after the caller has its last byte.
    grown = until("the request is counted", lambda: pair.counts() - before)
    pair.expected += grown
    assert grown == {case.outcome: 1}


@pytest.mark.parametrize("sdk", AGENTS)
def test_poll_of_a_failed_task_counts_as_answered(pair: Pair, sdk: str) -> None:
    is_03 = sdk == "0.3.26"
    send = (
        rpc("", "message/send", message_03("fail"), "task_failed")
        if is_03
        else rpc("", "SendMessage", message("fail"), "task_failed", **V1)
    )
    found = re.search(rb'"id": ?"([0-9a-f-]{36})"', pair.wrapped.raw(send.request()))
    assert found is not None
    before = pair.counts()
    poll = rpc("", "tasks/get" if is_03 else "GetTask", {"id": found[1].decode()}, "answered", **V1)
    answer = pair.wrapped.raw(poll.request())
    assert b'"failed"' in answer or b"TASK_STATE_FAILED" in answer
    assert until("the poll is counted", lambda: pair.counts() - before) == {"answered": 1}
    pair.expected.update(["task_failed", "answered"])


@pytest.mark.parametrize("sdk", AGENTS)
def test_health_document_contains_each_counted_outcome(pair: Pair, sdk: str) -> None:
    document = pair.wrapped.document()
    assert document["extensions"][OUTCOMES] == dict(pair.expected)


@dataclass
class Normalised:
    """An answer as it came over the wire, without what differs from one run to the next."""

    status_line: bytes
    headers: list[bytes]
    chunks: list[bytes]
    is_complete: bool


_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")


def normalised(raw: bytes) -> Normalised:
    head, _, rest = raw.partition(b"\r\n\r\n")
    status_line, *headers = head.split(b"\r\n")
    lengths = [int(header[15:]) for header in headers if header.lower().startswith(b"content-length:")]
    if lengths:
        assert lengths[0] == len(rest) or not rest
        chunks, is_complete = [rest], True
    else:
        chunks, is_complete = _chunks(rest)
    names: dict[bytes, bytes] = {}

    def name(found: re.Match[bytes]) -> bytes:
        return names.setdefault(found[0], b"<id %d>" % len(names))

    kept = [header for header in headers if not header.lower().startswith((b"date:", b"content-length:"))]
    same = [_UUID.sub(name, _TIME.sub(b"<time>", chunk)) for chunk in chunks]
    return Normalised(status_line, kept, same, is_complete)


def _chunks(body: bytes) -> tuple[list[bytes], bool]:
    """Return the chunks as they were sent, and whether the last one came."""
    chunks: list[bytes] = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return chunks, True
        chunks.append(body[:length])
        body = body[length + 2 :]
    return chunks, False
