"""List of agents, and search by capability (RFC-0016 6, 7)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic_core import from_json

from lifesign.domain.access.event_actor import keys_in_words
from lifesign.domain.access.permissions import Permission, Principal, may
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.agents import AgentList, AgentRecord, InconclusiveState, PendingCommand, Pool
from lifesign.domain.models.base import MAX_CAPABILITIES, Body, Capability, RoleId, moment
from lifesign.domain.observation.results import ResultClass
from lifesign.registry.request_handling.cursors import Cursor, cursor_at, numbers_in
from lifesign.registry.request_handling.operation import (
    SEPARATED_BY_COMMAS,
    Call,
    Operation,
    OperationReply,
)
from lifesign.registry.serializers.agent_records import (
    etag,
    existing_agent,
    record,
    summary_members,
)
from lifesign.registry.serializers.key_names import visible_key_names
from lifesign.registry.status_changes.agent_verdicts import assess_agent
from lifesign.registry.status_changes.monitor_row import verdict_context
from lifesign.registry.targets.agent_links import shown_links
from lifesign.registry.targets.list_targets import MaxEvidenceAge, observed_reason
from lifesign.storage.agents import agent_rows, commands, search
from lifesign.storage.agents.search import AgentFilter, ListedAgent
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.probing import probe_results

MAX_PAGE = 1_000


class Listing(Body):
    """The query of `GET /api/v1/agents` (RFC-0016 6.2)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    capabilities: Annotated[
        tuple[Capability, ...], Field(max_length=MAX_CAPABILITIES), SEPARATED_BY_COMMAS
    ] = ()
    """Capabilities, separated by commas: only agents with at least one of them."""
    status: Annotated[tuple[Status, ...], Field(min_length=1), SEPARATED_BY_COMMAS] = (Status.ACTIVE,)
    """Statuses, separated by commas: only agents with one of them. Absent: `active`."""
    health: Annotated[tuple[HealthStatus, ...], SEPARATED_BY_COMMAS] = ()
    """Health, separated by commas: only agents with one of these. Absent: any."""
    role_id: RoleId | None = None
    """Only agents of this pool. The answer then has the totals of the pool."""
    min_available_capacity: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Only agents with capacity for at least this many more tasks."""
    max_evidence_age: MaxEvidenceAge | None = None
    """Only agents that a probe measured within this time, in seconds."""
    sort: Literal["registered", "least_loaded"] = "registered"
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    cursor: Cursor | None = None
    """`cursor` of the previous page. Send it with the same query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentListPage:
    """One page of the agents that match a `Listing`."""

    agents: Sequence[ListedAgent]
    total: int
    cursor: str | None
    """Cursor of the next page; None on the last one."""
    pool: Pool | None


def list_agents(transaction: Transaction, call: Call) -> OperationReply:
    """Return one page of the matching agents, the number of all matches, and the capacity of the pool."""
    page = page_of(transaction, call)
    members = {
        "agents": [summary_members(agent, transaction.now_s) for agent in page.agents],
        "total": page.total,
        "cursor": page.cursor,
        "pool": None if page.pool is None else page.pool.model_dump(mode="json"),
    }
    return OperationReply(content={name: value for name, value in members.items() if value is not None})


def page_of(transaction: Transaction, call: Call) -> AgentListPage:
    """Return the page for a call of `list_agents`."""
    query = call.query_as(Listing)
    by_load = query.sort == "least_loaded"
    wanted = AgentFilter(
        agent_id=None if may(call.caller, Permission.LIST_AGENTS) else call.caller.agent_id,
        statuses=query.status,
        capabilities=query.capabilities,
        role_id=query.role_id,
        health=query.health,
        min_available_capacity=query.min_available_capacity,
        max_evidence_age_s=query.max_evidence_age,
    )
    after = None if query.cursor is None else numbers_in(query.cursor, query.sort, 1 + by_load)
    found = search.listing(transaction, wanted, after=after, limit=query.limit + 1, by_load=by_load)
    page = found[: query.limit]
    is_last = len(found) == len(page)
    is_complete = is_last and after is None
    return AgentListPage(
        agents=page,
        total=len(page) if is_complete else _total(transaction, call, wanted),
        cursor=None if is_last else cursor_at(query.sort, *search.place_of(page[-1], by_load=by_load)),
        pool=None if query.role_id is None else _pool(transaction, call.caller, query.role_id),
    )


def _total(transaction: Transaction, call: Call, wanted: AgentFilter) -> int:
    return call.totals.total(wanted, transaction.now_s, lambda: search.count(transaction, wanted))


def show_agent(transaction: Transaction, call: Call) -> OperationReply:
    """Return the complete record of one agent."""
    agent = existing_agent(transaction, call.agent_id)
    verdict = assess_agent(agent, 0, transaction.now_s, verdict_context(transaction))
    waiting = [
        PendingCommand(
            id=command.id,
            command=command.command,
            reason=command.reason,
            drain_timeout_seconds=command.drain_timeout_s,
        )
        for command in commands.waiting(transaction, [agent.id])
        if command.expires_at_s > transaction.now_s
    ]
    names = visible_key_names(transaction, call.caller, keys_in_words(agent.explanation)) or None
    shown = record(agent, transaction.now_s, verdict).model_copy(
        update={
            "pending_commands": waiting,
            "names": names,
            "links": shown_links(transaction, agent, call.webhook_networks),
        }
    )
    if (
        shown.observed is not None
        and (inconclusive := _inconclusive(transaction, agent.agent_id)) is not None
    ):
        observed = shown.observed.model_copy(update={"inconclusive": inconclusive})
        shown = shown.model_copy(update={"observed": observed})
    return OperationReply(content=shown, headers={"ETag": etag(agent)})


def _inconclusive(transaction: Transaction, agent_id: str) -> InconclusiveState | None:
    """Return since when and why probers no longer request something from an agent."""
    last = probe_results.last_of(transaction, agent_id)
    if last is None or last.result != ResultClass.NOT_MEASURED:
        return None
    return InconclusiveState(
        since=moment(last.result_since_s), reason=observed_reason(from_json(last.observed), None) or ""
    )


def _pool(transaction: Transaction, caller: Principal, role_id: str) -> Pool | None:
    """Return a pool's totals; None for an agent that is not of this pool."""
    if not may(caller, Permission.LIST_AGENTS):
        own = None if caller.agent_id is None else agent_rows.find(transaction, caller.agent_id)
        if own is None or own.role_id != role_id:
            return None
    totals = search.pool(transaction, role_id, Status.ACTIVE)
    return Pool(
        role_id=role_id,
        members={Status(status): number for status, number in totals.members.items()},
        max_concurrent_tasks=totals.max_concurrent_tasks,
        current_load=totals.current_load,
        available_capacity=totals.max_concurrent_tasks - totals.current_load,
    )


OPERATIONS = (
    Operation(
        method="GET",
        path="/api/v1/agents",
        summary="List agents by capability, status, role, health and free capacity (RFC-0016 6.1)",
        action=Permission.LIST_AGENTS,
        function=list_agents,
        is_write=False,
        query=Listing,
        answer=AgentList,
    ),
    Operation(
        method="GET",
        path="/api/v1/agents/{agent_id}",
        summary="Show one agent with all details (RFC-0016 6.3)",
        action=Permission.READ_AGENT,
        function=show_agent,
        is_write=False,
        answer=AgentRecord,
        errors=(404,),
    ),
)
