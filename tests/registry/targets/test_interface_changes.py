"""Versions of published interfaces, and the events about their changes."""

import logging
from typing import Any

import pytest
from sqlalchemy import text
from tests.registry.events.test_verify_events import report as log_report
from tests.registry.test_history_pruning import tidy_up
from tests.support.databases import WoundClock
from tests.support.directory_api import put
from tests.support.registry_api import RegistryApi
from tests.support.repetitions import in_faults

from lifesign.domain.models.base import moment
from lifesign.domain.published_interface.card_interface import card_interface
from lifesign.domain.published_interface.published import Interface
from lifesign.domain.published_interface.tool_interface import tool_interface
from lifesign.domain.published_interface.version_history import EVENT_SECONDS, MAX_VERSIONS, UNSTABLE_READINGS
from lifesign.domain.targets.target import target_id
from lifesign.registry.history_pruning import DAY_SECONDS, HistoryPruner
from lifesign.storage.engine.transaction import Transaction

pytestmark = pytest.mark.both_databases

URL = "https://agent.example/"
TARGET = target_id(URL)
SKILLS = [{"id": name, "name": name} for name in ("add", "sub")]


def card(**members: Any) -> Interface:
    return card_interface({"name": "Adder", "url": f"{URL}a2a", "skills": SKILLS, **members})


@pytest.fixture(autouse=True)
async def listed(api: RegistryApi) -> None:
    await put(api, "dir", "one", [URL])


async def read(
    api: RegistryApi, clock: WoundClock, interface: Interface | None, in_row: int = 0, result: str = "ok"
) -> None:
    """Report a probe that read an interface; None: it found the one of before."""
    clock.advance(1)
    seen = {"target_url": URL, "observed_at": moment(clock.at_s).isoformat(), "discovery": {"result": result}}
    memory: dict[str, Any] = {"card_url": URL, "interface_changes": in_row}
    forms: dict[str, Any] = {} if interface is None else {"interfaces": [interface.form]}
    answer = await api.report(seen, memories=[memory], **forms)
    assert answer.status == 200, answer.body


async def events(api: RegistryApi) -> list[dict[str, Any]]:
    found = await api.events()
    return [event["payload"] for event in found if event["type"] == "target.interface_changed"]


async def rows(api: RegistryApi, query: str) -> list[tuple[Any, ...]]:
    def find(transaction: Transaction) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in transaction.connection.execute(text(query))]

    return await api.database.read(find)


async def versions(api: RegistryApi) -> list[tuple[int, str]]:
    return [(number, digest) for number, digest in await rows(
        api, "SELECT number, digest FROM interface_versions ORDER BY number"
    )]  # fmt: skip


async def test_a_removed_skill_is_one_breaking_event(api: RegistryApi, clock: WoundClock) -> None:
    first, second = card(), card(skills=SKILLS[:1])
    await read(api, clock, first)
    assert await events(api) == []
    await read(api, clock, second, 1)
    assert await events(api) == [
        {
            "agent_id": TARGET,
            "target_id": TARGET,
            "previous_version": 1,
            "version": 2,
            "breaking": True,
            "changes": [{"pointer": "/skills/sub", "change": "removed", "breaking": True}],
            "omitted": 0,
        }
    ]
    assert await versions(api) == [(1, first.digest), (2, second.digest)]
    # The newest version alone is current.
    assert await rows(api, "SELECT number FROM interface_versions WHERE until_s IS NULL") == [(2,)]


async def test_changed_tools_of_an_mcp_server_are_one_event(api: RegistryApi, clock: WoundClock) -> None:
    tool = {"name": "add", "description": "Adds numbers", "inputSchema": {"type": "object"}}
    await read(api, clock, tool_interface([tool, {"name": "sub"}]))
    stricter = {**tool, "inputSchema": {"type": "object", "required": ["a"]}}
    await read(api, clock, tool_interface([stricter]), 1)
    [event] = await events(api)
    assert (event["target_id"], event["version"], event["breaking"]) == (TARGET, 2, True)
    changes = {change["pointer"]: change["breaking"] for change in event["changes"]}
    assert changes["/tools/sub"]
    assert any(pointer.startswith("/tools/add/") for pointer in changes)


async def test_the_same_interface_reported_again_is_no_version(api: RegistryApi, clock: WoundClock) -> None:
    await read(api, clock, card())
    await read(api, clock, card())
    await read(api, clock, None)
    assert [number for number, _ in await versions(api)] == [1]
    assert await events(api) == []


async def test_changes_within_a_day_are_one_event_a_day_later(api: RegistryApi, clock: WoundClock) -> None:
    pruner = HistoryPruner(api.database)
    await read(api, clock, card())
    for in_row, name in enumerate(("B", "C"), start=1):
        await read(api, clock, card(name=name), in_row)
    await read(api, clock, card(name="D", skills=[]), 1)
    await pruner.tidy_up()
    assert [event["version"] for event in await events(api)] == [2]
    clock.advance(EVENT_SECONDS)
    await pruner.tidy_up()
    await pruner.tidy_up()
    found = await events(api)
    assert [(event["previous_version"], event["version"]) for event in found] == [(1, 2), (2, 4)]
    assert {change["pointer"] for change in found[1]["changes"]} == {"/name", "/skills/add", "/skills/sub"}


async def test_change_reverted_within_a_day_causes_no_event(api: RegistryApi, clock: WoundClock) -> None:
    await read(api, clock, card())
    await read(api, clock, card(name="B"), 1)
    await read(api, clock, card(name="C"), 1)
    await read(api, clock, card(name="B"), 1)
    clock.advance(EVENT_SECONDS)
    await HistoryPruner(api.database).tidy_up()
    assert len(await events(api)) == 1
    assert await rows(api, "SELECT baseline, due_at_s FROM interface_states") == [(4, None)]


@pytest.mark.parametrize("readings", [15, *in_faults(2 * MAX_VERSIONS)])
async def test_an_interface_that_differs_at_each_reading_is_logged_once_and_kept_bounded(
    api: RegistryApi, clock: WoundClock, caplog: pytest.LogCaptureFixture, readings: int
) -> None:
    pruner = HistoryPruner(api.database)
    await read(api, clock, card())
    with caplog.at_level(logging.WARNING, "lifesign.registry"):
        for number in range(1, readings + 1):
            clock.advance(EVENT_SECONDS)
            await read(api, clock, card(name=f"N{number}"), number)
            await pruner.tidy_up()
    assert len([record for record in caplog.records if TARGET in record.getMessage()]) == 1
    assert len(await events(api)) == UNSTABLE_READINGS - 1
    assert (await versions(api))[-1] == (UNSTABLE_READINGS + 1, card(name=f"N{readings}").digest)
    # The last change becomes an event as soon as two readings in a row agree.
    await read(api, clock, None)
    clock.advance(2 * EVENT_SECONDS)
    await pruner.tidy_up()
    assert [event["version"] for event in await events(api)] == [2, 3, 4]


async def test_twenty_versions_are_kept_including_that_of_the_last_event(
    api: RegistryApi, clock: WoundClock
) -> None:
    await read(api, clock, card())
    for number in range(1, 31):
        await read(api, clock, card(name=f"N{number}"), 1)
    kept = [number for number, _ in await versions(api)]
    assert len(kept) == MAX_VERSIONS
    assert kept == [2, *range(13, 32)]
    assert len(await events(api)) == 1


async def test_replaced_versions_are_deleted_after_ninety_days_except_the_newest(
    api: RegistryApi, clock: WoundClock
) -> None:
    await read(api, clock, card())
    clock.advance(200 * DAY_SECONDS)
    await read(api, clock, card(name="B"), 1)
    await tidy_up(api)
    # It was the newest one until now.
    assert [number for number, _ in await versions(api)] == [1, 2]
    clock.advance(91 * DAY_SECONDS)
    await tidy_up(api)
    assert [number for number, _ in await versions(api)] == [2]


async def test_never_alive_target_has_versions_and_no_events(api: RegistryApi, clock: WoundClock) -> None:
    # Its card could be read only in part: nothing here shows an agent.
    await read(api, clock, card(), result="timeout")
    await read(api, clock, card(name="B"), 1, result="timeout")
    assert [number for number, _ in await versions(api)] == [1, 2]
    assert await events(api) == []
    assert await rows(api, "SELECT baseline, due_at_s FROM interface_states") == [(2, None)]


async def test_changes_beyond_the_limit_of_an_event_are_counted(api: RegistryApi, clock: WoundClock) -> None:
    await read(api, clock, card(skills=[{"id": f"s{number:03}"} for number in range(150)]))
    await read(api, clock, card(skills=[]), 1)
    (event,) = await events(api)
    assert (len(event["changes"]), event["omitted"], event["breaking"]) == (32, 118, True)


async def test_hostile_names_do_not_break_the_log(api: RegistryApi, clock: WoundClock) -> None:
    await read(api, clock, card())
    form = {"kind": "agent_card", "skills": {"\u0000\u2028\u202e" * 90 + "/~": {"name": "x"}}, "tools": [1]}
    clock.advance(1)
    seen = {"target_url": URL, "observed_at": moment(clock.at_s).isoformat(), "discovery": {"result": "ok"}}
    assert (await api.report(seen, interfaces=[form])).status == 200
    (event,) = await events(api)
    assert event["breaking"]
    assert (await log_report(api)).is_good


@pytest.mark.parametrize(
    "interfaces",
    [[], [{"kind": "other"}], [{"kind": "agent_card", "name": "x" * 40_000}], ["text"]],
)
async def test_invalid_interface_is_refused(
    api: RegistryApi, clock: WoundClock, interfaces: list[Any]
) -> None:
    seen = {"target_url": URL, "observed_at": moment(clock.at_s).isoformat(), "discovery": {"result": "ok"}}
    assert (await api.report(seen, interfaces=interfaces)).status in {400, 422}
    assert await versions(api) == []


async def test_erasing_a_target_removes_its_versions(api: RegistryApi, clock: WoundClock) -> None:
    await read(api, clock, card())
    assert (await api.ask("DELETE", f"/api/v1/agents/{TARGET}/record")).status == 200
    assert await rows(api, "SELECT number FROM interface_versions") == []
    assert await rows(api, "SELECT target FROM interface_states") == []
