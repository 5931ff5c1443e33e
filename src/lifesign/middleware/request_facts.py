"""What a request says about the answer that it expects."""

from lifesign.domain.a2a.response_outcome import (
    SENDING_METHODS,
    SENDING_PATHS,
    STREAMING_PATH,
    expects_rpc_answer,
    is_poll,
    is_rest_path,
    method_of,
)
from lifesign.domain.health.outcome import Outcome
from lifesign.domain.mcp.answer_outcome import (
    calls_mcp,
    is_failed_handshake,
    is_interaction,
    is_mcp,
    operation_of,
)
from lifesign.domain.parsing.bounded_json import parse_or_none
from lifesign.middleware.body import Message, RequestBody


class RequestFacts:
    """Keeps a request and determines what it calls and which answers are valid.

    The request's body is parsed only if a question needs it.
    """

    __slots__ = ("_request", "_scope")

    _scope: Message
    _request: bytes | RequestBody | None
    """The request's body: whole if it came in one short message."""

    def _is_mcp(self) -> bool:
        """Return whether the request belongs to MCP, by its headers or by the method that it calls.

        Not called for a certain A2A request: the headers take 0.5 µs.
        """
        scope = self._scope
        return is_mcp(scope["method"], scope.get("headers") or ()) or calls_mcp(self._parsed_call())

    def _mcp_operation(self) -> str:
        return operation_of(self._scope.get("headers") or (), self._parsed_call())

    def _is_no_interaction(self, outcome: Outcome) -> bool:
        """Return whether the request belongs to MCP and counts in no ratio if it ends with this outcome."""
        if not self._is_mcp():
            return False
        method, operation = self._scope["method"], self._mcp_operation()
        return not (is_interaction(method, operation) or is_failed_handshake(method, operation, outcome))

    def _is_poll(self) -> bool | None:
        return is_poll(self._scope["method"], self._scope["path"], self._parsed_call())

    def _is_rpc_send(self) -> bool:
        """Return whether the request is a JSON-RPC call of A2A that sends a message."""
        return self._expects_rpc_answer() and method_of(self._parsed_call()) in SENDING_METHODS

    def _expects_events(self) -> bool:
        """Return whether an event stream without an event is an invalid answer to this request."""
        return self._scope["path"].endswith(STREAMING_PATH) or self._expects_rpc_answer()

    def _expects_json(self) -> bool:
        """Return whether only JSON or events can answer the request: a JSON-RPC call, or a REST send."""
        return self._scope["path"].endswith(SENDING_PATHS) or self._expects_rpc_answer()

    def _may_expect_json(self) -> bool:
        """Return whether `_expects_json` may be true, without parsing the request."""
        scope = self._scope
        return scope["method"] == "POST" and (
            self._may_be_rpc_request() or scope["path"].endswith(SENDING_PATHS)
        )

    def _expects_rpc_answer(self) -> bool:
        """Return whether the request is a JSON-RPC call. A call to a path of the REST binding is not."""
        scope = self._scope
        return (
            scope["method"] == "POST"
            and not is_rest_path(scope["path"])
            and expects_rpc_answer(self._parsed_call())
        )

    def _may_be_rpc_request(self) -> bool:
        """Return whether the request may be JSON-RPC, without parsing it."""
        request = self._request
        if request is None:
            return False
        return not isinstance(request, bytes) or b'"jsonrpc"' in request

    def _parsed_call(self) -> object:
        """Return the caller's parsed call; None if it is unknown."""
        request = self._request
        if isinstance(request, RequestBody):
            return request.call()
        return parse_or_none(request) if request else None
