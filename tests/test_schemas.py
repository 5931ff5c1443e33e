"""The schemas of probe definitions, tools files, observations and censuses agree with the models."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from tools.file_schemas import SCHEMAS, generated

from lifesign.adapter.tools.tools_file import Upstreams
from lifesign.domain.observation.results import Observation, ResultClass

REPOSITORY = Path(__file__).parents[1]
DEFINITIONS = sorted((REPOSITORY / "probes").glob("*.yml"))
SCHEMA_FILES = ("census.schema.json", "observation.schema.json", "probe.schema.json", "tools.schema.json")


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / name).read_text())
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


PROBE = validator("probe.schema.json")
OBSERVATION = validator("observation.schema.json")
TOOLS = validator("tools.schema.json")


def test_each_schema_is_tested() -> None:
    assert set(SCHEMA_FILES) == generated().keys()


@pytest.mark.parametrize("name", SCHEMA_FILES)
def test_schemas_match_the_models_and_are_written_by_make(name: str) -> None:
    assert json.loads((SCHEMAS / name).read_text()) == generated()[name]
    Draft202012Validator.check_schema(generated()[name])


@pytest.mark.parametrize("name", SCHEMA_FILES)
def test_each_schema_member_is_described(name: str) -> None:
    schema = generated()[name]
    silent = [
        f"{owner}.{member}"
        for owner, rules in [("", schema), *schema["$defs"].items()]
        for member, rule in rules.get("properties", {}).items()
        if "description" not in rule and "$ref" not in rule
    ]
    assert silent == []


# --- tools files ----------------------------------------------------------------------------------


def test_the_example_of_a_tools_file_fits_the_schema_and_is_read() -> None:
    example = yaml.safe_load((REPOSITORY / "docs" / "examples" / "tools.yml").read_text())
    assert list(TOOLS.iter_errors(example)) == []
    assert set(Upstreams.model_validate(example).upstreams) == {"search", "docs"}


@pytest.mark.parametrize(
    "change",
    [
        {"command": "python3 server.py"}, {"tools": {"a": {"usd_per_call": -1}}}, {"offer_all": "yes"},
        {"headers": {"Authorization": "Bearer x"}}, {"more": 1},
        {"environment": {"KEY": {"text": "secret"}}}, {"tools": {"a": {"price": 1}}},
    ],
    ids=str,
)  # fmt: skip
def test_tools_schema_refuses_invalid_files(change: dict[str, Any]) -> None:
    good = {"command": ["server"], "tools": {"a": {"usd_per_call": 0}}}
    assert list(TOOLS.iter_errors({"upstreams": {"a": good}})) == []
    assert list(TOOLS.iter_errors({"upstreams": {"a": {**good, **change}}}))


# --- probe definitions ---------------------------------------------------------------------------


def test_repository_contains_starter_definitions() -> None:
    assert {"census", "demo", "directory", "one-agent", "reference"} <= {path.stem for path in DEFINITIONS}


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.stem)
def test_every_definition_in_the_repository_fits_the_schema(path: Path) -> None:
    assert list(PROBE.iter_errors(yaml.safe_load(path.read_text()))) == []


@pytest.mark.parametrize(
    "change",
    [
        {"name": None}, {"name": "Upper"}, {"contact": "me"}, {"more": 1}, {"limits": {"per_host": "2"}},
        {"ask": {"message": "hi"}}, {"ask": None}, {"cadence": {"interval_seconds": 0}},
        {"targets": "https://agent.example"}, {"results": {"jsonl": 1}}, {"opt_out": {"hosts": ["a b"]}},
    ],
    ids=str,
)  # fmt: skip
def test_probe_schema_refuses_invalid_definitions(change: dict[str, Any]) -> None:
    good = {"name": "a", "contact": "mailto:a@agent.example", "targets": ["https://agent.example"]}
    assert PROBE.is_valid(good)
    assert not PROBE.is_valid(good | change)


# --- observations --------------------------------------------------------------------------------

TIMES = st.sampled_from(["2026-07-01T12:00:00.000Z", "2026-07-01T12:00:00+02:00", "2026-07-01", "", 5])
NUMBERS = st.sampled_from([0, 1, 41.5, 200, 599, -1, 1e300, "1", True])
TEXTS = st.sampled_from(["", "a", "x" * 600, 7])
RESULTS = st.sampled_from([*map(str, ResultClass), "fine", None])


def some(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=members)


PHASES = some(dns_ms=NUMBERS, last_byte_ms=NUMBERS)
LAYERS = some(
    result=RESULTS, reason=TEXTS, status_code=NUMBERS, latency_ms=NUMBERS, phases=PHASES,
    evidence=st.sampled_from(["0" * 64, "0" * 63, "G" * 64]),
) | st.builds(lambda result: {"result": result}, RESULTS)  # fmt: skip
DOCUMENTS = some(
    status=st.sampled_from(["healthy", "unknown", "dead"]), timestamp=TIMES, is_stale=st.booleans(),
    age_s=NUMBERS, response_ratio=NUMBERS, sample_count=NUMBERS,
) | st.builds(
    lambda is_stale: {"status": "healthy", "timestamp": "2026-07-01T12:00:00Z", "is_stale": is_stale},
    st.booleans(),
)  # fmt: skip
OBSERVATIONS = st.fixed_dictionaries(
    {"observed_at": st.just("2026-07-01T12:00:00Z") | TIMES},
    optional={
        "agent_id": st.sampled_from(["a", "agent_1", "a b", ""]),
        "target_url": st.sampled_from(["https://agent.example/", "ftp://x", "https://a b"]),
        "discovery": LAYERS,
        "readiness": LAYERS,
        "document": DOCUMENTS,
        "reported_agent_id": TEXTS,
        "certificate_expires_at": TIMES,
        "more": st.just(1),
    },
)


def model_accepts(members: dict[str, Any]) -> bool:
    try:
        Observation.model_validate_json(json.dumps(members))
    except ValidationError:
        return False
    return True


@given(OBSERVATIONS)
def test_observation_schema_agrees_with_the_model(members: dict[str, Any]) -> None:
    assert OBSERVATION.is_valid(members) == model_accepts(members), members


WHOLE: dict[str, Any] = {
    "target_url": "https://agent.example/",
    "observed_at": "2026-07-01T12:00:00.000Z",
    "discovery": {
        "result": "ok",
        "status_code": 200,
        "latency_ms": 80,
        "phases": {"dns_ms": 3, "tls_ms": 20},
    },
    "readiness": {"result": "stale_document", "reason": "an hour old", "evidence": "0" * 64},
    "document": {"status": "healthy", "timestamp": "2026-07-01T11:00:00.000Z", "is_stale": True},
}


def test_written_lines_fit_the_schema() -> None:
    seen = Observation.model_validate_json(json.dumps(WHOLE))
    written = json.loads(seen.model_dump_json(exclude_none=True))
    assert written | WHOLE == written | copy.deepcopy(WHOLE)
    assert list(OBSERVATION.iter_errors(written)) == []
