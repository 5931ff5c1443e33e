"""Every answer matches its description in the OpenAPI document.

Schemathesis reads the served document and sends valid and invalid requests with an admin's key. No
answer may be an internal error or differ from its description.
"""

import json
import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.databases import bare_url
from tests.support.registry_server import ADMIN_KEY, RegistryServer
from tests.support.servers import REPOSITORY, SCRIPTS

SETTINGS = REPOSITORY / "tests" / "support" / "schemathesis.toml"
BOUNDS = ("--phases", "examples,coverage")
MANY_BOUNDS = (
    "accept_observations",
    "claim_shards",
    "create_webhook",
    "delegate_subtask",
    "list_shard_targets",
    "mark_complete",
    "put_page",
    "report_progress",
    "request_human_help",
    "reserve_call",
    "review_task",
    "rotate",
    "send_command",
)
"""Operations that take more than a second until all their bounds are through."""


def attack(
    directory: Path, examples: int, seconds: float, seed: int, *more: str, database_url: str | None = None
) -> Any:
    """Send a new server the requests that the seed draws; return the report."""
    server = RegistryServer(directory, bare_database_url=database_url)
    server.start()
    try:
        command = [
            str(SCRIPTS / "schemathesis"), "--config-file", str(SETTINGS),
            "run", f"{server.url}/openapi.json", "--header", f"X-API-Key: {ADMIN_KEY}",
            "--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure", "--no-color",
            "--report", "json", "--report-json-path", str(directory / "report.json"), *more,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=directory, timeout=seconds, check=False, capture_output=True)
    finally:
        server.stop()
    assert done.returncode == 0, done.stdout.decode()[-8_000:] + done.stderr.decode()[-2_000:]
    return json.loads((directory / "report.json").read_text())


def assert_unharmed(report: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert report["complete"]
    assert report["failures"] == report["errors"] == []
    assert report["operations"]["tested"] == report["operations"]["selected"]
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert ADMIN_KEY not in caplog.text


@pytest.mark.postgresql_only
def test_requests_at_each_openapi_bound_are_answered_as_described(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int, database_kind: str
) -> None:
    # It takes long, and need not run on both databases: `make test-postgres` runs it.
    left_out = [part for one in MANY_BOUNDS for part in ("--exclude-operation-id", one)]
    url = bare_url(database_kind, tmp_path)
    report = attack(tmp_path, 1, 1_200, seed, *BOUNDS, *left_out, database_url=url)
    assert_unharmed(report, caplog)
    # All operations except these and the endless stream.
    assert report["operations"]["selected"] == report["operations"]["total"] - len(MANY_BOUNDS) - 1


@pytest.mark.long
def test_requests_at_bounds_of_large_operations_are_answered_as_described(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    asked = [part for one in MANY_BOUNDS for part in ("--include-operation-id", one)]
    report = attack(tmp_path, 1, 3_000, seed, *BOUNDS, *asked)
    assert_unharmed(report, caplog)
    assert report["operations"]["selected"] == len(MANY_BOUNDS)


@pytest.mark.long
def test_many_requests_one_after_another_are_answered_as_described(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    report = attack(tmp_path, 100, 3_000, seed)
    assert_unharmed(report, caplog)
    assert report["operations"]["selected"] == report["operations"]["total"] - 1
