"""MCP over Streamable HTTP: which requests are MCP, which are interactions, and how their answers count.

Facts of the revisions 2024-11-05 to 2026-07-28. A result shows its operation by its members, nearly always;
an error does not. Then the request decides, by its header `Mcp-Method` or by its body.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from lifesign.domain.a2a.response_outcome import (
    GOOD_TOOL_RESULT,
    MALFORMED_ANSWER,
    NULL_RESULT,
    JsonAnswer,
    method_of,
    worst_of,
)
from lifesign.domain.health.outcome import (
    ANSWERED,
    SIDES,
    CountingProfile,
    Outcome,
    Side,
    outcome_of_rpc_code,
    outcome_of_status,
)

NO_INTERACTION: Final = JsonAnswer(Outcome.EXCLUDED)
_HANDSHAKE: Final = "initialize"
_TOOL_CALL: Final = "tools/call"
_INTERACTIONS: Final = frozenset({_TOOL_CALL, "resources/read", "prompts/get", "completion/complete"})
_NO_INTERACTIONS: Final = frozenset({
    _HANDSHAKE, "server/discover", "ping", "logging/setLevel", "tools/list", "resources/list",
    "resources/templates/list", "resources/subscribe", "resources/unsubscribe", "prompts/list",
    "subscriptions/listen", "tasks/get", "tasks/list", "tasks/cancel", "tasks/update",
})  # fmt: skip
_METHODS: Final = _INTERACTIONS | _NO_INTERACTIONS
_SHARED_METHODS: Final = frozenset({"tasks/get", "tasks/list", "tasks/cancel"})
"""Methods that A2A has as well."""
_OWN_METHODS: Final = _METHODS - _SHARED_METHODS
# Without the methods that both protocols have.
_A2A_METHODS: Final = frozenset({
    "SendMessage", "SendStreamingMessage", "GetTask", "ListTasks", "SubscribeToTask", "CancelTask",
    "CreateTaskPushNotificationConfig", "GetTaskPushNotificationConfig", "ListTaskPushNotificationConfigs",
    "DeleteTaskPushNotificationConfig", "GetExtendedAgentCard",  # 1.0
    "message/send", "message/stream", "tasks/send", "tasks/sendSubscribe", "tasks/resubscribe",
    "tasks/pushNotificationConfig/set", "tasks/pushNotificationConfig/get",
    "tasks/pushNotificationConfig/list", "tasks/pushNotificationConfig/delete",
    "agent/getAuthenticatedExtendedCard",  # 0.x
})  # fmt: skip
_NOTIFICATION: Final = "notifications/"
_LISTENING_METHODS: Final = frozenset({"GET", "DELETE"})

_OUTCOME_OF_CODE: Final[Mapping[int, Outcome]] = MappingProxyType({
    -32700: Outcome.NO_OPERATION,  # parse error
    -32600: Outcome.NO_OPERATION,  # invalid request
    -32601: Outcome.NO_OPERATION,  # method not found
    -32020: Outcome.NO_OPERATION,  # header mismatch
    -32021: Outcome.NO_OPERATION,  # missing client capability
    -32022: Outcome.NO_OPERATION,  # unsupported protocol version
    -32602: Outcome.CALLER_FAULT,  # invalid params
    -32002: Outcome.CALLER_FAULT,  # resource not found
    -32800: Outcome.ABANDONED,     # cancelled by the caller (SDKs)
    -32042: ANSWERED,              # URL elicitation required
})  # fmt: skip
CLASSIFIED_BY_CODE: Final = frozenset({400, 404})
"""HTTP statuses of MCP for which the JSON-RPC code decides: SDKs send them with invalid parameters and
unknown methods.
"""
_REFUSED_BY_TRANSPORT: Final = frozenset({400, 404, 406, 415})
# Codes by which SDKs refuse a request in the transport, such as a missing or unknown session.
_TRANSPORT_CODES: Final = frozenset({-32000, -32001})


def is_mcp(http_method: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a request with these headers (names in lower case) belongs to MCP.

    It has a header of MCP, or is a POST that accepts both JSON and event streams. Clients of other APIs may
    accept both for a GET: it is not taken for MCP, as then its failures would not count.
    """
    accepted = b""
    for name, value in headers:
        if name.startswith(b"mcp-"):
            return True
        if name == b"accept":
            # A header that was sent twice is a list.
            accepted += value.lower()
    return http_method == "POST" and b"text/event-stream" in accepted and b"application/json" in accepted


def calls_mcp(call: object) -> bool:
    """Return whether a request body, a call or a batch, calls a method that exists only in MCP."""
    methods = map(method_of, call if isinstance(call, list) else (call,))
    return any(method in _OWN_METHODS or method.startswith(_NOTIFICATION) for method in methods)


def operation_of(headers: Iterable[tuple[bytes, bytes]], call: object) -> str:
    """Return the MCP method that a request calls, by headers or body (`call`); "" if it is unknown.

    The body decides, as it does in servers; the header `Mcp-Method` counts where the body was not understood.
    """
    method = method_of(call)
    if method:
        return method
    return next((value.decode("latin-1") for name, value in headers if name == b"mcp-method"), "")


def is_interaction(http_method: str, operation: str) -> bool:
    """Return whether an MCP request counts as an interaction, or may count because its method is unknown."""
    if http_method in _LISTENING_METHODS or operation in _NO_INTERACTIONS:
        return False
    return not operation.startswith(_NOTIFICATION)


def is_failed_handshake(http_method: str, operation: str, outcome: Outcome) -> bool:
    """Return whether no session could begin, by a fault of the server: no interaction can follow."""
    is_fault = SIDES[CountingProfile.SERVER_FAULTS][outcome] is Side.ERROR
    return http_method == "POST" and operation == _HANDSHAKE and is_fault


def classify_as_mcp(
    answer: JsonAnswer, operation: str, status: int = 200, *, is_called: bool = True
) -> JsonAnswer:
    """Return the outcome of an answer to an MCP request, by the answer's content and HTTP status.

    `is_called`: whether the body of the request calls the operation; a header alone proves nothing, as any
    caller may send it to an A2A agent.
    """
    if answer.members:
        return worst_of(tuple(classify_as_mcp(one, "", status) for one in answer.members))
    if answer.is_rpc_error:
        return JsonAnswer(_outcome_of_error(answer.code, status, is_mcp=is_called and operation in _METHODS))
    if not answer.is_unnamed or (is_called and operation in _A2A_METHODS):
        return answer
    if answer is NULL_RESULT and is_called and operation in _INTERACTIONS:
        return MALFORMED_ANSWER
    if operation == _TOOL_CALL:
        return GOOD_TOOL_RESULT
    return JsonAnswer(ANSWERED) if operation in _INTERACTIONS else NO_INTERACTION


def outcome_of_mcp_status(status: int) -> Outcome:
    """Return the outcome of an answer to an MCP request by its HTTP status alone."""
    if status in _REFUSED_BY_TRANSPORT:
        return Outcome.NO_OPERATION
    return outcome_of_status(status, has_route=False)


def _outcome_of_error(code: object, status: int, *, is_mcp: bool) -> Outcome:
    """`is_mcp`: whether the request surely called a method of MCP: A2A has codes of its own."""
    known = _OUTCOME_OF_CODE.get(code) if isinstance(code, int) else Outcome.SERVER_FAULT
    if known is None:
        known = Outcome.SERVER_FAULT if is_mcp else outcome_of_rpc_code(code)
    if 200 <= status < 300:
        return known
    is_of_transport = status not in CLASSIFIED_BY_CODE or (isinstance(code, int) and code in _TRANSPORT_CODES)
    return outcome_of_mcp_status(status) if is_of_transport else known
