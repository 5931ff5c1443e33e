import logging
import re
from pathlib import Path

import pytest
from tests.support.databases import WoundClock
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import HEALTH_PATH, REPOSITORY

from lifesign.domain.access.permissions import Role
from lifesign.registry.agents.check_ready import READY_AGENT_PATH, STATUS_HEADER
from lifesign.storage.engine.database import open_database

HEADER = STATUS_HEADER.lower()


@pytest.mark.both_databases
async def test_an_active_agent_is_ready(api: RegistryApi) -> None:
    await api.register("a")
    answer = await api.ask("GET", f"{AGENTS}/a/ready", key=Role.READER)
    assert (answer.status, answer.header(HEADER)) == (200, "active")
    assert answer.json() == {"agent_id": "a", "status": "active", "reason": "registered"}
    assert answer.header("cache-control") == "no-store"


async def test_a_draining_and_a_deregistered_agent_are_not_ready(api: RegistryApi) -> None:
    record = await api.register("a")
    await api.send_heartbeat("a", record["agent_key"], status="draining", current_load=1)
    answer = await api.ask("GET", f"{AGENTS}/a/ready")
    assert (answer.status, answer.header(HEADER), answer.json()["status"]) == (503, "draining", "draining")
    assert (await api.ask("DELETE", f"{AGENTS}/a")).status == 204
    answer = await api.ask("GET", f"{AGENTS}/a/ready")
    assert (answer.status, answer.header(HEADER)) == (503, "deregistered")


async def test_missed_heartbeats_end_readiness_and_the_next_one_restores_it(
    api: RegistryApi, clock: WoundClock
) -> None:
    registered = await api.register("a")
    witness = await api.register("b")
    clock.advance(91)
    await api.send_heartbeat("b", witness["agent_key"])
    await api.sweep()
    answer = await api.ask("GET", f"{AGENTS}/a/ready")
    assert (answer.status, answer.header(HEADER)) == (503, "unhealthy")
    assert answer.json()["reason"] == "heartbeat_timeout"
    await api.send_heartbeat("a", registered["agent_key"])
    assert (await api.ask("GET", f"{AGENTS}/a/ready")).status == 200


async def test_refused_readiness_request_has_no_status_header(api: RegistryApi) -> None:
    record = await api.register("a")
    await api.register("b")
    refused = [
        await api.ask("GET", f"{AGENTS}/a/ready", key=None),
        await api.ask("GET", f"{AGENTS}/b/ready", key=record["agent_key"]),
        await api.ask("GET", f"{AGENTS}/absent/ready", key=Role.READER),
    ]
    assert [answer.status for answer in refused] == [401, 403, 404]
    assert [answer.header(HEADER) for answer in refused] == [None] * 3
    own = await api.ask("GET", f"{AGENTS}/a/ready", key=record["agent_key"])
    assert (own.status, own.header(HEADER)) == (200, "active")


async def test_readiness_with_a_damaged_database_is_503_without_a_status(
    tmp_path: Path, clock: WoundClock
) -> None:
    (tmp_path / "registry.db").write_bytes(b"Dear diary, " * 1_000)
    database = open_database(f"sqlite:///{tmp_path}/registry.db")
    answer = await RegistryApi(database, clock).ask("GET", f"{AGENTS}/a/ready")
    await database.close()
    assert (answer.status, answer.header(HEADER)) == (503, None)
    assert answer.json()["error"]["code"] == "store_unavailable"


async def test_an_agent_that_is_not_ready_is_no_fault_of_the_registry(
    api: RegistryApi, caplog: pytest.LogCaptureFixture
) -> None:
    await api.register("a")
    await api.ask("DELETE", f"{AGENTS}/a")
    with caplog.at_level(logging.INFO, "lifesign.registry"):
        for _ in range(50):
            assert (await api.ask("GET", f"{AGENTS}/a/ready")).status == 503
    assert "call.refused" not in caplog.messages
    document = (await api.ask("GET", HEALTH_PATH, key=None)).json()
    counted = document["extensions"]["io.github.lifesign.outcomes"]
    assert (counted.get("server_fault", 0), counted["excluded"]) == (0, 50)


def test_server_error_alert_excludes_the_readiness_path() -> None:
    alerts = (REPOSITORY / "docs" / "monitoring" / "alerts.yml").read_text()
    (rule,) = re.findall(r"- alert: ServerFaults\n.*?(?=- alert)", alerts, re.DOTALL)
    assert rule.count(f'path!="{READY_AGENT_PATH}"') == 2
    assert rule.count(f"path!='{READY_AGENT_PATH}'") == 1
