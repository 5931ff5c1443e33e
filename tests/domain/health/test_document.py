import copy
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidDocument
from lifesign.domain.health import document_reader
from lifesign.domain.health.document import (
    EXTENSION_KEY_PATTERN,
    MAX_DEPTH,
    MAX_EXTENSION_KEY_CHARS,
    MAX_VERSION_CHARS,
    TIME_PATTERN,
    Calibration,
    Decay,
    Health,
    HealthDocument,
    HealthStatus,
    Trend,
    coarse,
    health_check_form,
)
from lifesign.domain.health.document_reader import (
    MAX_DOCUMENT_BYTES,
    MAX_FAULTS,
    MAX_POINTER_CHARS,
    read_document,
)
from lifesign.domain.health.outcome import Samples
from lifesign.domain.health.status import health_status

SCHEMAS = Path(__file__).parents[3] / "schemas"
SCHEMA = json.loads((SCHEMAS / "agent-health-0.1.0.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
VALID = sorted((SCHEMAS / "examples/valid").glob("*.json"))
INVALID = sorted((SCHEMAS / "examples/invalid").glob("*.json"))
FULL: dict[str, Any] = json.loads((SCHEMAS / "examples/valid/full.json").read_text())

Place = tuple[str, ...]


def name_of(path: Path) -> str:
    return path.stem


def schema_accepts(members: object) -> bool:
    return VALIDATOR.is_valid(members)


def model_accepts(members: object) -> bool:
    try:
        HealthDocument.model_validate(members)
    except ValidationError:
        return False
    return True


def faults_of(raw: bytes) -> tuple[Finding, ...]:
    try:
        read_document(raw)
    except InvalidDocument as error:
        return error.faults
    return ()


def findings_of(members: object) -> list[tuple[str, str]]:
    return [(finding.name, finding.pointer) for finding in read_document(json.dumps(members).encode())[1]]


def changed(place: str, value: Any = ...) -> dict[str, Any]:
    """Return the full example with one member set, or deleted where no value is given."""
    members: dict[str, Any] = copy.deepcopy(FULL)
    *outer, last = place.split("/")
    target = members
    for name in outer:
        target = target[name]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return members


# --- generated documents -------------------------------------------------------------------------


def from_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - one per keyword
    """Return a strategy for the values of a schema, for the keywords that ours uses."""
    if "$ref" in schema:
        return from_schema(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    low, high = schema.get("minimum", 0), schema.get("maximum", 0)
    match schema.get("type"):
        case ["number", "null"]:
            return st.none() | from_schema({**schema, "type": "number"})
        case "number":
            return st.integers(low, high) | st.floats(low, high)
        case "integer":
            return st.integers(low, high) | st.integers(low, high // 2).map(float)
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"]).filter(Draft202012Validator(schema).is_valid)
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=20)
        case "object" if "propertyNames" in schema:
            names = st.from_regex(schema["propertyNames"]["pattern"])
            return st.dictionaries(names, JSON_VALUES, max_size=3)
        case _:
            members = {name: from_schema(member) for name, member in schema["properties"].items()}
            required = {name: members.pop(name) for name in schema["required"]}
            known = st.fixed_dictionaries(required, optional=members)
            extra = st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=2)
            return st.tuples(extra, known).map(lambda both: both[0] | both[1])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
SCHEMA_DOCUMENTS = from_schema(SCHEMA).filter(schema_accepts)

TIMES = st.datetimes(
    min_value=datetime(2, 1, 1),  # noqa: DTZ001 - Hypothesis adds the zone
    max_value=datetime(9998, 12, 31),  # noqa: DTZ001 - see above
    timezones=st.just(UTC) | st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23))),
)
DURATIONS = st.floats(0, 2**53 - 1) | st.integers(0, 2**53 - 1)
RATIOS = st.floats(0, 1)
VERSIONS = st.from_regex(SCHEMA["properties"]["schema_version"]["pattern"]).filter(
    lambda text: len(text) <= MAX_VERSION_CHARS
)
EXTENSION_KEYS = st.from_regex(EXTENSION_KEY_PATTERN).filter(
    lambda text: len(text) <= MAX_EXTENSION_KEY_CHARS
)
EXTENSIONS = st.dictionaries(EXTENSION_KEYS, JSON_VALUES, max_size=3)


def built(
    model: Callable[..., Any], required: dict[str, Any], optional: dict[str, Any]
) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(required, optional=optional).map(lambda members: model(**members))


MODEL_DOCUMENTS: st.SearchStrategy[HealthDocument] = built(
    HealthDocument,
    {
        "schema_version": VERSIONS,
        "agent_id": st.text(min_size=1, max_size=20),
        "timestamp": TIMES,
        "health": built(
            Health,
            {"status": st.sampled_from(HealthStatus)},
            {"last_healthy_at": TIMES, "uptime_seconds": DURATIONS},
        ),
    },
    {
        "calibration": built(
            Calibration,
            {
                "measurement_window_seconds": st.floats(300, 1e9) | st.integers(300, 2**53 - 1),
                "sample_count": st.integers(0, 2**53 - 1),
            },
            {
                "response_ratio": RATIOS,
                "error_ratio": RATIOS,
                "latency_p50_ms": DURATIONS,
                "latency_p99_ms": DURATIONS,
            },
        ),
        "decay": built(
            Decay,
            {"calibration_trend": st.sampled_from(Trend)},
            {"days_since_model_change": st.none() | DURATIONS, "last_capability_update": TIMES},
        ),
        "extensions": EXTENSIONS,
    },
)

# Values that are often mistaken for others.
ODD_TIMES = {
    "2016-12-31T23:59:59Z": True,
    "2016-12-31T23:59:60Z": False,  # leap second
    "2026-07-01t12:00:00z": True,
    "2026-07-01 12:00:00Z": False,
    "2026-07-01T24:00:00Z": False,
    "2026-07-01T12:00:00": False,
    "2026-07-01T12:00Z": False,
    "2026-07-01": False,
    "2026-07-01T12:00:00Z\n": False,
    " 2026-07-01T12:00:00Z": False,
    "2026-07-01T12:00:00.Z": False,
    "2026-07-01T12:00:00,5Z": False,
    "2026-07-01T12:00:00." + "123456789" * 40 + "Z": True,
    "2026-07-01T12:00:00+23:59": True,
    "2026-07-01T12:00:00-23:59": True,
    "2026-07-01T12:00:00-00:00": True,
    "2026-07-01T12:00:00+24:00": False,
    "2026-07-01T12:00:00+02:60": False,
    "2026-07-01T12:00:00+0200": False,
    "2026-07-01T12:00:00+02": False,
    "2026-02-29T12:00:00Z": False,
    "2028-02-29T12:00:00Z": True,
    "2100-02-29T12:00:00Z": False,
    "2026-04-31T12:00:00Z": False,
    "2026-00-10T12:00:00Z": False,
    "2026-13-10T12:00:00Z": False,
    "2026-01-00T12:00:00Z": False,
    "0000-01-01T00:00:00Z": False,
    "0001-01-01T00:00:00Z": True,
    "0001-01-01T00:00:00-01:00": True,
    "0001-01-01T00:00:00+01:00": False,  # the year 0 in UTC
    "9999-12-31T23:59:59.9999Z": True,
    "9999-12-31T23:59:59+01:00": True,
    "9999-12-31T23:59:59-01:00": False,  # the year 10000 in UTC
    "\u0662026-07-01T12:00:00Z": False,
    "2026-07-0\u0661T12:00:00Z": False,
    "2026-W27-3T12:00:00Z": False,
    "20260701T120000Z": False,
    "1782907200": False,
    "": False,
}  # fmt: skip
ODD_VALUES = [
    None, True, False, [], {}, [1], {"status": "healthy"}, {"a.b": 1}, {"load": 1},
    "", "1", "0.5", "healthy", "Healthy", "stable", "x" * 2048, "x" * 2049, "\U0001f916" * 2048,
    "0.1.0", "1.0.0", "0.1", "v0.1.0", "00.1.0", "0.01.0", "0.2.0", "0.1.0\n", "0.1.0-rc.1+7", "0.1.0-01",
    "0." + "1" * 300 + ".0", 0, -0.0, -1, -0.1, 1, 1.0, 1.0000001, 1.2, 0.5, 299, 299.999, 300, 300.0,
    12.0, 12.5, 1e3, 1e308, 2**53 - 1, 2**53, float(2**53), 10**300, *ODD_TIMES,
]  # fmt: skip
ODD_NAMES = [
    "", "a", "a.b", "a.b\n", "a..b", ".a.b", "a.b.", "1.a", "com.example.x_y-z", "a.\u00e9", "x" * 300 + ".y",
    "self", "health", "status", "[key]", "model_config", "__class__", "to_json", "health/status",
]  # fmt: skip


def places(members: dict[str, Any], outer: Place = ()) -> list[Place]:
    found = []
    for name, value in members.items():
        found.append((*outer, name))
        if isinstance(value, dict):
            found.extend(places(value, (*outer, name)))
    return found


@st.composite
def mutated_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Return a document of the schema after one to three changes, right or wrong."""
    members: dict[str, Any] = copy.deepcopy(draw(st.just(FULL) | SCHEMA_DOCUMENTS))
    for _ in range(draw(st.integers(1, 3))):
        everywhere = places(members)
        if not everywhere:
            break
        *outer, last = draw(st.sampled_from(everywhere))
        target = members
        for name in outer:
            target = target[name]
        match draw(st.sampled_from(["delete", "replace", "add", "rename", "wrap"])):
            case "delete":
                del target[last]
            case "replace":
                target[last] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES) | JSON_VALUES))
            case "add":
                target[draw(st.sampled_from(ODD_NAMES))] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
            case "rename":
                target[draw(st.sampled_from(ODD_NAMES))] = target.pop(last)
            case _:
                target[last] = [target[last]]
    return members


# --- agreement of schema and models --------------------------------------------------------------


def test_health_schema_is_a_valid_json_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_schema_models_and_messages_name_the_same_members() -> None:
    for part, model in document_reader._MODELS.items():
        schema = SCHEMA["properties"][part] if part else SCHEMA
        assert list(schema["properties"]) == list(model.model_fields)
        assert set(schema["required"]) == {
            name for name, it in model.model_fields.items() if it.is_required()
        }
        for name, member in schema["properties"].items():
            section = document_reader._expectation((part, name) if part else (name,))[1]
            own_section = {"health": "draft 4.2", "calibration": "draft 4.4", "decay": "draft 4.5"}
            assert member["description"].lower().startswith(section) or name in own_section
            assert f"/{part}/{name}".replace("//", "/") in document_reader._PLACES


def test_schema_and_models_share_their_patterns() -> None:
    assert SCHEMA["$defs"]["time"]["pattern"] == TIME_PATTERN
    assert SCHEMA["properties"]["extensions"]["propertyNames"]["pattern"] == EXTENSION_KEY_PATTERN


@pytest.mark.parametrize("path", VALID, ids=name_of)
def test_a_valid_example_is_accepted_without_a_finding(path: Path) -> None:
    members = json.loads(path.read_text())
    assert schema_accepts(members)
    assert model_accepts(members)
    document, findings = read_document(path.read_bytes())
    assert not findings
    assert schema_accepts(json.loads(document.to_json()))


@pytest.mark.parametrize("path", INVALID, ids=name_of)
def test_an_invalid_example_breaks_exactly_one_rule(path: Path) -> None:
    members = json.loads(path.read_text())
    broken = {error.json_path for error in VALIDATOR.iter_errors(members)}
    assert len(broken) == 1
    assert not model_accepts(members)
    if "null" in path.stem:
        assert [name for name, _ in findings_of(members)] == ["null_for_absent"]
    else:
        assert len(faults_of(path.read_bytes())) == 1


@pytest.mark.parametrize(("text", "is_time"), ODD_TIMES.items(), ids=ascii)
def test_schema_model_and_reader_agree_about_times(text: str, is_time: bool) -> None:  # noqa: FBT001 - a table
    members = changed("timestamp", text)
    assert schema_accepts(members) is is_time
    assert model_accepts(members) is is_time
    assert (not faults_of(json.dumps(members).encode())) is is_time


@given(MODEL_DOCUMENTS)
def test_written_models_pass_the_schema_and_are_read_back(document: HealthDocument) -> None:
    raw = document.to_json()
    assert schema_accepts(json.loads(raw))
    again, _ = read_document(raw)
    assert again == document
    assert again.to_json() == raw


@given(SCHEMA_DOCUMENTS)
def test_models_accept_what_the_schema_allows(members: dict[str, Any]) -> None:
    document = HealthDocument.model_validate(members)
    assert schema_accepts(json.loads(document.to_json()))


@given(mutated_documents())
@example(changed("calibration/sample_count", 10**400))
@example(changed("calibration/latency_p50_ms", -(10**400)))
def test_schema_and_models_agree_about_every_document(members: dict[str, Any]) -> None:
    assert schema_accepts(members) is model_accepts(members)


@given(mutated_documents())
@example(changed("load", 10**308))
def test_reader_accepts_invalid_documents_only_if_they_have_null(members: dict[str, Any]) -> None:
    if faults_of(json.dumps(members).encode()):
        assert not model_accepts(members)
        return
    for pointer in [pointer for name, pointer in findings_of(members) if name == "null_for_absent"]:
        *outer, last = pointer.removeprefix("/").split("/")
        assert (members[outer[0]] if outer else members).pop(last) is None
    assert model_accepts(members)


# --- models --------------------------------------------------------------------------------------


def test_a_document_has_the_shape_of_draft_4_2() -> None:
    document, _ = read_document(json.dumps(FULL).encode())
    written = json.loads(document.to_json())
    assert written == FULL
    assert {name: list(member) if isinstance(member, dict) else None for name, member in written.items()} == {
        "schema_version": None,
        "agent_id": None,
        "timestamp": None,
        "health": ["status", "last_healthy_at", "uptime_seconds"],
        "calibration": [
            "response_ratio",
            "error_ratio",
            "latency_p50_ms",
            "latency_p99_ms",
            "measurement_window_seconds",
            "sample_count",
        ],
        "decay": ["calibration_trend", "days_since_model_change", "last_capability_update"],
        "extensions": ["io.github.lifesign.outcomes"],
    }
    assert list(written) == list(FULL)
    assert b'"uptime_seconds":259200}' in document.to_json(), "a whole number was written with a fraction"
    assert b": " not in document.to_json()


def test_null_days_differ_from_absent_days() -> None:
    assert (
        b"days_since" not in HealthDocument.model_validate(changed("decay/days_since_model_change")).to_json()
    )
    with_null = HealthDocument.model_validate(changed("decay/days_since_model_change", None))
    assert b'"days_since_model_change":null' in with_null.to_json()


def test_a_time_is_kept_in_utc_to_the_millisecond() -> None:
    health = Health(
        status=HealthStatus.HEALTHY,
        last_healthy_at=datetime(2026, 7, 1, 14, 0, 0, 1999, tzinfo=timezone(timedelta(hours=2))),
    )
    assert health.last_healthy_at == datetime(2026, 7, 1, 12, 0, 0, 1000, tzinfo=UTC)
    assert '"2026-07-01T12:00:00.001Z"' in health.model_dump_json()


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, [math.nan], {"a": -math.inf}, {1, 2}, {1: 2}, "\ud800", 10**400, b"raw"],
    ids=ascii,
)
def test_non_json_value_is_no_extension(value: object) -> None:
    assert not model_accepts(changed("extensions", {"com.example.load": value}))
    assert not model_accepts(changed("load", value))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "place", ["response_ratio", "latency_p50_ms", "measurement_window_seconds", "sample_count"]
)
def test_no_measurement_is_infinite(place: str, value: float) -> None:
    assert not model_accepts(changed(f"calibration/{place}", value))


def test_a_document_is_immutable() -> None:
    document = HealthDocument.model_validate(FULL)
    with pytest.raises(ValidationError, match="frozen"):
        document.agent_id = "another"


@given(MODEL_DOCUMENTS | SCHEMA_DOCUMENTS.map(HealthDocument.model_validate))
def test_coarse_document_shows_only_up_or_not(document: HealthDocument) -> None:
    raw = coarse(document).to_json()
    written = json.loads(raw)
    assert list(written) == ["schema_version", "agent_id", "timestamp", "health"]
    assert list(written["health"]) == ["status"]
    degraded = document.health.status is HealthStatus.DEGRADED
    assert written["health"]["status"] == ("healthy" if degraded else document.health.status)
    assert schema_accepts(written)


@pytest.mark.parametrize(
    ("status", "http_status", "word"),
    [
        ("healthy", 200, "pass"),
        ("degraded", 200, "warn"),
        ("unknown", 200, "warn"),
        ("unhealthy", 503, "fail"),
    ],
)
def test_health_check_format_has_pass_warn_or_fail(status: str, http_status: int, word: str) -> None:
    document = HealthDocument.model_validate(changed("health/status", status))
    given_status, body = health_check_form(document)
    assert (given_status, body["status"], body["serviceId"]) == (http_status, word, FULL["agent_id"])
    assert body["checks"]["agent:responseRatio"] == [
        {"componentType": "component", "observedValue": 0.985, "time": FULL["timestamp"]}
    ]
    assert body["checks"]["agent:latencyP99"][0]["observedUnit"] == "ms"
    assert set(body) == {"status", "description", "serviceId", "checks"}
    assert "checks" not in health_check_form(coarse(document))[1]


@given(MODEL_DOCUMENTS)
def test_the_health_check_form_is_json_without_null(document: HealthDocument) -> None:
    assert "null" not in json.dumps(health_check_form(document)[1], allow_nan=False).replace(
        json.dumps(document.agent_id), ""
    )


# --- the reader: faults --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "value", "name", "section"),
    [
        ("schema_version", ..., "missing_member", "draft 4.2"),
        ("schema_version", "1.0.0", "unsupported_version", "draft 4.2"),
        ("schema_version", "zero", "not_a_version", "draft 4.2"),
        ("agent_id", "", "wrong_length", "draft 4.2"),
        ("agent_id", None, "wrong_type", "draft 4.2"),
        ("timestamp", 5, "wrong_type", "draft 4.2"),
        ("timestamp", "now", "not_a_time", "draft 4.2"),
        ("timestamp", "2026-02-30T00:00:00Z", "impossible_date", "draft 4.2"),
        ("health", [], "wrong_type", "draft 4.2"),
        ("health/status", "fine", "unknown_value", "draft 4.3"),
        ("health/status", 1, "wrong_type", "draft 4.3"),
        ("health/uptime_seconds", -1, "out_of_range", "draft 4.3"),
        ("calibration/response_ratio", 1.2, "out_of_range", "draft 4.4"),
        ("calibration/error_ratio", True, "wrong_type", "draft 4.4"),
        ("calibration/latency_p50_ms", math.nan, "not_finite", "RFC 8259 6"),
        ("calibration/sample_count", 1.5, "wrong_type", "draft 4.4"),
        ("calibration/sample_count", 10**400, "not_finite", "RFC 8259 6"),
        ("decay/calibration_trend", None, "wrong_type", "draft 4.5"),
        ("extensions/load", 1, "not_namespaced", "draft 4.2"),
        ("extensions/com.example.x", math.inf, "not_finite", "RFC 8259 6"),
        ("extra", -math.inf, "not_finite", "RFC 8259 6"),
        ("agent_id", "\ud800", "lone_surrogate", "RFC 8259 8.2"),
    ],
)
def test_a_fault_has_a_name_a_place_and_a_source(place: str, value: object, name: str, section: str) -> None:
    (fault,) = faults_of(json.dumps(changed(place, value)).encode())
    assert (fault.name, fault.pointer, fault.section) == (name, "/" + place, section)


@pytest.mark.parametrize(
    ("raw", "name", "words"),
    [
        (b"", "not_json", "line 1, column 1"),
        (b'{\n  "a": 1,}', "not_json", "line 2, column 10"),
        (b'{"a": "\n"}', "not_json", "line 1, column 8"),
        (b"[]", "not_an_object", "got a list"),
        (b"null", "not_an_object", "got null"),
        (b"\xff\xfe{\x00}\x00", "not_utf8", "byte 0"),
        (b"\xef\xbb\xbf{}", "byte_order_mark", "byte order mark"),
        (b" " * (MAX_DOCUMENT_BYTES + 1), "too_large", "262145"),
        (b"[" * 200_000, "too_deep", "32 levels"),
    ],
)
def test_bytes_that_are_no_json_object_have_one_fault_at_the_root(raw: bytes, name: str, words: str) -> None:
    (fault,) = faults_of(raw)
    assert (fault.name, fault.pointer) == (name, "")
    assert words in fault.message


def test_all_errors_are_reported_at_once() -> None:
    members = changed("calibration/response_ratio", 1.2)
    members["health"] = {"status": "x" * 5000}
    del members["agent_id"]
    faults = faults_of(json.dumps(members).encode())
    assert [str(fault) for fault in faults] == [
        "/agent_id: missing; expected a text of 1 to 2048 characters [draft 4.2]",
        '/health/status: expected one of healthy, degraded, unhealthy, unknown; got "'
        + "x" * 79
        + "… [draft 4.3]",
        "/calibration/response_ratio: expected a number from 0 to 1; got 1.2 [draft 4.4]",
    ]


def test_number_and_length_of_document_faults_are_bounded() -> None:
    faults = faults_of(
        json.dumps({"extensions": {f"\x1b[31m{at}" + "x" * 999: 1 for at in range(200)}}).encode()
    )
    assert len(faults) == MAX_FAULTS
    assert all(len(fault.pointer) <= MAX_POINTER_CHARS and str(fault).isprintable() for fault in faults)
    assert max(len(str(fault)) for fault in faults) < 300


@pytest.mark.parametrize(("levels", "names"), [(MAX_DEPTH - 2, []), (MAX_DEPTH - 1, ["too_deep"])])
def test_a_document_is_at_most_32_levels_deep(levels: int, names: list[str]) -> None:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    members = changed("extensions/com.example.deep", value)
    assert [fault.name for fault in faults_of(json.dumps(members).encode())] == names
    assert model_accepts(members) is not bool(names)


SURROGATES = st.recursive(
    st.none() | st.floats() | st.integers() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), inner),
    max_leaves=8,
)


@given(st.binary() | SURROGATES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_raise_only_invalid_document(raw: bytes) -> None:
    faults_of(raw)


@given(
    st.sampled_from(places(FULL)), SURROGATES, st.lists(st.tuples(st.integers(0, 900), st.binary(max_size=2)))
)
def test_damaged_document_raises_only_invalid_document(
    place: Place, value: Any, cuts: list[tuple[int, bytes]]
) -> None:
    raw = json.dumps(changed("/".join(place), value)).encode()
    faults_of(raw)
    for at, patch in cuts:
        raw = raw[:at] + patch + raw[at + 1 :]
        faults_of(raw)


# --- the reader: findings ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("schema_version", "0.2.0", ("unknown_schema_minor", "/schema_version")),
        ("calibration", None, ("null_for_absent", "/calibration")),
        ("health/last_healthy_at", None, ("null_for_absent", "/health/last_healthy_at")),
        ("calibration/error_ratio", 0.026, ("ratios_do_not_add_up", "/calibration")),
        ("calibration/latency_p99_ms", 419, ("percentiles_out_of_order", "/calibration/latency_p99_ms")),
        ("calibration/sample_count", 9, ("status_does_not_follow", "/health/status")),
        ("health/status", "unhealthy", ("status_does_not_follow", "/health/status")),
        ("health/status", "unknown", ("status_does_not_follow", "/health/status")),
        (
            "health/last_healthy_at",
            "2026-07-01T12:00:00.001Z",
            ("healthy_in_the_future", "/health/last_healthy_at"),
        ),
        (
            "decay/last_capability_update",
            "2026-07-01T12:00:01Z",
            ("updated_in_the_future", "/decay/last_capability_update"),
        ),
    ],
)
def test_implausible_member_is_a_finding_and_no_fault(
    place: str, value: object, expected: tuple[str, str]
) -> None:
    assert findings_of(changed(place, value)) == [expected]


@pytest.mark.parametrize(
    ("ratio", "fitting"),
    [
        (0.4999, {"unhealthy"}),
        (0.50, {"degraded"}),
        (0.9499, {"degraded"}),
        # Slow against a baseline that the document does not contain.
        (0.95, {"healthy", "degraded"}),
    ],
)
@pytest.mark.parametrize("status", HealthStatus)
def test_status_that_contradicts_its_ratio_is_a_finding(
    ratio: float, fitting: set[str], status: HealthStatus
) -> None:
    members = changed("health/status", status)
    members["calibration"] |= {"response_ratio": ratio, "error_ratio": 1 - ratio}
    odd = [("status_does_not_follow", "/health/status")]
    assert findings_of(members) == ([] if status in fitting else odd)


def test_measurements_without_samples_are_findings() -> None:
    members = changed("calibration/sample_count", 0)
    members["health"]["status"] = "unknown"
    assert findings_of(members) == [
        ("ratio_without_samples", "/calibration/error_ratio"),
        ("latency_without_samples", "/calibration/latency_p50_ms"),
        ("latency_without_samples", "/calibration/latency_p99_ms"),
        ("ratio_without_samples", "/calibration/response_ratio"),
    ]


@given(st.integers(0, 10**6), st.integers(0, 10**6), DURATIONS)
def test_document_with_the_status_of_its_ratios_has_no_finding(
    responses: int, errors: int, latency_ms: float
) -> None:
    members = changed("health/status", health_status(Samples(responses=responses, errors=errors)))
    members["calibration"] = {"measurement_window_seconds": 300, "sample_count": responses + errors}
    if responses + errors:
        members["calibration"] |= {
            "response_ratio": responses / (responses + errors),
            "error_ratio": errors / (responses + errors),
            "latency_p50_ms": latency_ms,
            "latency_p99_ms": latency_ms,
        }
    assert findings_of(members) == []


def test_ratios_that_add_up_to_0_99_have_no_finding() -> None:
    members = changed("calibration/response_ratio", 0.97)
    members["calibration"]["error_ratio"] = 0.02
    assert findings_of(members) == []


def test_a_repeated_member_is_a_finding_and_its_last_value_counts() -> None:
    raw = json.dumps(FULL).replace('"health": {', '"health": {"status": "ailing", ').encode()
    document, (finding,) = read_document(raw)
    assert (finding.name, finding.pointer) == ("duplicate_member", "/health/status")
    assert document == HealthDocument.model_validate(FULL)
