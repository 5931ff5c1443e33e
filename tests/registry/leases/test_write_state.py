from typing import Any

import pytest
from tests.support.asgi_client import Answer, ask
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role

LEASES = "/api/v1/leases"
STATE = "/api/v1/intents/i1/state/research/web"
RESOURCE = "intent:i1/research/web"


async def _hold(api: RegistryApi, key: str, resource: str = RESOURCE) -> dict[str, Any]:
    answer = await api.ask("POST", LEASES, {"resource": resource, "ttl_seconds": 60}, key=key)
    assert answer.status == 201, answer.body
    return dict(answer.json())


async def _write(
    api: RegistryApi, key: str | Role, token: object, state: object = None, *, path: str = STATE
) -> Answer:
    body = {"step": 1} if state is None else state
    headers = {} if token is None else {"x-fencing-token": str(token)}
    return await api.ask("PUT", path, body, key=key, headers=headers)


async def _agents(api: RegistryApi) -> tuple[str, str]:
    return (
        str((await api.register("agent-1"))["agent_key"]),
        str((await api.register("agent-2"))["agent_key"]),
    )


async def _rejected(api: RegistryApi) -> list[dict[str, Any]]:
    events = await api.events()
    return [event["payload"] for event in events if event["type"] == "fenced_write_rejected"]


def _status_and_code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["error"]["code"]


async def test_the_holder_writes_and_reads_what_it_wrote(api: RegistryApi) -> None:
    key, _ = await _agents(api)
    token = (await _hold(api, key))["fencing_token"]
    first = await _write(api, key, token, {"notes": ["a", 1, None, 2.5]})
    assert first.status == 200
    assert first.json() == {
        "resource": RESOURCE,
        "state": {"notes": ["a", 1, None, 2.5]},
        "version": 1,
        "fencing_token": token,
        "holder": "agent-1",
        "written_at": "2025-11-20T12:00:00.000Z",
    }
    second = await _write(api, key, token, {})
    assert (second.json()["version"], second.json()["state"]) == (2, {})
    for reader in (key, Role.READER, Role.ADMIN):
        assert (await api.ask("GET", STATE, key=reader)).json() == second.json()
    written = [event for event in await api.events() if event["type"] == "state.written"]
    assert [event["payload"]["version"] for event in written] == [1, 2]
    assert {event["intent_id"] for event in written} == {"i1"}


async def test_next_holder_continues_from_the_written_state(api: RegistryApi) -> None:
    mine, other = await _agents(api)
    await _write(api, mine, (await _hold(api, mine))["fencing_token"], {"step": 7})
    api.clock.advance(60)
    assert _status_and_code(await api.ask("GET", STATE, key=other)) == (403, "not_allowed")
    token = (await _hold(api, other))["fencing_token"]
    assert (await api.ask("GET", STATE, key=other)).json()["state"] == {"step": 7}
    assert (await _write(api, other, token)).json()["version"] == 2


@pytest.mark.parametrize(("added", "code"), [(1, "token_not_issued"), (-1, "stale_token")])
async def test_write_with_another_token_is_refused_without_a_change(
    api: RegistryApi, added: int, code: str
) -> None:
    key, _ = await _agents(api)
    await api.ask("DELETE", f"{LEASES}/{(await _hold(api, key))['lease_id']}", key=key)
    token = (await _hold(api, key))["fencing_token"]
    before = (await _write(api, key, token)).json()
    assert _status_and_code(await _write(api, key, token + added, {"step": 2})) == (412, code)
    assert (await api.ask("GET", STATE)).json() == before
    assert await _rejected(api) == [
        {
            "resource": RESOURCE,
            "writer": "agent-1",
            "fencing_token": token + added,
            "current_token": token,
            "reason": code,
        }
    ]


async def test_a_late_write_of_a_replaced_worker_is_refused(api: RegistryApi) -> None:
    mine, other = await _agents(api)
    late = (await _hold(api, mine))["fencing_token"]
    api.clock.advance(60)
    token = (await _hold(api, other))["fencing_token"]
    written = (await _write(api, other, token)).json()
    assert _status_and_code(await _write(api, mine, late, {"step": "late"})) == (412, "stale_token")
    # With the right token it is still another one's lease.
    assert _status_and_code(await _write(api, mine, token, {"step": "late"})) == (412, "stale_token")
    assert (await api.ask("GET", STATE)).json() == written
    assert [payload["reason"] for payload in await _rejected(api)] == ["stale_token", "stale_token"]


async def test_error_of_a_stale_token_does_not_reveal_the_current_token(api: RegistryApi) -> None:
    mine, other = await _agents(api)
    await api.ask("DELETE", f"{LEASES}/{(await _hold(api, mine))['lease_id']}", key=mine)
    token = (await _hold(api, mine))["fencing_token"]
    texts = set()
    for tried in (token - 1, token, token + 1, 999):
        answer = await _write(api, other, tried)
        assert _status_and_code(answer) == (412, "stale_token")
        assert set(answer.json()["error"]["details"]) == {"resource", "token"}
        texts.add(answer.json()["error"]["message"].replace(f"token {tried}", "token"))
    assert len(texts) == 1
    read = await api.ask("GET", "/api/v1/events?type=fenced_write_rejected", key=other)
    assert len(read.json()["events"]) == 4
    assert not [event for event in read.json()["events"] if "current_token" in event["payload"]]
    # A caller that may read all leases sees the cause.
    assert _status_and_code(await _write(api, Role.ADMIN, token)) == (403, "not_holder")
    answer = await _write(api, Role.ADMIN, token - 1)
    assert answer.json()["error"]["details"]["current_token"] == token


async def test_write_at_the_deadline_is_refused_even_without_a_new_holder(api: RegistryApi) -> None:
    key, _ = await _agents(api)
    token = (await _hold(api, key))["fencing_token"]
    api.clock.advance(59.999)
    assert (await _write(api, key, token)).status == 200
    api.clock.advance(0.001)
    assert _status_and_code(await _write(api, key, token, {"step": 2})) == (412, "lease_ended")
    assert _status_and_code(await api.ask("GET", STATE, key=key)) == (403, "not_allowed")
    assert (await api.ask("GET", STATE)).json()["version"] == 1
    assert [payload["reason"] for payload in await _rejected(api)] == ["lease_ended"]


async def test_a_write_after_the_agents_end_is_refused(api: RegistryApi) -> None:
    key, _ = await _agents(api)
    token = (await _hold(api, key))["fencing_token"]
    await api.ask("DELETE", "/api/v1/agents/agent-1")
    assert _status_and_code(await _write(api, key, token)) == (412, "lease_ended")


async def test_write_to_an_unleased_scope_is_refused_and_logged(api: RegistryApi) -> None:
    key, _ = await _agents(api)
    assert _status_and_code(await _write(api, key, 1)) == (412, "token_not_issued")
    assert _status_and_code(await api.ask("GET", STATE)) == (404, "state_not_found")
    assert [payload["reason"] for payload in await _rejected(api)] == ["token_not_issued"]


async def test_a_write_needs_its_token(api: RegistryApi) -> None:
    key, _ = await _agents(api)
    assert _status_and_code(await _write(api, key, None)) == (428, "token_required")
    for nonsense in ("", "one", "-1", "1.0", "9" * 17, str(2**53)):
        assert _status_and_code(await _write(api, key, nonsense)) == (422, "invalid_request")
    assert await _rejected(api) == []


@pytest.mark.parametrize("role", [Role.READER, Role.PROBER, Role.COORDINATOR, Role.ENROLL])
async def test_role_without_leases_cannot_write_state(api: RegistryApi, role: Role) -> None:
    assert _status_and_code(await _write(api, role, 1)) == (403, "not_allowed")
    assert await _rejected(api) == []


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("name", "status"), [("x-fencing-token", 422), ("x-api-key", 401), ("authorization", 401)]
)
@pytest.mark.parametrize("is_same", [True, False])
async def test_duplicate_header_is_ignored(
    api: RegistryApi, name: str, status: int, *, is_same: bool
) -> None:
    key, other = await _agents(api)
    token = (await _hold(api, key))["fencing_token"]
    sent = {"content-type": "application/json", "x-api-key": key, "x-fencing-token": str(token)}
    if name == "authorization":
        sent["authorization"] = f"Bearer {sent.pop('x-api-key')}"
    others = {"x-fencing-token": str(token + 1), "x-api-key": other, "authorization": f"Bearer {other}"}
    headers = [(one.encode(), value.encode()) for one, value in sent.items()]
    doubled = [*headers, (name.encode(), (sent[name] if is_same else others[name]).encode())]
    for orderly in (doubled, doubled[::-1]):
        answer = await ask(api.app, STATE, method="PUT", body={"step": 1}, headers=orderly)
        assert answer.status == status, answer.body
    assert (await ask(api.app, STATE, method="PUT", body={"step": 1}, headers=headers)).status == 200


async def test_state_above_the_size_or_depth_limit_is_refused(api: RegistryApi) -> None:
    key, _ = await _agents(api)
    token = (await _hold(api, key))["fencing_token"]
    deep: Any = 1
    for _ in range(31):
        deep = [deep]
    assert (await _write(api, key, token, {"deep": deep})).status == 200
    assert (await _write(api, key, token, {"deep": [deep]})).status == 422
    assert (await _write(api, key, token, [])).status == 422
    assert (await _write(api, key, token, {"text": "x" * 65_000})).status == 200
    assert (await _write(api, key, token, {"text": "x" * 66_000})).status == 413
    assert (await api.ask("PUT", STATE, key=key, headers={"x-fencing-token": "1"}, raw=b"NaN")).status == 400


@pytest.mark.parametrize(
    "path", ["/api/v1/intents/i1/state/with space", "/api/v1/intents/" + "i" * 129 + "/state/s"]
)
async def test_invalid_resource_path_is_refused(api: RegistryApi, path: str) -> None:
    key, _ = await _agents(api)
    assert _status_and_code(await _write(api, key, 1, path=path)) == (422, "invalid_resource")


@pytest.mark.parametrize("path", [
    "/api/v1/intents/./state/s", "/api/v1/intents/../state/s", "/api/v1/intents/i1/state/a/../s",
    "/api/v1/intents/i1/state/..",
])  # fmt: skip
async def test_state_path_that_proxies_resolve_is_refused(api: RegistryApi, path: str) -> None:
    key, _ = await _agents(api)
    for answer in (await _write(api, key, 1, path=path), await api.ask("GET", path)):
        assert _status_and_code(answer) == (422, "invalid_resource")
        assert "resolve them away" in answer.json()["message"]
