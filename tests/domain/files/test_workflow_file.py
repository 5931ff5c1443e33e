import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.errors import FileFault, InvalidWorkflow
from lifesign.domain.files import yaml_document
from lifesign.domain.files.workflow_file import MAX_AGENTS, AgentDeclaration, PoolSize, read_workflow
from lifesign.domain.files.yaml_document import MAX_DEPTH, MAX_FAULTS, MAX_FILE_BYTES, MAX_NODES
from lifesign.domain.models.agents import HeartbeatConfig, Registration

WHOLE = """\
version: "1.0"
info: {name: Newsletter, since: 2026-01-01}
workflow:
  draft: {assign: translator}
agents:
  translator:
    role_id: newsletter-translator
    name: Übersetzer
    capabilities:
      - translation
      - proofreading
    capacity:
      max_concurrent_tasks: 4
    heartbeat:
      interval_seconds: 20
      unhealthy_after_seconds: 50.0
      dead_after_seconds: 200
    drain_timeout_seconds: 90
    pool:
      min_instances: 2
      max_instances: 8
    metadata:
      region: eu
      since: 2026-01-01
      weights: [1, 0.5, null, true]
      nothing: null
    endpoint: https://translator.example/hook
    card_url: https://translator.example/.well-known/agent-card.json

  archivist:
    role_id: archivist
    capabilities: [archiving]
    heartbeat:
      interval_seconds: 40
"""


@pytest.fixture(autouse=True, params=["CSafeLoader", "SafeLoader"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both of PyYAML's parsers: which one is there depends on how it was built."""
    name = str(request.param)
    monkeypatch.setattr(yaml_document, "_LOADER", getattr(yaml, name))
    return name


def only(text: str) -> AgentDeclaration:
    (declaration,) = read_workflow(text).agents.values()
    return declaration


def entry(**members: Any) -> str:
    """Return a workflow with one agent, all on line 1."""
    return json.dumps({"agents": {"a": members}})


def faults(text: str) -> tuple[FileFault, ...]:
    with pytest.raises(InvalidWorkflow) as raised:
        read_workflow(text)
    assert raised.value.faults
    for fault in raised.value.faults:
        assert str(fault) in str(raised.value)
        assert "\n" not in str(fault)
        assert fault.line >= 1
    return raised.value.faults


# Accepted input


def test_other_members_of_a_workflow_file_are_ignored() -> None:
    agents = read_workflow(WHOLE).agents
    assert list(agents) == ["translator", "archivist"]
    translator = agents["translator"]
    assert translator.role_id == "newsletter-translator"
    assert translator.name == "Übersetzer"
    assert translator.capabilities == ["translation", "proofreading"]
    assert translator.capacity.max_concurrent_tasks == 4
    assert translator.heartbeat == HeartbeatConfig(
        interval_seconds=20, unhealthy_after_seconds=50, dead_after_seconds=200
    )
    assert translator.drain_timeout_seconds == 90
    assert translator.pool == PoolSize(min_instances=2, max_instances=8)
    assert translator.endpoint == "https://translator.example/hook"


def test_a_declaration_becomes_the_body_of_a_registration() -> None:
    body = read_workflow(WHOLE).agents["translator"].registration("agent_1")
    assert body == {
        "agent_id": "agent_1",
        "role_id": "newsletter-translator",
        "name": "Übersetzer",
        "capabilities": ["translation", "proofreading"],
        "capacity": {"max_concurrent_tasks": 4},
        "endpoint": "https://translator.example/hook",
        "card_url": "https://translator.example/.well-known/agent-card.json",
        "heartbeat_config": {
            "interval_seconds": 20,
            "unhealthy_after_seconds": 50,
            "dead_after_seconds": 200,
        },
        "drain_timeout_seconds": 90,
        "metadata": {
            "region": "eu",
            "since": "2026-01-01",
            "weights": [1, 0.5, None, True],
            "nothing": None,
        },
    }


def test_whole_seconds_are_written_without_a_fraction() -> None:
    body = json.dumps(read_workflow(WHOLE).agents["archivist"].registration())
    assert '"interval_seconds": 40, "unhealthy_after_seconds": 90, "dead_after_seconds": 300' in body


def test_undeclared_members_are_left_to_the_registry() -> None:
    assert only("agents: {a: {}}").registration() == {"role_id": "a"}
    assert only("agents: {a: {capabilities: [], metadata: {}, capacity: {}}}").registration() == {
        "role_id": "a"
    }


def test_registry_model_accepts_each_body_of_a_workflow_file() -> None:
    for declaration in read_workflow(WHOLE).agents.values():
        taken = Registration.model_validate_json(json.dumps(declaration.registration("agent_1")))
        assert taken.agent_id == "agent_1"
        assert taken.role_id == declaration.role_id
        assert taken.thresholds() == declaration.heartbeat
        assert taken.metadata == (declaration.metadata or {})


def test_changing_a_registration_body_does_not_change_the_declaration() -> None:
    declaration = read_workflow(WHOLE).agents["translator"]
    body = declaration.registration()
    body["metadata"]["weights"].append("more")
    body["capabilities"].append("more")
    assert declaration.registration()["metadata"]["weights"] == [1, 0.5, None, True]
    assert declaration.registration()["capabilities"] == ["translation", "proofreading"]


def test_agent_without_role_id_gets_its_key_as_role_id() -> None:
    assert only("agents: {proof-reader: {capabilities: [proofreading]}}").role_id == "proof-reader"


def test_a_file_may_declare_that_there_are_no_agents() -> None:
    assert read_workflow("agents: {}").agents == {}


def test_parsed_workflow_is_immutable() -> None:
    with pytest.raises(TypeError):
        read_workflow("agents: {}").agents["a"] = only("agents: {a: {}}")  # type: ignore[index]


# Refused input, and its place


@pytest.mark.parametrize(
    ("members", "path", "expected"),
    [
        ({"capacityy": {}}, "/capacityy", "role_id, name, capabilities"),
        ({"capacity": {"max": 1}}, "/capacity/max", "one of max_concurrent_tasks"),
        ({"heartbeat": {"every": 1}}, "/heartbeat/every", "one of interval_seconds"),
        ({"pool": {"min": 1}}, "/pool/min", "min_instances, max_instances"),
        ({"role_id": 7}, "/role_id", "string"),
        ({"role_id": None}, "/role_id", "string"),
        ({"role_id": "a b"}, "/role_id", "expected 1 to 128 letters"),
        ({"name": ""}, "/name", "at least 1 character"),
        ({"name": "a\nb"}, "/name", "without control characters"),
        ({"capabilities": "one"}, "/capabilities", "expected a list"),
        ({"capabilities": ["one", "t w o"]}, "/capabilities/1", "without spaces"),
        ({"capabilities": [True]}, "/capabilities/0", "string"),
        ({"capabilities": ["c"] * 65}, "/capabilities", "at most 64 items"),
        ({"capacity": 5}, "/capacity", "expected a mapping"),
        ({"capacity": {"max_concurrent_tasks": "5"}}, "/capacity/max_concurrent_tasks", "whole number"),
        ({"capacity": {"max_concurrent_tasks": 1.5}}, "/capacity/max_concurrent_tasks", "whole number"),
        ({"capacity": {"max_concurrent_tasks": -1}}, "/capacity/max_concurrent_tasks", "expected at least 0"),
        ({"heartbeat": {"interval_seconds": "30"}}, "/heartbeat/interval_seconds", "whole number"),
        ({"heartbeat": {"interval_seconds": True}}, "/heartbeat/interval_seconds", "whole number"),
        ({"heartbeat": {"interval_seconds": 46}}, "/heartbeat", "at least 2 x interval_seconds"),
        ({"heartbeat": {"unhealthy_after_seconds": 151}}, "/heartbeat", "2 x unhealthy_after_seconds"),
        ({"drain_timeout_seconds": 0}, "/drain_timeout_seconds", "expected at least 1"),
        ({"pool": {"min_instances": 2, "max_instances": 1}}, "/pool", "at most max_instances"),
        ({"pool": {"min_instances": -1}}, "/pool/min_instances", "expected at least 0"),
        ({"metadata": []}, "/metadata", "expected a mapping"),
        ({"metadata": {"x": "y" * 20_000}}, "/metadata", "at most 16384 bytes"),
        ({"metadata": {"x": {"x": [[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]}}}, "/metadata", "at most 16 levels"),
        ({"endpoint": "agent.example"}, "/endpoint", "https URL"),
        ({"card_url": "ftp://agent.example"}, "/card_url", "https URL"),
    ],
)  # fmt: skip
def test_invalid_member_is_refused_with_its_path(members: dict[str, Any], path: str, expected: str) -> None:
    (fault,) = faults(entry(**members))
    assert fault.path == "/agents/a" + path
    assert expected in fault.expected


@pytest.mark.parametrize(
    "members",
    [
        {"heartbeat": {"interval_seconds": 45}},
        {"heartbeat": {"unhealthy_after_seconds": 150}},
        {"pool": {"min_instances": 3, "max_instances": 3}},
        {"pool": {"min_instances": 3}},
        {"pool": {"max_instances": 0}},
    ],
)
def test_values_at_the_limits_are_accepted(members: dict[str, Any]) -> None:
    assert only(entry(**members)).role_id == "a"


def test_all_errors_are_listed_with_lines_in_file_order() -> None:
    text = WHOLE.replace("interval_seconds: 40", "interval_seconds: often")
    text = text.replace("max_instances: 8", "max_instances: 1").replace("- proofreading", "- proof reading")
    found = [(fault.line, fault.path) for fault in faults(text)]
    assert found == [
        (11, "/agents/translator/capabilities/1"),
        (19, "/agents/translator/pool"),
        (34, "/agents/archivist/heartbeat/interval_seconds"),
    ]


def test_workflow_error_has_line_path_and_expectation() -> None:
    with pytest.raises(InvalidWorkflow) as raised:
        read_workflow("agents:\n  a:\n    capacity: 5\n")
    assert str(raised.value).split(": ") == ["line 3", "/agents/a/capacity", "expected a mapping"]


def test_number_of_reported_errors_is_bounded() -> None:
    assert len(faults(entry(**{f"x{number}": 1 for number in range(MAX_FAULTS * 2)}))) == MAX_FAULTS


@pytest.mark.parametrize(
    ("text", "line", "path", "expected"),
    [
        ("", 1, "", "mapping"),
        ("just text", 1, "", "mapping"),
        ("- agents", 1, "", "mapping"),
        ("agent: {}", 1, "", "key agents"),
        ("x: 1\nagents:\n", 2, "/agents", "expected a mapping"),
        ("agents: [a]", 1, "/agents", "expected a mapping"),
        ("agents:\n  a:\n", 2, "/agents/a", "expected a mapping"),
        ("agents:\n  a: [1]\n", 2, "/agents/a", "expected a mapping"),
        ("agents: {}\nx: 1\nagents: {}\n", 3, "/agents", "twice"),
        ("agents:\n  a: {}\n  b: {}\n  a: {}\n", 4, "/agents/a", "twice"),
        ("agents:\n  a:\n    name: x\n    name: y\n", 4, "/agents/a/name", "twice"),
        ("agents:\n  7: {}\n", 2, "/agents", "text"),
        ("agents:\n  yes: {}\n", 2, "/agents", "text"),
        ("agents:\n  ? [a]\n  : {}\n", 2, "/agents", "text"),
        ("agents:\n  <<: {a: {}}\n", 2, "/agents", "text"),
        ("agents:\n  a: {metadata: {1: x}}\n", 2, "/agents/a/metadata", "text"),
        ("agents:\n  a: {metadata: {x: .inf}}\n", 2, "/agents/a/metadata", "expected finite numbers"),
        ("agents:\n  a: {metadata: {x: [[.nan]]}}\n", 2, "/agents/a/metadata", "expected finite numbers"),
        ("agents:\n  a: {metadata: {x: 0b_}}\n", 2, "/agents/a/metadata/x", "quotes"),
        ("agents:\n  a: {metadata: {x: =}}\n", 2, "/agents/a/metadata/x", "quotes"),
        ("agents:\n  a:\n    metadata:\n      x: " + "9" * 5000, 4, "/agents/a/metadata/x", "quotes"),
        ("agents:\n  a/b: {role_id: a, name: 7}\n", 2, "/agents/a~1b/name", "valid string"),
        ("x: &x [1]\ny: *x\nagents: {}\n", 2, "", "no alias"),
        ("agents:\n  a: !!map {}\n", 2, "", "no tag"),
        ("x: !!python/name:os.system\nagents: {}\n", 1, "", "no tag"),
        ("x: !own y\nagents: {}\n", 1, "", "no tag"),
        ("agents:\n  a: {}\n---\nagents: {}\n", 3, "", "another document"),
        ("agents:\n\ta: {}\n", 2, "", "expected YAML"),
        ("agents:\n  a: {}\n b: {}\n", 3, "", "expected YAML"),
        ("agents:\n  a: %\n", 2, "", "expected YAML"),
        ("agents: {}\nx: \x07\n", 2, "", "no control characters"),
        ("agents: {}\nx: \ud800\n", 2, "", "UTF-8"),
        ("x:\n" * 3 + "y: " + "[" * MAX_DEPTH, 4, "", f"at most {MAX_DEPTH} levels"),
    ],
)
def test_invalid_file_is_refused_with_its_line(text: str, line: int, path: str, expected: str) -> None:
    fault = faults(text)[0]
    assert (fault.line, fault.path) == (line, path)
    assert expected in fault.expected


def test_agent_key_that_is_no_valid_role_id_requires_role_id() -> None:
    (fault,) = faults("agents: {proof reader: {}}")
    assert fault.path == "/agents/proof reader/role_id"
    assert only("agents: {proof reader: {role_id: proof-reader}}").role_id == "proof-reader"


@pytest.mark.parametrize(
    "text",
    [
        'agents:\n  a: {name: "\\ud800"}\n',
        'agents:\n  a: {metadata: {"\\udfff": x}}\n',
        'agents:\n  "\\udfff": {}\n',
    ],
)
def test_lone_surrogate_is_refused_in_each_notation(text: str, parser: str) -> None:
    (fault,) = faults(text)
    assert fault.line == 2
    # The faster parser refuses the escape itself.
    expected = {"SafeLoader": "half", "CSafeLoader": "expected YAML"}
    assert expected[parser] in fault.expected


def test_long_or_unprintable_key_is_shortened_in_the_error() -> None:
    for key in ("x" * 10_000, "x\\u2028y", "x\\ny"):
        assert len(str(faults(f'agents: {{a: {{"{key}": 1}}}}')[0])) < 400
    assert len(str(faults(f"agents: {{}}\nx: !{'x' * 1000} y")[0])) < 200
    anchor = "x" * 1000
    assert len(str(faults(f"x: &{anchor} y\nz: *{anchor}")[0])) < 200


# Bounds


def test_nested_aliases_are_refused_without_expansion() -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    assert "alias" in faults("\n".join([*lines, "agents: {}"]))[0].expected


def test_file_above_the_size_limit_is_refused() -> None:
    text = "agents: {}\n# ".ljust(MAX_FILE_BYTES, "x")
    assert read_workflow(text).agents == {}
    assert "bytes" in faults(text + "x")[0].expected
    assert "bytes" in faults(text[:-1] + "é")[0].expected


def test_file_above_the_number_of_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_NODES == 100_000
    monkeypatch.setattr(yaml_document, "MAX_NODES", 50)
    # The document, two keys and two values of them.
    items = 50 - 5
    assert read_workflow("agents: {}\nx: [" + "a," * items + "]").agents == {}
    assert "keys and values" in faults("agents: {}\nx: [" + "a," * (items + 1) + "]")[0].expected


def test_file_above_the_number_of_agents_is_refused() -> None:
    lines = [f"  a{number}: {{}}" for number in range(MAX_AGENTS + 1)]
    assert len(read_workflow("\n".join(["agents:", *lines[:-1]])).agents) == MAX_AGENTS
    assert "at most" in faults("\n".join(["agents:", *lines]))[0].expected


def test_file_above_the_nesting_limit_is_refused() -> None:
    levels = MAX_DEPTH - 1
    assert read_workflow("agents: {}\nx: " + "[" * levels + "]" * levels).agents == {}
    assert "levels" in faults("agents: {}\nx: " + "[" * (levels + 1) + "]" * (levels + 1))[0].expected


WORDS = st.sampled_from(
    ["agents", "a", "role_id", "heartbeat", "pool", "metadata", "capabilities", "interval_seconds", "1",
     "yes", "~", "0b_", "2026-99-99", "1:30", ".inf", "'", '"', "{", "}", "[", "]", ":", "- ", ", ", "\n",
     "\n  ", "\n    ", "? ", "*a", "&a", "!!bool", "!!int", "<<", "|", ">", "#", "%", "---", "\x00",
     "\ud800", "=", "é"]
)  # fmt: skip


@given(st.lists(WORDS, max_size=30).map("".join) | st.text(max_size=40))
def test_any_text_gives_valid_registrations_or_an_invalid_workflow_error(text: str) -> None:
    for to_dict in (text, f"agents: {text}", f"agents:\n  a: {{metadata: {{x: {text}}}}}"):
        try:
            agents = read_workflow(to_dict).agents
        except InvalidWorkflow:
            continue
        for declaration in agents.values():
            Registration.model_validate_json(json.dumps(declaration.registration()))


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000))
def test_thresholds_are_accepted_if_each_is_at_least_twice_the_previous(
    interval: int, late: int, dead: int
) -> None:
    heartbeat = {
        "interval_seconds": interval,
        "unhealthy_after_seconds": late,
        "dead_after_seconds": dead,
    }
    text = entry(heartbeat=heartbeat)
    if late >= 2 * interval and dead >= 2 * late:
        assert only(text).registration()["heartbeat_config"] == heartbeat
    else:
        assert faults(text)[0].path == "/agents/a/heartbeat"


def test_workflow_file_of_the_docs_is_valid() -> None:
    page = Path(__file__).parents[3].joinpath("docs/agent-sdk.md").read_text()
    shown = page.partition("```yaml\n")[2].partition("```")[0]
    (declared,) = read_workflow(shown).agents.values()
    assert declared.registration("billing-01") == {
        "agent_id": "billing-01",
        "role_id": "billing-processor",
        "capabilities": ["billing", "invoices"],
        "capacity": {"max_concurrent_tasks": 5},
        "heartbeat_config": {
            "interval_seconds": 30,
            "unhealthy_after_seconds": 90,
            "dead_after_seconds": 300,
        },
        "drain_timeout_seconds": 120,
        "metadata": {"version": "1.2.0"},
    }
    assert declared.pool is not None
    assert declared.pool.max_instances == 3
