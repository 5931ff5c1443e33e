"""Hint for a request for a probe while no prober is running."""

from typing import Final

NO_PROBER: Final = "no prober is running for this registry"
NO_CRAWL: Final = "no crawl uses this database"


def no_prober_text(why: str, where: str) -> str:
    """Return why no look comes, and what is to be done; `where` is the option that names who was asked."""
    return f"{why} now; the target is probed once one runs: lifesign crawl PROBE.yml {where}"
