"""Parsing of one line of a tool server: a message, a bad answer to a call, or other output."""

import re
from typing import Final

from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json

from lifesign.domain.parsing.surrogate_escapes import replace_half_pairs

UNREADABLE: Final = -31_001
"""Our own error in place of an answer that cannot be read."""
TOO_LONG: Final = -31_002
"""Our own error in place of an answer that is longer than a line may be."""
NOT_SENT: Final = -31_003
"""Our own error in place of the answer of a server that could not be reached."""
SERVER_ERROR: Final = -31_004
"""Code of a server's refusal without a usable code."""
SESSION_LOST: Final = -31_005
"""Our own error in place of the answer of a server that does not know our session any more."""

MAX_UNANSWERED: Final = 1_000
"""Maximum number of requests of a server, such as `ping`, whose answers it has not taken yet."""

# The last two are the SDK's: the connection has ended, and the answer of a URL cannot be read.
_OF_NO_ANSWER: Final = frozenset(
    {UNREADABLE, TOO_LONG, NOT_SENT, SESSION_LOST, CONNECTION_CLOSED, PARSE_ERROR}
)

_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_MAX_END_BYTES: Final = 200
# The line cannot be parsed, so a number counts only where the outermost object begins or ends.
_ID_FIRST: Final = re.compile(
    rb"\s*\{\s*(?:%b,\s*)?\"id\"\s*:\s*(\d{1,15})\s*,\s*(?:%b,\s*)?\"(?:result|error)\"\s*:"
    % (_VERSION, _VERSION)
)
_ANSWER_FIRST: Final = re.compile(rb"\s*\{\s*(?:%b,\s*)?\"(?:result|error)\"\s*:" % _VERSION)
_ID_LAST: Final = re.compile(rb",\s*\"id\"\s*:\s*(\d{1,15})\s*(?:,\s*%b)?\}\s*\Z" % _VERSION)


class NotText(ValueError):
    """A line of a tool server's output is not UTF-8."""


def read_line(line: bytes) -> JSONRPCMessage | None:
    """Return the JSON-RPC message in a line of a server's output; None for other output.

    An invalid answer becomes an error. NotText if it is not UTF-8: then later lines cannot be trusted either.
    """
    try:
        line.decode()
    except UnicodeDecodeError:
        raise NotText("the server wrote text that is not UTF-8") from None
    line = replace_half_pairs(line)
    try:
        # Read once: `validate_json` reads it for each kind of message, 90 ms of 1 MB.
        message = jsonrpc_message_adapter.validate_python(from_json(line), by_name=False)
    except ValueError:
        call = _call_answered_by(line)
    else:
        return _relayed_error(message) if isinstance(message, JSONRPCError) else message
    return None if call is None else substitute_error(call, UNREADABLE, "the answer is not a JSON-RPC answer")


def error_in(body: bytes) -> JSONRPCError | None:
    """Return the JSON-RPC error in an HTTP body; None if the body is not an error."""
    if b'"error"' not in body:
        return None
    try:
        return _relayed_error(JSONRPCError.model_validate_json(body, by_name=False))
    except ValidationError:
        return None


def _relayed_error(message: JSONRPCError) -> JSONRPCError:
    """Return a server's error, marked so that it is not confused with a missing answer."""
    if message.error.code not in _OF_NO_ANSWER:
        return message
    return message.model_copy(update={"error": message.error.model_copy(update={"code": SERVER_ERROR})})


def answered_call(beginning: bytes) -> int | None:
    """Return the id of the call that a line answers, by the line's beginning; None if that is uncertain."""
    found = _ID_FIRST.match(beginning)
    return None if found is None else int(found[1])


def _call_answered_by(line: bytes) -> int | None:
    """Return the same for a whole line, which may name the call at its end."""
    call = answered_call(line)
    if call is None and _ANSWER_FIRST.match(line):
        found = _ID_LAST.search(line[-_MAX_END_BYTES:])
        call = None if found is None else int(found[1])
    return call


def substitute_error(call: int, code: int, words: str) -> JSONRPCError:
    """Return an error to send to the caller instead of an answer that cannot be passed on."""
    return JSONRPCError(jsonrpc="2.0", id=call, error=ErrorData(code=code, message=words))
