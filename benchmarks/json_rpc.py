"""An A2A call and its answer as they are sent over HTTP."""

import json

CALL = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {
            "message": {
                "messageId": "f2f7cc56-0a4f-43b6-9b0c-7b6b7f3f8f6e",
                "role": "ROLE_USER",
                "parts": [{"text": "What is the weather like in Lisbon?"}],
            }
        },
    }
).encode()


def answer_of(size_bytes: int) -> bytes:
    """Return a finished task as JSON-RPC of exactly so many bytes, most of which are an artifact's text."""
    without_text = _answer("")
    return _answer("Sunny. " * size_bytes, size_bytes - len(without_text))


def _answer(text: str, length: int = 0) -> bytes:
    task = {
        "id": "9b0a1c4e-6a1e-4d0c-8f0e-3c9a3f1d2b7a",
        "contextId": "0c6d5a7e-2f6b-4f59-9a57-3f6f8f7b1c2d",
        "status": {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-11-20T12:00:00Z"},
        "artifacts": [{"artifactId": "a-1", "name": "answer", "parts": [{"text": text[:length]}]}],
        "history": [
            {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "What is the weather like?"}]},
            {"messageId": "m-2", "role": "ROLE_AGENT", "parts": [{"text": "I am looking it up."}]},
        ],
    }
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"task": task}}).encode()


MCP_CALL = json.dumps(
    {
        "method": "tools/call",
        "params": {"name": "forecast", "arguments": {"city": "Lisbon"}},
        "jsonrpc": "2.0",
        "id": 1,
    }
).encode()
MCP_HEADERS = [
    (b"accept", b"application/json, text/event-stream"),
    (b"mcp-protocol-version", b"2025-11-25"),
]


def tool_result_of(size_bytes: int) -> bytes:
    """Return the result of an MCP tool of exactly so many bytes."""
    without_text = _tool_result("")
    return _tool_result(("Sunny. " * size_bytes)[: size_bytes - len(without_text)])


def _tool_result(text: str) -> bytes:
    result = {"content": [{"type": "text", "text": text}], "isError": False}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


KIB = 1024
MIB = 1024 * KIB
MOST_MARKS = 20_000
"""How many of `{`, `[` and `,` an answer may have to be inspected."""


def text_like(size_bytes: int) -> bytes:
    """Return a finished task whose artifact is a text of several lines, with quotes and other alphabets."""
    line = 'The forecast says "sunny", 24 \u00b0C and a light wind from the sea in the afternoon.\n'
    return _answer(line * (size_bytes // len(line)), size_bytes - size_bytes // 8)


def bracket_like(size_bytes: int) -> bytes:
    """Return a result of many small lists and objects: nearly as many brackets and commas as are read."""
    rows = MOST_MARKS // 3 - 20
    room = max(0, size_bytes // rows - 9)
    row = [1, "x" * room]
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"rows": [row] * rows}}).encode()


def too_many_brackets(size_bytes: int) -> bytes:
    """Return a result of so many brackets that it is not read."""
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": [[1]] * (size_bytes // 5)}).encode()


def slow_bodies() -> dict[str, bytes]:
    """Return answers of 1 MiB that take a parser longest, each within the limits of inspection."""

    def rpc(result: object) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()

    def raw(result: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":1,"result":%s}' % result

    items = MOST_MARKS - 10
    # Only Python's own parser accepts these, so that both parsers read the answer.
    surrogate = rb',"\ud800"]'
    long_floats = b",".join([b"0." + b"1" * 48] * items)
    return {
        "line ends": rpc("\n" * (MIB // 2 - 50)),
        "escapes of other alphabets": rpc("\u00e9" * (MIB // 6 - 20)),
        "members": rpc({f"name of a member of number {number}": "value" * 3 for number in range(items)}),
        "numbers of 48 digits": raw(b"[%s]" % long_floats),
        "the same, read twice": raw(b"[%s" % long_floats + surrogate),
        "integers of 4,000 digits": raw(b"[%s]" % b",".join([b"1" * 4000] * 260)),
        "the same, read twice ": raw(b"[%s" % b",".join([b"1" * 4000] * 259) + surrogate),
        "one integer": raw(b"1" * (MIB - 50)),
        "lists in lists": raw(b"[" * 9000 + b"]" * 9000),
        "not JSON at its end": rpc("x" * (MIB - 60))[:-1],
    }
