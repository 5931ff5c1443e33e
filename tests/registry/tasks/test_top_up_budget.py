"""Additions to the budget of a task."""

from tests.registry.events.test_verify_events import report as log_report
from tests.support.registry_api import RegistryApi
from tests.support.task_api import create, status_and_code, steer, task


async def test_topped_up_budget_is_available_at_once(api: RegistryApi) -> None:
    made = await create(api, budget={"tokens": 10})
    answer = await steer(api, made["task_id"], "budget", add={"tokens": 5})
    budget = answer.json()["budget"]
    assert (budget["envelope"]["tokens"], budget["available"]["tokens"]) == (15, 15)
    assert (await log_report(api)).is_good


async def test_budget_of_a_finished_task_cannot_be_topped_up(api: RegistryApi) -> None:
    made = await create(api, budget={"tokens": 10})
    await steer(api, made["task_id"], "cancel")
    answer = await steer(api, made["task_id"], "budget", add={"tokens": 5})
    assert status_and_code(answer) == (409, "invalid_task_transition")
    assert (await task(api, made["task_id"]))["budget"]["envelope"]["tokens"] == 10
