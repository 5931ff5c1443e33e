"""Evidence age of agents and targets."""

import re
from pathlib import Path

import pytest

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.evidence_age import (
    PROBER_FAULTS,
    Evidence,
    LastInterface,
    UnknownReason,
    is_unreachable,
    shown_health,
    unknown_reason,
)
from lifesign.domain.observation.results import InconclusiveReason

NOW_S = 1_782_900_000.0
HEALTHY = HealthStatus.HEALTHY


def test_every_reason_of_a_prober_can_be_shown() -> None:
    assert {reason.value for reason in InconclusiveReason} <= {reason.value for reason in UnknownReason}


def test_an_agent_that_is_not_probed_is_not_unknown_for_lack_of_evidence() -> None:
    assert unknown_reason(Evidence(), NOW_S) is None
    assert shown_health(HEALTHY, Evidence(), NOW_S) == (HEALTHY, None)


@pytest.mark.parametrize(
    ("inconclusive_reason", "later_s", "reason"),
    [
        (None, 900, None),
        (None, 900.1, UnknownReason.ASKED_TO_WAIT),
        ("no_witness", 900, None),
        ("no_witness", 900.1, UnknownReason.NO_WITNESS),
        ("not_allowed", 1200, UnknownReason.NOT_ALLOWED),
        ("no_witness", 1200.1, UnknownReason.NO_PROBER),
        (None, 1200.1, UnknownReason.NO_PROBER),
    ],
)
def test_old_evidence_is_unknown_for_the_reason_of_the_last_result(
    inconclusive_reason: str | None, later_s: float, reason: UnknownReason | None
) -> None:
    evidence = Evidence(
        at_s=NOW_S, until_s=NOW_S + 900, results_until_s=NOW_S + 1200, inconclusive_reason=inconclusive_reason
    )
    assert unknown_reason(evidence, NOW_S + later_s) is reason
    expected = (HEALTHY, None) if reason is None else (HealthStatus.UNKNOWN, reason)
    assert shown_health(HEALTHY, evidence, NOW_S + later_s) == expected


def test_health_ends_with_its_document_though_the_evidence_counts() -> None:
    evidence = Evidence(
        at_s=NOW_S, until_s=NOW_S + 900, results_until_s=NOW_S + 900, health_until_s=NOW_S + 60
    )
    assert shown_health(HEALTHY, evidence, NOW_S + 60) == (HEALTHY, None)
    assert shown_health(HEALTHY, evidence, NOW_S + 60.1) == (
        HealthStatus.UNKNOWN,
        UnknownReason.DOCUMENT_ENDED,
    )
    assert unknown_reason(evidence, NOW_S + 60.1) is None


@pytest.mark.parametrize(
    ("result", "health", "before_s", "unreachable"),
    [
        ("refused", "unknown", 0, True),
        ("refused", "healthy", 0, False),
        ("gated", "unknown", 0, False),
        ("credentials_rejected", "unknown", 0, False),
        ("token_error", "unknown", 0, False),
        ("ok", "unknown", 0, False),
        # Its last three probes did not request it: a newer card may name none.
        ("refused", "unknown", 900, True),
        ("refused", "unknown", 900.1, False),
    ],
)
def test_failing_interface_without_other_signals_is_unreachable(
    result: str, health: str, before_s: float, *, unreachable: bool
) -> None:
    interface = LastInterface(result=result, at_s=NOW_S - before_s)
    evidence = Evidence(at_s=NOW_S, until_s=NOW_S + 900, results_until_s=NOW_S + 900)
    shown = HealthStatus(health)
    assert is_unreachable(interface, shown, evidence, NOW_S + 900) is unreachable
    assert not is_unreachable(interface, shown, evidence, NOW_S + 900.1), "the evidence has expired"


def test_agent_without_an_interface_is_not_unreachable() -> None:
    assert not is_unreachable(None, HealthStatus.UNKNOWN, Evidence(), NOW_S)


def test_docs_name_each_fault_of_the_monitoring() -> None:
    text = (Path(__file__).parents[3] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \|.*\| monitoring \|$", text, re.MULTILINE)
    assert set(named) == {reason.value for reason in PROBER_FAULTS}


def test_docs_list_each_reason_of_unknown_health() -> None:
    text = (Path(__file__).parents[3] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
    section = text.partition("`unknown_reason` is one of these:")[2].partition("Every `watch_seconds`")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == {
        reason.value for reason in UnknownReason
    }
