"""Serves an agent and checks it."""

from datetime import UTC, datetime
from typing import Any

from tests.support.hostile_server import Reply, serving

from lifesign.client import HealthCheck, fetch_health

PATIENT_SECONDS = 20.0
"""For everything that ends by itself."""
SHORT_SECONDS = 0.4
"""For what ends only at the deadline."""


def document(status: str = "healthy", **members: Any) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {
        "schema_version": "0.1.0",
        "agent_id": "urn:agent",
        "timestamp": now,
        "health": {"status": status},
    } | members


def card(**members: Any) -> dict[str, Any]:
    return {
        "name": "An agent",
        "description": "Answers",
        "version": "1.0.0",
        "protocolVersion": "0.3.0",
        "url": "https://agent.example/a2a",
        "capabilities": {},
        "skills": [],
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
    } | members


async def check(replies: dict[str, Reply], path: str = "", **settings: Any) -> HealthCheck:
    async with serving(replies) as server:
        return await fetch_health(server.url + path, **({"timeout_seconds": PATIENT_SECONDS} | settings))


def names(checked: HealthCheck) -> set[str]:
    return {finding.name for finding in checked.findings}
