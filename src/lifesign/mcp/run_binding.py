"""Writes to a task by tools: run, idempotency and refusals (protocol 6.8).

A server that is bound to one run writes in its name, and its tools take no credentials. With any other
server, the caller passes them. A write has an idempotency key: the caller's own, or one derived from the run
and the content, so that a repeated call counts once and gets the same answer.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel

from lifesign.client.registry_errors import (
    Gone,
    NotAuthorized,
    NotPermitted,
    RegistryError,
    Stale,
    is_final,
)
from lifesign.client.registry_tasks import HeldRun, RegistryTasks
from lifesign.domain.models.leases import Token
from lifesign.domain.models.tasks import TASK_ID_PATTERN, IdempotencyKey, RunId, TaskWriteResult
from lifesign.domain.tasks.task_states import TaskStatus
from lifesign.errors import InvalidValue
from lifesign.mcp.refusal_code import ToolRefusalCode
from lifesign.mcp.tool_definition import Arguments, Tool, ToolAnswer, ToolContext, ToolFailed, registry_of

TASK_VARIABLE: Final = "LIFESIGN_TASK_ID"
RUN_VARIABLE: Final = "LIFESIGN_RUN_ID"
TOKEN_VARIABLE: Final = "LIFESIGN_FENCING_TOKEN"  # noqa: S105 - the name of it, not the token
DERIVED_KEY_CHARS: Final = 40

_UNREPORTED_MEMBERS: Final = {"idempotency_key", "task_id", "run_id", "fencing_token"}


class TaskArguments(Arguments):
    """Arguments of a tool that writes to a task. JSON names are in camel case, as the contract has them."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True)

    idempotency_key: Annotated[
        IdempotencyKey | None,
        Field(
            description=("Omit it: a repeated identical call counts once. Give separate calls different keys")
        ),
    ] = None


class ShownRun(TaskArguments):
    """Credentials of the caller if the server is bound to no run."""

    task_id: Annotated[str, Field(pattern=TASK_ID_PATTERN, description="Id of the task, from the claim")]
    run_id: Annotated[RunId, Field(description="Id of the run, from the claim")]
    fencing_token: Annotated[Token, Field(description="Fencing token of the lease, from the claim")]


class Written(BaseModel):
    """Result of a write to a task."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True)

    task_id: str
    status: Annotated[TaskStatus, Field(description="Status of the task after the call")]
    report: Annotated[int | None, Field(description="Number of the report that was sent with the call")] = (
        None
    )
    child_id: Annotated[str | None, Field(description="Id of the delegated task")] = None


def of_any_run(tool: Tool) -> Tool:
    """Return the variant of a tool for servers bound to no run: the caller also names its run."""
    takes = create_model(f"{tool.takes.__name__}InRun", __base__=(ShownRun, tool.takes))
    return replace(tool, takes=takes)


def run_of(arguments: TaskArguments, reach: ToolContext) -> HeldRun:
    """Return the run for which a call writes; ToolFailed if neither the call nor the server names one."""
    if isinstance(arguments, ShownRun):
        return HeldRun(
            task_id=arguments.task_id, run_id=arguments.run_id, fencing_token=arguments.fencing_token
        )
    if reach.run is None:
        raise ToolFailed("this server belongs to no run", code=ToolRefusalCode.NOT_ALLOWED)
    return reach.run


def run_in(environment: Mapping[str, str]) -> HeldRun | None:
    """Return the run in the environment of a process under a lease; None without one.

    Raise InvalidValue for incomplete variables.
    """
    names = (TASK_VARIABLE, RUN_VARIABLE, TOKEN_VARIABLE)
    given = [environment.get(name) for name in names]
    if not any(given):
        return None
    for name, value in zip(names, given, strict=True):
        if not value:
            raise InvalidValue(name, None, f"a value, as {' and '.join(set(names) - {name})} have one")
    task_id, run_id, token = (value or "" for value in given)
    if not (token.isascii() and token.isdecimal() and len(token) <= 19):
        raise InvalidValue(TOKEN_VARIABLE, None, "a whole number")
    return HeldRun(task_id=task_id, run_id=run_id, fencing_token=int(token))


def key_of(tool: str, arguments: TaskArguments, run: HeldRun) -> str:
    """Return the idempotency key of a write."""
    if arguments.idempotency_key is not None:
        return arguments.idempotency_key
    members = arguments.model_dump(mode="json", by_alias=True, exclude=_UNREPORTED_MEMBERS)
    # A model that repeats a call may change the order of the members.
    digest = sha256(json.dumps([run.run_id, tool, members], sort_keys=True).encode()).hexdigest()
    return f"{tool}-{digest[:DERIVED_KEY_CHARS]}"


def tasks_of(reach: ToolContext) -> RegistryTasks:
    """Return the registry client for writes to tasks."""
    return registry_of(reach).tasks


def write_answer(written: TaskWriteResult, text: str) -> ToolAnswer:
    """Return the result of a write as the answer of a tool."""
    shown = Written(
        task_id=written.task_id, status=written.status, report=written.report, child_id=written.child_id
    )
    return ToolAnswer(content=shown, text=text)


def refusal(error: RegistryError) -> ToolFailed:
    """Return the meaning of a registry's error for the holder of a task, with a hint."""
    if error.code == ToolRefusalCode.BUDGET_EXCEEDED:
        what = (
            "nothing was executed and nothing was spent. Do it for less, report the blocker with "
            "report_progress (blockers), or hand the task to people with request_human_help"
        )
        return ToolFailed(f"{error}; {what}", code=ToolRefusalCode.BUDGET_EXCEEDED)
    if isinstance(error, Stale | Gone) or error.code == "not_holder":
        what = (
            "you do not hold this task any more: it has ended, or another agent has it. Stop working on it; "
            "your writes do not count"
        )
        return ToolFailed(f"{what} ({error})", code=ToolRefusalCode.STALE_TOKEN)
    if not is_final(error):
        what = (
            "no usable answer of the registry arrived, so it is unknown whether this was written. Wait a few "
            "seconds, then make the same call once more: it counts once"
        )
        return ToolFailed(f"{what} ({error})", code=ToolRefusalCode.UNAVAILABLE)
    if isinstance(error, NotAuthorized | NotPermitted):
        what = "the operator of this server must give it the key of the agent that holds the task"
        return ToolFailed(f"{error}: {what}", code=ToolRefusalCode.NOT_ALLOWED)
    return ToolFailed(str(error), code=error.code or ToolRefusalCode.REFUSED)
