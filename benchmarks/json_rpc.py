"""What do an A2A call and its answer look like on the wire?"""

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
