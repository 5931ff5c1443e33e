import errno
import socket

import httpx2
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, ListToolsResult
from pydantic import ValidationError

from lifesign.adapter.errors import CommandFailed
from lifesign.adapter.tools.start_failures import is_closed, reason_of, was_started
from lifesign.errors import InvalidValue


def test_reason_names_the_place_and_the_rule_of_an_invalid_answer() -> None:
    with pytest.raises(ValidationError) as raised:
        ListToolsResult.model_validate({"tools": [{"name": "a", "inputSchema": True}]})
    reason = reason_of(ExceptionGroup("of tasks", [raised.value]))
    assert "/tools/0/inputSchema " in reason
    assert "a valid dictionary" in reason


@pytest.mark.parametrize(
    ("error", "is_started"),
    [
        (MCPError(INVALID_PARAMS, "no"), True),
        (RuntimeError("no"), True),
        (TimeoutError(), True),
        (FileNotFoundError(errno.ENOENT, "no"), False),
        (CommandFailed("no"), False),
        (InvalidValue("env", None, "a variable"), False),
    ],
)
def test_server_without_its_program_or_secret_was_not_started(error: Exception, *, is_started: bool) -> None:
    assert was_started(error) == was_started(ExceptionGroup("of tasks", [error])) == is_started


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "to 127.0.0.1:9"), "Connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name unknown"), "Name unknown"),
        (OSError("no address\n"), "no address"),
    ],
)
def test_reason_of_a_missing_connection_is_its_cause(cause: OSError, words: str) -> None:
    error, attempts = httpx2.ConnectError("All attempts failed"), OSError("All attempts failed")
    error.__context__, attempts.__cause__ = attempts, ExceptionGroup("of addresses", [cause])
    assert reason_of(error).endswith(f": {words}")
    assert reason_of(httpx2.ReadError("its words")) == "ReadError"


def test_closed_connection_is_recognised_in_a_group() -> None:
    assert is_closed(ExceptionGroup("of tasks", [MCPError(CONNECTION_CLOSED, "closed")]))
    assert not is_closed(MCPError(INVALID_PARAMS, "no"))
