"""Tool that delegates a part of a task to another agent (lease protocol, "Release")."""

from typing import Annotated, Final

from pydantic import Field

from lifesign.client.registry_errors import RegistryError
from lifesign.domain.models.base import AgentId, RoleId
from lifesign.domain.models.tasks import Attempts, JsonObject, Needs, Title
from lifesign.domain.tasks.budget import RequestedAmount
from lifesign.mcp.run_binding import TaskArguments, Written, key_of, refusal, run_of, tasks_of, write_answer
from lifesign.mcp.tool_definition import Tool, ToolAnswer, ToolContext

NAME: Final = "delegate_subtask"


class Subtask(TaskArguments):
    """Work for another agent."""

    title: Annotated[Title, Field(description="Title of the work, in one line")]
    input: Annotated[JsonObject | None, Field(description="Input of the work: JSON of at most 64 KiB")] = None
    agent_id: Annotated[AgentId | None, Field(description="Only this agent")] = None
    role_id: Annotated[RoleId | None, Field(description="Only agents of this role (pool)")] = None
    capabilities: Annotated[
        Needs | None, Field(description="Capabilities that an agent must have to claim it")
    ] = None
    budget: Annotated[
        RequestedAmount | None,
        Field(
            description="Limits of its metered calls, taken out of your own budget; absent: no metered calls"
        ),
    ] = None
    max_attempts: Annotated[
        Attempts | None, Field(description="Number of runs that may fail before people are asked")
    ] = None


async def delegate_subtask(arguments: Subtask, reach: ToolContext) -> ToolAnswer:
    """Create a child task in the queue; the caller keeps its task."""
    run = run_of(arguments, reach)
    members = set(Subtask.model_fields) - set(TaskArguments.model_fields)
    task = arguments.model_dump(mode="json", exclude_none=True, include=members)
    try:
        written = await tasks_of(reach).delegate_subtask(
            run, task, idempotency_key=key_of(NAME, arguments, run)
        )
    except RegistryError as error:
        raise refusal(error) from None
    return write_answer(written, f"{written.child_id} is queued; you still hold {written.task_id}")


DELEGATE_SUBTASK: Final = Tool(
    name=NAME,
    title="Give a part of a task to another agent",
    description=(
        "Queues a part of the task that you hold as a task of its own, for any agent that matches its "
        "name, role and capabilities. You keep your task, and continue. Its budget is taken out of yours. "
        "Put everything that it needs to know into the input: it cannot see your task."
    ),
    takes=Subtask,
    gives=Written,
    run=delegate_subtask,
    is_in_run=True,
    is_read_only=False,
)
