"""Types of the values in payloads of events."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

from lifesign.domain.health.document import MAX_NUMBER, Count, Time
from lifesign.domain.models.base import AGENT_ID_CHARACTERS, Duration
from lifesign.domain.tasks.lease import COUNTERS_PER_EPOCH, MAX_RESOURCE_CHARACTERS

MAX_EXPLANATION_CHARACTERS = 500
MAX_CHANGED_MEMBERS = 32
MAX_SHARDS = 256
"""Maximum number of shards in one event: about 25 kB."""
MAX_LOGGED_EPOCH = (MAX_NUMBER + 1) // COUNTERS_PER_EPOCH - 1
"""2^21 - 1: with a higher epoch fencing tokens reach 2^53, which canonical JSON cannot write.

`epoch.raised` is refused beyond it, so that no such token is ever granted (RFC 8785 3.2.2.3, RFC 7493 2.2).
"""

PRINTABLE_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
MOMENT_PATTERN = (
    r"^[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{3}Z$"
)

# Only the characters are checked: the rules for new ids may become stricter.
AgentId = Annotated[str, StringConstraints(pattern=f"^{AGENT_ID_CHARACTERS}$")]
RoleId = AgentId
Label = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=PRINTABLE_PATTERN)]
"""A name or an id that others chose."""
OwnId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""An id that the registry gave."""
Actor = Annotated[str, StringConstraints(min_length=1, max_length=160, pattern=PRINTABLE_PATTERN)]
"""Actor: an agent's id, `key:<id of the key>`, or the part of the registry that acted by itself."""
Word = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,64}$")]
Resource = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_RESOURCE_CHARACTERS, pattern=PRINTABLE_PATTERN)
]

# No path, query or user: they may contain a secret.
Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:\[\]-]{1,270}$")]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256, hexadecimal."""
Number = Annotated[Count, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_NUMBER})]
Positive = Annotated[
    Count, Field(ge=1), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_NUMBER})
]
Epoch = Annotated[
    Count,
    Field(le=MAX_LOGGED_EPOCH),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_LOGGED_EPOCH}),
]
Moment = Annotated[Time, WithJsonSchema({"type": "string", "format": "date-time", "pattern": MOMENT_PATTERN})]
Seconds = Annotated[Duration, Field(strict=True, ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]


class Payload(BaseModel):
    """Content of an event. Members that are None are omitted; no member may contain a secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def members(self) -> dict[str, Any]:
        """Return the payload as JSON values, in the form that is hashed and stored."""
        return self.model_dump(mode="json", exclude_none=True)
