"""Language of everything that a person reads: plain technical English (CONTRIBUTING.md)."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from tests.support import prose
from tests.support.prose import REPOSITORY, Passage

MAX_MARKS_PER_1000_WORDS = 1.0
MAX_WORDS_OF_SENTENCE = 30
MAX_LONG_SENTENCES_RATIO = 0.02
QUESTIONS_ALLOWED = {"docs/troubleshooting.md"}
"""Pages whose headings may be questions."""
OWNS_THE_LIST = {"tests/test_language.py", "tests/test_names.py"}

PATTERNS = {
    "a pronoun for a system": r"\b(?:[Ww]ho(?:m)?ever|[Nn]obody|[Ss]omebody|[Nn]o one|[Aa]nybody)\b",
    "a noun clause with who or what as subject": (
        r"(?:^|[.:;,(] )(?:Who|What|Whom) [a-z]+ (?!are\b|is the\b|does\b|do\b|can\b|did\b|happens\b)"
        r"|(?<=[;:,] )(?:who|what) (?:is|was|has|had|cannot|keeps|comes|stands|lives|does|asks|says)\b"
    ),
    "tell, for what a system does": (
        r"\b(?:is|are|was|were|be|been|being) told\b|\btell(?:s|ing)?\b(?! apart)|\btold of\b"
    ),
    "an archaic or inverted phrase": (
        r"\b(?:anew|whence|thereof|therein|be it|for ever|of late|lest|so that no|such as this"
        r"|and no other)\b"
    ),
    "a private term": (
        r"\b(?:deeds?|decree[sd]?|judged|wardens?|taken down|(?:is|are|was|were) (?:away|ill)|gives? back"
        r"|look again|stands? (?:in|beside|there)|beats (?:every|for|by|in))\b"
    ),
    "a word that belittles the reader's difficulty": r"\b(?:[Ss]imply|[Ee]asily|[Oo]bviously|[Oo]f course)\b",
}
"""Marks of the former dialect, by kind."""
MARKS = {
    kind: re.compile(pattern, re.IGNORECASE if "noun" not in kind else 0)
    for kind, pattern in PATTERNS.items()
}


def files(*patterns: str) -> list[Path]:
    found = chain.from_iterable(REPOSITORY.glob(pattern) for pattern in patterns)
    return sorted(path for path in found if str(path.relative_to(REPOSITORY)) not in OWNS_THE_LIST)


SOURCES = files("src/**/*.py", "benchmarks/**/*.py", "tools/**/*.py", "docs/**/*.py", "probes/**/*.py")
TESTS = files("tests/**/*.py")
PAGES = files("*.md", "docs/**/*.md", "probes/**/*.md", "benchmarks/**/*.md")


def passages(read: Callable[[Path], Iterable[Passage]], paths: Iterable[Path]) -> Iterator[Passage]:
    return chain.from_iterable(read(path) for path in paths)


PARTS: dict[str, Callable[[], Iterator[Passage]]] = {
    "pages": lambda: passages(prose.markdown, PAGES),
    "templates": lambda: passages(prose.template, files("src/**/*.html*", "src/**/*.svg*")),
    "docstrings": lambda: passages(prose.docstrings, SOURCES),
    "comments": lambda: passages(prose.comments, SOURCES),
    "messages": lambda: passages(prose.messages, SOURCES),
    "schemas": lambda: passages(prose.json_texts, files("schemas/**/*.json")),
    "configuration": lambda: passages(
        prose.hash_comments,
        files(
            "Makefile",
            "pyproject.toml",
            ".ci/*",
            "probes/**/*.y*ml",
            "docs/**/*.y*ml",
            "docs/operating/*file",
            "docs/operating/*.service",
        ),
    ),
    "scripts and styles": lambda: passages(
        prose.script_comments, files("src/**/*.js", "src/**/*.css", "docs/site/static/*.css")
    ),
    "test names": lambda: passages(prose.test_names, TESTS),
    "test docstrings": lambda: passages(prose.docstrings, TESTS),
    "test comments": lambda: passages(prose.comments, TESTS),
    "test messages": lambda: passages(prose.messages, TESTS),
}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_few_marks(part: str) -> None:
    words = 0
    found: list[str] = []
    for where, text in PARTS[part]():
        words += len(text.split())
        found += [f"{where}: {kind}: {text[:160]}" for kind, mark in MARKS.items() if mark.search(text)]
    assert words > 100, f"{part}: nothing was read"
    assert len(found) <= MAX_MARKS_PER_1000_WORDS * words / 1_000, "\n".join(
        [f"{part}: {len(found)} marks in {words} words", *found]
    )


@pytest.mark.parametrize("kind", PATTERNS)
def test_each_pattern_finds_an_example(kind: str) -> None:
    examples = {
        "a pronoun for a system": "Whoever holds the lease renews it.",
        "a noun clause with who or what as subject": "What fails counts once.",
        "tell, for what a system does": "The agent is told so.",
        "an archaic or inverted phrase": "The token is made anew.",
        "a private term": "The database is away.",
        "a word that belittles the reader's difficulty": "Simply add one line.",
    }
    assert [name for name, mark in MARKS.items() if mark.search(examples[kind])] == [kind]


def test_few_sentences_of_the_pages_are_long() -> None:
    sentences = list(passages(prose.markdown, PAGES))
    long = [f"{where}: {text}" for where, text in sentences if len(text.split()) > MAX_WORDS_OF_SENTENCE]
    assert len(long) <= MAX_LONG_SENTENCES_RATIO * len(sentences), "\n".join(long)


def test_no_module_begins_with_a_question() -> None:
    questions = [
        str(path.relative_to(REPOSITORY))
        for path in (*SOURCES, *TESTS)
        if (line := prose.first_line(path)) is not None and line.endswith("?")
    ]
    assert questions == []


def test_only_troubleshooting_has_questions_as_headings() -> None:
    questions = {
        f"{path.relative_to(REPOSITORY)}: {heading}"
        for path in PAGES
        if str(path.relative_to(REPOSITORY)) not in QUESTIONS_ALLOWED
        for heading in prose.headings(path)
        if heading.endswith("?")
    }
    assert questions == set()
