"""Challenges in `WWW-Authenticate`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.domain.credentials.challenge import (
    MAX_CHALLENGES,
    MAX_FIELDS,
    MAX_PARAMETERS,
    read_challenges,
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["Bearer"], [("bearer", {})]),
        (
            ['Bearer realm="a, b", error=invalid_token'],
            [("bearer", {"realm": "a, b", "error": "invalid_token"})],
        ),
        (
            ['Basic realm="x", DPoP algs="ES256 RS256"'],
            [("basic", {"realm": "x"}), ("dpop", {"algs": "ES256 RS256"})],
        ),
        (["Basic", "Negotiate YWJj"], [("basic", {}), ("negotiate", {})]),
        ([r'Digest realm="a\"b\\c"'], [("digest", {"realm": 'a"b\\c'})]),
        (['Bearer realm="one", REALM="two"'], [("bearer", {"realm": "one"})]),
        (
            ['Bearer resource_metadata="https://a.example/x?y=1,2"'],
            [("bearer", {"resource_metadata": "https://a.example/x?y=1,2"})],
        ),
        (["realm=x, , Bearer", ""], [("bearer", {})]),
        (['Bearer realm="not closed, x=y'], [("bearer", {"realm": '"not closed, x=y'})]),
        (["(odd)", "Bearer"], [("bearer", {})]),
    ],
)
def test_challenges_are_read(fields: list[str], expected: list[tuple[str, dict[str, str]]]) -> None:
    assert [(each.scheme, each.parameters) for each in read_challenges(fields)] == expected


def test_number_of_challenges_fields_and_parameters_is_bounded() -> None:
    assert len(read_challenges([", ".join(f"S{number}" for number in range(50))])) == MAX_CHALLENGES
    assert len(read_challenges(["Bearer"] * 50)) == MAX_FIELDS
    many = ", ".join(f"p{number}=1" for number in range(50))
    assert len(read_challenges([f"Bearer {many}"])[0].parameters) == MAX_PARAMETERS


@settings(max_examples=examples(100))
@given(st.lists(st.text(alphabet='aB=", \\\t;\u00e9', max_size=60), max_size=6))
def test_any_challenge_header_is_read_without_an_exception(fields: list[str]) -> None:
    found = read_challenges(fields)
    assert len(found) <= MAX_CHALLENGES
    assert all(each.scheme == each.scheme.lower() for each in found)
