"""Coverage of each source file by the test files that mirror it.

Reads .coverage of a run with `--cov --cov-context=test` (`make mirror`). A source file passes with 60 % of
its branches, or of its lines where it has fewer than 5 branches.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from coverage import Coverage

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.support.mirror import PACKAGE, mirrored  # noqa: E402 - the path comes first

LEAST_RATIO = 0.6
FEW_BRANCHES = 5


class Share(NamedTuple):
    """Coverage of one source file by its own test files."""

    ratio: float
    source: Path
    what: str


def shares() -> Iterator[Share]:
    """Return the share of each source file that has test files."""
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        for source, files in mirrored().items():
            if not files:
                continue
            coverage = Coverage(data_file=REPOSITORY / ".coverage", config_file=REPOSITORY / "pyproject.toml")
            coverage.load()
            # The empty context is what importing the module runs.
            contexts = ["^$", *(f"^tests/{file.as_posix()}::" for file in files)]
            coverage.set_option("report:contexts", contexts)
            coverage.json_report(morfs=[str(PACKAGE / source)], outfile=str(report))
            totals = json.loads(report.read_text())["totals"]
            if totals["num_branches"] >= FEW_BRANCHES:
                covered, number, what = totals["covered_branches"], totals["num_branches"], "branches"
            else:
                covered, number, what = totals["covered_lines"], totals["num_statements"], "lines"
            yield Share(covered / number if number else 1.0, source, what)


def main() -> int:
    """Print the shares from the lowest on; 1 if one is too low."""
    found = sorted(shares())
    low = [share for share in found if share.ratio < LEAST_RATIO]
    for share in low:
        print(f"{share.ratio:4.0%} of the {share.what}  {share.source}")
    print(f"{len(found)} source files with test files, {len(low)} below {LEAST_RATIO:.0%}")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
