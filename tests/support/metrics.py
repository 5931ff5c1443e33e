"""Reads what Prometheus would scrape."""

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.support.servers import PATIENCE_SECONDS

HAS_PROMTOOL = shutil.which("promtool") is not None
"""Else tests/journeys/test_prometheus.py says what is missing."""


def complaints(text: str) -> str:
    """Return the complaints of `promtool check metrics` about names, units, labels and help."""
    ran = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return ran.stdout + ran.stderr


class Scraped:
    """The numbers of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """One number; None if it is not there."""
        return self._samples.get((name, frozenset(labels.items())))

    def labels(self, name: str) -> Iterator[dict[str, Any]]:
        """The labels of all samples of one name."""
        for sample, labels in self._samples:
            if sample == name:
                yield dict(labels)
