import json
import re
from collections.abc import Callable

import pytest
from tests.registry.events.test_verify_events import execute
from tests.support.asgi_client import Answer, Message
from tests.support.databases import WoundClock
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.access.permissions import PERMISSIONS, Role
from lifesign.domain.errors import InvalidRequest
from lifesign.registry.events.stream_events import StreamQuery
from lifesign.registry.openintent_dialect import OPERATIONS as DIALECT
from lifesign.registry.operation_table import OPERATIONS
from lifesign.registry.request_handling import execution
from lifesign.registry.request_handling.execution import MAX_UNAUTHORIZED_BYTES, checked
from lifesign.storage.engine.table_definitions import keys
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable

UNKNOWN = "ahk_" + "x" * 43
HEARTBEAT = f"{AGENTS}/agent-1/heartbeat"
LEASES = "/api/v1/leases"
RENEW = f"{LEASES}/lease_1_1/renew"
TAKES_BODY = sorted({
    ("POST", HEARTBEAT),
    ("POST", LEASES),
    ("POST", RENEW),
    *((one.method, re.sub(r"{[^}]+}", "1", one.path)) for one in (*OPERATIONS, *DIALECT) if one.body),
})  # fmt: skip
TAKES_QUERY = sorted({
    ("GET", "/api/v1/events/stream"),
    *((one.method, re.sub(r"{[^}]+}", "1", one.path)) for one in (*OPERATIONS, *DIALECT) if one.query),
})  # fmt: skip
NOT_ALLOWED = [
    ("POST", HEARTBEAT, Role.READER),
    ("POST", LEASES, Role.READER),
    ("POST", RENEW, Role.ENROLL),
    ("POST", "/api/v1/keys", Role.COORDINATOR),
    ("PUT", "/api/v1/intents/i/state/s", Role.READER),
    ("GET", f"{AGENTS}?odd=1", Role.ENROLL),
    ("GET", "/api/v1/events/stream?odd=1", Role.ENROLL),
]


@pytest.fixture
async def api(database: Database, clock: WoundClock) -> RegistryApi:
    """The registry that speaks the dialect too."""
    api = RegistryApi(database, clock, dialects=("openintent",))
    await api.add_keys()
    return api


def status_and_code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["error"]["code"]


async def test_unauthorised_caller_learns_nothing_about_bodies(api: RegistryApi) -> None:
    agent_key = await api.add_agent_key("1")
    for method, path in TAKES_BODY:
        for raw in (b"{", b"[1]", b'{"unknown": 1}'):
            for key in (UNKNOWN, None):
                answer = await api.ask(method, path, raw=raw, key=key)
                assert status_and_code(answer) == (401, "unknown_key"), (method, path, raw)
        # Only agents work on tasks.
        permitted = [await api.ask(method, path, raw=b"{", key=key) for key in (Role.ADMIN, agent_key)]
        assert 400 in {answer.status for answer in permitted}, (method, path)


@pytest.mark.both_databases
async def test_unauthorised_caller_learns_nothing_about_media_types(api: RegistryApi) -> None:
    for path in (HEARTBEAT, LEASES, AGENTS):
        for raw, headers in ((b"{}", {"content-type": "text/plain"}), (b" " * 300_000, {})):
            answer = await api.ask("POST", path, raw=raw, key=UNKNOWN, headers=headers)
            assert status_and_code(answer) == (401, "unknown_key"), (path, headers)
            answer = await api.ask("POST", path, raw=raw, headers=headers)
            assert answer.status in {413, 415}, (path, headers)


async def test_long_body_is_received_only_from_permitted_keys(api: RegistryApi) -> None:
    """Anyone can invent a key: without this, each connection of a stranger would keep 8 MiB."""
    for path, method, key, code in (
        (HEARTBEAT, "POST", UNKNOWN, "unknown_key"),
        (HEARTBEAT, "POST", api.keys[Role.READER], "not_allowed"),
        ("/api/v1/observations", "POST", UNKNOWN, "unknown_key"),
        ("/api/v1/observations", "POST", api.keys[Role.READER], "not_allowed"),
        ("/api/v1/directories/d/imports/i/pages/1", "PUT", UNKNOWN, "unknown_key"),
    ):
        received = await _bytes_received(api, method, path, key)
        assert received == (code, MAX_UNAUTHORIZED_BYTES + 1024), (path, code)


async def _bytes_received(api: RegistryApi, method: str, path: str, key: str) -> tuple[str, int]:
    """Send a body that never ends; return the code of the refusal, and how much was received before it."""
    received = 0

    async def receive() -> Message:
        nonlocal received
        received += 1024
        return {"type": "http.request", "body": b" " * 1024, "more_body": True}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"registry.test"), (b"x-api-key", key.encode())],
    }
    await api.app(scope, receive, send)
    return json.loads(sent[1]["body"])["error"]["code"], received


async def test_unauthorised_caller_learns_nothing_about_queries(api: RegistryApi) -> None:
    for method, path in TAKES_QUERY:
        answer = await api.ask(method, f"{path}?odd=1", key=UNKNOWN)
        assert status_and_code(answer) == (401, "unknown_key"), (method, path)
        assert (await api.ask(method, f"{path}?odd=1")).status in {400, 422}, (method, path)


async def test_unauthorised_caller_gets_only_the_refusal(api: RegistryApi) -> None:
    for method, path, role in NOT_ALLOWED:
        answer = await api.ask(method, path, raw=b"{" if method != "GET" else b"", key=role)
        assert status_and_code(answer) == (403, "not_allowed"), (method, path, role)


async def test_key_without_permission_learns_nothing(
    api: RegistryApi,
) -> None:
    refused = 0
    for one in (*OPERATIONS, *DIALECT):
        actions = one.one_of if one.action is None else (one.action,)
        assert actions, one.path
        for role in (Role.ENROLL, Role.READER, Role.PROBER, Role.COORDINATOR):
            if any((role, action) in PERMISSIONS for action in actions):
                continue
            answer = await api.ask(one.method, re.sub(r"{[^}]+}", "1", one.path), raw=b'{"a', key=role)
            assert status_and_code(answer) == (403, "not_allowed"), (one.method, one.path, role)
            refused += 1
    assert refused > 100


async def test_revoked_key_gets_the_same_answer_as_an_unknown_one(api: RegistryApi) -> None:
    await api.register("agent-1")
    for path in (HEARTBEAT, LEASES, AGENTS):
        assert (await api.ask("POST", path, raw=b"{")).status == 400
    await execute(api, keys.update().values(revoked_at_s=0.0))
    for path in (HEARTBEAT, LEASES, AGENTS):
        assert status_and_code(await api.ask("POST", path, raw=b"{")) == (401, "unknown_key")


async def test_malformed_incarnation_or_name_is_reported_only_to_permitted_keys(api: RegistryApi) -> None:
    await api.register("agent-1")
    lives = {"x-agent-incarnation": "two"}
    for method, path in (("POST", HEARTBEAT), ("DELETE", f"{LEASES}/lease_1_1")):
        body = {"status": "active", "client_timestamp": api.time_text()} if method == "POST" else None
        assert status_and_code(await api.ask(method, path, body, key=UNKNOWN, headers=lives)) == (
            401,
            "unknown_key",
        )
        assert status_and_code(await api.ask(method, path, body, headers=lives)) == (422, "invalid_request")
    odd = f"{AGENTS}/no agent/heartbeat"
    assert status_and_code(await api.ask("POST", odd, {}, key=UNKNOWN)) == (401, "unknown_key")
    assert status_and_code(await api.ask("POST", odd, {})) == (404, "agent_not_found")


async def test_request_without_a_fault_needs_no_extra_query(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = (await api.register("agent-1"))["agent_key"]

    async def refuse(_function: Callable[[Transaction], object]) -> None:
        raise StoreUnavailable("nothing was to be read")

    monkeypatch.setattr(api.database, "read", refuse)
    assert (await api.send_heartbeat("agent-1", key)).status == 200
    assert (await api.ask("POST", LEASES, {"resource": "r:1"}, key=key)).status == 201
    assert (
        await api.ask("PATCH", f"{AGENTS}/agent-1", {"name": "a"}, headers={"If-Match": "*"})
    ).status == 200
    # With a key, the key must be known before the error is reported.
    assert status_and_code(await api.ask("POST", HEARTBEAT, raw=b"{", key=key)) == (503, "store_unavailable")


@pytest.mark.both_databases
@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("path", [f"{AGENTS}?", "/api/v1/targets?", "/api/v1/events/stream?"])
async def test_name_repeated_in_a_query_has_one_error(api: RegistryApi, path: str, times: int) -> None:
    name = {"t": "result", "a": "status", "e": "types"}[path.split("/")[3][0]]
    query = "&".join([f"{name}=active"] * times)
    answer = await api.ask("GET", f"{path}{query}&limit=x", key=Role.READER)
    assert answer.status == 422
    faults = answer.json()["error"]["details"]["faults"]
    assert [(fault["pointer"], fault["name"]) for fault in faults] == [(f"/{name}", "repeated")]


QUERY_NAMES = sorted({
    (one.method, re.sub(r"{[^}]+}", "1", one.path), name)
    for one in (*OPERATIONS, *DIALECT)
    if one.query
    for name in one.query.model_fields
} | {("GET", "/api/v1/events/stream", name) for name in StreamQuery.model_fields})  # fmt: skip


@pytest.mark.both_databases
async def test_every_query_refuses_an_empty_value(api: RegistryApi) -> None:
    roles = (Role.ADMIN, Role.PROBER, Role.READER)
    for method, path, name in QUERY_NAMES:
        answers = [await api.ask(method, f"{path}?{name}=", key=key) for key in roles]
        allowed = [answer for answer in answers if answer.status != 403]
        assert allowed, path
        for answer in allowed:
            assert answer.status == (400 if path.startswith("/dialects/") else 422), (path, name)
            (fault,) = answer.json().get("errors") or answer.json()["error"]["details"]["faults"]
            assert (fault["pointer"], fault["name"]) == (f"/{name}", "empty")


async def test_every_operation_refuses_a_body_with_a_repeated_name(api: RegistryApi) -> None:
    raw = b'{"a": {"b~": [1, {"x/y": 1, "x/y": 1}]}}'
    agent_key = await api.add_agent_key("1")
    for method, path in TAKES_BODY:
        keys_of_callers = (Role.ADMIN, Role.PROBER, Role.COORDINATOR, agent_key)
        answers = [await api.ask(method, path, raw=raw, key=key) for key in keys_of_callers]
        allowed = [answer for answer in answers if answer.status != 403]
        assert allowed, path
        for answer in allowed:
            # An answer of the dialect has the faults at its top, too.
            assert answer.status == (400 if path.startswith("/dialects/") else 422), path
            (fault,) = answer.json().get("errors") or answer.json()["error"]["details"]["faults"]
            assert (fault["pointer"], fault["name"]) == ("/a/b~0/1/x~1y", "repeated"), path


async def test_every_operation_bounds_the_members_of_a_body(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "MAX_BODY_MARKS", 5)
    agent_key = await api.add_agent_key("1")
    for method, path in TAKES_BODY:
        keys_of_callers = (Role.ADMIN, Role.PROBER, Role.COORDINATOR, agent_key)
        for raw, is_too_large in ((b'{"a": [1, 1, 1, 1]}', False), (b'{"a": [1, 1, 1, 1, 1]}', True)):
            answers = [await api.ask(method, path, raw=raw, key=key) for key in keys_of_callers]
            allowed = {answer.status == 413 for answer in answers if answer.status != 403}
            assert allowed == {is_too_large}, path


def test_too_many_faults_are_counted_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "MAX_LISTED_FAULTS", 2)
    with pytest.raises(InvalidRequest) as few:
        checked(StreamQuery, {"a": 1, "b": 1})
    assert [fault.pointer for fault in few.value.faults] == ["/a", "/b"]
    with pytest.raises(InvalidRequest) as many:
        checked(StreamQuery, {"a": 1, "b": 1, "c": 1})
    assert [(fault.name, fault.pointer) for fault in many.value.faults] == [("too_many_faults", "")]


async def test_lean_endpoints_refuse_a_valid_body_with_a_repeated_name(api: RegistryApi) -> None:
    record = await api.register("agent-1")
    for path, raw in (
        (HEARTBEAT, b'{"current_load": 1, "current_load": 2}'),
        (LEASES, b'{"resource": "a", "ttl_seconds": 60, "ttl_seconds": 90}'),
    ):
        answer = await api.ask("POST", path, raw=raw, key=record["agent_key"])
        assert answer.status == 422, answer.body
        (fault,) = answer.json()["error"]["details"]["faults"]
        assert fault["name"] == "repeated"
