"""Answers of MCP servers, for `message_server`."""

from collections.abc import Callable
from typing import Any

from tests.support.message_server import Agent, Got, Says

from lifesign.domain.mcp.conversation import CURRENT_VERSION


def rpc(got: Got, **members: Any) -> Says:
    return Says({"jsonrpc": "2.0", "id": got.json.get("id"), **members})


def refused(got: Got, code: int, status: int = 200, **members: Any) -> Says:
    error = {"code": code, "message": "no", **members}
    return Says({"jsonrpc": "2.0", "id": got.json.get("id"), "error": error}, status=status)


def stateless(got: Got) -> Says:
    return rpc(got, result={"supportedVersions": [CURRENT_VERSION], "capabilities": {}})


def handshaking(got: Got, *, session: str = "", first: Callable[[Got], Says] | None = None) -> Says:
    """A server of 2025."""
    match got.json["method"]:
        case "server/discover":
            return first(got) if first else refused(got, -32601)
        case "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "old"}}
            says = rpc(got, result=result)
            return Says(says.body, headers=f"Mcp-Session-Id: {session}\r\n" if session else "")
        case "ping":
            return rpc(got, result={})
        case _:
            return Says(status=202)


def methods(serving: Agent) -> list[str]:
    """Methods of the requests in their order: those of MCP for a POST, else those of HTTP."""
    return [got.json["method"] if got.method == "POST" else got.method for got in serving.got]
