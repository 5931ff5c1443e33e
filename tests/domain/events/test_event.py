import copy
import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from tests.support.event_logs import verify
from tools.event_examples import add_examples, link_examples
from tools.event_schema import SCHEMA_FILE, schema_of_the_models

from lifesign.domain.errors import BrokenChain, InvalidEvent
from lifesign.domain.events.agent_payloads import AgentLifecycle
from lifesign.domain.events.chain import (
    GENESIS,
    GENESIS_HASH,
    Checkpoint,
    Event,
    agent_of,
    canonical,
    chain,
    erased,
    link,
    link_stored,
    payload_hash,
    payload_of,
    read_event,
)
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import PAYLOADS, EventType
from lifesign.domain.events.lease_payloads import EpochRaised, LeaseEnded
from lifesign.domain.events.payload_fields import MAX_LOGGED_EPOCH, Payload
from lifesign.domain.events.registry_payloads import Erased
from lifesign.domain.lifecycle.status_table import Reason, Status
from lifesign.domain.tasks.lease import EndReason, fencing_token

SCHEMAS = Path(__file__).parents[3] / "schemas"
VALID = sorted((SCHEMAS / "examples/event/valid").glob("*.json"))
INVALID = sorted((SCHEMAS / "examples/event/invalid").glob("*.json"))

AT_S = 1_800_000_000.25
LIFECYCLE = AgentLifecycle(
    agent_id="agent_billing_01",
    previous_status=Status.ACTIVE,
    new_status=Status.UNHEALTHY,
    reason=Reason.HEARTBEAT_TIMEOUT,
    timestamp=datetime(2026, 2, 8, 10, 32, 30, tzinfo=UTC),
    incarnation=1,
    version=15,
    explanation="no heartbeat for 91 s",
)
DRAFT = EventDraft(
    type=EventType.AGENT_LIFECYCLE, actor="monitor", payload=LIFECYCLE, agent_id="agent_billing_01"
)


SCHEMA = json.loads(SCHEMA_FILE.read_text())
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)


def name_of(path: Path) -> str:
    return path.stem


def schema_accepts(members: object) -> bool:
    return VALIDATOR.is_valid(members)


def is_read(members: object) -> bool:
    try:
        read_event(members)
    except InvalidEvent:
        return False
    return True


def chained(*drafts: EventDraft) -> list[Event]:
    events: list[Event] = []
    after = GENESIS
    for number, draft in enumerate(drafts, 1):
        events.append(chain(after, f"event_{number}", draft, AT_S + number))
        after = events[-1].checkpoint
    return events


def broken(events: list[Event]) -> BrokenChain:
    with pytest.raises(BrokenChain) as caught:
        verify(events)
    return caught.value


# --- generated events ----------------------------------------------------------------------------

TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001 - written with a Z
    lambda at: at.isoformat(timespec="milliseconds") + "Z"
)


def from_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911 - one case per keyword
    """Return a strategy for the values of a schema, for the keywords that the payloads use."""
    if "$ref" in schema:
        return from_schema(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    match schema:
        case {"enum": values}:
            return st.sampled_from(values)
        case {"const": value}:
            return st.just(value)
        case {"format": "date-time"}:
            return TIMES
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "integer", "minimum": low, "maximum": high}:
            return st.integers(low, high)
        case {"type": "number", "minimum": low, "maximum": high}:
            return st.integers(low, high) | st.floats(low, high)
        case {"type": "string", "maxLength": most, "pattern": _}:
            return st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=min(most, 20))
        case {"type": "string", "pattern": pattern}:
            return st.from_regex(pattern, fullmatch=True)
        case {"type": "string", "maxLength": most}:
            return st.text(max_size=min(most, 20))
        case {"type": "array", "items": items}:
            return st.lists(from_schema(items), min_size=schema.get("minItems", 0), max_size=3)
        case {"type": "object"}:
            members = {name: from_schema(member) for name, member in schema["properties"].items()}
            required = {name: members.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(required, optional=members)
    raise AssertionError(schema)


LABELS = from_schema(SCHEMA["properties"]["intent_id"])


@st.composite
def drafts(draw: st.DrawFn) -> EventDraft:
    type_ = draw(st.sampled_from(list(PAYLOADS)))
    model = PAYLOADS[type_]
    members = draw(from_schema(SCHEMA["$defs"][model.__name__]))
    return EventDraft(
        type=type_,
        actor=draw(LABELS),
        payload=model.model_validate(members),
        intent_id=draw(st.none() | LABELS),
    )


LOGS = st.lists(drafts(), min_size=1, max_size=4).map(lambda several: chained(*several))
ODD_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 0.5, 12.0, 2**53 - 1, 2**53, "", "a", "active", "x" * 600,
    [], {}, ["a"], {"a": 1},
    "0" * 64, "2026-02-29T12:00:00.000Z", "2028-02-29T12:00:00.000Z", "2028-02-29T12:00:00.000+00:00",
    "2028-02-29T12:00:00Z", "2028-02-29T12:00:60.000Z", {"erased": "0" * 64}, {"erased": "0"}, *EventType,
]  # fmt: skip


@st.composite
def changes(draw: st.DrawFn, members: dict[str, Any]) -> dict[str, Any]:
    """Return an event's members after one change somewhere."""
    members = copy.deepcopy(members)
    target = members["payload"] if draw(st.booleans()) else members
    name = draw(st.sampled_from([*target, "intent_id", "more"]))
    if target is not members and draw(st.booleans()):
        target.pop(name, None)
    else:
        target[name] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
    return members


# --- payloads ------------------------------------------------------------------------------------


def test_lifecycle_event_has_the_members_of_rfc_0016_2_3_and_of_a_replay() -> None:
    members = chained(DRAFT)[0].payload
    assert {name: members.pop(name) for name in ("incarnation", "version", "explanation")} == {
        "incarnation": 1,
        "version": 15,
        "explanation": "no heartbeat for 91 s",
    }
    assert members == {
        "type": "agent.lifecycle",
        "agent_id": "agent_billing_01",
        "previous_status": "active",
        "new_status": "unhealthy",
        "reason": "heartbeat_timeout",
        "timestamp": "2026-02-08T10:32:30.000Z",
    }


def test_event_with_a_payload_of_another_type_is_refused() -> None:
    with pytest.raises(ValidationError, match="payload"):
        EventDraft(type=EventType.AGENT_UPDATED, actor="monitor", payload=LIFECYCLE)


@pytest.mark.parametrize(
    "model", [Erased, *dict.fromkeys(PAYLOADS.values())], ids=lambda model: model.__name__
)
def test_event_payloads_have_only_bounded_and_declared_members(model: type[Payload]) -> None:
    schema = SCHEMA["$defs"][model.__name__]
    assert schema["additionalProperties"] is False
    for member in schema["properties"].values():
        for part in [member, member.get("items", {})]:
            assert part.get("type") != "object"
            assert part.get("type") != "array" or "maxItems" in part
            if part.get("type") == "string" and "enum" not in part and "const" not in part:
                assert "maxLength" in part or part["pattern"].endswith(("}$", "Z$"))


@pytest.mark.parametrize("name", ["key", "digest", "secret", "token", "agent_key", "password", "metadata"])
def test_event_payloads_refuse_secrets(name: str) -> None:
    for type_, model in PAYLOADS.items():
        assert name not in model.model_fields, type_
        assert model.model_config["extra"] == "forbid"


def test_epoch_with_tokens_of_more_than_53_bits_is_refused() -> None:
    highest = fencing_token(MAX_LOGGED_EPOCH, 2**32 - 1)
    assert highest < 2**53 <= fencing_token(MAX_LOGGED_EPOCH + 1, 1)
    assert canonical(highest) == str(highest).encode()
    EpochRaised(previous_epoch=0, new_epoch=MAX_LOGGED_EPOCH)
    with pytest.raises(ValidationError):
        EpochRaised(previous_epoch=0, new_epoch=MAX_LOGGED_EPOCH + 1)
    with pytest.raises(ValidationError):
        LeaseEnded(resource="r", lease_id="l", holder="h", fencing_token=2**53, reason=EndReason.RELEASED)


@pytest.mark.parametrize("value", [2**53, -(2**53), float("nan"), float("inf"), "\ud800", {1: 2}])
def test_non_json_value_has_no_canonical_form(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the library's own words
        canonical(value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e30, 1e30) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_the_canonical_form_is_that_of_rfc_8785(value: object) -> None:
    assert canonical(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


# --- the chain -----------------------------------------------------------------------------------


def test_hash_can_be_computed_by_the_schema() -> None:
    (event,) = chained(DRAFT)
    members = event.members()
    assert members.pop("hash") == event.hash
    payload = json.dumps(members.pop("payload"), sort_keys=True, separators=(",", ":"))
    members["payload_hash"] = hashlib.sha256(payload.encode()).hexdigest()
    whole = json.dumps(members, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(whole.encode()).hexdigest() == event.hash


def test_event_members_have_a_fixed_order() -> None:
    with_intent = DRAFT.model_copy(update={"intent_id": "i1"})
    first, second = chained(with_intent, DRAFT)
    assert list(first.members()) == [
        "sequence", "id", "type", "actor", "intent_id", "payload", "created_at", "previous_hash", "hash",
    ]  # fmt: skip
    assert "intent_id" not in second.members()
    assert first.created_at == "2027-01-15T08:00:01.250Z"
    assert (first.previous_hash, second.previous_hash) == (GENESIS_HASH, first.hash)
    assert (first.sequence, second.sequence) == (1, 2)


@given(LOGS)
def test_any_chained_event_verifies_and_fits_the_schema(events: list[Event]) -> None:
    assert verify(events) == Checkpoint(len(events), events[-1].hash)
    for event in events:
        travelled = json.loads(json.dumps(event.members()))
        assert schema_accepts(travelled)
        assert read_event(travelled) == event
        assert payload_of(event).members() == event.payload


@given(LOGS, st.integers(0, 4))
def test_a_log_verifies_from_any_checkpoint_on(events: list[Event], at: int) -> None:
    at = min(at, len(events))
    assert verify(events[at:], verify(events[:at])) == events[-1].checkpoint
    assert verify([], GENESIS) == GENESIS


@given(LOGS, st.data())
def test_any_change_of_a_stored_event_is_found(events: list[Event], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(events) - 1))
    members = events[at].members()
    changed = data.draw(changes(members))
    changed.pop("more", None)
    if changed.get("intent_id", "") is None:
        # In an Event this is the same as its absence, which is how it travels.
        del changed["intent_id"]
    try:
        is_same = canonical(members) == canonical(changed)
    except ValueError:
        is_same = False
    if not is_same:
        assert broken([*events[:at], Event(**changed), *events[at + 1 :]]).sequence in {at + 1, at + 2}


@given(LOGS, st.data())
def test_missing_repeated_and_moved_events_are_detected(events: list[Event], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(events) - 1))
    without = events[:at] + events[at + 1 :]
    if at == len(events) - 1:
        assert verify(without) != events[-1].checkpoint
    else:
        assert "expected sequence" in broken(without).what
        assert "expected sequence" in broken([*without, events[at]]).what
    assert "expected sequence" in broken([*events[: at + 1], events[at], *events[at + 1 :]]).what


def test_removal_is_detected_although_later_events_are_renumbered() -> None:
    first, _, third = chained(DRAFT, DRAFT, DRAFT)
    error = broken([first, replace(third, sequence=2)])
    assert error.sequence == 2
    assert "before it" in error.what
    relinked = replace(third, sequence=2, previous_hash=first.hash)
    assert "match its hash" in broken([first, relinked]).what


def test_rewritten_log_differs_from_a_stored_checkpoint() -> None:
    honest = chained(DRAFT, DRAFT)
    forged = chained(DRAFT.model_copy(update={"actor": "nobody"}), DRAFT)
    assert verify(forged) != verify(honest)


def test_a_payload_that_cannot_be_hashed_breaks_the_chain() -> None:
    (event,) = chained(DRAFT)
    assert "cannot be hashed" in broken([replace(event, payload={"n": 2**53})]).what


# --- erasure -------------------------------------------------------------------------------------


@given(LOGS, st.sets(st.integers(0, 3)))
def test_erasure_keeps_the_chain_valid(events: list[Event], places: set[int]) -> None:
    after = [erased(event) if at in places else event for at, event in enumerate(events)]
    assert verify(after) == verify(events)
    for event in after:
        assert schema_accepts(event.members())
        assert read_event(event.members()) == event
        assert erased(erased(event)) == erased(event)


def test_erased_event_shows_only_its_hash() -> None:
    event = erased(chained(DRAFT)[0])
    assert event.is_erased
    assert event.payload == {"erased": payload_hash(DRAFT.payload.members())}
    assert isinstance(payload_of(event), Erased)
    assert "agent_billing_01" not in json.dumps(event.members())


def test_another_hash_in_place_of_an_erased_payload_is_found() -> None:
    (event,) = chained(DRAFT)
    assert "match its hash" in broken([replace(event, payload={"erased": "0" * 64})]).what
    more = replace(event, payload={"erased": payload_hash(event.payload), "more": 1})
    assert "match its hash" in broken([more]).what


def test_no_payload_model_accepts_the_form_of_an_erased_payload() -> None:
    for model in PAYLOADS.values():
        with pytest.raises(ValidationError):
            model.model_validate({"erased": "0" * 64})


# --- agreement of schema and models --------------------------------------------------------------


def test_examples_without_hash_are_linked_and_others_kept(tmp_path: Path) -> None:
    for path in VALID:
        members = json.loads(path.read_text())
        if path is VALID[-1]:
            del members["sequence"], members["previous_hash"], members["hash"]
        (tmp_path / path.name).write_text(json.dumps(members))
    link_examples(tmp_path)
    for path in VALID:
        assert json.loads((tmp_path / path.name).read_text()) == json.loads(path.read_text())
    assert (tmp_path / VALID[-1].name).read_text() == VALID[-1].read_text()


def test_types_without_an_example_get_one(tmp_path: Path) -> None:
    kept, left_out = VALID[:-8], VALID[-8:]
    for path in kept:
        (tmp_path / path.name).write_text(path.read_text())
    add_examples(tmp_path)
    events = [read_event(json.loads(path.read_text())) for path in sorted(tmp_path.glob("*.json"))]
    assert verify(events).sequence == len(VALID)
    added = {event.type.value for event in events[len(kept) :]}
    assert added == {json.loads(path.read_text())["type"] for path in left_out}
    assert all(schema_accepts(event.members()) for event in events)


def test_event_schema_matches_the_models() -> None:
    assert schema_of_the_models() == SCHEMA, "run: make schemas"
    Draft202012Validator.check_schema(SCHEMA)


@given(drafts(), st.data())
def test_schema_and_reader_agree_about_every_event(draft: EventDraft, data: st.DataObject) -> None:
    members = data.draw(changes(chained(draft)[0].members()))
    assert schema_accepts(members) is is_read(members)


@pytest.mark.parametrize("path", VALID, ids=name_of)
def test_a_valid_example_is_accepted(path: Path) -> None:
    members = json.loads(path.read_text())
    assert schema_accepts(members)
    assert read_event(members).members() == members


def test_valid_examples_form_a_log_with_every_event_type() -> None:
    events = [read_event(json.loads(path.read_text())) for path in VALID]
    assert verify(events).sequence == len(VALID)
    assert set(EventType) - {event.type for event in events} == set(), (
        "run: make schemas. If it writes no example, add it to schemas/examples/event/valid/ and run again"
    )
    assert any(event.is_erased for event in events)


@pytest.mark.parametrize("path", INVALID, ids=name_of)
def test_an_invalid_example_is_refused(path: Path) -> None:
    members = json.loads(path.read_text())
    assert not schema_accepts(members)
    with pytest.raises(InvalidEvent):
        read_event(members)


@pytest.mark.parametrize("members", [None, [], "event", {}, {"type": "agent.lifecycle"}])
def test_invalid_event_is_refused(members: object) -> None:
    with pytest.raises(InvalidEvent):
        read_event(members)


def test_error_names_event_and_member_without_the_value() -> None:
    members = chained(DRAFT)[0].members()
    members["payload"] = {**members["payload"], "explanation": "sk-" * 200}
    with pytest.raises(InvalidEvent) as caught:
        read_event(members)
    assert caught.value.sequence == 1
    assert str(caught.value).startswith("event 1: payload of agent.lifecycle: explanation: ")
    assert "sk-" not in str(caught.value)


def test_unknown_event_type_is_refused() -> None:
    event = replace(chained(DRAFT)[0], type="agent.unknown")  # type: ignore[arg-type]
    with pytest.raises(InvalidEvent, match="unknown event type"):
        payload_of(event)


def test_chain_can_be_linked_step_by_step() -> None:
    first, second = chained(DRAFT, DRAFT)
    assert link(link(GENESIS, first), second) == second.checkpoint
    with pytest.raises(BrokenChain) as caught:
        link(GENESIS, second)
    assert caught.value.sequence == 1


def test_event_must_be_stored_under_the_agent_that_it_names() -> None:
    (event,) = chained(DRAFT)
    assert link_stored(GENESIS, event, agent_of(event)) == event.checkpoint
    for agent_id in (None, "another"):
        with pytest.raises(BrokenChain, match="stored under another agent_id"):
            link_stored(GENESIS, event, agent_id)
