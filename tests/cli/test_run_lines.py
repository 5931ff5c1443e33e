"""How is what an adapter tells shown: as lines for people, or as JSON?"""

import json
import logging
from contextvars import copy_context

import pytest

from agent_health.adapter.telling import SPOKEN_WITH
from agent_health.cli.log_output import logging_to
from agent_health.cli.run_lines import LogTeller, teller


def test_what_a_server_of_tools_wrote_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to(LogTeller(teller(as_json=False))):
        logging.getLogger("agent_health.adapter.tools").warning("acme wrote: %s", "\x1b[2J\u202ehello")
    told = capsys.readouterr().err
    assert told.endswith("  tools       acme wrote: \ufffd[2J\ufffdhello\n")


@pytest.mark.parametrize(
    ("logger", "what"),
    [
        ("agent_health.adapter.tools", "tools"),
        ("mcp.server.transport_security", "tools"),
        ("agent_health.mcp", "tools"),
        ("agent_health.lease", "registry"),
        ("agent_health.adapter", "registry"),
        ("mcpother", "registry"),
    ],
)
def test_what_is_logged_is_told_as_what_it_is_of(
    logger: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_to(LogTeller(teller(as_json=True))):
        logging.getLogger(logger).error("it failed", exc_info=ValueError("bad\nworse"))
    told = json.loads(capsys.readouterr().out)
    assert told["what"] == what
    assert told["text"] == "it failed: ValueError: bad"


def test_a_library_that_says_the_same_again_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    sdk = logging.getLogger("mcp.client.streamable_http")
    with logging_to(LogTeller(teller(as_json=True))):
        for text in ("redirected to a", "redirected to a", "redirected to a", "redirected to b"):
            sdk.warning(text)
        # What we say twice, we mean twice.
        for _ in range(2):
            logging.getLogger("agent_health.adapter.tools").warning("acme wrote: again")
    told = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["redirected to a", "redirected to b", *["acme wrote: again"] * 2]


def test_what_a_library_says_of_a_server_begins_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    def say(name: str) -> None:
        SPOKEN_WITH.set(name)
        logging.getLogger("mcp.client.streamable_http").warning("Unknown SSE event: cut")
        logging.getLogger("agent_health.adapter.tools").warning("acme does not run")

    with logging_to(LogTeller(teller(as_json=True))):
        for name in ("acme", "other"):
            copy_context().run(say, name)
        logging.getLogger("mcp.server").warning("nobody's")
    told = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert told == [
        "acme: Unknown SSE event: cut", "acme does not run",
        "other: Unknown SSE event: cut", "acme does not run",
        "nobody's",
    ]  # fmt: skip
