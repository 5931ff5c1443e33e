import re
from typing import Any

import pytest
from tests.dashboard.conftest import Sample

from lifesign.dashboard.event_lines import line_of
from lifesign.domain.access.permissions import Role
from lifesign.domain.events.chain import Event
from lifesign.domain.events.event_type import EventType


@pytest.mark.parametrize("path", ["/events?group=task", "/events"])
def test_acting_key_is_shown_by_name(sample: Sample, path: str) -> None:
    text = sample.visitor(Role.READER).get(path).text
    assert re.search(r" by (admin, key:key_admin_|coordinator, key:key_coordinator_)", text)
    assert re.findall(r" by key:\S+", text) == []


def line(kind: EventType, actor: str, **payload: Any) -> tuple[str, str, str]:
    event = Event(
        sequence=1,
        id="evt_1",
        type=kind,
        actor=actor,
        payload=payload,
        created_at="2026-01-02T03:04:05.000Z",
        previous_hash="0" * 64,
        hash="1" * 64,
        intent_id=None,
    )
    result = line_of(event, {"key:key_1": "ops"})
    return result.subject, result.text, result.by


def test_holder_is_shown_once_and_by_name() -> None:
    lease = {"resource": "r:1", "lease_id": "l", "fencing_token": 3, "expires_at": "x"}
    granted = line(EventType.LEASE_ACQUIRED, "key:key_1", holder="key:key_1", **lease)
    assert granted == ("r:1", "granted to ops, key:key_1, token 3", "")
    ended = line(EventType.SHARDS_ENDED, "monitor", holder="key:key_1/a", shards=[{}], reason="expired")
    assert ended == ("ops, key:key_1/a", "lost 1 shard (expired)", "")


def test_subject_of_a_lease_is_its_resource_and_not_its_holder() -> None:
    lease = {"resource": "r:1", "lease_id": "l", "fencing_token": 3, "reason": "agent_dead"}
    subject, text, _ = line(EventType.LEASE_EXPIRED, "monitor", holder="agent-1", **lease)
    assert subject == "r:1"
    assert "agent-1" in text


def test_reason_of_a_command_is_shown() -> None:
    members = {"agent_id": "a", "command_id": "c", "command": "drain", "expires_at": "x"}
    asked = line(EventType.AGENT_COMMAND_SENT, "key:key_1", **members, reason="new version")
    assert asked[1].endswith(": new version")
    assert ":" not in line(EventType.AGENT_COMMAND_SENT, "key:key_1", **members)[1]


def test_explanation_that_only_repeats_the_actor_is_replaced() -> None:
    members = {
        "agent_id": "a",
        "previous_status": "active",
        "new_status": "draining",
        "reason": "drain_initiated",
    }
    asked = line(EventType.AGENT_LIFECYCLE, "key:key_1", **members, explanation="asked by key:key_1")
    assert asked[1:] == ("active \N{RIGHTWARDS ARROW} draining (drain initiated)", "ops, key:key_1")
    its_own = line(EventType.AGENT_LIFECYCLE, "a", **members, explanation="asked by a")
    assert (its_own[1].endswith(": asked by a)"), its_own[2]) == (True, "")


@pytest.mark.parametrize(
    ("actor", "by"),
    [
        ("key:key_1", "ops, key:key_1"),
        ("key:key_2", "key:key_2"),
        ("boss-1", "boss-1"),
        ("billing-1", ""),
        ("monitor", ""),
        ("command_line", "command_line"),
    ],
)
def test_event_line_names_its_actor(actor: str, by: str) -> None:
    members = {"agent_id": "billing-1", "previous_health": "healthy", "new_health": "degraded"}
    assert line(EventType.AGENT_HEALTH_CHANGED, actor, **members)[2] == by


@pytest.mark.parametrize(
    ("path", "words", "mark"),
    [
        ("/events?group=agent", "health is healthy, was unknown", "good"),
        ("/events?group=agent", "health is degraded, was healthy", "warn"),
        ("/events?agent=planner", "health is unknown, was ", "plain"),
        ("/events?agent=support-3", "active [^ ]+ unhealthy", "warn"),
        ("/events?agent=billing-7", "unhealthy [^ ]+ dead", "bad"),
        ("/events?group=task", "\\w+ [^ ]+ handoff", "warn"),
    ],
)
def test_status_has_the_same_mark_in_the_log_and_on_other_pages(
    sample: Sample, path: str, words: str, mark: str
) -> None:
    html = sample.visitor(Role.READER).get(path).html
    marks = re.findall(rf'<li class="event (\w+)"[^\n]*>{words}', html)
    assert set(marks) == {mark}


def test_times_in_event_texts_have_the_common_format(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.COORDINATOR)
    visitor.do("/agents/billing-1", "/agents/billing-1/maintenance", minutes="5", reason="new disk")
    text = visitor.get("/events?agent=billing-1").text
    assert re.search(r"maintenance until [\d-]{10} [\d:]{8} UTC: new disk", text)
