import re
from pathlib import Path

import pytest

import lifesign
from lifesign.domain.text.counts import percent_text, plural, pluralize

SOURCES = Path(lifesign.__file__).parent
NOUNS = "agent|event|fault|key|lease|probe|request|result|run|sample|shard|target|task|token|webhook"
SPELT_BY_HAND = re.compile(
    # Python: `{count} agents`, `{count:,} more tasks`; templates: `{{ count | number }} targets`. Capitals
    # and maxima are bounds, which are more than one.
    rf"\{{(?![A-Z_]+\}}|most\}})[^{{}}]*\}}\}}? (?:more )?(?:{NOUNS})s\b"
)
MORE_THAN_ONE = (
    # Always more than one: limits of verdicts and full pages.
    "dashboard/templates/agents.html",
    "dashboard/templates/agent.html",
    "prober/definition/lag_limits.py",
    "census/plots.py",
    "crawl/process_pool.py",
    "domain/lifecycle/verdict.py",
)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "0 agents"),
        (1, "1 agent"),
        (2, "2 agents"),
        (1_000, "1,000 agents"),
        (1_000_001, "1,000,001 agents"),
    ],
)
def test_noun_is_singular_for_one(count: int, message: str) -> None:
    assert pluralize(count, "agent") == message


def test_some_nouns_have_a_plural_of_their_own() -> None:
    assert [plural(count, "process", "processes") for count in (0, 1, 2)] == [
        "processes",
        "process",
        "processes",
    ]


def test_source_uses_pluralize_for_each_count() -> None:
    files = [file for kind in ("*.py", "*.html") for file in SOURCES.rglob(kind)]
    found = {
        f"{file.relative_to(SOURCES)}: {match[0]}"
        for file in files
        for match in SPELT_BY_HAND.finditer(file.read_text())
        if str(file.relative_to(SOURCES)) not in MORE_THAN_ONE
    }
    assert found == set()


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, "\N{EN DASH}"),
        (0.0, "0 %"),
        (0.0001, "< 0.1 %"),
        (0.001, "0.1 %"),
        (0.5, "50.0 %"),
        (0.999, "99.9 %"),
        (0.9999, "> 99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_percent_text_is_0_or_100_only_if_exact(ratio: float | None, text: str) -> None:
    assert percent_text(ratio) == text
