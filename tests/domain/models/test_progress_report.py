from typing import Any

import pytest
from pydantic import ValidationError

from lifesign.domain.models.progress_report import MAX_REPORT_BYTES, ProgressReport

OF_THE_SOURCE = {
    "summary": "hero section drafted",
    "beliefs": [
        "brand color #3ecf8e",
        "no product shot",
    ],
    "attempted": [
        {"action": "fetch brand assets", "outcome": "success"},
        {"action": "draft hero copy", "outcome": "pending review"},
    ],
    "nextStep": "three variants",
    "blockers": [],
}


def test_progress_report_of_the_rfc_example_is_unchanged() -> None:
    assert ProgressReport.model_validate(OF_THE_SOURCE).members() == OF_THE_SOURCE


def test_progress_report_needs_only_a_summary() -> None:
    assert ProgressReport(summary="read the context").members() == {
        "summary": "read the context",
        "beliefs": [],
        "attempted": [],
        "blockers": [],
    }


@pytest.mark.parametrize("given", [
    {}, {"summary": ""}, {"summary": 1}, {"summary": "s", "next": "x"}, {"summary": "s", "nextStep": ""},
    {"summary": "s", "attempted": [{"action": "a"}]}, {"summary": "s", "beliefs": "b"},
    {"summary": "s", "blockers": ["b"] * 1_001},
])  # fmt: skip
def test_invalid_report_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ProgressReport.model_validate(given)


def test_a_report_has_at_most_64_kib_in_all() -> None:
    rest = len('{"summary":"","beliefs":[],"attempted":[],"blockers":[]}')
    ProgressReport(summary="x" * (MAX_REPORT_BYTES - rest))
    with pytest.raises(ValidationError, match="65536 bytes"):
        ProgressReport(summary="x" * (MAX_REPORT_BYTES - rest + 1))
    with pytest.raises(ValidationError, match="65536 bytes"):
        ProgressReport(summary="s", beliefs=["x" * 1_000] * 66)
