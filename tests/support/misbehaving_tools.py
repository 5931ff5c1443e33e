"""What does a server of tools do that keeps to nothing? A real process, which speaks over its pipes by hand.

Its tools do what their names say; `run` answers as it should.
"""

import json
import sys
from typing import Any

NAMES = ["run", "no_text", "no_result", "no_object", "deep", "long", "late_id", "stray", "wait"]
LEVELS = 20_000


def write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def answer(call: int, result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": call, "result": result}).encode()


def carry_out(call: int, name: str, arguments: dict[str, Any]) -> None:
    good = {"content": [{"type": "text", "text": name}]}
    match name:
        case "no_text":
            write(b"\xff\xfe\x00\x01")
        case "no_result":
            write(answer(call, {"content": "nope"}))
        case "no_object":
            write(answer(call, "nope"))
        case "deep":
            deep = b"[" * LEVELS + b"]" * LEVELS
            write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":%s}}' % (call, deep))
        case "long":
            write(answer(call, {"content": [{"type": "text", "text": "x" * arguments["bytes"]}]}))
        case "late_id":
            write(b'{"result":{"content":"%s"},"id":%d}' % (b"x" * arguments["bytes"], call))
        case "stray":
            write(b"\x1b[2J to standard output")
            sys.stderr.buffer.write(b"\x1b[2J to standard error\n\x00" + b"y" * 10_000 + b"\n")
            sys.stderr.buffer.flush()
            write(answer(call, good))
        case "run":
            write(answer(call, good))


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        match asked.get("method"):
            case "initialize":
                about = {"name": "misbehaving", "version": "1"}
                version = asked["params"]["protocolVersion"]
                known = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
                write(answer(asked["id"], known))
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
                write(answer(asked["id"], {"tools": tools}))
            case "tools/call":
                params = asked["params"]
                carry_out(asked["id"], params["name"], params.get("arguments") or {})
            case _ if "id" in asked:
                error = {"code": -32601, "message": "Method not found"}
                write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}).encode())


if __name__ == "__main__":
    main()
