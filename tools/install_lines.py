"""The install lines of README and docs, with the name that `pip install` takes now.

`make schemas` runs it. Until the first release the name is `.`, in a checkout: `DISTRIBUTION` in
src/lifesign/domain/common/project.py decides.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lifesign.domain.common.project import DISTRIBUTION

REPOSITORY: Final = Path(__file__).parents[1]
_WITH_EXTRAS: Final = re.compile(r"'(?:\.|lifesign)(?=\[[a-z,]+\]')")
_ALONE: Final = re.compile(r"(?<=pip install )(?:\.|lifesign)(?=\s)")
_IN_A_CHECKOUT: Final = re.compile(r" *# in a checkout\b.*")


def pages() -> Iterator[Path]:
    """Yield the pages that have install lines."""
    yield REPOSITORY / "README.md"
    yield from sorted((REPOSITORY / "docs").rglob("*.md"))


def rewritten(page: str, distribution: str = DISTRIBUTION) -> str:
    """Return a page with the install lines for a distribution; a released one needs no checkout."""
    page = _ALONE.sub(distribution, _WITH_EXTRAS.sub(f"'{distribution}", page))
    return page if distribution == "." else _IN_A_CHECKOUT.sub("", page)


if __name__ == "__main__":
    for path in pages():
        path.write_text(rewritten(path.read_text()))
