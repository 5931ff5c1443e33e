"""The table of requirements quotes every requirement of the sources and names tests that exist."""

import re
from pathlib import Path

import pytest
from tests.support.repository import functions_of

REPOSITORY = Path(__file__).parents[1]
TESTS = REPOSITORY / "tests"
# The captures are not ours to publish; copy them beside the repository.
SOURCES = REPOSITORY.parent / "shared" / "specs"
WORD = re.compile(
    r"\b(?:MUST NOT|SHALL NOT|SHOULD NOT|NOT RECOMMENDED"
    r"|MUST|SHALL|SHOULD|RECOMMENDED|MAY|OPTIONAL|REQUIRED)\b"
)
ANSWERS = ("kept otherwise: ", "kept", "not applicable: ", "not kept", "not used: ")
# Sections of the RFC without a number.
UNNUMBERED = {"Security Considerations": "S", "Capacity as Advisory": "C"}

Row = tuple[str, str, str, str, str]


def _rows() -> list[Row]:
    lines = (REPOSITORY / "docs" / "conformance.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [
        (number, word, asked, done, held)
        for number, word, asked, done, held in cells
        if re.match(r"[DRLH][\dA-Z]", number)
    ]


ROWS = _rows()


def section_of(number: str) -> str:
    """`D4.1` of `D4.1.7`; the lease protocol and the heartbeat tool have no sections."""
    return number.rpartition(".")[0] or number[0]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_each_conformance_row_has_a_status_and_existing_tests(row: Row) -> None:
    number, word, asked, done, held = row
    assert asked
    assert word == "-" or WORD.fullmatch(word)
    assert done.startswith(ANSWERS)
    if held == "-":
        assert done.startswith(("not applicable: ", "not kept")), f"{number} has no test"
        return
    named = re.findall(r"`([^`]+)::([^`]+)`", held)
    assert held == ", ".join(f"`{file}::{function}`" for file, function in named)
    assert [
        f"{file}::{function}"
        for file, function in named
        if not (TESTS / file).is_file() or function not in functions_of(TESTS / file)
    ] == []


def test_conformance_rows_are_numbered_without_a_gap() -> None:
    sections = list(dict.fromkeys(section_of(number) for number, *_ in ROWS))
    for section in sections:
        rows = [row for row in ROWS if section_of(row[0]) == section]
        ends = [number.rpartition(".")[2].removeprefix(section) for number, *_ in rows]
        words = sum(word != "-" for _, word, *_ in rows)
        if section in "LH":
            assert ends == [str(count) for count in range(1, len(rows) + 1)]
            continue
        letters = [chr(ord("a") + count) for count in range(len(rows) - words)]
        assert ends == [str(count) for count in range(1, words + 1)] + letters, section
        assert all((word == "-") == end.isalpha() for end, (_, word, *_) in zip(ends, rows, strict=True))


def test_each_requirement_word_of_the_draft_has_a_row() -> None:
    text = " ".join(_source("draft-liang-agent-health-state-00.txt").split())
    contents, body = text.split("1. Introduction The emerging")
    heads = re.findall(r"(?:(\d(?:\.\d)?)|Appendix ([AB]))\. (.+?) (?:\. ?){3,}\d+", contents)
    places = [0]
    for number, appendix, title in heads[1:]:
        spelled = f"{number}. {title} " if number else f"Appendix {appendix}. {title} "
        places.append(body.index(spelled, places[-1]))
    parts = [
        (f"D{number or appendix}", body[begin:end])
        for (number, appendix, _), begin, end in zip(heads, places, [*places[1:], None], strict=True)
    ]
    assert len(parts) >= 20
    # Section 2 says what the words mean.
    _compare("D", [(section, part) for section, part in parts if section != "D2"])


def test_each_requirement_word_of_rfc_0016_has_a_row() -> None:
    parts = re.split(r"^#+ (.+)$", _source("rfc-0016-agent-lifecycle-health.md"), flags=re.MULTILINE)
    numbered = []
    for title, part in zip(parts[1::2], parts[2::2], strict=True):
        number = re.match(r"\d+(?:\.\d+)?", title)
        numbered.append((f"R{number.group() if number else UNNUMBERED.get(title, title)}", part))
    assert len(numbered) >= 40
    _compare("R", numbered)


@pytest.mark.parametrize("name", ["lease-protocol.md", "heartbeat-tool-contract.md"])
def test_other_two_sources_have_no_requirement_words(name: str) -> None:
    assert WORD.findall(_source(name)) == []


def _source(name: str) -> str:
    path = SOURCES / name
    if not path.is_file():
        pytest.skip(f"NOT COMPARED with {name}: {path} is absent")
    return path.read_text()


def _compare(letter: str, parts: list[tuple[str, str]]) -> None:
    """Each section's words are those of its rows, in the same order."""
    there = {section: words for section, part in parts if (words := WORD.findall(part))}
    messages: dict[str, list[str]] = {}
    for number, word, *_ in ROWS:
        if number.startswith(letter) and word != "-":
            messages.setdefault(section_of(number), []).append(word)
    assert messages == there
