"""Cancelling a task."""

from tests.registry.events.test_verify_events import report as log_report
from tests.support.registry_api import RegistryApi
from tests.support.task_api import create, status_and_code, steer, worker

from lifesign.domain.tasks.task_states import task_resource


async def test_a_task_is_cancelled_while_it_is_queued(api: RegistryApi) -> None:
    made = await create(api)
    one = await worker(api)
    answer = await steer(api, made["task_id"], "cancel", reason="no longer needed")
    assert (answer.json()["status"], answer.json()["explanation"]) == ("cancelled", "no longer needed")
    assert (await one.claim()).status == 204
    assert (await log_report(api)).is_good


async def test_case_8_cancelling_a_running_task_ends_its_lease(api: RegistryApi) -> None:
    made = await create(api, budget={"tokens": 10})
    one = await worker(api)
    grant = await one.granted()
    await one.reserve(grant, "c", tokens=5)
    answer = await steer(api, made["task_id"], "cancel")
    (run,) = answer.json()["runs"]
    assert (answer.json()["status"], run["exit_reason"]) == ("cancelled", "killed")
    assert answer.json()["budget"]["available"]["tokens"] == 10
    leases = await api.ask("GET", f"/api/v1/leases?resource={task_resource(made['task_id'])}")
    assert leases.json()["leases"] == []
    assert status_and_code(await one.report(grant)) == (412, "lease_ended")
    assert (await log_report(api)).is_good
