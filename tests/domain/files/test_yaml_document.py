import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from lifesign.domain.errors import InvalidFile
from lifesign.domain.files import yaml_document
from lifesign.domain.files.yaml_document import YamlDocument


class Leaf(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 0


class Tree(BaseModel):
    model_config = ConfigDict(extra="forbid")
    leaves: tuple[Leaf, ...] = ()
    fruit: Leaf | None = None
    seeds: dict[str, Leaf] = {}


@pytest.fixture(autouse=True, params=["CSafeLoader", "SafeLoader"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of PyYAML's parsers: which one is there depends on how it was built."""
    monkeypatch.setattr(yaml_document, "_LOADER", getattr(yaml, request.param))


def document(text: str) -> YamlDocument:
    return YamlDocument(text, expected="expected a mapping", refuse=InvalidFile)


def faults(text: str) -> list[tuple[int, str, str]]:
    """Return line, path and expectation of each error of a tree."""
    read = document(text)
    with pytest.raises(ValidationError) as caught:
        Tree.model_validate(read.to_dict())
    return [(fault.line, fault.path, fault.expected) for fault in read.misread(caught.value, Tree).faults]


def test_yaml_values_have_the_expected_types() -> None:
    text = "a: 1\nb: 2.5\nc: yes\nd: ~\ne: 2026-01-01\nf: '1'\ng: [x, {y: z}]\n"
    assert document(text).to_dict() == {
        "a": 1, "b": 2.5, "c": True, "d": None, "e": "2026-01-01", "f": "1", "g": ["x", {"y": "z"}],
    }  # fmt: skip


def test_unknown_key_is_reported_with_the_known_ones() -> None:
    expected = "no such key; expected one of "
    assert faults("tree: 1") == [(1, "/tree", expected + "leaves, fruit, seeds")]
    for text, place in (
        ("leaves:\n- size: 1\n- sise: 1\n", (3, "/leaves/1/sise")),
        ("fruit:\n  sise: 1\n", (2, "/fruit/sise")),
    ):
        ((*found, known),) = faults(text)
        assert (tuple(found), known.split()[-1]) == (place, "size")


def test_value_that_is_no_list_or_mapping_is_refused() -> None:
    assert faults("leaves: 5\nfruit: []\n") == [
        (1, "/leaves", "expected a list"),
        (2, "/fruit", "expected a mapping"),
    ]


def test_error_has_the_line_of_the_invalid_or_missing_value() -> None:
    read = document("a:\n  b: 1\n")
    read.to_dict()
    assert str(read.refused(("a", "b"), "expected 2")) == "line 2: /a/b: expected 2"
    assert str(read.refused(("a", "c"), "expected 2")) == "line 1: /a/c: expected 2"


def test_unused_members_may_have_any_value() -> None:
    read = document("a: {x: 1, x: 2}\nb: 1\n")
    assert read.section("b") == 1
    with pytest.raises(InvalidFile, match="twice") as refused:
        read.section("a")
    assert [(fault.line, fault.path) for fault in refused.value.faults] == [(1, "/a/x")]


@pytest.mark.parametrize("ending", ["\r", "\x85", "\u2028"])
def test_invalid_text_after_another_line_ending_than_a_newline_is_reported(ending: str) -> None:
    with pytest.raises(InvalidFile):
        document(f"a: 1{ending}{ending}b: [").to_dict()


def test_tab_as_indentation_is_reported() -> None:
    with pytest.raises(InvalidFile) as refused:
        document("a:\n\tb: 1\n").to_dict()
    (fault,) = refused.value.faults
    assert fault.line == 2
    assert "tab" in str(fault)


# Without what YAML 1.1 has no place for, or takes for the end of a line.
TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cf", "Cn", "Co", "Zl", "Zp")), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([0.5, -2.25]) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_any_json_document_is_read_as_yaml(value: object) -> None:
    assert document(json.dumps(value, ensure_ascii=False)).to_dict() == value


@pytest.mark.parametrize(
    "value", ["1:30", "-1:1:1", "1:30.5", "1:1:1" * 400 + ".5", "1" * 401, "0x" + "f" * 300]
)
def test_a_number_in_base_60_or_beyond_all_doubles_is_refused(value: str) -> None:
    with pytest.raises(InvalidFile) as refused:
        document(f"a: 1\nb: {value}\n").to_dict()
    (fault,) = refused.value.faults
    assert (fault.line, fault.path) == (2, "/b")


def test_a_number_in_base_60_in_quotes_is_text() -> None:
    assert document('a: "1:30"\n').to_dict() == {"a": "1:30"}
