"""Parser for health documents.

A violation of the rules of `document` is a fault and refuses the whole document; all faults are reported
together. Unusual values, such as ratios that do not add up to 1, are findings beside the document.
"""

import json
import math
import sys
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from lifesign.domain.common.finding import Finding, json_pointer
from lifesign.domain.errors import InvalidDocument
from lifesign.domain.health.document import (
    MAX_AGENT_ID_CHARS,
    MAX_DEPTH,
    MAX_NUMBER,
    MIN_WINDOW_SECONDS,
    SCHEMA_VERSION,
    Calibration,
    Decay,
    Health,
    HealthDocument,
    HealthStatus,
    Trend,
)
from lifesign.domain.health.status import DEGRADED_RATIO, HEALTHY_RATIO, MINIMUM_SAMPLES
from lifesign.domain.text.counts import pluralize

MAX_DOCUMENT_BYTES = 256 * 1024
MAX_FAULTS = 50
"""Maximum number of faults that are listed; one is enough to refuse."""
MAX_FINDINGS = 50
MAX_POINTER_CHARS = 512
MAX_SHOWN_CHARS = 80
"""Maximum length of a peer's value in a message."""
MAX_INTEGER_CHARS = 310
"""A longer integer is not even converted: the largest double has 309 digits."""
RATIO_TOLERANCE = 0.01
"""Allowed deviation of the sum of the two ratios from 1: both may have been rounded."""

_TIME = "an RFC 3339 time with a zone and without leap second, such as 2026-07-01T12:00:00Z"
_RATIO = "a number from 0 to 1"
_AGENT_ID = f"a text of 1 to {MAX_AGENT_ID_CHARS} characters"
_LATENCY = f"a number of milliseconds from 0 to {MAX_NUMBER}"

# Expected value at each place of a document, with its section; * is any name.
_PLACES: Mapping[str, tuple[str, str]] = MappingProxyType({
    "":                                       ("an object", "draft 4.2"),
    "/schema_version":                        ("a semantic version 0.x.y, such as 0.1.0", "draft 4.2"),
    "/agent_id":                              (_AGENT_ID, "draft 4.2"),
    "/timestamp":                             (_TIME, "draft 4.2"),
    "/health":                                ("an object with a status", "draft 4.2"),
    "/health/status":                         (f"one of {', '.join(HealthStatus)}", "draft 4.3"),
    "/health/last_healthy_at":                (_TIME, "draft 4.3"),
    "/health/uptime_seconds":                 (f"a number of seconds from 0 to {MAX_NUMBER}", "draft 4.3"),
    "/calibration":                           ("an object", "draft 4.4"),
    "/calibration/response_ratio":            (_RATIO, "draft 4.4"),
    "/calibration/error_ratio":               (_RATIO, "draft 4.4"),
    "/calibration/latency_p50_ms":            (_LATENCY, "draft 4.4"),
    "/calibration/latency_p99_ms":            (_LATENCY, "draft 4.4"),
    "/calibration/measurement_window_seconds":
        (f"a number of seconds from {MIN_WINDOW_SECONDS} to {MAX_NUMBER}", "draft 4.4"),
    "/calibration/sample_count":              (f"a whole number from 0 to {MAX_NUMBER}", "draft 4.4"),
    "/decay":                                 ("an object", "draft 4.5"),
    "/decay/calibration_trend":               (f"one of {', '.join(Trend)}", "draft 4.5"),
    "/decay/days_since_model_change":         (f"a number from 0 to {MAX_NUMBER}, or null", "draft 4.5"),
    "/decay/last_capability_update":          (_TIME, "draft 4.5"),
    "/extensions":                            ("an object", "draft 4.2"),
    "/extensions/*":                          ("a name with a prefix, such as com.example.load", "draft 4.2"),
})  # fmt: skip

# Our name for each error of pydantic; a type that is absent here is a `wrong_type`.
_FAULT_NAMES: Mapping[str, str] = MappingProxyType({
    "missing":             "missing_member",
    "greater_than_equal":  "out_of_range",
    "less_than_equal":     "out_of_range",
    "string_too_short":    "wrong_length",
    "string_too_long":     "wrong_length",
    "enum":                "unknown_value",
    "not_a_time":          "not_a_time",
    "impossible_date":     "impossible_date",
    "not_a_version":       "not_a_version",
    "unsupported_version": "unsupported_version",
    "not_namespaced":      "not_namespaced",
    # Other values without a JSON form were replaced before the models validate them.
    "not_json":            "too_deep",
})  # fmt: skip

_PARTS: Mapping[str, type[BaseModel]] = MappingProxyType(
    {"health": Health, "calibration": Calibration, "decay": Decay}
)
_MODELS: Mapping[str, type[BaseModel]] = MappingProxyType({"": HealthDocument, **_PARTS})
# By part ("" is the document itself), the members for which null counts as absent.
_NULL_MEANS_ABSENT: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        part: frozenset(name for name, member in model.model_fields.items() if not member.is_required())
        - {"days_since_model_change"}
        for part, model in _MODELS.items()
    }
)

_Parts = tuple[str | int, ...]


def read_document(raw: bytes) -> tuple[HealthDocument, tuple[Finding, ...]]:
    """Return the health document in these bytes, and the findings about it.

    Members that the draft does not name are accepted. A null where only absence is allowed counts as absent,
    with a finding. Raises only InvalidDocument, with all faults (the first MAX_FAULTS of them), whatever the
    bytes are.
    """
    sight = _ReadState()
    value = _parse(raw, sight)
    if sight.repeated or sight.has_infinity or _needs_lenient_parser(raw):
        value = _fit_for_models(value, (), sight)
    if isinstance(value, dict):
        document = _validated(_without_nulls(value, sight), sight)
    else:
        document = None
        sight.fault("not_an_object", (), f"expected an object; got {_shown(value)}")
    if document is None or sight.faults:
        raise InvalidDocument(list(sight.faults.values())[:MAX_FAULTS])
    findings = [*sight.findings, *_oddities(document)]
    return document, tuple(findings[:MAX_FINDINGS])


@dataclass(slots=True)
class _ReadState:
    """Facts that were collected while one document was parsed."""

    faults: dict[_Parts, Finding] = field(default_factory=dict)
    """The first fault of each place."""
    findings: list[Finding] = field(default_factory=list)
    repeated: dict[int, tuple[dict[str, Any], list[str]]] = field(default_factory=dict)
    """Repeated names, by the `id` of their object; the object is kept so that its id stays unique."""

    has_infinity: bool = False
    """Whether a number was read that is not finite as a double."""

    def fault(self, name: str, parts: _Parts, message: str, section: str = "") -> None:
        section = section or _expectation(parts)[1]
        self.faults.setdefault(parts, Finding(name, _pointer(parts), message, section))

    def finding(self, name: str, parts: _Parts, message: str, section: str) -> None:
        self.findings.append(Finding(name, _pointer(parts), message, section))

    def build_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Create a JSON object from its members. Of a repeated name the last one counts, with a fault."""
        members = dict(pairs)
        if len(members) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            self.repeated[id(members)] = (members, [name for name, count in counts.items() if count > 1])
        return members

    def parse_integer(self, digits: str) -> float:
        """Return a JSON integer; infinity if it is too large for a double."""
        number = int(digits) if len(digits) <= MAX_INTEGER_CHARS else math.inf
        if abs(number) <= sys.float_info.max:
            return number
        self.has_infinity = True
        return math.inf

    def parse_number(self, digits: str) -> float:
        """Return a JSON number with a fraction or exponent; NaN and Infinity are recorded as faults."""
        number = float(digits)
        if not math.isfinite(number):
            self.has_infinity = True
        return number


def _parse(raw: bytes, sight: _ReadState) -> Any:
    """Return the JSON value; a number that no double can represent becomes infinite."""
    if len(raw) > MAX_DOCUMENT_BYTES:
        message = f"expected at most {MAX_DOCUMENT_BYTES} bytes; got {len(raw)}"
        raise InvalidDocument([Finding("too_large", "", message, "RFC 8259 9")])
    if raw.startswith(BOM_UTF8):
        message = "starts with a byte order mark, which JSON must not have"
        raise InvalidDocument([Finding("byte_order_mark", "", message, "RFC 8259 8.1")])
    decoder = json.JSONDecoder(
        object_pairs_hook=sight.build_object,
        parse_int=sight.parse_integer,
        parse_float=sight.parse_number,
        parse_constant=sight.parse_number,
    )
    try:
        return decoder.decode(raw.decode())
    except UnicodeDecodeError as error:
        fault = Finding("not_utf8", "", f"byte {error.start} is not UTF-8", "RFC 8259 8.1")
    except json.JSONDecodeError as error:
        message = f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        fault = Finding("not_json", "", message, "RFC 8259 2")
    except RecursionError:
        fault = Finding("too_deep", "", f"nested deeper than {MAX_DEPTH} levels", "RFC 8259 9")
    raise InvalidDocument([fault])


def _needs_lenient_parser(raw: bytes) -> bool:
    """Return whether JSON may contain half a surrogate pair or be nested too deep.

    Most documents do not, and need no second pass.
    """
    return b"\\u" in raw or raw.count(b"{") + raw.count(b"[") > MAX_DEPTH


def _fit_for_models(value: Any, parts: _Parts, sight: _ReadState) -> Any:
    """Return a copy without values that break JSON readers; each replaced value is a fault.

    Infinite numbers become 0, half surrogate pairs "?", and values nested too deep null.
    """
    match value:
        case float() if not math.isfinite(value):
            sight.fault("not_finite", parts, "expected a number that a double can hold", "RFC 8259 6")
            return 0
        case str():
            return _fit_text(value, parts, sight)
        case dict() | list() if len(parts) >= MAX_DEPTH:
            sight.fault("too_deep", parts, f"nested deeper than {MAX_DEPTH} levels", "RFC 8259 9")
            return None
        case dict():
            for name in sight.repeated.get(id(value), (value, []))[1]:
                message = f"the name {_shown(name)} occurs more than once; the last value is used"
                sight.finding("duplicate_member", (*parts, name), message, "RFC 8259 4")
            return {
                _fit_text(name, (*parts, name), sight): _fit_for_models(member, (*parts, name), sight)
                for name, member in value.items()
            }
        case list():
            return [_fit_for_models(item, (*parts, index), sight) for index, item in enumerate(value)]
        case _:
            return value


def _fit_text(text: str, parts: _Parts, sight: _ReadState) -> str:
    """Return text that can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"contains half of a surrogate pair: {_shown(text)}"
        sight.fault("lone_surrogate", parts, message, "RFC 8259 8.2")
        return text.encode(errors="replace").decode()
    return text


def _without_nulls(members: dict[str, Any], sight: _ReadState) -> dict[str, Any]:
    """Return the document without nulls of absent members; each of them is a finding."""

    def drop_nulls(part: str, members: dict[str, Any]) -> dict[str, Any]:
        if None not in members.values():
            return members
        nulls = {name for name in _NULL_MEANS_ABSENT[part] & members.keys() if members[name] is None}
        if not nulls:
            return members
        for name in sorted(nulls):
            message = "null; an absent value must be omitted"
            parts = (part, name) if part else (name,)
            sight.finding("null_for_absent", parts, message, _expectation(parts)[1])
        return {name: value for name, value in members.items() if name not in nulls}

    return {
        name: drop_nulls(name, value) if name in _PARTS and isinstance(value, dict) else value
        for name, value in drop_nulls("", members).items()
    }


def _validated(members: dict[str, Any], sight: _ReadState) -> HealthDocument | None:
    """Return the document, or None and leave a fault for every rule that it breaks."""
    try:
        return HealthDocument.model_validate(members)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False):
            # "[key]" marks an error of the name; names are checked only here.
            parts = tuple(part for part in detail["loc"] if part != "[key]")
            name, value = _FAULT_NAMES.get(detail["type"], "wrong_type"), detail["input"]
            if name in {"unknown_value", "not_a_time"} and not isinstance(value, str):
                name = "wrong_type"
            expected = _expectation(parts)[0]
            if name == "missing_member":
                message = f"missing; expected {expected}"
            elif name == "impossible_date":
                message = f"expected an existing date; got {_shown(value)}"
            else:
                message = f"expected {expected}; got {_shown(value)}"
            sight.fault(name, parts, message)
    return None


def _oddities(document: HealthDocument) -> Iterator[Finding]:
    """Return values that break no rule but contradict one another."""
    known, given = SCHEMA_VERSION.rpartition(".")[0], document.schema_version
    if not given.startswith(known + "."):
        message = f"written for {_shown(given)}; read as {SCHEMA_VERSION}"
        yield Finding("unknown_schema_minor", "/schema_version", message, "draft 4.2")
    if document.calibration is not None:
        yield from _implausible_measurements(document.calibration)
        yield from _implausible_status(document.health.status, document.calibration)
    healthy_at = document.health.last_healthy_at
    if healthy_at is not None and healthy_at > document.timestamp:
        message = "later than the document's timestamp"
        yield Finding("healthy_in_the_future", "/health/last_healthy_at", message, "draft 4.3")
    updated_at = None if document.decay is None else document.decay.last_capability_update
    if updated_at is not None and updated_at > document.timestamp:
        message = "later than the document's timestamp"
        yield Finding("updated_in_the_future", "/decay/last_capability_update", message, "draft 4.5")


def _implausible_measurements(calibration: Calibration) -> Iterator[Finding]:
    response, error = calibration.response_ratio, calibration.error_ratio
    if response is not None and error is not None and round(abs(response + error - 1), 9) > RATIO_TOLERANCE:
        message = f"expected the two ratios to add up to 1; got {response} + {error}"
        yield Finding("ratios_do_not_add_up", "/calibration", message, "draft 4.4")
    p50_ms, p99_ms = calibration.latency_p50_ms, calibration.latency_p99_ms
    if p50_ms is not None and p99_ms is not None and p99_ms < p50_ms:
        message = f"the 99th percentile, {p99_ms}, is below the 50th, {p50_ms}"
        yield Finding("percentiles_out_of_order", "/calibration/latency_p99_ms", message, "draft 4.4")
    if calibration.sample_count > 0:
        return
    for name in sorted(_NULL_MEANS_ABSENT["calibration"] & calibration.model_fields_set):
        kind = "ratio" if name.endswith("_ratio") else "latency"
        message = "measured without any sample"
        yield Finding(f"{kind}_without_samples", json_pointer("calibration", name), message, "draft 4.4")


def _implausible_status(status: HealthStatus, calibration: Calibration) -> Iterator[Finding]:
    """Compare the status with what the numbers beside it allow (draft 4.3).

    The baseline that makes a slow agent degraded is not in the document: degraded fits any good ratio.
    """
    ratio = calibration.response_ratio
    if calibration.sample_count < MINIMUM_SAMPLES:
        fitting, evidence = [HealthStatus.UNKNOWN], pluralize(calibration.sample_count, "sample")
    elif ratio is None:
        return
    elif ratio < DEGRADED_RATIO:
        fitting, evidence = [HealthStatus.UNHEALTHY], f"a response ratio of {ratio}"
    elif ratio < HEALTHY_RATIO:
        fitting, evidence = [HealthStatus.DEGRADED], f"a response ratio of {ratio}"
    else:
        fitting, evidence = [HealthStatus.HEALTHY, HealthStatus.DEGRADED], f"a response ratio of {ratio}"
    if status not in fitting:
        message = f"from {evidence} follows {' or '.join(fitting)}; the agent reports {status}"
        yield Finding("status_does_not_follow", "/health/status", message, "draft 4.3")


def _expectation(parts: _Parts) -> tuple[str, str]:
    """Return the expected value at a place, and the section of the rule."""
    pattern = "/extensions/*" if len(parts) > 1 and parts[0] == "extensions" else json_pointer(*parts)
    return _PLACES.get(pattern, ("a JSON value", "draft 4.2"))


def _pointer(parts: _Parts) -> str:
    """Return the pointer to a place, or to the nearest one around it that can be shown.

    A peer chooses the names: one that is very long or not printable must not reach a terminal or a log.
    """
    pointer = ""
    for part in parts:
        longer = pointer + json_pointer(part)
        if len(longer) > MAX_POINTER_CHARS or not str(part).isprintable():
            break
        pointer = longer
    return pointer


def _shown(value: Any) -> str:
    """Return a peer's value for a message: on one line, in ASCII, at most about MAX_SHOWN_CHARS long."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str() if len(value) > MAX_SHOWN_CHARS:
            return json.dumps(value[:MAX_SHOWN_CHARS])[:MAX_SHOWN_CHARS] + "…"
        case _:
            text = json.dumps(value)
            return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
