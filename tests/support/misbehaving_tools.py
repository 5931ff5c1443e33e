"""A tool server that violates the protocol: a real process that writes its own bytes.

Its tools do what their names say; `run` and `environment` answer correctly.
"""

import gzip
import json
import math
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAMES = [
    "run",
    "no_text",
    "no_result",
    "no_object",
    "no_number",
    "deep",
    "long",
    "late_id",
    "stray",
    "wait",
    "refuse",
    "off_schema",
    "environment",
]
DISCOVERY = "server/discover"
OLD = "--old"
"""Argument with which the process ends at a request of a newer version of MCP."""
INSTEAD = {
    "bad_gateway": (504, "text/html", b"<p>too late</p>"),
    "accepted": (202, "application/json", b""),
    "page": (200, "text/html", b"<p>hello</p>"),
    "late_gateway": (504, "application/json", b'{"message": "too late"}'),
    "internal_error": (
        500,
        "application/json",
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}',
    ),
    "unauthorized": (401, "text/plain", b"who?"),
    "forbidden": (403, "application/json", b'{"message": "not you"}'),
}
"""Answers at a URL that are no tool results: status, media type and body."""
_NO_SESSION = {"jsonrpc": "2.0", "error": {"code": -32001, "message": "Session not found"}}
NO_SESSION = {
    "404": (404, "application/json", json.dumps({**_NO_SESSION, "id": None}).encode()),
    "404 without a body": (404, "text/plain", b""),
    "404 with an id": (404, "application/json", json.dumps({**_NO_SESSION, "id": "server-error"}).encode()),
    "400": (400, "application/json", json.dumps({**_NO_SESSION, "id": None}).encode()),
}
"""Answers within a session that has ended."""
LEVELS = 20_000
OFF_SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
"""Output schema of the tool `off_schema`, which its structured content does not match."""


def write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def answer(call: int, result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": call, "result": result}).encode()


def refusal(call: int, code: int, message: str = "not today") -> bytes:
    error = {"code": code, "message": message, "data": {"why": "closed"}}
    return json.dumps({"jsonrpc": "2.0", "id": call, "error": error}).encode()


def tool_answer(call: int, name: str, arguments: dict[str, Any]) -> bytes:
    nested = b"[" * LEVELS + b"]" * LEVELS
    long = b"x" * arguments.get("bytes", 0)
    lines = {
        "environment": answer(
            call,
            {
                "content": [{"type": "text", "text": os.environ.get(arguments.get("name", ""), "")}],
                "isError": bool(arguments.get("fails")),
            },
        ),
        "refuse": refusal(
            call,
            arguments.get("code", 0),
            arguments.get("message", "not today") + os.environ.get(arguments.get("quotes", ""), ""),
        ),
        "no_text": b"\xff\xfe\x00\x01",
        "no_result": answer(call, {"content": "nope"}),
        "no_object": answer(call, "nope"),
        "no_number": answer(call, {"content": [], "structuredContent": {"found": [math.nan]}}),
        "off_schema": answer(call, {"content": [], "structuredContent": {"word": 1}}),
        "deep": b'{"jsonrpc":"2.0","id":%d,"result":{"content":%b}}' % (call, nested),
        "long": b'{"jsonrpc":"2.0","id":%d,"result":{"content":"%b"}}' % (call, long),
        "late_id": b'{"result":{"content":"%b"},"id":%d}' % (long, call),
    }
    return lines.get(name, answer(call, {"content": [{"type": "text", "text": name}]}))


def any_answer(asked: dict[str, Any]) -> bytes | None:
    """Return the answer to any request; None if there is none."""
    params = asked.get("params") or {}
    match asked.get("method"):
        case "initialize":
            about = {"name": "misbehaving", "version": "1"}
            known = {"capabilities": {"tools": {}}, "serverInfo": about}
            return answer(asked["id"], {"protocolVersion": params["protocolVersion"], **known})
        case "tools/list":
            tools: list[dict[str, Any]] = [
                {"name": name, "inputSchema": {"type": "object"}} for name in [*NAMES, *INSTEAD]
            ]
            tools[NAMES.index("off_schema")]["outputSchema"] = OFF_SCHEMA
            return answer(asked["id"], {"tools": tools})
        case "tools/call" if params["name"] == "wait":
            return None
        case "tools/call":
            return tool_answer(asked["id"], params["name"], params.get("arguments") or {})
        case _ if "id" in asked:
            error = {"code": -32601, "message": "Method not found"}
            return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}).encode()
        case _:
            return None


def _notification(size: int) -> bytes:
    params = {"level": "info", "data": "x" * size}
    members = {"jsonrpc": "2.0", "method": "notifications/message", "params": params}
    return f"event: message\ndata: {json.dumps(members)}\n\n".encode()


_PIECE = b"x" * 65_536
ENDLESS = {
    "endless": ("application/json", b'{"jsonrpc":"2.0","result":{"content":"', _PIECE),
    "endless_event": ("text/event-stream", b"data: ", _PIECE),
    "endless_lines": ("text/event-stream", b"", b"data: " + _PIECE + b"\n"),
    # No answer is among them.
    "chatter": ("text/event-stream", b"", _notification(65_536)),
}
"""Endless answers at a URL: media type, beginning, and the repeated piece."""


class _Handler(BaseHTTPRequestHandler):
    """Says the same over HTTP, and shuts the connection where there is no answer to a question."""

    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.is_old and asked.get("method") == DISCOVERY:
            self._shut()
            return
        if asked.get("method") == "initialize":
            self.server.lost_session = ""
            if self.server.greeting is not None:
                self._write(200, "application/json", self.server.greeting)
                return
        if (asked.get("params") or {}).get("name") == "forget":
            self.server.lost_session = asked["params"]["arguments"]["how"]
        if self.server.lost_session:
            self._write(*NO_SESSION[self.server.lost_session])
        elif self._lacks_token(asked):
            self._write(*INSTEAD["unauthorized"])
        else:
            self._answer(asked)

    def _lacks_token(self, asked: dict[str, Any]) -> bool:
        params = asked.get("params") or {}
        return (
            params.get("name") == "token" and self.headers["Authorization"] != params["arguments"]["accepted"]
        )

    def _answer(self, asked: dict[str, Any]) -> None:
        match (asked.get("params") or {}).get("name"):
            case name if name in ENDLESS:
                self._write_on(*ENDLESS[name])
                return
            case "long_event":
                content = [{"type": "text", "text": "x" * 1_100_000}]
                event = b"event: message\ndata: %b\n\n" % answer(asked["id"], {"content": content})
                self._write(200, "text/event-stream", event)
                return
            case "refuse" if how := asked["params"]["arguments"].get("how"):
                self._refuse(how, refusal(asked["id"], asked["params"]["arguments"]["code"]))
                return
            case name if name in INSTEAD:
                status, media_type, body = INSTEAD[name]
                self._write(status, media_type, body)
                return
            case "packed":
                self._write_packed(tool_answer(asked["id"], "long", {"bytes": LEVELS}))
                return
        result = any_answer(asked)
        if result is None and "id" in asked:
            self._shut()
            return
        self._write(202 if result is None else 200, "application/json", result or b"")

    def _shut(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _write(self, status: int, media_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Mcp-Session-Id", "one")
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, how: str, message: bytes) -> None:
        before = b": one moment\r\n\r\n"
        match how:
            case "event":
                self._write(200, "text/event-stream", b"event: message\ndata: %b\n\n" % message)
            case "event of many lines":
                data = b"\r\ndata: ".join(json.dumps(json.loads(message), indent=1).encode().splitlines())
                self._write(200, "text/event-stream", before + b"data: %b\r\n\r\n" % data)
            case "event without an end":
                self._write(200, "text/event-stream", before + b"data: %b" % message)
            case "no event":
                self._write(200, "text/event-stream", before)
            case _:
                self._write(int(how), "application/json", message)

    def _write_on(self, media_type: str, beginning: bytes, again: bytes) -> None:
        """Write until no client listens any more."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n\r\n%b" % (media_type.encode(), beginning))
        self.close_connection = True
        with suppress(OSError):
            while True:
                self.wfile.write(again)

    def _write_packed(self, body: bytes) -> None:
        packed = gzip.compress(body)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(packed)))
        self.end_headers()
        self.wfile.write(packed)

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_DELETE(self) -> None:
        self._write(200, "application/json", b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    """Lets no connection outlive it."""

    def __init__(self, *, is_old: bool, greeting: bytes | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.is_old = is_old
        self.greeting = greeting
        self._opened: list[socket.socket] = []
        self.lost_session = ""
        """Name of the answer within a session that has ended."""

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._opened.append(connection)
        return connection, address

    def server_close(self) -> None:
        super().server_close()
        for connection in self._opened:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def http_misbehaving(
    *, is_old: bool = False, greeting: bytes | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve over HTTP, or with TLS, in a thread, until the block ends; yields the URL.

    An old server closes the connection at a request of a newer version of MCP. A greeting is the body of each
    answer to `initialize`.
    """
    with _Server(is_old=is_old, greeting=greeting) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}/mcp"
        finally:
            server.shutdown()
            thread.join()


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if OLD in sys.argv and asked.get("method") == DISCOVERY:
            return
        if (asked.get("params") or {}).get("name") == "hang":
            time.sleep(3_600)
        if (asked.get("params") or {}).get("name") == "stray":
            write(b"\x1b[2J to standard output")
            sys.stderr.buffer.write(b"\x1b[2J to standard error\n\x00" + b"y" * 10_000 + b"\n")
            sys.stderr.buffer.flush()
        result = any_answer(asked)
        if result is not None:
            write(result)
        if (asked.get("params") or {}).get("arguments", {}).get("how") == "and go":
            return


if __name__ == "__main__":
    main()
