from lifesign.domain.events.event_type import PAYLOADS, EventType


def test_every_type_of_event_has_its_payload() -> None:
    assert [kind for kind in EventType if kind not in PAYLOADS] == [], "add rows to PAYLOADS"
