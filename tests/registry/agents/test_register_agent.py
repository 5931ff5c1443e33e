import pytest
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.access.event_actor import OwnActor
from lifesign.domain.access.permissions import Role
from lifesign.domain.targets.target import target_id
from lifesign.storage.agents import agent_rows

TARGET = target_id("https://agent.example/")

FULL = {
    "agent_id": "agent_billing_01",
    "role_id": "billing-processor",
    "name": "Billing Processor",
    "capabilities": ["billing", "invoicing", "billing"],
    "capacity": {"max_concurrent_tasks": 5},
    "endpoint": "https://billing-agent.example.com/webhook",
    "heartbeat_config": {
        "interval_seconds": 30,
        "unhealthy_after_seconds": 90,
        "dead_after_seconds": 300,
    },
    "metadata": {"version": "1.2.0", "nested": {"a": [1, 2]}},
}


async def test_a_registered_agent_is_active_and_gets_its_own_key_once(api: RegistryApi) -> None:
    answer = await api.ask("POST", AGENTS, FULL, key=Role.ENROLL)
    record = answer.json()
    assert answer.status == 201
    assert answer.header("etag") == '"1"'
    assert answer.header("location") == "/api/v1/agents/agent_billing_01"
    assert record["status"] == "active"
    assert (record["version"], record["incarnation"]) == (1, 1)
    assert record["capacity"] == {"max_concurrent_tasks": 5, "current_load": 0}
    assert record["capabilities"] == ["billing", "invoicing"]
    assert record["heartbeat_config"] == FULL["heartbeat_config"]
    assert record["metadata"] == FULL["metadata"]
    assert record["registered_at"] == record["last_heartbeat_at"] == "2025-11-20T12:00:00.000Z"
    assert record["agent_key"].startswith("ahk_")
    shown = await api.record("agent_billing_01")
    assert "agent_key" not in shown
    assert await api.lifecycle("agent_billing_01") == [("registering", "active", "registered")]


async def test_without_an_id_the_registry_chooses_one(api: RegistryApi) -> None:
    answer = await api.ask("POST", AGENTS, {}, key=Role.COORDINATOR)
    assert answer.json()["agent_id"].startswith("agent_")
    assert answer.json()["heartbeat_config"]["unhealthy_after_seconds"] == 90


@pytest.mark.both_databases
async def test_registration_of_an_alive_agent_is_refused(api: RegistryApi) -> None:
    await api.register("agent-1")
    answer = await api.ask("POST", AGENTS, {"agent_id": "agent-1"})
    assert answer.status == 409
    assert answer.json()["error"]["code"] == "already_registered"
    assert answer.json()["error"]["details"]["status"] == "active"


async def test_agent_supersedes_its_former_incarnation_in_one_request(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.send_heartbeat("agent-1", key, current_load=3)
    answer = await api.ask("POST", AGENTS, {"agent_id": "agent-1", "supersede": True}, key=key)
    record = answer.json()
    assert answer.status == 201
    assert (record["version"], record["incarnation"], record["etag"]) == (1, 2, '"2.1"')
    assert record["capacity"]["current_load"] == 0
    assert "agent_key" not in record
    assert (await api.lifecycle("agent-1"))[1:] == [
        ("active", "deregistered", "superseded"),
        ("deregistered", "active", "re_registered"),
    ]


async def test_former_agent_returns_with_the_same_key_and_a_new_incarnation(api: RegistryApi) -> None:
    key = (await api.register("agent-1", name="old"))["agent_key"]
    await api.ask("DELETE", f"{AGENTS}/agent-1", key=key)
    answer = await api.ask("POST", AGENTS, {"agent_id": "agent-1", "capabilities": ["new"]}, key=key)
    assert answer.status == 201
    assert answer.header("etag") == '"2.1"'
    assert answer.json()["capabilities"] == ["new"]
    assert "name" not in answer.json()
    assert (await api.send_heartbeat("agent-1", key)).status == 200


async def test_only_an_admin_replaces_a_revoked_key(api: RegistryApi) -> None:
    registered = await api.ask("POST", AGENTS, {"agent_id": "agent-1"}, key=Role.ENROLL)
    keys = (await api.ask("GET", "/api/v1/keys", key=Role.ADMIN)).json()["keys"]
    (key_id,) = (key["key_id"] for key in keys if key.get("agent_id") == "agent-1")
    assert (await api.ask("DELETE", f"/api/v1/keys/{key_id}", key=Role.ADMIN)).status == 204
    again = {"agent_id": "agent-1", "supersede": True}
    assert "agent_key" not in (await api.ask("POST", AGENTS, again, key=Role.COORDINATOR)).json()
    new = (await api.ask("POST", AGENTS, again, key=Role.ADMIN)).json()["agent_key"]
    assert new != registered.json()["agent_key"]


async def test_enrolling_key_cannot_take_over_an_agent(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    await api.ask("DELETE", f"{AGENTS}/agent-1", key=key)
    answer = await api.ask("POST", AGENTS, {"agent_id": "agent-1"}, key=Role.ENROLL)
    assert answer.status == 403
    assert (await api.record("agent-1"))["status"] == "deregistered"


@pytest.mark.both_databases
@pytest.mark.parametrize("is_revoked", [False, True])
async def test_enrolling_key_cannot_register_an_agent_that_has_a_key(
    api: RegistryApi, *, is_revoked: bool
) -> None:
    wanted = {"role": "agent", "name": "alone", "agent_id": "agent-1"}
    created = (await api.ask("POST", "/api/v1/keys", wanted, key=Role.ADMIN)).json()
    if is_revoked:
        await api.ask("DELETE", f"/api/v1/keys/{created['key_id']}", key=Role.ADMIN)
    answer = await api.ask("POST", AGENTS, {"agent_id": "agent-1"}, key=Role.ENROLL)
    assert (answer.status, answer.json()["error"]["code"]) == (403, "not_allowed")
    assert (await api.ask("GET", f"{AGENTS}/agent-1", key=Role.ADMIN)).status == 404
    for able in (Role.COORDINATOR, Role.ADMIN, *(() if is_revoked else (created["key"],))):
        again = {"agent_id": "agent-1", "supersede": True}
        assert (await api.ask("POST", AGENTS, again, key=able)).status == 201


async def test_an_agents_key_registers_no_other_agent(api: RegistryApi) -> None:
    key = (await api.register("agent-1"))["agent_key"]
    answer = await api.ask("POST", AGENTS, {"agent_id": "agent-2"}, key=key)
    assert answer.status == 403


@pytest.mark.parametrize("role", [Role.READER, Role.PROBER])
async def test_other_roles_cannot_register(api: RegistryApi, role: Role) -> None:
    assert (await api.ask("POST", AGENTS, {}, key=role)).status == 403


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"agent_id": "no spaces"}, "/agent_id"),
        ({"agent_id": "a" * 129}, "/agent_id"),
        ({"agent_id": "ä"}, "/agent_id"),
        ({"agent_id": 7}, "/agent_id"),
        ({"name": "line\nbreak"}, "/name"),
        ({"capabilities": ["a,b"]}, "/capabilities/0"),
        ({"capabilities": ["x"] * 65}, "/capabilities"),
        ({"capacity": {"max_concurrent_tasks": -1}}, "/capacity/max_concurrent_tasks"),
        ({"capacity": {"max_concurrent_tasks": 1.5}}, "/capacity/max_concurrent_tasks"),
        ({"endpoint": "javascript:alert(1)"}, "/endpoint"),
        ({"heartbeat_config": {"interval_seconds": 0}}, "/heartbeat_config/interval_seconds"),
        ({"heartbeat_config": {"interval_seconds": 60}}, "/heartbeat_config"),
        ({"heartbeat_config": {"dead_after_seconds": 100}}, "/heartbeat_config"),
        ({"metadata": {"deep": [[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]}}, "/metadata"),
        ({"metadata": {"large": "x" * 20_000}}, "/metadata"),
        ({"monitoring": "probe"}, ""),
        ({"superseed": True}, "/superseed"),
    ],
)
async def test_invalid_registration_body_is_refused_with_its_pointer(
    api: RegistryApi, members: dict[str, object], pointer: str
) -> None:
    answer = await api.ask("POST", AGENTS, members)
    assert answer.status == 422
    assert [fault["pointer"] for fault in answer.json()["error"]["details"]["faults"]] == [pointer]
    assert (await api.ask("GET", AGENTS)).json()["total"] == 0


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"a": NaN}', 400),
        (b"[" * 100_000, 413),
        (b"[" * 60_000, 400),
        (b'{"agent_id": "\xff"}', 400),
        (b"[]", 422),
        (b"null", 422),
        (b'"x"', 422),
        (b'{"metadata": "' + b"x" * 70_000 + b'"}', 413),
    ],
)
async def test_a_body_that_is_no_registration_is_refused(api: RegistryApi, raw: bytes, status: int) -> None:
    assert (await api.ask("POST", AGENTS, raw=raw)).status == status


async def test_missing_and_wrong_keys_get_the_same_answer(api: RegistryApi) -> None:
    absent = await api.ask("POST", AGENTS, {}, key=None)
    wrong = await api.ask("POST", AGENTS, {}, key="ahk_" + "x" * 43)
    misshapen = await api.ask("POST", AGENTS, {}, key="x")
    assert absent.status == wrong.status == misshapen.status == 401
    assert absent.body == wrong.body == misshapen.body
    assert absent.header("www-authenticate") == "Bearer"


@pytest.mark.parametrize("role", [Role.ENROLL, Role.COORDINATOR, Role.ADMIN])
@pytest.mark.parametrize(
    ("agent_id", "why"),
    [
        *[(name, "registry reserves key") for name in (*OwnActor, "Monitor", "key:x", "Key:x")],
        *[(name, "probed targets") for name in (TARGET, TARGET.upper())],
        (".", "path cannot contain"),
        ("..", "path cannot contain"),
    ],
)
async def test_reserved_names_and_names_invalid_in_a_path_are_refused(
    api: RegistryApi, agent_id: str, why: str, role: Role
) -> None:
    answer = await api.ask("POST", AGENTS, {"agent_id": agent_id, "supersede": True}, key=role)
    assert answer.status == 422
    (fault,) = answer.json()["error"]["details"]["faults"]
    assert fault["pointer"] == "/agent_id"
    assert fault["message"].startswith("expected another id")
    assert why in fault["message"]


async def test_dot_and_dot_dot_are_refused_as_pool_names(api: RegistryApi) -> None:
    for role_id in (".", ".."):
        assert (await api.ask("POST", AGENTS, {"role_id": role_id})).status == 422
    assert (await api.ask("POST", AGENTS, {"role_id": "server", "agent_id": "..."})).status == 201


@pytest.mark.parametrize("member", ["endpoint", "card_url"])
@pytest.mark.parametrize(
    "url", ["http://user:pw@host/", "https://user@host", "http://@host", "http://a@b@c?d"]
)
async def test_registration_url_with_a_password_is_refused_without_quoting_it(
    api: RegistryApi, member: str, url: str
) -> None:
    answer = await api.ask("POST", AGENTS, {"agent_id": "a", member: url})
    assert answer.status == 422
    assert "pw" not in answer.body.decode()


async def test_at_sign_outside_the_authority_of_a_url_is_accepted(api: RegistryApi) -> None:
    assert (await api.register("a", endpoint="http://host/@me?to=a@b#c@d"))["agent_id"] == "a"


async def test_conflict_with_an_alive_agent_explains_supersede(api: RegistryApi) -> None:
    await api.register("a")
    assert "supersede: true" in (await api.ask("POST", AGENTS, {"agent_id": "a"})).json()["message"]


@pytest.mark.parametrize(("intervals_s", "expected_s"), [((), 300), ((1_800, 10), 1_800), ((10,), 300)])
async def test_first_result_is_expected_within_the_interval_of_active_probers(
    api: RegistryApi, intervals_s: tuple[float, ...], expected_s: float
) -> None:
    for number, interval_s in enumerate(intervals_s):
        body = {"worker": f"w{number}", "interval_s": interval_s, "ttl_seconds": 300}
        assert (await api.ask("POST", "/api/v1/shards/claim", body, key=Role.PROBER)).status == 200
    await api.register("agent-1", monitoring="probe", card_url="https://a.example/card.json")
    stored = await api.database.read(lambda transaction: agent_rows.find(transaction, "agent-1"))
    assert stored is not None
    assert stored.evidence.results_until_s == api.clock.at_s + 3 * expected_s
