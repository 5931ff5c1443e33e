import json
from itertools import count

import pytest
from tests.support.adapting import World, shell

from lifesign import boot_clock
from lifesign.adapter.run_events import RunEvent
from lifesign.adapter.run_outcome import RunOutcome, RunReporter, ended_with
from lifesign.adapter.tools.proxy_context import EndRequest
from lifesign.client.registry_errors import RegistryError, Stale, Unavailable, error_of
from lifesign.client.registry_tasks import HeldRun
from lifesign.domain.tasks.run_end import MAX_RENEWALS_WITHOUT_REPORT, RunEnd, RunReport
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


class RefusingRegistry:
    """A registry that answers each report with the next of its errors, then accepts it."""

    def __init__(self, *errors: RegistryError) -> None:
        self._errors = [*errors]
        self.reports: list[str] = []
        self.content: object = None

    async def _take(self, what: str) -> None:
        self.reports.append(what)
        if self._errors:
            raise self._errors.pop(0)

    async def mark_complete(self, _run: HeldRun, output: object, **others: object) -> None:
        self.content = (output, others)
        await self._take("complete")

    async def request_human_help(self, _run: HeldRun, reason: str, **others: object) -> None:
        self.content = (reason, others)
        await self._take("help")

    async def release(self, *_: object, **__: object) -> None:
        await self._take("release")


class Lease:
    """A lease that is held, or not, and is renewed between all requests."""

    def __init__(self, *, is_held: bool) -> None:
        self.is_held = lambda: is_held
        self._deadlines_s = count(10)

    @property
    def deadline_s(self) -> float:
        return boot_clock.now_s() + next(self._deadlines_s)


RUN = HeldRun(task_id="task-1", run_id="run-1", fencing_token=3)
DONE = RunEnd(ExitReason.COMPLETED, RunReport.COMPLETE)
ASKED = RunEnd(ExitReason.COMPLETED, RunReport.HELP, needs_help=True)
CRASHED = RunEnd(ExitReason.CRASH, RunReport.RELEASE)
LOST = RunEnd(ExitReason.LEASE_EXPIRED, RunReport.NOTHING)
BUSY = Unavailable("busy", retry_after_s=0.0)
BLOCKED = error_of(403, None, reason="Forbidden")
TOO_LARGE = error_of(413, None)
VAIN = [BLOCKED] * (MAX_RENEWALS_WITHOUT_REPORT + 1)


@pytest.mark.parametrize(
    ("end", "errors", "is_held", "reports", "event"),
    [
        (DONE, [], True, ["complete"], "completed"),
        (ASKED, [], True, ["help"], "help_requested"),
        (CRASHED, [], True, ["release"], "failed"),
        (LOST, [], True, [], "failed"),
        (DONE, [BUSY, BUSY], True, ["complete"] * 3, "completed"),
        (DONE, [BUSY], False, ["complete"], "unreported"),
        (DONE, [Stale("refused", status=412, code="stale")], True, ["complete"], "unreported"),
        (DONE, [TOO_LARGE], True, ["complete", "release"], "failed"),
        (DONE, [TOO_LARGE], False, ["complete"], "unreported"),
        (DONE, [TOO_LARGE, TOO_LARGE], True, ["complete", "release"], "unreported"),
        (DONE, VAIN, True, ["complete"] * 4 + ["release"], "failed"),
        (ASKED, VAIN, True, ["help"] * 4 + ["release"], "failed"),
        (CRASHED, VAIN, True, ["release"] * 5, "failed"),
        (CRASHED, VAIN * 2, True, ["release"] * 8, "unreported"),
    ],
)
async def test_end_of_a_run_is_reported_until_accepted_or_refused(
    end: RunEnd, errors: list[RegistryError], *, is_held: bool, reports: list[str], event: str
) -> None:
    registry, events = RefusingRegistry(*errors), list[RunEvent]()
    reporter = RunReporter(
        registry,  # type: ignore[arg-type]
        RUN,
        Lease(is_held=is_held),  # type: ignore[arg-type]
        events.append,
        chance=lambda: 0.0,
    )
    outcome = await reporter.report(RunOutcome(end, 0, "its text", {"answer": 42}))
    assert registry.reports == reports
    assert [(each.what, each.run_id, each.fencing_token) for each in events] == [(event, "run-1", 3)]
    assert outcome.was_notified is (event != "unreported")
    assert outcome.is_done is (event in {"completed", "help_requested"})


@pytest.mark.parametrize(
    ("request_", "end", "content"),
    [
        (
            EndRequest(tool="mark_complete", idempotency_key="its-key", output={"page": 1}),
            DONE,
            ({"page": 1}, {"idempotency_key": "its-key", "report": None}),
        ),
        (
            EndRequest(
                tool="request_human_help", idempotency_key="its-key", reason="why", report={"summary": "s"}
            ),
            ASKED,
            ("why", {"idempotency_key": "its-key", "report": {"summary": "s"}}),
        ),
    ],
)
async def test_call_of_the_agent_is_repeated_with_its_own_key(
    request_: EndRequest, end: RunEnd, content: object
) -> None:
    registry = RefusingRegistry(BUSY)
    reporter = RunReporter(
        registry,  # type: ignore[arg-type]
        RUN,
        Lease(is_held=True),  # type: ignore[arg-type]
        list[RunEvent]().append,
        chance=lambda: 0.0,
    )
    assert (await reporter.report(RunOutcome(end, 0, "its text", request=request_))).was_notified
    assert (len(registry.reports), registry.content) == (2, content)
