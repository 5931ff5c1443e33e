"""The SDK published with RFC-0016 works with our server if only its base URL is changed.

The real package runs in a separate environment and calls a real server over a socket.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.registry_server import KEYS, RegistryServer, registry_server
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY

from lifesign.domain.access.permissions import Role, StoredKey, digest_of, key_of
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys import key_rows

PYTHON = REPOSITORY / ".venv-openintent" / "bin" / "python"
SCRIPT = REPOSITORY / "tests" / "support" / "openintent_agents.py"
AGENT_KEYS = {agent_id: key_of(digest_of(agent_id)) for agent_id in ("one", "two")}


def add_agent_keys(transaction: Transaction) -> None:
    for agent_id, key in AGENT_KEYS.items():
        key_rows.add(
            transaction,
            StoredKey(
                key_id=f"key_{agent_id}",
                name=agent_id,
                role=Role.AGENT,
                agent_id=agent_id,
                digest=digest_of(key),
                created_at_s=0.0,
            ),
        )


@pytest.fixture(scope="module")
def sdk_report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not PYTHON.exists():
        pytest.skip(f"NOT TESTED against the openintent SDK: {PYTHON} is absent; `make test` makes it")
    with registry_server(tmp_path_factory.mktemp("registry"), dialects=("openintent",)) as server:
        server.write(add_agent_keys)
        return drive(server)


def drive(server: RegistryServer, directory: Path = REPOSITORY) -> Any:
    env = {
        **os.environ,
        "KEY_ONE": AGENT_KEYS["one"],
        "KEY_TWO": AGENT_KEYS["two"],
        "KEY_READER": KEYS[Role.READER],
        # The SDK compares times without a zone.
        "TZ": "UTC",
    }
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", str(SCRIPT), f"{server.url}/dialects/openintent"],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        env=env,
        cwd=directory,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_an_agent_registers_and_is_shown(sdk_report: Any) -> None:
    registered = sdk_report["registered"]
    assert registered["agent_id"] == "one"
    assert registered["status"] == "active"
    assert registered["version"] == 1
    assert registered["capacity"] == {"max_concurrent_tasks": 3, "current_load": 0}
    assert registered["heartbeat_config"]["unhealthy_after_seconds"] == 90
    assert registered["metadata"] == {"runtime": "python"}
    assert sdk_report["record"]["capacity"]["current_load"] == 1
    assert sdk_report["record"]["drain_timeout_seconds"] == 60
    assert sdk_report["beat"]["acknowledged"] is True
    assert sdk_report["beat"]["agent_status"] == "active"
    assert sdk_report["beat"]["pending_commands"] == []


def test_lists_are_arrays_and_an_agent_lists_only_itself(sdk_report: Any) -> None:
    assert sdk_report["listed"] == ["one"]
    assert sdk_report["listed by role"] == ["one"]


def test_sdk_acquires_renews_and_takes_over_a_lease(sdk_report: Any) -> None:
    assert sdk_report["lease"]["agent_id"] == "one"
    assert sdk_report["lease"]["scope"] == "research"
    assert sdk_report["lease"]["status"] == "active"
    assert sdk_report["lease"]["is_active"] is True
    assert sdk_report["leases"] == ["research"]
    assert sdk_report["leases of another intent"] == []
    assert 530 < sdk_report["seconds gained"] < 570
    assert sdk_report["taken over"]["agent_id"] == "two"
    assert sdk_report["taken over"]["id"] != sdk_report["lease"]["id"]


def test_sdk_conflict_contains_the_existing_lease(sdk_report: Any) -> None:
    conflict = sdk_report["conflict"]
    assert conflict["exception"] == "LeaseConflictError"
    assert conflict["existing_lease"]["agent_id"] == "one"
    assert conflict["existing_lease"]["id"] == sdk_report["lease"]["id"]
    assert "leased already" in conflict["message"]


def test_refusals_become_the_exceptions_that_the_sdk_has(sdk_report: Any) -> None:
    exceptions = {
        what: (refusal["exception"], refusal["status"])
        for what, refusal in sdk_report.items()
        if isinstance(refusal, dict) and "exception" in refusal
    }
    assert exceptions == {
        "registered again": ("ConflictError", 409),
        "registered wrongly": ("ValidationError", 400),
        "beat of another": ("OpenIntentError", 403),
        "unknown": ("OpenIntentError", 403),
        "conflict": ("LeaseConflictError", 409),
        "renewed by another": ("NotFoundError", 404),
        "renewed elsewhere": ("NotFoundError", 404),
        "renewed too late": ("NotFoundError", 404),
        "lease while draining": ("LeaseConflictError", 409),
        "no such status": ("ValidationError", 400),
        "beat when gone": ("OpenIntentError", 410),
    }
    assert sdk_report["registered wrongly"]["errors"][0]["pointer"] == "/capabilities/0"


def test_sdk_drains_deregisters_and_registers_an_agent(sdk_report: Any) -> None:
    assert sdk_report["drained"] == "draining"
    assert sdk_report["deregistered"] == "deregistered"
    assert sdk_report["asynchronous"] == {"version": 1, "status": "active"}
