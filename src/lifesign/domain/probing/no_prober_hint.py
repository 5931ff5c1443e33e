"""Hint for a request for a probe while no prober is running."""

from typing import Final

NO_PROBER: Final = "no prober is running for this registry"
NO_CRAWL: Final = "no crawl uses this database"


def no_prober_text(why: str, where: str) -> str:
    """Return in words why no prober probes the target, and what to do. `where`: option of the registry."""
    return f"{why} now; the target is probed once one runs: lifesign crawl PROBE.yml {where}"
