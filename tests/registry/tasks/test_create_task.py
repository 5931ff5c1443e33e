import asyncio
from typing import Any

import pytest
from tests.registry.events.test_verify_events import report as log_report
from tests.support.registry_api import RegistryApi
from tests.support.task_api import TASKS, status_and_code, steps, task

from lifesign.domain.access.permissions import Role

WANTED: dict[str, Any] = {"title": "Write it", "input": {"brief": "b", "words": 3}, "budget": {"tokens": 5}}


async def created(api: RegistryApi, key: Role = Role.COORDINATOR, **members: object) -> dict[str, Any]:
    answer = await api.ask("POST", TASKS, {**WANTED, **members}, key=key)
    assert answer.status == 201, answer.body
    assert (b"location", f"{TASKS}/{answer.json()['task_id']}".encode()) in answer.headers
    return dict(answer.json())


async def total(api: RegistryApi) -> int:
    return int((await api.ask("GET", TASKS, key=Role.READER)).json()["total"])


async def test_repeated_creation_returns_the_same_task(api: RegistryApi) -> None:
    first = await created(api, idempotency_key="order-7")
    again = await created(api, idempotency_key="order-7", input={"words": 3, "brief": "b"})
    assert again == first
    assert await total(api) == 1
    assert await steps(api, first["task_id"]) == []
    # A repeated request returns the current state of the task.
    await api.ask("POST", f"{TASKS}/{first['task_id']}/cancel", {}, key=Role.COORDINATOR)
    assert (await created(api, idempotency_key="order-7"))["status"] == "cancelled"
    assert (await log_report(api)).is_good


@pytest.mark.both_databases
async def test_idempotency_key_reused_for_another_task_is_refused(api: RegistryApi) -> None:
    await created(api, idempotency_key="order-7")
    answer = await api.ask(
        "POST", TASKS, {**WANTED, "title": "Another", "idempotency_key": "order-7"}, key=Role.COORDINATOR
    )
    assert status_and_code(answer) == (422, "idempotency_key_reused")
    assert await total(api) == 1


async def test_idempotency_key_is_per_creator_and_without_one_each_task_is_new(api: RegistryApi) -> None:
    made = [
        await created(api, idempotency_key="order-7"),
        await created(api, key=Role.ADMIN, idempotency_key="order-7"),
        await created(api),
        await created(api),
    ]
    assert len({task["task_id"] for task in made}) == 4


@pytest.mark.both_databases
async def test_one_of_equal_concurrent_requests_creates(api: RegistryApi) -> None:
    made = await asyncio.gather(*(created(api, idempotency_key="order-7") for _ in range(8)))
    assert len({task["task_id"] for task in made}) == 1
    assert await total(api) == 1


@pytest.mark.parametrize("key", ["", "x" * 129, "a\nb", 7])
async def test_invalid_idempotency_key_is_refused(api: RegistryApi, key: object) -> None:
    answer = await api.ask("POST", TASKS, {**WANTED, "idempotency_key": key}, key=Role.COORDINATOR)
    assert status_and_code(answer) == (422, "invalid_request")
    assert await total(api) == 0


async def test_idempotency_key_of_a_child_task_is_refused(api: RegistryApi) -> None:
    answer = await api.ask("POST", f"{TASKS}/task_{'0' * 26}/review", {
        "verdict": "reject", "fix": {"title": "t", "idempotency_key": "k"},
    }, key=Role.COORDINATOR)  # fmt: skip
    assert answer.json()["error"]["details"]["faults"][0]["pointer"] == "/fix/idempotency_key"


@pytest.mark.parametrize("title", ["   ", "\u00a0\u3000", "\u200b", "\u202e"])
async def test_unreadable_title_is_refused(api: RegistryApi, title: str) -> None:
    answer = await api.ask("POST", TASKS, {**WANTED, "title": title}, key=Role.COORDINATOR)
    assert status_and_code(answer) == (422, "invalid_request")
    assert [fault["pointer"] for fault in answer.json()["error"]["details"]["faults"]] == ["/title"]


async def test_creator_sees_the_name_of_its_key_as_readers_do(api: RegistryApi) -> None:
    wanted = {**WANTED, "idempotency_key": "named"}
    made, again = [(await api.ask("POST", TASKS, wanted, key=Role.COORDINATOR)).json() for _ in range(2)]
    assert list(made["names"]) == [made["created_by"]]
    assert again["names"] == made["names"] == (await task(api, made["task_id"]))["names"]


@pytest.mark.parametrize("given", [
    {"title": ""}, {}, {"title": "t", "lease_seconds": 0}, {"title": "t", "lease_seconds": 86_401},
    {"title": "t", "max_attempts": 0}, {"title": "t", "backoff_seconds": -1}, {"title": "t", "extra": 1},
    {"title": "t", "capabilities": ["c"] * 17}, {"title": "t", "input": []},
    {"title": "t", "input": {"x": "y" * 65_536}},
    {"title": "t", "budget": {"tokens": 1.5}}, {"title": "t", "agent_id": "a b"},
])  # fmt: skip
async def test_case_22_invalid_task_is_refused(api: RegistryApi, given: dict[str, Any]) -> None:
    assert status_and_code(await api.ask("POST", TASKS, given, key=Role.COORDINATOR)) == (
        422,
        "invalid_request",
    )
    assert (await api.ask("GET", TASKS)).json()["total"] == 0
