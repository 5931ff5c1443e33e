import re

from tests.support.repository import REPOSITORY

from lifesign.domain.events.event_type import PAYLOADS, EventType

SOURCES = REPOSITORY / "src/lifesign"
READERS = ("dashboard", "domain")
"""Packages whose code reads events and sends none."""


def test_every_type_of_event_has_its_payload() -> None:
    assert [kind for kind in EventType if kind not in PAYLOADS] == [], "add rows to PAYLOADS"


def test_code_sends_each_type_of_event() -> None:
    used = {
        name
        for file in SOURCES.rglob("*.py")
        if file.relative_to(SOURCES).parts[0] not in READERS
        for name in re.findall(r"EventType\.([A-Z_]+)", file.read_text())
    }
    assert EventType.__members__.keys() - used == set(), (
        "no code sends events of these types: event_log.append(transaction, [EventDraft(...)]), "
        "as in registry/targets/opt_out_origins.py"
    )
