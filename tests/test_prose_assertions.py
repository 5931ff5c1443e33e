"""The number of assertions that compare with prose may only shrink."""

from collections import Counter
from pathlib import Path

import pytest
from tools.prose_assertions import TESTS, all_prose_assertions, prose_assertions

LIMIT = 210
"""Lower it with the count."""


def test_number_of_prose_assertions_does_not_grow() -> None:
    found = all_prose_assertions()
    folders = Counter(assertion.path.relative_to(TESTS).parts[0] for assertion in found)
    assert len(found) <= LIMIT, folders.most_common()


@pytest.mark.parametrize(
    ("statement", "count"),
    [
        ('assert "the text of a message" in output', 1),
        ('assert output == "the text of a message"', 1),
        ('with pytest.raises(ValueError, match="the text of a message"): output()', 1),
        ('assert (output.name, output.given) == ("--workers", 0)', 0),
        ('assert "--workers: " in output', 0),
    ],
)
def test_comparisons_with_four_words_are_counted(statement: str, count: int, tmp_path: Path) -> None:
    module = tmp_path / "test_it.py"
    module.write_text(f"def test_it(output):\n    {statement}\n")
    assert len(list(prose_assertions(module))) == count
