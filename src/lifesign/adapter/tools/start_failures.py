"""Failures to start a tool server: their reasons in words, and whether another handshake may succeed."""

import os
import socket
import ssl
from typing import Final

import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR
from pydantic import ValidationError

from lifesign.adapter.errors import CommandFailed
from lifesign.adapter.tools.checked_connections import ListenerRefused
from lifesign.adapter.tools.tool_list import ListTooLong
from lifesign.domain.common.finding import json_pointer
from lifesign.domain.files.validation_messages import expectation
from lifesign.errors import InvalidValue

HANDSHAKES: Final = ("auto", "legacy")
"""Modes of the SDK's client, in the order of their use.

`auto` first requests `server/discover` (MCP 2026-07-28). Some older servers end at an unknown request, or
close the connection. They run only if `initialize` comes first, as in `legacy`.
"""


def reason_of(error: BaseException) -> str:
    """Return why a server does not run, on one line, without the content of headers or variables."""
    error = _innermost(error)
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return os.strerror(error.errno) if error.errno else type(error).__name__
    if isinstance(error, CommandFailed):
        return error.reason
    if isinstance(error, ValidationError):
        return _invalid_answer(error)
    if isinstance(error, InvalidValue | TimeoutError | MCPError | ListTooLong | ListenerRefused):
        # The text of this code quotes the answer and cuts it, perhaps within a secret.
        is_cut = isinstance(error, MCPError) and error.code == PARSE_ERROR
        return "its answer cannot be read" if is_cut else " ".join(str(error).split()) or "it took too long"
    if isinstance(error, httpx2.TransportError):
        cause = _cause_of(error)
        return f"it cannot be reached: {cause}" if cause else type(error).__name__
    return type(error).__name__


def is_closed(error: BaseException) -> bool:
    """Return whether an error only says that the connection is closed."""
    error = _innermost(error)
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED


def was_started(error: BaseException) -> bool:
    """Return whether a server that did not run was started: its program and its secrets exist."""
    error = _innermost(error)
    return isinstance(error, TimeoutError) or not isinstance(error, OSError | CommandFailed | InvalidValue)


def _invalid_answer(error: ValidationError) -> str:
    """Return the place and the rule of the first fault in a server's answer, such as its list of tools."""
    details = error.errors(include_url=False)[0]
    return f"{json_pointer(*details['loc'])} in its answer: expected {expectation(details)}"


def _cause_of(error: httpx2.TransportError) -> str:
    """Return why there is no connection, such as an untrusted certificate; empty if that is unknown."""
    cause: BaseException = error
    while (earlier := cause.__cause__ or cause.__context__) is not None:
        cause = _innermost(earlier)
    if not isinstance(cause, OSError):
        return ""
    # OpenSSL and the resolver number their errors in their own ways.
    has_own_number = isinstance(cause, ssl.SSLError | socket.gaierror)
    text = cause.strerror if has_own_number else os.strerror(cause.errno) if cause.errno else str(cause)
    return " ".join(str(text).split())


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
