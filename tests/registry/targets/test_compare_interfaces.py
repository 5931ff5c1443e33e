"""Listing and comparing versions of published interfaces over the API."""

from typing import Any

import pytest
from tests.registry.targets.test_interface_changes import SKILLS, TARGET, URL, card, read
from tests.support.databases import WoundClock
from tests.support.directory_api import put
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role

VERSIONS = f"/api/v1/targets/{TARGET}/interface-versions"


@pytest.fixture(autouse=True)
async def listed(api: RegistryApi) -> None:
    await put(api, "dir", "one", [URL])


async def shown(api: RegistryApi, path: str) -> dict[str, Any]:
    answer = await api.ask("GET", path, key=Role.READER)
    assert answer.status == 200, answer.body
    return dict(answer.json())


async def test_interface_versions_are_listed_with_their_changes(api: RegistryApi, clock: WoundClock) -> None:
    assert await shown(api, VERSIONS) == {"target_id": TARGET, "is_unstable": False, "versions": []}
    await read(api, clock, card())
    await read(api, clock, card(name="B"), 1)
    await read(api, clock, card(name="B", skills=SKILLS[:1]), 2)
    result = await shown(api, VERSIONS)
    assert [(each["version"], each.get("changes"), each.get("breaking")) for each in result["versions"]] == [
        (3, 1, True), (2, 1, False), (1, None, None),
    ]  # fmt: skip
    assert [("until" in each, each["kind"]) for each in result["versions"]] == [
        (False, "agent_card"), (True, "agent_card"), (True, "agent_card"),
    ]  # fmt: skip
    assert result["versions"][0]["digest"] == card(name="B", skills=SKILLS[:1]).digest


async def test_unstable_interface_is_marked(api: RegistryApi, clock: WoundClock) -> None:
    await read(api, clock, card())
    await read(api, clock, card(name="B"), 3)
    assert (await shown(api, VERSIONS))["is_unstable"]
    await read(api, clock, None)
    assert not (await shown(api, VERSIONS))["is_unstable"]


async def test_two_versions_are_compared(api: RegistryApi, clock: WoundClock) -> None:
    await read(api, clock, card())
    await read(api, clock, card(name="B"), 1)
    await read(api, clock, card(name="B", skills=[]), 1)
    newest = await shown(api, f"{VERSIONS}/comparison")
    assert (newest["previous_version"], newest["version"], newest["breaking"]) == (2, 3, True)
    assert [change["pointer"] for change in newest["changes"]] == ["/skills/add", "/skills/sub"]
    whole = await shown(api, f"{VERSIONS}/comparison?previous_version=1&version=3")
    assert whole["changes"][0] == {"pointer": "/name", "change": "changed", "breaking": False}
    backwards = await shown(api, f"{VERSIONS}/comparison?previous_version=2&version=1")
    assert [change["pointer"] for change in backwards["changes"]] == ["/name"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?version=2", 404, "interface_version_not_found"),
        ("?previous_version=7", 404, "interface_version_not_found"),
        ("?version=0", 422, "invalid_request"),
        ("?version=x", 422, "invalid_request"),
        ("?from=1", 422, "invalid_request"),
    ],
)
async def test_comparison_of_deleted_versions_is_refused(
    api: RegistryApi, clock: WoundClock, query: str, status: int, code: str
) -> None:
    await read(api, clock, card())
    answer = await api.ask("GET", f"{VERSIONS}/comparison{query}", key=Role.READER)
    assert (answer.status, answer.json()["error"]["code"]) == (status, code)


async def test_single_interface_version_has_no_changes(api: RegistryApi, clock: WoundClock) -> None:
    answer = await api.ask("GET", f"{VERSIONS}/comparison", key=Role.READER)
    assert answer.status == 404
    await read(api, clock, card())
    message = await shown(api, f"{VERSIONS}/comparison")
    assert (message["previous_version"], message["version"], message["changes"]) == (1, 1, [])


async def test_unknown_target_has_no_versions(api: RegistryApi) -> None:
    for path in ("", "/comparison"):
        answer = await api.ask("GET", f"/api/v1/targets/nobody/interface-versions{path}", key=Role.READER)
        assert (answer.status, answer.json()["error"]["code"]) == (404, "target_not_found")


async def test_an_agent_sees_its_own_versions_only(api: RegistryApi, clock: WoundClock) -> None:
    record = await api.register("agent-1")
    await read(api, clock, card())
    assert (await api.ask("GET", VERSIONS, key=record["agent_key"])).status == 403
