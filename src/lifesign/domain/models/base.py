"""Parts of request and response models: types of members, and the base of request bodies."""

import re
from datetime import UTC, datetime
from functools import lru_cache
from math import modf
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from lifesign.domain.access.event_actor import OwnActor, is_reserved
from lifesign.domain.health.document import INTEGRAL_FLOAT, write_short
from lifesign.domain.parsing.json_limits import check_json_size
from lifesign.domain.targets.target import TARGET_ID_PATTERN, is_target_id
from lifesign.domain.text.times import utc_text

AGENT_ID_CHARACTERS = r"[A-Za-z0-9._~:-]{1,128}"
AGENT_ID_PATTERN = f"^{AGENT_ID_CHARACTERS}$"

# Names are shown and logged: no control characters, no line breaks.
NAME_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"

# Text to search in names; may be empty.
PART_OF_NAME_PATTERN = NAME_PATTERN.replace("]+$", "]*$")
CAPABILITY_PATTERN = r"^[^\x00-\x20\x7f-\x9f,\u2028\u2029]{1,128}$"
URL_PATTERN = r"^https?://[^\x00-\x20\x7f-\x9f\"<>\\^`{|}]+$"
MAX_CAPABILITIES = 64
MAX_METADATA_BYTES = 16_384
MAX_METADATA_DEPTH = 16
MAX_DURATION_SECONDS = 604_800
"""A week: the longest heartbeat interval, threshold or drain."""
_RESERVED_NAMES = {"ours": ", ".join(OwnActor)}


def _check_metadata(value: dict[str, Any]) -> dict[str, Any]:
    return check_json_size(value, MAX_METADATA_DEPTH, MAX_METADATA_BYTES)


def _refuse_reserved_name(value: str) -> str:
    if is_reserved(value):
        raise PydanticCustomError(
            "reserved",
            "expected another id: the registry reserves key:... and {ours} for itself",
            _RESERVED_NAMES,
        )
    return value


def _refuse_target_id(value: str) -> str:
    if is_target_id(value):
        raise PydanticCustomError(
            "reserved", "expected another id: tgt_ with 32 hexadecimal digits is reserved for probed targets"
        )
    return value


def check_path_segment(value: str) -> str:
    """Return an id unchanged, unless it is `.` or `..`.

    Clients resolve both before they send a path, so that such an id could not be requested.
    """
    if value in {".", ".."}:
        raise PydanticCustomError("no_path_segment", "expected another id: a path cannot contain . or ..")
    return value


def _refuse_user_information(value: str) -> str:
    authority = re.split(r"[/?#]", value.partition("://")[2], maxsplit=1)[0]
    if "@" in authority:
        raise PydanticCustomError(
            "user_information", "expected a URL without user and password: every reader sees it"
        )
    return value


def _drop_duplicates(values: list[str]) -> list[str]:
    return list(dict.fromkeys(values))


AgentId = Annotated[
    str,
    StringConstraints(pattern=AGENT_ID_PATTERN),
    Field(json_schema_extra={"not": {"enum": [".", "..", *OwnActor]}}),
    AfterValidator(_refuse_reserved_name),
    AfterValidator(check_path_segment),
]
OwnAgentId = Annotated[
    AgentId,
    Field(
        json_schema_extra={
            "not": {"anyOf": [{"enum": [".", "..", *OwnActor]}, {"pattern": TARGET_ID_PATTERN}]}
        }
    ),
    AfterValidator(_refuse_target_id),
]
"""Id of an agent for a registration or for a key; ids of targets are refused."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=NAME_PATTERN)]
RoleId = Annotated[
    str,
    StringConstraints(pattern=AGENT_ID_PATTERN),
    Field(json_schema_extra={"not": {"enum": [".", ".."]}}),
    AfterValidator(check_path_segment),
]
Capability = Annotated[str, StringConstraints(pattern=CAPABILITY_PATTERN)]
Capabilities = Annotated[
    list[Capability], Field(max_length=MAX_CAPABILITIES), AfterValidator(_drop_duplicates)
]
Url = Annotated[
    str, StringConstraints(pattern=URL_PATTERN, max_length=2048), AfterValidator(_refuse_user_information)
]
WholeSeconds = Annotated[int, Field(ge=1, le=MAX_DURATION_SECONDS, strict=True), INTEGRAL_FLOAT]
"""Integer, as RFC-0016 1.1 requires."""
Duration = Annotated[
    float,
    PlainSerializer(write_short, return_type=int | float, when_used="json"),
    WithJsonSchema({"type": "number"}, mode="serialization"),
]
"""Serialised as 120, not 120.0, for programs that expect integers."""
Seconds = Annotated[Duration, Field(ge=1, le=MAX_DURATION_SECONDS, allow_inf_nan=False, strict=True)]
Load = Annotated[int, Field(ge=0, le=1_000_000, strict=True), INTEGRAL_FLOAT]
TaskId = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x20\x7f-\x9f\u2028\u2029]{1,256}$")]
Metadata = Annotated[dict[str, Any], AfterValidator(_check_metadata)]


class Body(BaseModel):
    """Base class of request bodies: unknown members are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def moment(at_s: float) -> datetime:
    """Return a time in seconds since the epoch as a datetime in UTC."""
    return datetime.fromtimestamp(at_s, UTC)


def moment_text(at_s: float) -> str:
    """Return a time in seconds since the epoch as text, in the form of the API."""
    fraction, whole = modf(at_s)
    second, millisecond = divmod(int(whole) * 1_000 + round(fraction * 1e6) // 1_000, 1_000)
    return f"{_second_text(second)}.{millisecond:03}Z"


@lru_cache(maxsize=1024)
def _second_text(second: int) -> str:
    """Return the text of a whole second without its zone: a page of agents has many times of few seconds."""
    return utc_text(moment(second), "seconds").removesuffix("Z")
