from typing import Any

import pytest
from tests.storage.events.test_event_log import appending, draft, written
from tests.support.databases import WoundClock
from tests.support.directory_api import put
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import target_id

EVENTS = "/api/v1/events"


async def test_event_pages_cover_the_whole_log(api: RegistryApi) -> None:
    await api.database.write(appending(*(draft(n) for n in range(25))))
    found: list[int] = []
    page: dict[str, Any] = {"next_after": 0}
    for _ in range(3):
        after = page["next_after"]
        page = (await api.ask("GET", f"{EVENTS}?after={after}&limit=10", key=Role.READER)).json()
        found += [event["sequence"] for event in page["events"]]
    assert found == list(range(1, 26))
    assert (page["next_after"], page["last_sequence"], page["archived_sequence"]) == (25, 25, 0)
    assert set(page["events"][0]) == {
        "sequence", "id", "type", "actor", "payload", "created_at", "previous_hash", "hash",
    }  # fmt: skip


async def test_target_is_shown_by_its_url(api: RegistryApi, clock: WoundClock) -> None:
    url = "https://agent.example/a2a"
    await put(api, "dir", "one", [url])
    seen = {
        "target_url": url,
        "observed_at": moment(clock.at_s).isoformat(),
        "discovery": {"result": "ok", "status_code": 200},
    }
    assert (await api.report(seen, memories=[{}])).status == 200
    page = (await api.ask("GET", f"{EVENTS}?agent_id={target_id(url)}", key=Role.READER)).json()
    assert page["events"]
    assert page["names"][target_id(url)] == "agent.example/a2a"


@pytest.mark.both_databases
async def test_page_of_a_rare_type_continues_at_the_end_of_the_log(api: RegistryApi) -> None:
    await api.database.write(appending(draft(), written("intent:i1/a", "i1"), draft()))
    page = (await api.ask("GET", f"{EVENTS}?type=state.written")).json()
    assert [event["sequence"] for event in page["events"]] == [2]
    assert page["next_after"] == 3
    by_intent = (await api.ask("GET", f"{EVENTS}?intent_id=i1&type=state.written,log.archived")).json()
    assert by_intent["events"][0]["intent_id"] == "i1"


async def test_agents_key_reads_only_its_events(api: RegistryApi) -> None:
    key = await api.add_agent_key("agent_1")
    await api.database.write(appending(draft(), draft(agent_id="agent_2"), draft()))
    own = (await api.ask("GET", EVENTS, key=key)).json()
    assert [event["sequence"] for event in own["events"]] == [1, 3]
    assert (await api.ask("GET", f"{EVENTS}?agent_id=agent_2", key=key)).status == 403
    assert (await api.ask("GET", EVENTS, key=Role.ENROLL)).status == 403


@pytest.mark.parametrize(
    "query",
    ["after=1", "after=-1", "limit=0", "limit=1001", "type=x", "agent_id=%20", "other=1", "after=0&after=0"],
)
async def test_invalid_request_is_refused(api: RegistryApi, query: str) -> None:
    assert (await api.ask("GET", f"{EVENTS}?{query}")).status == 422


async def test_reader_of_all_events_sees_key_names(api: RegistryApi) -> None:
    await api.register("agent_1")
    body = {"seconds": 60, "reason": "new disk"}
    await api.ask("PUT", "/api/v1/agents/agent_1/maintenance", body, key=Role.COORDINATOR)
    page = (await api.ask("GET", EVENTS, key=Role.READER)).json()
    assert page["names"] == {"key:key_admin_": "admin", "key:key_coordinator_": "coordinator"}
    # Keys of the events on the page, and no others.
    first = (await api.ask("GET", f"{EVENTS}?limit=1", key=Role.READER)).json()
    assert set(first["names"]) == {first["events"][0]["actor"]}
    own = (await api.ask("GET", EVENTS, key=await api.add_agent_key("agent_1"))).json()
    assert own["events"][0]["actor"] in page["names"]
    assert own["names"] == {}
