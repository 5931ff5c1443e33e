"""The protocol page and the list of behaviours agree with code and tests."""

import inspect
import re
from pathlib import Path

import pytest
from tests.support.repository import functions_of

from lifesign import AgentHealthMiddleware
from lifesign.domain.health.outcome import SIDES, CountingProfile, Outcome, Side

REPOSITORY = Path(__file__).parents[1]
TESTS = REPOSITORY / "tests"
DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
NUMBERS = [f"B{number}" for number in range(1, 34) if number != 31]
"""Behaviours of the middleware; those of the prober and of agents have no gaps."""
SIDE_OF_CELL = {"response": Side.RESPONSE, "error": Side.ERROR, "-": None}


def rows(document: str) -> list[list[str]]:
    """The cells of every table row of a document, headings included."""
    lines = (REPOSITORY / "docs" / document).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


BEHAVIOURS = [row for row in rows("behaviours.md") if re.match(r"[ABP]\d", row[0])]


CASES = [row for row in rows("task-lifecycle.md") if row[0].isdecimal()]
"""Known failures of other task systems."""


def test_each_behaviour_is_listed_once_and_in_order() -> None:
    found = [row[0] for row in BEHAVIOURS]
    counted = []
    for letter in "PA":
        last = sum(number.startswith(letter) for number in found)
        assert last
        counted += [f"{letter}{number}" for number in range(1, last + 1)]
    assert found == NUMBERS + counted


def test_each_case_is_listed_once_and_in_order() -> None:
    assert [int(number) for number, _, _ in CASES] == list(range(1, 26))


@pytest.mark.parametrize("row", [*BEHAVIOURS, *CASES], ids=lambda row: str(row[0]))
def test_every_test_that_proves_a_behaviour_exists(row: list[str]) -> None:
    _, behaviour, proofs = row
    assert behaviour
    if row in CASES and proofs.startswith("missing: "):
        return
    named = re.findall(r"`([^`]+)::([^`]+)`", proofs)
    assert named
    assert proofs == ", ".join(f"`{file}::{function}`" for file, function in named)
    assert [
        f"{file}::{function}"
        for file, function in named
        if not (TESTS / file).is_file() or function not in functions_of(TESTS / file)
    ] == []


def test_behaviour_numbers_in_comments_and_tests_are_listed() -> None:
    files = [*(REPOSITORY / "src").rglob("*.py"), *TESTS.rglob("*.py")]
    named = {number for file in files for number in re.findall(r"\bB[1-9]\d?\b", file.read_text())}
    assert named
    assert named <= set(NUMBERS)


def test_documented_outcomes_match_the_code() -> None:
    table = rows("protocol.md")
    (heading,) = [row for row in table if row[0] == "outcome"]
    assert heading[2:] == [f"`{counting}`" for counting in CountingProfile]
    start = table.index(heading) + 2
    result = table[start : start + len(Outcome)]
    assert [row[0] for row in result] == [f"`{outcome.name.lower()}`" for outcome in Outcome]
    for column, counting in enumerate(CountingProfile, 2):
        assert {Outcome[row[0].strip("`").upper()]: SIDE_OF_CELL[row[column]] for row in result} == SIDES[
            counting
        ]


@pytest.mark.parametrize("name", list(inspect.signature(AgentHealthMiddleware).parameters)[1:])
def test_each_setting_is_documented(name: str) -> None:
    texts = [document.read_text() for document in DOCUMENTS]
    texts.append(AgentHealthMiddleware.__doc__ or "")
    spelled = re.compile(rf"`{name}\b|\b{name}=|^ +{name}: ", re.MULTILINE)
    assert any(spelled.search(text) for text in texts)
