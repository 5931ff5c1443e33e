import http.client
import json
import logging
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.dashboard.conftest import Filled, Sample
from tests.support.dashboard_sample import KEYS
from tests.support.dashboard_visitor import Visitor
from tests.support.registry_process import prepare, registry
from tests.support.servers import PATIENCE_SECONDS

from lifesign.dashboard.responses import POLICY
from lifesign.domain.access.permissions import Role


@pytest.fixture(scope="module")
def served(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    with filled.served(tmp_path_factory.mktemp("live"), open_dashboard=True) as sample:
        yield sample


class Stream:
    """One open page."""

    def __init__(self, url: str, path: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_SECONDS)
        self._connection.request("GET", path, headers=headers)
        self.answer = self._connection.getresponse()

    def next(self, kind: str) -> dict[str, str]:
        """The next message of a kind; others are passed over."""
        while True:
            message: dict[str, str] = {}
            while line := self.answer.readline().decode().rstrip("\n"):
                name, _, result = line.partition(": ")
                message[name] = result
            if message.get("event") == kind:
                return message

    def line(self) -> dict[str, Any]:
        """The next event."""
        return dict(json.loads(self.next("line")["data"]))

    def close(self) -> None:
        self._connection.close()


@contextmanager
def open_page(served: Sample, after: int | str, **headers: str) -> Iterator[Stream]:
    stream = Stream(served.server.url, f"/live?after={after}", **headers)
    try:
        yield stream
    finally:
        stream.close()


def next_of(stream: Stream, kind: str) -> dict[str, str]:
    """Return the next message about an event of a type: the registry sends others too."""
    while json.loads((message := stream.next("line"))["data"])["type"] != kind:
        pass
    return message


def position(served: Sample) -> int:
    return position_of(served.visitor())


def position_of(visitor: Visitor) -> int:
    found = re.search(r'lifesign-position" content="(\d+)"', visitor.get("/events").html)
    assert found is not None
    return int(found[1])


def create_task(served: Sample, title: str = "Something to do") -> None:
    answer = Visitor(served.server.url)._ask(
        "POST",
        "/api/v1/tasks",
        json.dumps({"title": title}).encode(),
        {"x-api-key": KEYS[Role.COORDINATOR], "content-type": "application/json"},
    )
    assert answer.status == 201, answer.body


def test_event_reaches_all_open_pages_with_its_sequence(served: Sample) -> None:
    last = position(served)
    with open_page(served, last) as one, open_page(served, last) as other:
        assert one.answer.headers["content-type"] == "text/event-stream"
        create_task(served)
        message = next_of(one, "task.created")
        answer = json.loads(message["data"])
        assert answer == json.loads(next_of(other, "task.created")["data"])
        assert int(message["id"]) == answer["sequence"] > last
        assert (answer["type"], answer["text"], answer["is_notable"]) == ("task.created", "created", True)
        assert answer["where"] == f"/tasks/{answer['subject']}"
        assert answer["by"] == "coordinator, key:key_coordinator_"


def test_reconnecting_client_gets_missed_events(served: Sample) -> None:
    last = position(served)
    create_task(served)
    create_task(served)
    with open_page(served, 0, last_event_id=str(last)) as stream:
        assert stream.answer.status == 200
    with open_page(served, 0, **{"last-event-id": str(last)}) as stream:
        assert [stream.line()["sequence"] for _ in range(2)] == [last + 1, last + 2]


@pytest.mark.parametrize("after", ["", "1", "99999999999", "-1", "x", "1" * 30])
def test_client_that_missed_too_many_events_continues_with_new_ones(served: Sample, after: str) -> None:
    with open_page(served, after) as stream:
        missed = stream.next("missed")
        assert int(missed["data"]) == int(missed["id"]) == position(served)


def test_live_feed_updates_the_counts(served: Sample) -> None:
    with open_page(served, position(served)) as stream:
        create_task(served)
        counts = json.loads(stream.next("counts")["data"])
    assert counts["total"] == 35
    assert counts["status deregistered"] == 1
    assert counts["waiting"] == 3
    assert set(counts) >= {"status active", "health unknown", "health healthy"}


def test_stream_requires_a_session(sample: Sample) -> None:
    with open_page(sample, 0) as stream:
        assert stream.answer.status == 403
        assert stream.answer.read() == b""


@pytest.mark.parametrize("way", ["logout", "revoked"])
def test_open_page_gets_no_events_after_its_session(mutable_sample: Sample, way: str) -> None:
    visitor = mutable_sample.visitor(Role.READER)
    cookie = "; ".join("=".join(pair) for pair in visitor.cookies.items())
    with open_page(mutable_sample, position_of(visitor), cookie=cookie) as stream:
        stream.next("missed")
        if way == "logout":
            assert visitor.do("/", "/logout").status == 303
        else:
            revoked = Visitor(mutable_sample.server.url)._ask(
                "DELETE", "/api/v1/keys/key_reader_", None, {"x-api-key": KEYS[Role.ADMIN]}
            )
            assert revoked.status == 204, revoked.body
        # The stream ends before the next keep-alive.
        assert b":\n" not in stream.answer.read().splitlines(keepends=True)


def test_https_url_streams_and_sends_hsts(filled: Filled, tmp_path: Path) -> None:
    with filled.served(tmp_path, public_url="https://registry.example") as served:
        cookies = served.visitor(Role.READER).cookies
        members = {
            "host": "registry.example",
            "cookie": "; ".join("=".join(pair) for pair in cookies.items()),
        }
        with open_page(served, 0, **members) as stream, open_page(served, 0, host=members["host"]) as refused:
            assert (stream.answer.status, refused.answer.status) == (200, 403)
            for answer in (stream.answer, refused.answer):
                assert "max-age" in answer.headers["strict-transport-security"]
                assert answer.headers["content-security-policy"] == POLICY
            stream.next("missed")
            create_task(served)
            assert next_of(stream, "task.created")


def test_number_of_open_live_feeds_is_bounded(served: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifesign.dashboard.live_feed.MAX_WATCHERS_OF_ADDRESS", 0)
    with open_page(served, 0) as stream:
        assert stream.answer.status == 503


def test_title_of_a_task_is_not_in_events(served: Sample) -> None:
    with open_page(served, position(served)) as stream:
        create_task(served, title="A secret errand")
        assert "secret" not in next_of(stream, "task.created")["data"]


def test_live_feed_script_inserts_text_not_html() -> None:
    script = Path("src/lifesign/dashboard/static/live.js").read_text()
    for markup in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert markup not in script


def test_server_that_stops_without_a_signal_closes_open_pages(
    filled: Filled, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example one that runs in a thread: open streams forced its end after the grace period."""
    with filled.served(tmp_path, open_dashboard=True) as served, open_page(served, 0) as stream:
        stream.next("missed")
        monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
        served.server.stop()
        while stream.answer.readline():
            pass
        served.server.start()
    assert "exceeded" not in caplog.text


def test_stopping_server_closes_open_pages(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/registry.db"
    prepare(url, [])
    with registry(url, tmp_path, settings={"LIFESIGN_SERVER_OPEN_DASHBOARD": "1"}) as server:
        stream = Stream(f"http://127.0.0.1:{server.port}", "/live?after=0")
        stream.next("missed")
        server.process.terminate()
        # The response ends regularly: a broken connection would raise.
        while stream.answer.readline():
            pass
        stream.close()
        assert server.process.wait(PATIENCE_SECONDS) in {0, -signal.SIGTERM}
        assert "Cancel" not in server.log.read_text()
