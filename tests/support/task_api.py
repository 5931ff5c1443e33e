"""Creates tasks and works on them over the registry's API."""

from collections.abc import Mapping
from typing import Any

from tests.support.asgi_client import Answer
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role

TASKS = "/api/v1/tasks"
UNKNOWN = "task_00000000000000000000000000"
"""The id of a task that does not exist."""
REPORT = {
    "summary": "Drafted the hero section",
    "beliefs": ["brand color #3ecf8e"],
    "attempted": [{"action": "fetch brand assets", "outcome": "success"}],
    "nextStep": "Write three variants",
    "blockers": [],
}


class Worker:
    """An agent that works at tasks, and what it shows for the one that it has."""

    def __init__(self, api: RegistryApi, agent_id: str, key: str) -> None:
        self.api = api
        self.agent_id = agent_id
        self.key = key

    async def claim(self, **members: object) -> Answer:
        """Ask for a task."""
        return await self.api.ask("POST", f"{TASKS}/claim", members, key=self.key)

    async def granted(self, **members: object) -> dict[str, Any]:
        """Ask for a task and get one."""
        answer = await self.claim(**members)
        assert answer.status == 200, (answer.status, answer.body)
        return dict(answer.json())

    async def write(
        self,
        grant: Mapping[str, Any],
        function: str,
        *,
        task_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        **members: object,
    ) -> Answer:
        """Write in the name of a run; `task_id` takes its credentials to another task."""
        shown = {"run_id": grant["run_id"], "fencing_token": grant["lease"]["fencing_token"]}
        if not function.startswith("calls"):
            shown["idempotency_key"] = function
        path = f"{TASKS}/{task_id or grant['task']['task_id']}/{function}"
        return await self.api.ask("POST", path, {**shown, **members}, key=self.key, headers=headers)

    async def report(self, grant: Mapping[str, Any], **members: object) -> Answer:
        """Report progress."""
        return await self.write(grant, "progress", **{"report": REPORT, **members})  # type: ignore[arg-type]

    async def reserve(
        self, grant: Mapping[str, Any], call_id: str, tokens: int = 0, usd: float = 0
    ) -> Answer:
        """Reserve for a metered call."""
        most = {"tokens": tokens, "usd": usd}
        return await self.write(grant, "calls", call_id=call_id, tool="fetch", most=most)


async def worker(api: RegistryApi, agent_id: str = "agent-1", **members: object) -> Worker:
    """Register an agent that works."""
    record = await api.register(agent_id, **members)
    return Worker(api, agent_id, str(record["agent_key"]))


async def create(
    api: RegistryApi, title: str = "Write the landing page", **members: object
) -> dict[str, Any]:
    """Put a task into the queue and return its record."""
    answer = await api.ask("POST", TASKS, {"title": title, **members}, key=Role.COORDINATOR)
    assert answer.status == 201, (answer.status, answer.body)
    return dict(answer.json())


async def steer(api: RegistryApi, task_id: str, function: str, **members: object) -> Answer:
    """Decide something as a coordinator."""
    return await api.ask("POST", f"{TASKS}/{task_id}/{function}", members, key=Role.COORDINATOR)


async def task(api: RegistryApi, task_id: str) -> dict[str, Any]:
    """Return a task's record."""
    answer = await api.ask("GET", f"{TASKS}/{task_id}", key=Role.READER)
    assert answer.status == 200, (answer.status, answer.body)
    return dict(answer.json())


def comments_of(record: Mapping[str, Any]) -> list[tuple[str, str, str | None]]:
    """Return the comments of a task or a grant: signal, text and author."""
    return [(given["signal"], given["comment"], given.get("written_by")) for given in record["comments"]]


async def steps(api: RegistryApi, task_id: str) -> list[str]:
    """Return by which statuses the log says that a task went."""
    events = await api.events(type="task.lifecycle")
    return [event["payload"]["new_status"] for event in events if event["payload"]["task_id"] == task_id]


def status_and_code(answer: Answer) -> tuple[int, str]:
    """Return a refusal's status and code."""
    return answer.status, answer.json()["error"]["code"]
