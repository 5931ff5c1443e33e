"""Faults of the monitoring in words."""

import re
from typing import Any

import pytest

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.credentials.advice import LOOK_AT_SECRET, fault_advice
from lifesign.domain.models.monitor import MonitorRecord
from lifesign.domain.models.monitor_faults import (
    credential_faults,
    silent_class_faults,
    suspension_text,
    unreached_target_faults,
)

SINCE = "2026-11-23T08:00:00Z"
LATER = "2026-11-23T09:00:00Z"
EARLIER = "2026-11-22T09:00:00Z"


def monitor(**members: Any) -> MonitorRecord:
    """Return the record of a monitor that trusts its probers, with some members changed."""
    track = {"state": "normal", "since": SINCE, "exits": 0, "limit": 20, "baseline": 0, "unwitnessed": 0}
    record = {
        "state": "normal", "since": SINCE, "tracks": {"heartbeat": track, "probe": track},
        "excluded_downtime": [],
    }  # fmt: skip
    return MonitorRecord.model_validate(record | members)


def test_mass_silence_names_which_failures_count_and_the_command_that_confirms() -> None:
    (fault,) = silent_class_faults(monitor(silent_classes={"10.1.0.0/16": SINCE}))
    assert "no_witness" in fault.text
    assert "HTTP error" in fault.text
    assert "lifesign monitor confirm --class 10.1.0.0/16" in fault.hint


def test_confirmed_mass_silence_says_that_failures_count() -> None:
    silent = {"silent_classes": {"10.1.0.0/16": SINCE}}
    (fault,) = silent_class_faults(monitor(**silent, confirmed_classes={"10.1.0.0/16": LATER}))
    assert "confirmation of 2026-11-23 09:00:00" in fault.text.replace("T", " ")
    assert "monitor confirm" not in fault.hint
    # An earlier confirmation may have been about another outage.
    (fault,) = silent_class_faults(monitor(**silent, confirmed_classes={"10.1.0.0/16": EARLIER}))
    assert "confirmation of 2026-11-22" in fault.text
    assert "no_witness" in fault.text
    assert "monitor confirm" in fault.hint


def test_targets_outside_of_a_definition_name_the_prober_and_the_setting() -> None:
    unreached = {"holder": "key:a/w", "network_class": "10.1.0.0/16", "targets": 12, "reached_by": "key:b/w"}
    (fault,) = unreached_target_faults(monitor(disallowed_targets=[unreached]))
    assert re.search(r"prober key:a/w .* 12 targets .* not allow network class 10\.1\.0\.0/16", fault.text)
    assert "prober key:b/w reaches" in fault.text
    assert "networks.allow" in fault.hint


def test_a_missing_credential_names_both_probers_the_credential_and_the_place() -> None:
    missing = {
        "holder": "key:a/w", "held_by": "key:b/w", "name": "acme", "origin": "https://acme.example",
        "path": "/billing", "target_origins": ["https://acme.example"],
    }  # fmt: skip
    (fault,) = credential_faults(monitor(missing_credentials=[missing]))
    for name in ("key:a/w", "key:b/w", "acme", "https://acme.example/billing", "no_credential"):
        assert name in fault.text
    assert "card_origins" not in fault.text
    missing["target_origins"] = ["https://cards.example"]
    (fault,) = credential_faults(monitor(missing_credentials=[missing]))
    assert "https://cards.example (card_origins)" in fault.text


def test_a_credential_that_does_not_work_is_named_with_its_key_origin_and_fault() -> None:
    shown = {
        "key_id": "key_1", "name": "acme", "origin": "https://acme.example", "path": "/",
        "fault": "credentials_rejected", "since": SINCE,
    }  # fmt: skip
    (fault,) = credential_faults(monitor(credential_faults=[shown]))
    for name in ("key_1", "acme", "https://acme.example", "credentials_rejected"):
        assert name in fault.text
    assert LOOK_AT_SECRET in fault.hint
    refused = {"fault": "token_error", "detail": "server_error: HTTP 500"}
    (fault,) = credential_faults(monitor(credential_faults=[shown | refused]))
    assert refused["detail"] in fault.text
    assert fault_advice(CredentialState.TOKEN_ERROR, refused["detail"]) in fault.hint


@pytest.mark.parametrize(("unwitnessed", "reason"), [(0, "accepted at once"), (1_200, "no request of")])
def test_suspension_names_the_silent_agents_and_the_reason(unwitnessed: int, reason: str) -> None:
    track = {"state": "suspended", "since": SINCE, "exits": 1_200, "limit": 20, "baseline": 0}
    found = monitor(tracks={"probe": track | {"unwitnessed": unwitnessed}})
    (track_record,) = found.tracks.values()
    text = suspension_text(track_record)
    assert text.startswith("1,200 agents")
    assert reason in text
