"""Hint for a request for a probe while no prober is running."""

from typing import Final

NO_PROBER: Final = "no prober is running for this registry"
NO_CRAWL: Final = "no crawl uses this database"


def no_prober_text(why: str, where: str) -> str:
    """Return why no probe will come, and what to do; `where` is the option that names the registry."""
    return f"{why} now; the target is probed once one runs: lifesign crawl PROBE.yml {where}"
