"""Tool that hands a task to people (lease protocol, "Release, not finish")."""

from typing import Annotated, Final

from pydantic import Field

from lifesign.client.registry_errors import RegistryError
from lifesign.domain.models.progress_report import ProgressReport
from lifesign.domain.models.tasks import Comment
from lifesign.mcp.run_binding import TaskArguments, Written, key_of, refusal, run_of, tasks_of, write_answer
from lifesign.mcp.tool_definition import Tool, ToolAnswer, ToolContext

NAME: Final = "request_human_help"


class HelpArguments(TaskArguments):
    """Question for people."""

    reason: Annotated[
        Comment, Field(description="What you need from a person: an answer, a decision, access")
    ]
    report: Annotated[
        ProgressReport | None, Field(description="Last progress report, from which the work continues")
    ] = None


async def request_human_help(arguments: HelpArguments, reach: ToolContext) -> ToolAnswer:
    """Hand the task to people, and with it the lease."""
    run = run_of(arguments, reach)
    report = None if arguments.report is None else arguments.report.members()
    try:
        written = await tasks_of(reach).request_human_help(
            run, arguments.reason, idempotency_key=key_of(NAME, arguments, run), report=report
        )
    except RegistryError as error:
        raise refusal(error) from None
    return write_answer(written, "the task was handed to people; you no longer hold it")


REQUEST_HUMAN_HELP: Final = Tool(
    name=NAME,
    title="Hand a task to people",
    description=(
        "Gives the task that you hold to people, who decide how it continues. You no longer hold it: "
        "this is your last call for it. Call it when you cannot continue without a person, and state "
        "in the reason what you need; put what you know so far into the report."
    ),
    takes=HelpArguments,
    gives=Written,
    run=request_human_help,
    is_in_run=True,
    is_read_only=False,
)
