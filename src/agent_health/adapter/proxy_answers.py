"""What is answered to one message of the agent's MCP client?

MCP has two ages. Until 2025-11-25 a client shakes hands, and is told what there is; it costs nothing to
forget that at once, for every request stands for itself. Since 2026-07-28 there is no handshake: each request
says in an envelope what it once said, and headers repeat parts of that. Of either there is what a task's
tools need. Models, versions and codes are those of `mcp_types`; why this is not the SDK's server stands in
decision 0010.
"""

import base64
import binascii
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolRequestParams,
    CallToolResult,
    DiscoverResult,
    EmptyResult,
    ErrorData,
    Implementation,
    InitializeRequestParams,
    InitializeResult,
    JSONRPCNotification,
    JSONRPCRequest,
    ListToolsResult,
    Result,
    ServerCapabilities,
    ToolsCapability,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    KNOWN_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from agent_health.errors import AgentHealthError
from agent_health.expectation import invalid_setting
from agent_health.free_json import is_finite

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
MAX_SHOWN_CHARS: Final = 100
"""Of what a client said, in an error."""

# Since 2026-07-28 an error shows in the status, too.
_STATUS: Final[Mapping[int, int]] = MappingProxyType({
    PARSE_ERROR:                  400,
    INVALID_REQUEST:              400,
    INVALID_PARAMS:               400,
    HEADER_MISMATCH:              400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
    METHOD_NOT_FOUND:             404,
})  # fmt: skip
_SINCE_ENVELOPES: Final = {"result_type", "ttl_ms", "cache_scope"}
"""Members of results that are not told to whoever has shaken hands."""
_ENCODED: Final = re.compile(r"=\?base64\?(.*)\?=")
_log = logging.getLogger("agent_health.adapter.tools")


class NoSuchTool(AgentHealthError):
    """A tool is called that is not there; the text names those that are."""


class Tools(Protocol):
    """What is offered."""

    async def list(self) -> ListToolsResult:
        """Return all that are there now."""

    async def call(self, asked: CallToolRequestParams) -> CallToolResult:
        """Carry a call out; NoSuchTool."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back over HTTP."""

    status: int
    body: bytes = b""


class ProxyAnswers:
    """Answers messages, each for itself."""

    def __init__(self, tools: Tools, server: Implementation, instructions: str) -> None:
        self._tools = tools
        self._server = server
        self._instructions = instructions
        self._capabilities = ServerCapabilities(tools=ToolsCapability(list_changed=False))

    async def reply(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Answer one message; `headers` by their names in small letters."""
        # A version that nobody knows is refused as the newest age refuses it.
        is_modern = headers.get(VERSION_HEADER, LATEST_HANDSHAKE_VERSION) not in HANDSHAKE_PROTOCOL_VERSIONS
        request = _request_in(body)
        if isinstance(request, Reply):
            return request
        result = await self._result(request, headers, is_modern=is_modern)
        if isinstance(result, ErrorData):
            status = _STATUS.get(result.code, 200) if is_modern else 200
            return Reply(status, _written(request.id, error=result.model_dump(exclude_none=True)))
        told = self._in_envelope(result) if is_modern else _after_handshake(result)
        return Reply(200, _written(request.id, result=told))

    async def _result(
        self, request: JSONRPCRequest, headers: Mapping[str, str], *, is_modern: bool
    ) -> Result | ErrorData:
        """Return the result of a request, or what is wrong with it."""
        params = request.params or {}
        fault = envelope_fault(request.method, params, headers) if is_modern else None
        if fault is not None:
            return fault
        try:
            result = await self._served(request.method, params, is_modern=is_modern)
        except ValidationError as error:
            return ErrorData(code=INVALID_PARAMS, message=str(invalid_setting(error, "params")))
        except NoSuchTool as error:
            return ErrorData(code=INVALID_PARAMS, message=str(error))
        except Exception:  # noqa: BLE001 - one message must not end the server for all that follow
            _log.exception("%s failed", request.method[:MAX_SHOWN_CHARS])
            return ErrorData(code=INTERNAL_ERROR, message="a fault of this server, which its log tells")
        if result is None:
            shown = request.method[:MAX_SHOWN_CHARS]
            return ErrorData(code=METHOD_NOT_FOUND, message="Method not found", data=shown)
        return result

    async def _served(self, method: str, params: Mapping[str, Any], *, is_modern: bool) -> Result | None:
        """Return what a method gives; None if there is none of that name in this age."""
        match method, is_modern:
            case "tools/list", _:
                return await self._tools.list()
            case "tools/call", _:
                return await self._tools.call(CallToolRequestParams.model_validate(params, by_name=False))
            case "initialize", False:
                return self._handshake(InitializeRequestParams.model_validate(params, by_name=False))
            case "ping", False:
                return EmptyResult()
            case "server/discover", True:
                return DiscoverResult(
                    supported_versions=list(MODERN_PROTOCOL_VERSIONS),
                    capabilities=self._capabilities,
                    instructions=self._instructions,
                )
            case _:
                return None

    def _in_envelope(self, result: Result) -> dict[str, Any]:
        told = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        stamp = {SERVER_INFO_META_KEY: self._server.model_dump(by_alias=True, exclude_none=True)}
        return {**told, "_meta": {**stamp, **told.get("_meta", {})}}

    def _handshake(self, asked: InitializeRequestParams) -> InitializeResult:
        known = asked.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        return InitializeResult(
            protocol_version=asked.protocol_version if known else LATEST_HANDSHAKE_VERSION,
            capabilities=self._capabilities,
            server_info=self._server,
            instructions=self._instructions,
        )


def _after_handshake(result: Result) -> dict[str, Any]:
    told = result.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=_SINCE_ENVELOPES)
    if not isinstance(told.get("structuredContent", {}), dict):
        # A server of the newest age may say any JSON; a client of the first refuses what is no object.
        del told["structuredContent"]
    return told


def _request_in(body: bytes) -> JSONRPCRequest | Reply:
    """Return the request that a message is, or what is answered to one that is none."""
    try:
        said = from_json(body, allow_inf_nan=False)
    except ValueError:
        return _unread(PARSE_ERROR, "expected JSON")
    if not is_finite(said):
        return _unread(PARSE_ERROR, "expected finite numbers: JSON has no other")
    try:
        if not isinstance(said, dict) or "method" not in said:
            # A batch, or the answer to what nobody here has asked.
            return _unread(INVALID_REQUEST, "expected one JSON-RPC request or notification")
        if "id" in said:
            return JSONRPCRequest.model_validate(said)
        # No notification changes anything here, least of all one that gives up what others have asked.
        JSONRPCNotification.model_validate(said)
    except ValidationError as error:
        return _unread(INVALID_REQUEST, str(invalid_setting(error, "message")))
    return Reply(202)


def envelope_fault(method: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> ErrorData | None:
    """Return what is wrong with the envelope of a request, and with the headers that repeat parts of it."""
    meta = params.get("_meta")
    needed = (PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY)
    if not isinstance(meta, dict) or not all(key in meta for key in needed):
        return ErrorData(code=INVALID_PARAMS, message=f"expected params._meta with {' and '.join(needed)}")
    version, name = meta[PROTOCOL_VERSION_META_KEY], params.get("name")
    repeated = {VERSION_HEADER: version, METHOD_HEADER: method}
    if method == "tools/call" and name is not None:
        repeated[NAME_HEADER] = name
    for header, said in repeated.items():
        if _decoded(headers.get(header)) != said:
            return ErrorData(code=HEADER_MISMATCH, message=f"expected {header} to repeat what the body says")
    if version not in MODERN_PROTOCOL_VERSIONS:
        told = {"supported": list(KNOWN_PROTOCOL_VERSIONS), "requested": version[:MAX_SHOWN_CHARS]}
        return ErrorData(code=UNSUPPORTED_PROTOCOL_VERSION, message="Unsupported protocol version", data=told)
    return None


def _decoded(value: str | None) -> str | None:
    """Return what a header says, of which a part may stand there as `=?base64?...?=`; None for nothing."""
    encoded = _ENCODED.fullmatch(value or "")
    if encoded is None:
        return value
    try:
        return base64.b64decode(encoded[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _unread(code: int, message: str) -> Reply:
    return Reply(400, _written(None, error={"code": code, "message": message}))


def _written(call: str | int | None, **said: Any) -> bytes:
    return to_json({"jsonrpc": "2.0", "id": call, **said})
