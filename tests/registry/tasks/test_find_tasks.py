"""Lists of tasks, and which of them an agent may read."""

import pytest
from tests.support.registry_api import RegistryApi
from tests.support.task_api import TASKS, UNKNOWN, create, status_and_code, worker

from lifesign.domain.access.permissions import Role


@pytest.mark.both_databases
async def test_tasks_are_filtered_by_their_members(api: RegistryApi) -> None:
    ids = [
        (await create(api, f"task {n}", role_id="writers" if n % 2 else "readers"))["task_id"]
        for n in range(5)
    ]
    one = await worker(api, role_id="writers")
    await one.granted()

    async def listed(query: str, key: str | Role = Role.READER) -> list[str]:
        answer = await api.ask("GET", f"{TASKS}?{query}", key=key)
        assert answer.status == 200, answer.body
        return [shown["task_id"] for shown in answer.json()["tasks"]]

    assert await listed("") == ids[::-1]
    assert await listed("status=assigned,running") == [ids[1]]
    assert await listed("role_id=readers") == [ids[4], ids[2], ids[0]]
    assert await listed("holder=agent-1") == await listed("", key=one.key) == [ids[1]]
    page = (await api.ask("GET", f"{TASKS}?limit=3")).json()
    assert (len(page["tasks"]), page["total"]) == (3, 5)
    assert await listed(f"limit=3&cursor={page['cursor']}") == [ids[1], ids[0]]
    assert status_and_code(await api.ask("GET", f"{TASKS}?holder=agent-2", key=one.key)) == (
        403,
        "not_allowed",
    )
    assert status_and_code(await api.ask("GET", f"{TASKS}?status=lost")) == (422, "invalid_request")
    assert status_and_code(await api.ask("GET", f"{TASKS}?parent_id={UNKNOWN}")) == (404, "task_not_found")


async def test_agent_key_reads_its_tasks_and_their_children(api: RegistryApi) -> None:
    made = await create(api, agent_id="agent-1")
    one, other = await worker(api), await worker(api, "agent-2")
    path = f"{TASKS}/{made['task_id']}"
    assert status_and_code(await api.ask("GET", path, key=one.key)) == (403, "not_allowed")
    grant = await one.granted()
    child_id = (await one.write(grant, "delegate", task={"title": "child"})).json()["child_id"]
    for allowed in (path, f"{path}/progress", f"{TASKS}/{child_id}"):
        assert (await api.ask("GET", allowed, key=one.key)).status == 200
        assert status_and_code(await api.ask("GET", allowed, key=other.key)) == (403, "not_allowed")
    assert status_and_code(await api.ask("GET", f"{TASKS}/nonsense", key=Role.READER)) == (
        404,
        "task_not_found",
    )
    for parent_id in (made["task_id"], child_id, UNKNOWN):
        answer = await api.ask("GET", f"{TASKS}?parent_id={parent_id}", key=other.key)
        assert status_and_code(answer) == (404, "task_not_found")
    for parent_id in (made["task_id"], child_id):
        assert (await api.ask("GET", f"{TASKS}?parent_id={parent_id}", key=one.key)).status == 200
    for path in (f"{TASKS}/nonsense", f"{TASKS}/nonsense/progress"):
        assert status_and_code(await api.ask("GET", path, key=one.key)) == (403, "not_allowed")
