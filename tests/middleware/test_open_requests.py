import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.asgi_client import ask
from tests.support.hand_clock import HandClock
from tests.support.recording import agent, outcomes, samples, status

from lifesign import AgentHealth, AgentHealthMiddleware
from lifesign.domain.health.document import HealthStatus
from lifesign.middleware.exchange import Receive, Scope, Send

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
BODY = {"type": "http.response.body", "body": b'{"a": 1}'}
EVENT = {
    "type": "http.response.body",
    "body": b'data: {"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"}\n\n',
    "more_body": True,
}
PART = {"type": "http.request", "body": b"{", "more_body": True}
WHOLE = {"type": "http.request", "body": b"}", "more_body": False}
DAY_S = 86_400


class Killed:
    """An agent whose worker is killed during requests, and the worker after it."""

    def __init__(self, state_dir: Path) -> None:
        self.clock = HandClock()
        self._settings: dict[str, Any] = {"clock": self.clock.clock, "state_dir": state_dir}
        self._requests = list[asyncio.Task[Any]]()
        self.middleware = AgentHealthMiddleware(self._app, agent_id="agent", **self._settings)
        self.sent: list[Any] = []
        self.reads_before = self.reads_after = 0
        """How often the app receives before and after it sends."""
        self.uploaded: list[Any] = [WHOLE]
        self.calls = 0
        self._workers = [self.middleware.health]

    async def _app(self, _scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        for _ in range(self.reads_before):
            await receive()
        for message in self.sent:
            await send(message)
        for _ in range(self.reads_after):
            await receive()
        await asyncio.Event().wait()

    async def begin(self, count: int = 1, *, method: str = "POST", headers: Any = ()) -> None:
        """Begin so many requests; the app reads, sends its messages and then hangs."""
        for _ in range(count):
            request = ask(self._upload_and_wait, "/", method=method, headers=headers)
            self._requests.append(asyncio.create_task(request))
        await asyncio.sleep(0)

    async def _upload_and_wait(self, scope: Scope, _receive: Receive, send: Send) -> None:
        uploaded = iter(self.uploaded)

        async def receive() -> Any:
            message = next(uploaded, None)
            return message or await asyncio.Event().wait()

        await self.middleware(scope, receive, send)

    async def leave(self) -> None:
        """Cancel all requests, as a server does whose callers have left."""
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    def kill(self) -> AgentHealth:
        """Kill the worker, and return the one that takes over its file."""
        # This closes the files of a worker as the kernel does, and writes nothing.
        self.middleware.health.begin_in_child()
        after = agent(self.clock, state_dir=self._settings["state_dir"])
        self._workers.append(after)
        return after

    def end(self) -> None:
        for worker in self._workers:
            worker.close()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    made = Killed(tmp_path)
    yield made
    made.end()


async def test_requests_of_a_killed_worker_are_unfinished(killed: Killed) -> None:
    await killed.begin(12)
    after = killed.kill()
    assert outcomes(after) == {"unfinished": 12}
    assert status(after) is HealthStatus.UNHEALTHY
    assert outcomes(killed.kill()) == {"unfinished": 12}


@pytest.mark.parametrize(
    ("method", "sent", "counted"),
    [
        ("POST", [START], {"unfinished": 1}),
        ("POST", [START, {**BODY, "more_body": True}], {"unfinished": 1}),
        # The answer is complete, and a background task still runs.
        ("POST", [START, BODY], {"answered": 1}),
        ("POST", [{**START, "status": 500}, BODY], {"server_fault": 1}),
        # It may be an event stream that never ends.
        ("GET", [START], {}),
    ],
)
async def test_request_that_was_counted_before_the_kill_counts_once(
    killed: Killed, method: str, sent: list[Any], counted: dict[str, int]
) -> None:
    killed.sent = sent
    await killed.begin(method=method)
    assert outcomes(killed.kill()) == counted


@pytest.mark.parametrize(
    ("uploaded", "reads", "counted"),
    [
        ([], 1, {}),
        ([PART], 2, {}),
        ([PART, WHOLE], 2, {"unfinished": 12}),
        ([PART, WHOLE], 1, {"unfinished": 12}),
    ],
)
async def test_request_is_not_unfinished_while_the_app_waits_for_its_body(
    killed: Killed, uploaded: list[Any], reads: int, counted: dict[str, int]
) -> None:
    killed.uploaded, killed.reads_before = uploaded, reads
    await killed.begin(12)
    assert outcomes(killed.kill()) == counted


async def test_upload_after_the_answer_ends_no_other_request(killed: Killed) -> None:
    await killed.begin()
    killed.sent, killed.reads_after = [START, BODY], 2
    killed.uploaded = [PART, PART]
    await killed.begin()
    assert outcomes(killed.kill()) == {"answered": 1, "unfinished": 1}


@pytest.mark.parametrize(
    ("operation", "counted"),
    [(b"subscriptions/listen", {}), (b"tools/call", {"unfinished": 12})],
)
async def test_stream_of_notifications_is_not_unfinished(
    killed: Killed, operation: bytes, counted: dict[str, int]
) -> None:
    killed.sent = [{**START, "headers": [(b"content-type", b"text/event-stream")]}, EVENT]
    await killed.begin(12, headers=[(b"mcp-method", operation)])
    assert outcomes(killed.kill()) == counted


async def test_request_that_its_caller_left_before_the_kill_counts_once(killed: Killed) -> None:
    await killed.begin(3)
    await killed.leave()
    assert outcomes(killed.kill()) == {"abandoned": 3}


async def test_overdue_request_counts_once(killed: Killed) -> None:
    await killed.begin()
    killed.clock.advance(31)
    assert outcomes(killed.middleware.health) == {"timed_out": 1}
    assert outcomes(killed.kill()) == {"timed_out": 1}


async def test_request_that_cannot_be_counted_is_not_unfinished(
    killed: Killed, caplog: pytest.LogCaptureFixture
) -> None:
    killed.sent = [START, {"type": "http.response.body", "body": "text"}]
    await killed.begin()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert outcomes(killed.kill()) == {}


async def test_lost_requests_age_out_with_the_slot_in_which_they_began(killed: Killed) -> None:
    killed.middleware.health.open()
    killed.clock.advance(DAY_S / 2)
    await killed.begin(12)
    killed.clock.advance(DAY_S / 2)
    after = killed.kill()
    assert samples(after) == 12
    killed.clock.advance(DAY_S / 2)
    assert samples(after) == 0


async def test_closed_recorder_leaves_no_unfinished_requests(killed: Killed) -> None:
    await killed.begin()
    killed.middleware.health.close()
    await killed.leave()
    assert outcomes(killed.kill()) == {"abandoned": 1}


async def test_impossible_number_of_open_requests_is_ignored(killed: Killed) -> None:
    await killed.begin()
    windows = killed.middleware.health._windows
    assert windows is not None
    windows.open_requests[0] = 1 << 40
    assert outcomes(killed.kill()) == {}


async def test_request_that_cannot_be_noted_reaches_the_app(
    killed: Killed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no windows")

    monkeypatch.setattr(killed.middleware.health, "_catch_up_locked", fail)
    await killed.begin()
    monkeypatch.undo()
    assert killed.calls == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert outcomes(killed.kill()) == {}
