"""JSON objects in files that options name."""

import json
from pathlib import Path
from typing import Any

from lifesign.errors import InvalidValue

MAX_FILE_BYTES = 262_144
"""Maximum size of a file with an input or an output; it may be indented."""


def object_in(file: Path, option: str) -> dict[str, Any]:
    """Return the JSON object in a file; InvalidValue if the file contains none."""
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_FILE_BYTES + 1)
        read: Any = json.loads(text) if len(text) <= MAX_FILE_BYTES else None
    except OSError as error:
        raise InvalidValue(option, str(file), f"a readable file ({error.strerror})") from None
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        # pydantic takes 100 ms, which a call without mistakes does not need.
        from lifesign.domain.models.tasks import MAX_OBJECT_BYTES  # noqa: PLC0415

        expected = f"a JSON object of at most {MAX_OBJECT_BYTES} bytes, in a file of at most {MAX_FILE_BYTES}"
        raise InvalidValue(option, str(file), expected)
    return read
