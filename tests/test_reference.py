"""The reference pages agree with the code. After a change: `make schemas`."""

import re
from collections import Counter
from pathlib import Path

import pytest
from tools.reference_pages import PAGES, REFERENCE, commands, options

from lifesign.domain.events.event_type import EventType

SOURCES = Path(__file__).parents[1] / "src"
# Set for an agent's process by its adapter, documented in adapter.md and tool-proxy.md.
HANDED_DOWN = {"LEASE", "TASK_ID", "RUN_ID", "FENCING_TOKEN"}


@pytest.mark.parametrize("name", PAGES)
def test_reference_page_is_up_to_date(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name](), "run: make schemas"


def test_each_command_and_option_is_described() -> None:
    named = dict(commands())
    assert {"lifesign", "lifesign check", "lifesign agents drain"} <= named.keys()
    assert [name for name, command in named.items() if not command.help] == [], "add docstrings"
    # Help itself is not a parameter.
    undescribed = [
        f"{name} {spelled}"
        for name, command in named.items()
        for spelled, result in options(command)
        if not result.split("[")[0].strip() and "agent_id" not in spelled.lower()
    ]
    assert undescribed == [], "add help to these options"


def test_each_event_type_has_a_description_of_its_own() -> None:
    result = (REFERENCE / "events.md").read_text()
    described = dict(re.findall(r"^## (\S+)\n\n([^|\s].*)", result, re.MULTILINE))
    assert [kind for kind in EventType if kind not in described] == [], (
        "add payloads with docstrings, then run: make schemas"
    )
    uses = Counter(described.values())
    assert [kind for kind, text in described.items() if uses[text] > 1] == [], (
        "add docstrings to these members of EventType, then run: make schemas"
    )


def test_every_environment_variable_is_documented() -> None:
    named = {
        name
        for source in SOURCES.rglob("*.py")
        for name in re.findall(r'"(?:\$)?LIFESIGN_([A-Z_]+[A-Z])"', source.read_text())
    }
    assert "KEY" in named
    result = (REFERENCE / "settings.md").read_text()
    assert [name for name in sorted(named - HANDED_DOWN) if f"LIFESIGN_{name}" not in result] == [], (
        "add these variables to tools/reference_pages.py"
    )
