import json

import pytest
from tests.support.adapting import World, shell

from lifesign.adapter.run_outcome import RunOutcome, ended_with
from lifesign.client.registry_errors import Stale
from lifesign.client.registry_tasks import HeldRun
from lifesign.domain.tasks.run_end import RunEnd, RunReport
from lifesign.domain.tasks.task_states import ExitReason


@pytest.mark.parametrize(
    ("exit_code", "shown"), [(0, "0"), (77, "77"), (-9, "SIGKILL"), (-15, "SIGTERM"), (-200, "200")]
)
def test_end_of_a_process_has_its_exit_code_or_signal(exit_code: int, shown: str) -> None:
    assert ended_with(exit_code).split()[-1] == shown


@pytest.mark.parametrize(("text", "detail"), [(ended_with(3), None), ("no room", "no room")])
def test_release_has_a_detail_only_if_the_exit_code_is_insufficient(text: str, detail: str | None) -> None:
    outcome = RunOutcome(RunEnd(ExitReason.CRASH, RunReport.RELEASE), 3, text)
    assert outcome.detail == detail


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [("exit 3", "crash", 3), ("kill -KILL $$", "crash", -9), ("exit 77", "auth", 77)],
)
async def test_run_without_a_result_is_released_and_keeps_its_workspace(
    world: World, code: str, reason: str, exit_code: int
) -> None:
    async with world.adapting(*shell(f"echo so far; {code}")) as adapter:
        outcome = await adapter.outcome()
        assert (outcome.end.exit_reason, outcome.exit_code, outcome.is_done) == (reason, exit_code, False)
        assert (adapter.workspace() / "stdout.log").read_text() == "so far\n"
        note = json.loads((world.directory / "runs" / f"{adapter.workspace().name}.json").read_text())
    assert (note["task_id"], note["exit_reason"], note["exit_code"]) == (
        world.task.task_id,
        reason,
        exit_code,
    )
    assert await world.runs() == [(reason, exit_code)]


async def test_a_late_write_of_a_run_that_was_released_is_refused(world: World) -> None:
    async with world.adapting("false") as adapter:
        granted = await adapter.until("granted")
        await adapter.outcome()
        late = HeldRun(task_id=world.task.task_id, run_id=str(granted.run_id), fencing_token=1)
        async with adapter.client() as own:
            with pytest.raises(Stale):
                await own.tasks.mark_complete(late, {"late": True})
