"""Two agents on the published SDK of RFC-0016 that use our server.

Runs in the SDK's own environment: `openintent_agents.py BASE_URL`, the keys in the environment. Prints one
JSON object with the SDK's results.
"""

import asyncio
import json
import os
import sys
from typing import Any

from openintent import AsyncOpenIntentClient, OpenIntentClient  # type: ignore[import-not-found,unused-ignore]
from openintent.exceptions import (  # type: ignore[import-not-found,unused-ignore]
    ConflictError,
    LeaseConflictError,
    NotFoundError,
    OpenIntentError,
    ValidationError,
)


def refusal(call: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the exception that the SDK raises for a call, and its text."""
    try:
        call(*args, **kwargs)
    except OpenIntentError as error:
        return {
            "exception": type(error).__name__,
            "status": error.status_code,
            "message": error.message,
            "existing_lease": getattr(error, "existing_lease", None),
            "current_version": getattr(error, "current_version", None),
            "errors": getattr(error, "errors", None),
        }
    return {"exception": None}


def main(base_url: str) -> dict[str, Any]:
    """Register two agents, let them contend for a scope, and let them go."""
    one = OpenIntentClient(base_url, os.environ["KEY_ONE"], "one")
    two = OpenIntentClient(base_url, os.environ["KEY_TWO"], "two")
    result: dict[str, Any] = {}
    registered = one.register_agent(
        "one",
        ["billing"],
        role_id="clerk",
        name="One",
        capacity={"max_concurrent_tasks": 3},
        heartbeat_config={"interval_seconds": 30, "unhealthy_after_seconds": 90, "dead_after_seconds": 300},
        metadata={"runtime": "python"},
        public_key=None,
        drain_timeout_seconds=60,
    )
    result["registered"] = registered.to_dict()
    result["registered again"] = refusal(one.register_agent, "one")
    result["registered wrongly"] = refusal(two.register_agent, "two", ["a,b"])
    two.register_agent("two", ["billing"])
    result["beat"] = one.agent_heartbeat("one", current_load=1)
    result["beat of another"] = refusal(one.agent_heartbeat, "two")
    result["record"] = one.get_agent_record("one").to_dict()
    result["unknown"] = refusal(one.get_agent_record, "nobody")
    result["listed"] = [agent.agent_id for agent in one.list_agents()]
    reader = OpenIntentClient(base_url, os.environ["KEY_READER"], "reader")
    result["listed by role"] = [
        agent.agent_id for agent in reader.list_agents(status="active", role_id="clerk")
    ]

    lease = one.acquire_lease("intent-1", "research", duration_seconds=60)
    result["lease"] = {**lease.to_dict(), "is_active": lease.is_active}
    result["conflict"] = refusal(two.acquire_lease, "intent-1", "research")
    result["leases"] = [held.scope for held in one.get_leases("intent-1")]
    result["leases of another intent"] = [held.scope for held in one.get_leases("intent-2")]
    renewed = one.renew_lease("intent-1", lease.id, duration_seconds=600)
    result["seconds gained"] = (renewed.expires_at - lease.expires_at).total_seconds()
    result["renewed by another"] = refusal(two.renew_lease, "intent-1", lease.id)
    result["renewed elsewhere"] = refusal(one.renew_lease, "intent-2", lease.id)
    one.release_lease("intent-1", lease.id)
    result["renewed too late"] = refusal(one.renew_lease, "intent-1", lease.id)
    with two.lease("intent-1", "research") as taken:
        result["taken over"] = taken.to_dict()

    result["drained"] = one.update_agent_status("one", "draining")["status"]
    result["lease while draining"] = refusal(one.acquire_lease, "intent-1", "more")
    result["no such status"] = refusal(one.update_agent_status, "one", "active")
    result["deregistered"] = two.update_agent_status("two", "deregistered")["status"]
    result["beat when gone"] = refusal(two.agent_heartbeat, "two")
    result["asynchronous"] = asyncio.run(beat_asynchronously(base_url))
    return result


async def beat_asynchronously(base_url: str) -> dict[str, Any]:
    """The other client of the SDK has a separate code path."""
    async with AsyncOpenIntentClient(base_url, os.environ["KEY_TWO"], "two") as client:
        record = await client.register_agent("two", ["billing"])
        await client.agent_heartbeat("two")
        return {"version": record.version, "status": (await client.get_agent_record("two")).status.value}


if __name__ == "__main__":
    json.dump(main(sys.argv[1]), sys.stdout)

# The names are part of what is tested: they must exist.
assert {ConflictError, LeaseConflictError, NotFoundError, ValidationError}
