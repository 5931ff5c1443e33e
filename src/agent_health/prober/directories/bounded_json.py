"""Is this JSON, and is it small enough to take apart?

Three bytes of JSON become an object of 64: what is parsed is counted first, so that a document of a few
megabytes cannot fill the memory.
"""

import json
from typing import Any, Final

MAX_JSON_BYTES: Final = 64 * 1024 * 1024
MAX_CONTAINERS: Final = 4_000_000
"""Objects and lists of one document."""
MAX_TEXTS: Final = 12_000_000
"""Names and texts of one document."""
_LEADING_BYTES: Final = 4096
"""Of a byte order mark and white space."""


def read_json(body: bytes) -> tuple[Any, str]:
    """Return the value of a JSON object or list, and an empty text; else None, and why there is none.

    A byte order mark is passed over. Nesting is bounded by the parser: about 1,000 levels.
    """
    if fault := _fault(body):
        return None, fault
    try:
        return json.loads(body.decode("utf-8-sig")), ""
    except UnicodeDecodeError as error:
        fault = f"not UTF-8 from byte {error.start} on"
    except ValueError as error:
        fault = f"not JSON: {str(error)[:80]}"
    except RecursionError:
        fault = "JSON that is nested too deeply"
    return None, fault


def _fault(body: bytes) -> str:
    """Say why a body is not parsed; empty if it is."""
    if body[:_LEADING_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in {b"{", b"["}:
        return "neither a JSON object nor a JSON list"
    if len(body) > MAX_JSON_BYTES:
        return f"JSON of more than {MAX_JSON_BYTES} bytes"
    # Those within texts are counted too: it is a bound, not a census.
    if body.count(b"{") + body.count(b"[") > MAX_CONTAINERS:
        return f"JSON of more than {MAX_CONTAINERS} objects and lists"
    if body.count(b'"') > 2 * MAX_TEXTS:
        return f"JSON of more than {MAX_TEXTS} texts"
    return ""
