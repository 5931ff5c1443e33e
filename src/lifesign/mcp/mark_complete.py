"""Tool that submits the result of a task (lease protocol, "Release, not finish")."""

from typing import Annotated, Final

from pydantic import Field

from lifesign.client.registry_errors import RegistryError
from lifesign.domain.models.progress_report import ProgressReport
from lifesign.domain.models.tasks import JsonObject
from lifesign.mcp.run_binding import TaskArguments, Written, key_of, refusal, run_of, tasks_of, write_answer
from lifesign.mcp.tool_definition import Tool, ToolAnswer, ToolContext

NAME: Final = "mark_complete"


class CompletionArguments(TaskArguments):
    """Result of a task."""

    output: Annotated[JsonObject, Field(description="Result of the task, a JSON object of at most 64 KiB")]
    report: Annotated[ProgressReport | None, Field(description="A last progress report")] = None


async def mark_complete(arguments: CompletionArguments, reach: ToolContext) -> ToolAnswer:
    """Submit the result of the task, which ends the lease."""
    run = run_of(arguments, reach)
    report = None if arguments.report is None else arguments.report.members()
    try:
        written = await tasks_of(reach).mark_complete(
            run, arguments.output, idempotency_key=key_of(NAME, arguments, run), report=report
        )
    except RegistryError as error:
        raise refusal(error) from None
    return write_answer(written, "the result was submitted and will be reviewed; you no longer hold the task")


MARK_COMPLETE: Final = Tool(
    name=NAME,
    title="Submit a task's result",
    description=(
        "Ends your work on the task that you hold, with its result. The task waits for a review, and "
        "you no longer hold it: this is your last call for it, and the result cannot be changed. Call "
        "it only when all of the work is done; otherwise call report_progress or request_human_help."
    ),
    takes=CompletionArguments,
    gives=Written,
    run=mark_complete,
    is_in_run=True,
    is_read_only=False,
)
