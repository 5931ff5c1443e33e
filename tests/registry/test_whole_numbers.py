import json
from typing import Any

import pytest
from tests.support.asgi_client import Answer
from tests.support.databases import WoundClock
from tests.support.registry_api import AGENTS, CLIENT_TIME, RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.registry.openintent_dialect import PREFIX
from lifesign.storage.engine.transaction import Database

REGISTRATION = {
    "agent_id": "a",
    "capacity": {"max_concurrent_tasks": 5},
    "heartbeat_config": {
        "interval_seconds": 30, "unhealthy_after_seconds": 90, "dead_after_seconds": 300
    },
    "drain_timeout_seconds": 120,
}  # fmt: skip
HEARTBEAT = {"status": "active", "current_load": 3, "client_timestamp": CLIENT_TIME}


def _no_fraction(text: str) -> Any:
    raise AssertionError(f"a client that expects an integer cannot read {text}")


def _as_integers(answer: Answer) -> Any:
    """Read an answer as a typed client does: any number with a full stop or an exponent is a fault."""
    return json.loads(answer.body, parse_float=_no_fraction)


def _with_fractions(value: Any, suffix: str) -> Any:
    """Return JSON text whose integers are written with a suffix."""
    if isinstance(value, dict):
        members = (f"{json.dumps(name)}: {_with_fractions(one, suffix)}" for name, one in value.items())
        return "{" + ", ".join(members) + "}"
    return f"{value}{suffix}" if isinstance(value, int) else json.dumps(value)


@pytest.mark.parametrize("suffix", ["", ".0", ".000", "e0", "0e-1"])
async def test_integers_are_accepted_in_each_notation_and_written_without_a_fraction(
    api: RegistryApi, suffix: str
) -> None:
    raw = _with_fractions(REGISTRATION, suffix).encode()
    registered = await api.ask("POST", AGENTS, raw=raw)
    assert registered.status == 201, registered.body
    record = _as_integers(registered)
    assert {name: record[name] for name in ("heartbeat_config", "drain_timeout_seconds")} == {
        name: REGISTRATION[name] for name in ("heartbeat_config", "drain_timeout_seconds")
    }
    assert record["capacity"] == {"max_concurrent_tasks": 5, "current_load": 0}
    path, key = f"{AGENTS}/a", record["agent_key"]
    command = _with_fractions({"command": "drain", "drain_timeout_seconds": 7}, suffix).encode()
    sent = _as_integers(await api.ask("POST", f"{path}/commands", raw=command, key=Role.COORDINATOR))
    assert sent["drain_timeout_seconds"] == 7
    send_heartbeat = await api.ask(
        "POST", f"{path}/heartbeat", raw=_with_fractions(HEARTBEAT, suffix).encode(), key=key
    )
    assert send_heartbeat.status == 200, send_heartbeat.body
    assert _as_integers(send_heartbeat)["pending_commands"][0]["drain_timeout_seconds"] == 7
    assert _as_integers(await api.ask("GET", path))["capacity"]["current_load"] == 3
    listed = _as_integers(await api.ask("GET", f"{AGENTS}?min_available_capacity=2"))
    assert listed["total"] == 1
    members = {"max_concurrent_tasks": 6, "heartbeat_config": {"interval_seconds": 20}}
    change = _with_fractions(members, suffix)
    headers = {"if-match": record["etag"]}
    changed = await api.ask("PATCH", path, raw=change.encode(), key=key, headers=headers)
    assert _as_integers(changed)["heartbeat_config"]["interval_seconds"] == 20
    drain = _with_fractions({"status": "draining", "drain_timeout_seconds": 9}, suffix)
    drained = await api.ask("PATCH", f"{path}/status", raw=drain.encode(), key=key, headers={"if-match": "*"})
    assert _as_integers(drained)["status"] == "draining"
    _as_integers(await api.ask("GET", "/api/v1/events"))


async def test_lease_integers_are_accepted_in_each_notation(api: RegistryApi) -> None:
    key = (await api.register("a"))["agent_key"]
    taken = await api.ask("POST", "/api/v1/leases", raw=b'{"resource": "r", "ttl_seconds": 60.0}', key=key)
    lease = _as_integers(taken)
    path = f"/api/v1/leases/{lease['lease_id']}/renew"
    renewed = await api.ask("POST", path, raw=b'{"fencing_token": 1.0, "ttl_seconds": 60}', key=key)
    assert _as_integers(renewed)["fencing_token"] == 1
    assert (await api.ask("POST", path, raw=b'{"fencing_token": 1.5}', key=key)).status == 422


@pytest.mark.parametrize("value", ["156.5", "1e-3", "true", '"156"', "1e999", "[156]"])
@pytest.mark.parametrize(
    "name", ["interval_seconds", "unhealthy_after_seconds", "dead_after_seconds", "max_concurrent_tasks"]
)
async def test_non_integer_is_refused_with_its_place(api: RegistryApi, name: str, value: str) -> None:
    member = "capacity" if name == "max_concurrent_tasks" else "heartbeat_config"
    answer = await api.ask("POST", AGENTS, raw=f'{{"{member}": {{"{name}": {value}}}}}'.encode())
    if value == "1e999":
        assert answer.status == 400
        return
    assert answer.status == 422
    (fault,) = answer.json()["error"]["details"]["faults"]
    assert fault["pointer"] == f"/{member}/{name}"
    assert "whole number" in fault["message"]


@pytest.mark.parametrize("value", ["3.5", "true", '"3"'])
async def test_load_that_is_no_integer_is_refused(api: RegistryApi, value: str) -> None:
    key = (await api.register("a"))["agent_key"]
    raw = f'{{"status": "active", "current_load": {value}, "client_timestamp": "{CLIENT_TIME}"}}'.encode()
    assert (await api.ask("POST", f"{AGENTS}/a/heartbeat", raw=raw, key=key)).status == 422


async def test_fractional_drain_timeout_is_returned_unchanged(api: RegistryApi) -> None:
    assert (await api.register("a", drain_timeout_seconds=1.5))["drain_timeout_seconds"] == 1.5


@pytest.mark.both_databases
async def test_integers_of_the_dialect_are_written_without_a_fraction(
    database: Database, clock: WoundClock
) -> None:
    api = RegistryApi(database, clock, dialects=("openintent",))
    await api.add_keys()
    raw = _with_fractions(REGISTRATION, ".0").encode()
    registered = await api.ask("POST", f"{PREFIX}/agents/register", raw=raw)
    assert _as_integers(registered)["heartbeat_config"] == REGISTRATION["heartbeat_config"]
    _as_integers(await api.ask("GET", f"{PREFIX}/agents/a/record"))
    _as_integers(await api.ask("GET", f"{PREFIX}/agents"))
