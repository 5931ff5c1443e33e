import json
import logging
import os
import threading
from contextvars import copy_context

import pytest
from tests.support.servers import until

from lifesign.adapter.run_events import CALLED_SERVER, CalledServer, RunEvent, RunEventKind
from lifesign.cli.output.adapter_lines import LogForwarder, event_writer
from lifesign.serving import line_writer
from lifesign.serving.log_output import logging_to


def test_control_characters_of_a_tool_server_are_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    with event_writer(as_json=False) as write_event, logging_to(LogForwarder(write_event)):
        logging.getLogger("lifesign.adapter.tools").warning("acme wrote: %s", "\x1b[2J\u202ehello")
    event = capfd.readouterr().err
    assert event.endswith("  tools       acme wrote: \ufffd[2J\ufffdhello\n")


@pytest.mark.parametrize(
    ("logger", "what"),
    [
        ("lifesign.adapter.tools", "tools"),
        ("mcp.server.transport_security", "tools"),
        ("lifesign.mcp", "tools"),
        ("lifesign.lease", "registry"),
        ("lifesign.adapter", "registry"),
        ("client", "tools"),
        ("mcpother", "registry"),
    ],
)
def test_log_record_names_its_subject(logger: str, what: str, capfd: pytest.CaptureFixture[str]) -> None:
    with event_writer(as_json=True) as write_event, logging_to(LogForwarder(write_event)):
        logging.getLogger(logger).error("it failed", exc_info=ValueError("bad\nworse"))
    event = json.loads(capfd.readouterr().out)
    assert event["what"] == what
    assert event["text"] == "it failed: ValueError: bad"


def test_repeated_message_of_a_library_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    sdk = logging.getLogger("mcp.client.streamable_http")
    with event_writer(as_json=True) as write_event, logging_to(LogForwarder(write_event)):
        for text in ("redirected to a", "redirected to a", "redirected to a", "redirected to b"):
            sdk.warning(text)
        # A line that we repeat is intended.
        for _ in range(2):
            logging.getLogger("lifesign.adapter.tools").warning("acme wrote: again")
    event = [json.loads(line)["text"] for line in capfd.readouterr().out.splitlines()]
    assert event == ["redirected to a", "redirected to b", *["acme wrote: again"] * 2]


def test_log_lines_about_a_server_begin_with_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    def say(name: str) -> None:
        CALLED_SERVER.set(CalledServer(name, lambda text: text.replace("cut", "REMOVED")))
        logging.getLogger("mcp.client.streamable_http").warning("Unknown SSE event: cut")
        logging.getLogger("lifesign.adapter.tools").warning("acme does not run")

    with event_writer(as_json=True) as write_event, logging_to(LogForwarder(write_event)):
        for name in ("acme", "other"):
            copy_context().run(say, name)
        logging.getLogger("mcp.server").error("nobody's")
    event = [json.loads(line)["text"] for line in capfd.readouterr().out.splitlines()]
    assert event == [
        "acme: Unknown SSE event: REMOVED", "acme does not run",
        "other: Unknown SSE event: REMOVED", "acme does not run",
        "nobody's",
    ]  # fmt: skip


def test_warnings_of_the_sdks_server_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with event_writer(as_json=True) as write_event, logging_to(LogForwarder(write_event)):
        logging.getLogger("mcp.server.transport_security").warning("Invalid Host header: a")
        logging.getLogger("mcp.server.runner").error("a fault")
    assert [json.loads(line)["text"] for line in capfd.readouterr().out.splitlines()] == ["a fault"]


def test_unread_lines_are_counted(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "MAX_WAITING", 2)
    is_begun, may_write = threading.Event(), threading.Event()
    write, written = os.write, list[bytes]()

    def wait(fd: int, piece: bytes) -> int:
        is_begun.set()
        may_write.wait()
        written.append(piece)
        return write(fd, piece)

    monkeypatch.setattr(os, "write", wait)
    with event_writer(as_json=True) as write_event:
        # One is being written, two wait.
        write_event(RunEvent(what=RunEventKind.TOOLS, text="0"))
        until("it is being written", is_begun.is_set)
        for number in range(1, 6):
            write_event(RunEvent(what=RunEventKind.TOOLS, text=str(number)))
        may_write.set()
        until("all are written", lambda: len(written) == 3)
        write_event(RunEvent(what=RunEventKind.TOOLS, text="6"))
    event = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(one["what"], one["text"].split()[0]) for one in event] == [
        ("tools", "0"), ("tools", "1"), ("tools", "2"),
        ("omitted", "3"),
        ("tools", "6"),
    ]  # fmt: skip
