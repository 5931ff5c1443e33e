"""Health document (draft 4.2 to 4.5).

The models accept exactly what `schemas/agent-health-0.1.0.schema.json` accepts. Absent values are omitted,
never null; only `days_since_model_change` may be null. Unknown members are accepted and kept.
`document_reader` parses the bytes of a peer and reports findings.
"""

import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from lifesign.domain.text.times import utc_text

SCHEMA_VERSION = "0.1.0"
"""The version of the format that this package writes."""
EXTENSION_PREFIX = "io.github.lifesign."
"""Prefix of this project's own members of `extensions`."""
MIN_WINDOW_SECONDS = 300
"""The shortest measurement window (draft 4.4)."""
MAX_AGENT_ID_CHARS = 2048
MAX_VERSION_CHARS = 255
MAX_EXTENSION_KEY_CHARS = 255
MAX_NUMBER = 2**53 - 1
"""The largest duration or count, whatever its unit: beyond it JSON readers disagree (RFC 7493 2.2)."""
MAX_DEPTH = 32
"""Maximum depth of nested objects and lists; the document itself is level 1."""

# Any RFC 3339 time, except leap seconds, which `datetime` cannot represent, and times whose offset moves them
# out of the years 0001 to 9999 in UTC.
TIME_PATTERN = (
    r"^(?!0000|0001-01-01[^+-]*\+|9999-12-31[^+-]*-)"
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])(?!\n)$"
)
# Semantic Versioning 2.0.0.
_VERSION_PATTERN = (
    r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(?!\n)$"
)
EXTENSION_KEY_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)+(?!\n)$"

_TIME = re.compile(TIME_PATTERN)
_ANY_VERSION = re.compile(_VERSION_PATTERN)
_EXTENSION_KEY = re.compile(EXTENSION_KEY_PATTERN)

_T = TypeVar("_T")


class HealthStatus(StrEnum):
    """Health status that an agent reports (draft 4.3)."""

    HEALTHY = "healthy"
    """Answers as expected: response ratio of at least 0.95."""
    DEGRADED = "degraded"
    """Answers, but worse than expected: ratio from 0.50 to 0.95, or p99 beyond three times the baseline."""
    UNHEALTHY = "unhealthy"
    """Mostly fails: response ratio below 0.50."""
    UNKNOWN = "unknown"
    """Not enough evidence: fewer than 10 samples."""


class Trend(StrEnum):
    """Change of the response ratio from the previous window to this one (draft 4.5)."""

    STABLE = "stable"
    """Change of at most 0.10, or nothing to compare."""
    DECLINING = "declining"
    """Down by more than 0.10."""
    IMPROVING = "improving"
    """Up by more than 0.10."""


def _refuse_null(value: object) -> object:
    if value is None:
        raise PydanticCustomError("null", "a value that does not exist is left out, never null")
    return value


def accept_integral_float(value: object) -> object:
    """Return a float such as 12.0 as the integer 12, as JSON Schema permits; other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def write_short(value: float) -> int | float:
    """Return a whole float such as 86400.0 as 86400, since some readers refuse a fraction there."""
    return int(value) if value % 1 == 0 else value


def _parse_time(value: object) -> datetime:
    """Read RFC 3339 text or a `datetime` with a zone; return it in UTC, cut off to milliseconds.

    What `to_json` writes thus reads back as an equal document.
    """
    if isinstance(value, str) and _TIME.match(value):
        try:
            value = datetime.fromisoformat(value.upper())
        except ValueError:
            raise PydanticCustomError("impossible_date", "expected an existing date") from None
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise PydanticCustomError("not_a_time", "expected an RFC 3339 time with a zone")
    try:
        moment = value if value.tzinfo is UTC else value.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("not_a_time", "expected a time whose date in UTC exists") from None
    below_ms = moment.microsecond % 1000
    return moment.replace(microsecond=moment.microsecond - below_ms) if below_ms else moment


def _write_time(moment: datetime) -> str:
    return utc_text(moment, "milliseconds")


def _check_version(value: str) -> str:
    found = _ANY_VERSION.match(value)
    if found is None:
        raise PydanticCustomError("not_a_version", "expected a semantic version")
    if found[1] != "0":
        raise PydanticCustomError("unsupported_version", "this reads major version 0 only")
    return value


def _check_extension_key(value: str) -> str:
    if not _EXTENSION_KEY.match(value):
        raise PydanticCustomError("not_namespaced", "expected a reverse domain name such as com.example.load")
    return value


def _check_json(value: Any) -> Any:
    """Refuse values without a JSON form, so that writing cannot fail: NaN, a set, half a surrogate pair.

    The value is two levels below the root of the document.
    """
    if not _is_json(value, levels_left=MAX_DEPTH - 2):
        raise PydanticCustomError("not_json", "expected a value that JSON can hold")
    return value


def _is_json(value: Any, levels_left: int) -> bool:
    match value:
        case None | bool():
            return True
        case int() | float():
            return abs(value) <= sys.float_info.max
        case str():
            return _is_text(value)
        case list():
            return levels_left > 0 and all(_is_json(item, levels_left - 1) for item in value)
        case dict():
            return levels_left > 0 and all(
                isinstance(key, str) and _is_text(key) and _is_json(item, levels_left - 1)
                for key, item in value.items()
            )
        case _:
            return False


def _is_text(value: str) -> bool:
    """Return whether the text can be written as UTF-8: it contains no half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


OrAbsent = Annotated[_T | None, BeforeValidator(_refuse_null)]
"""None means "omitted" and is only the default: it must not be passed."""

Time = Annotated[
    datetime,
    PlainValidator(_parse_time),
    PlainSerializer(_write_time, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A moment: RFC 3339 with a zone in, UTC with `Z` and milliseconds out."""
Ratio = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
"""A share, 0 to 1."""
Quantity = Annotated[
    float,
    Field(strict=True, ge=0, le=MAX_NUMBER, allow_inf_nan=False),
    PlainSerializer(write_short, return_type=int | float, when_used="json"),
]
"""A duration, 0 or more, in the unit that the field's name ends with."""
Window = Annotated[
    float,
    Field(strict=True, ge=MIN_WINDOW_SECONDS, le=MAX_NUMBER, allow_inf_nan=False),
    PlainSerializer(write_short, return_type=int | float, when_used="json"),
]
"""A length of time in seconds, 300 or more."""
INTEGRAL_FLOAT = BeforeValidator(accept_integral_float)
"""Behind the bounds of a strict `int`: an integer as JSON Schema defines it, to which 12.0 is 12."""
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_NUMBER), INTEGRAL_FLOAT]
"""A whole number, 0 or more; 12.0 counts as 12."""
Version = Annotated[str, Field(strict=True, max_length=MAX_VERSION_CHARS), AfterValidator(_check_version)]
AgentId = Annotated[str, Field(strict=True, min_length=1, max_length=MAX_AGENT_ID_CHARS)]
ExtensionKey = Annotated[
    str, Field(strict=True, max_length=MAX_EXTENSION_KEY_CHARS), AfterValidator(_check_extension_key)
]
Json = Annotated[Any, AfterValidator(_check_json)]


class _Members(BaseModel):
    """An object of the document: immutable, and it keeps members that the draft does not name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    __pydantic_extra__: dict[str, Json] = Field(init=False)


class Health(_Members):
    """Health status of an agent, with its last healthy time and its uptime (draft 4.3)."""

    status: HealthStatus
    """Status that the agent reports."""
    last_healthy_at: OrAbsent[Time] = None
    """When the status was last `healthy`; absent before the first time."""
    uptime_seconds: OrAbsent[Quantity] = None
    """Seconds since the agent's process started, 0 or more."""


class Calibration(_Members):
    """Measurements of the agent's answers within the window (draft 4.4)."""

    response_ratio: OrAbsent[Ratio] = None
    """Share of requests that got a valid answer, 0 to 1; absent without a sample."""
    error_ratio: OrAbsent[Ratio] = None
    """Share of requests that failed, 0 to 1; absent without a sample."""
    latency_p50_ms: OrAbsent[Quantity] = None
    """Median latency in milliseconds, 0 or more; absent without a sample."""
    latency_p99_ms: OrAbsent[Quantity] = None
    """99th percentile of the latency in milliseconds, 0 or more; absent without a sample."""
    measurement_window_seconds: Window
    """Length of the window in seconds, 300 or more; 86400 is recommended."""
    sample_count: Count
    """Requests sampled within the window, 0 or more; with fewer than 10 the status is unknown."""


class Decay(_Members):
    """Trend of the agent's quality (draft 4.5)."""

    calibration_trend: Trend
    """This window's response ratio against that of the window before."""
    days_since_model_change: Quantity | None = None
    """Days since the underlying model changed, 0 or more; null, like absent, is "not known"."""
    last_capability_update: OrAbsent[Time] = None
    """When the agent's declared capabilities last changed; absent if not known."""


class HealthDocument(_Members):
    """Document that an agent serves at `/.well-known/agent-health` (draft 4.2)."""

    schema_version: Version
    """Semantic version of the format; major version 0."""
    agent_id: AgentId
    """Stable name of the agent, 1 to 2048 characters; a URI is recommended."""
    timestamp: Time
    """When this state was computed."""
    health: Health
    """The operational status (draft 4.3)."""
    calibration: OrAbsent[Calibration] = None
    """The measurements (draft 4.4); absent from a coarse document."""
    decay: OrAbsent[Decay] = None
    """The trends (draft 4.5); absent from a coarse document."""
    extensions: OrAbsent[dict[ExtensionKey, Json]] = None
    """Additions of an implementation, under reverse domain names."""

    def to_json(self) -> bytes:
        """Return the document as compact UTF-8 JSON, with the members in the order of draft 4.2."""
        return self.model_dump_json(exclude_unset=True).encode()


def coarse(document: HealthDocument) -> HealthDocument:
    """Return the part of a document that a personal assistant may publish: only the status (draft 8).

    Degraded is published as healthy. Measurements, trends, uptime, the last healthy time, extensions and
    unknown members are removed.
    """
    status = document.health.status
    return HealthDocument(
        schema_version=document.schema_version,
        agent_id=document.agent_id,
        timestamp=document.timestamp,
        health=Health(status=HealthStatus.HEALTHY if status is HealthStatus.DEGRADED else status),
    )


# Part, member, check name and unit of every reading in a document.
_CHECKS = (
    ("health", "uptime_seconds", "agent:uptime", "s"),
    ("calibration", "response_ratio", "agent:responseRatio", None),
    ("calibration", "error_ratio", "agent:errorRatio", None),
    ("calibration", "latency_p50_ms", "agent:latencyP50", "ms"),
    ("calibration", "latency_p99_ms", "agent:latencyP99", "ms"),
    ("calibration", "sample_count", "agent:sampleCount", "requests"),
)
_HEALTH_CHECK_STATUS: Mapping[HealthStatus, tuple[int, str]] = MappingProxyType({
    HealthStatus.HEALTHY:   (200, "pass"),
    HealthStatus.DEGRADED:  (200, "warn"),
    # Too few samples are no reason to take a new agent out of rotation.
    HealthStatus.UNKNOWN:   (200, "warn"),
    HealthStatus.UNHEALTHY: (503, "fail"),
})  # fmt: skip


def health_check_form(document: HealthDocument) -> tuple[int, dict[str, Any]]:
    """Return the document as HTTP status and body of type `application/health+json`.

    draft-inadarei-api-health-check-06, section 3: pass, warn or fail, and one check per reading
    that the document holds (none in a coarse document). The body can be written as JSON as it is.
    """
    http_status, status = _HEALTH_CHECK_STATUS[document.health.status]
    written = document.model_dump(mode="json", exclude_unset=True)
    body: dict[str, Any] = {
        "status": status,
        "description": f"Health of the agent: {document.health.status}",
        "serviceId": document.agent_id,
    }
    checks: dict[str, list[dict[str, Any]]] = {}
    for part, member, name, unit in _CHECKS:
        value = written.get(part, {}).get(member)
        if value is None:
            continue
        observed = {"componentType": "component", "observedValue": value}
        if unit is not None:
            observed["observedUnit"] = unit
        checks[name] = [observed | {"time": written["timestamp"]}]
    if checks:
        body["checks"] = checks
    return http_status, body
