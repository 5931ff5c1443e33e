"""Tool that reports progress on a task (lease protocol, "Progress reports")."""

from typing import Annotated, Any, Final

from pydantic import Field

from lifesign.client.registry_errors import RegistryError
from lifesign.domain.models.progress_report import MAX_ENTRIES, Attempt, Text
from lifesign.mcp.run_binding import TaskArguments, Written, key_of, refusal, run_of, tasks_of, write_answer
from lifesign.mcp.tool_definition import Tool, ToolAnswer, ToolContext

NAME: Final = "report_progress"


class ProgressArguments(TaskArguments):
    """Arguments of a progress report, with the member names of the lease protocol."""

    summary: Annotated[Text, Field(description="Work since the last report")]
    beliefs: Annotated[
        list[Text] | None, Field(max_length=MAX_ENTRIES, description="Facts that you assume")
    ] = None
    attempted: Annotated[
        list[Attempt] | None,
        Field(max_length=MAX_ENTRIES, description="Attempts and their results"),
    ] = None
    next_step: Annotated[Text | None, Field(description="Your next step")] = None
    blockers: Annotated[list[Text] | None, Field(max_length=MAX_ENTRIES, description="Obstacles")] = None

    def report(self) -> dict[str, Any]:
        """Return the report without the run."""
        members = {"summary", "beliefs", "attempted", "next_step", "blockers"}
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, include=members)


async def report_progress(arguments: ProgressArguments, reach: ToolContext) -> ToolAnswer:
    """Write a progress report."""
    run = run_of(arguments, reach)
    try:
        written = await tasks_of(reach).report_progress(
            run, arguments.report(), idempotency_key=key_of(NAME, arguments, run)
        )
    except RegistryError as error:
        raise refusal(error) from None
    return write_answer(
        written, f"report {written.report} was stored; the task is {written.status}, and you hold it"
    )


REPORT_PROGRESS: Final = Tool(
    name=NAME,
    title="Report progress on a task",
    description=(
        "Stores a checkpoint of the task that you hold. Call it when you have something new to report: "
        "after reading the task, between two steps, at a decision, before anything that takes long, and "
        "before your context may be cut. Do not call it by a timer. If you are lost, the next holder "
        "continues from your latest report, so write what they would need."
    ),
    takes=ProgressArguments,
    gives=Written,
    run=report_progress,
    is_in_run=True,
    is_read_only=False,
)
